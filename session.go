package zklock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock/internal/hosts"
	"github.com/go-zklock/zklock/internal/wire"
)

// Client is one ZooKeeper session at a time and the locks held on it. It is safe
// for concurrent use; one per process is usual. When a session is lost the Client
// opens a new one by itself; leases of the old one stay lost.
type Client struct {
	cfg   resolved
	log   *slog.Logger // hands over to Config.Logger on a goroutine of its own
	logs  *serial
	met   *metrics
	hosts *hosts.Provider

	mu        sync.Mutex
	sess      *session // the current one; never nil
	state     ConnectionState
	suspended time.Time // since when, while state is Suspended
	listeners []*listener
	queues    map[string]*queue
	known     map[string]time.Time // paths seen to exist, and when
	abandoned map[string]time.Time // uuids of creates whose fate is open, and until when they matter
	dialErrs  map[string]error     // the last error of each server, until one answers
	plain     bool                 // the ensemble has no container nodes
	apart     bool                 // it makes none in a transaction
	cut       *wire.Conn           // on which such a transaction was not answered, since one was
	replies   int                  // the largest that is taken, in bytes; 0 for the default
	begun     bool                 // a session has been ready once
	closing   chan struct{}        // closed when Close begins
	ended     chan struct{}        // closed when Close has ended the session, or given it up

	closeOnce sync.Once
	closeErr  error
	tasks     tasks // every goroutine of the client but the listeners'

	young youngHolds
	head  []byte // see nodeData
}

// tasks counts goroutines, so that Close can wait for them. (A sync.WaitGroup may
// not be added to while somebody waits for it.)
type tasks struct {
	mu    sync.Mutex
	n     int
	ended chan struct{} // closed when n is 0; nil while nobody waits
}

// run runs f on a goroutine that is counted.
func (t *tasks) run(f func()) {
	t.begin()
	go func() {
		defer t.end()
		f()
	}()
}

func (t *tasks) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n++
}

func (t *tasks) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n--; t.n == 0 && t.ended != nil {
		close(t.ended)
		t.ended = nil
	}
}

// done returns a channel that is closed when no goroutine is left.
func (t *tasks) done() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n == 0 {
		ch := make(chan struct{})
		close(ch)
		return ch
	}
	if t.ended == nil {
		t.ended = make(chan struct{})
	}
	return t.ended
}

// Connect opens a session and returns once it can be used. It gives up when ctx
// ends, or after Config.SessionTimeout if ctx has no deadline, with an error that
// holds the last failure of each server; refused credentials (ErrAuthFailed) end
// it at once. A Config that breaks a rule is refused with ErrInvalidConfig before
// anything is dialled.
func Connect(ctx context.Context, cfg Config) (*Client, error) {
	r, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, r.SessionTimeout,
			fmt.Errorf("no server was ready within the session timeout of %v: %w", r.SessionTimeout, context.DeadlineExceeded))
		defer cancel()
	}
	c := &Client{
		cfg:       r,
		logs:      new(serial),
		hosts:     hosts.NewProvider(r.hosts.Addrs, r.Seed),
		queues:    make(map[string]*queue),
		known:     make(map[string]time.Time),
		abandoned: make(map[string]time.Time),
		dialErrs:  make(map[string]error),
		closing:   make(chan struct{}),
		ended:     make(chan struct{}),
		state:     Suspended,
	}
	c.log = newLog(r.Logger.Handler(), c.logs)
	c.head = identityHead(r.Identifier, r.host)
	if c.met, err = newMetrics(r.Registerer, r.Root); err != nil {
		return nil, err
	}
	s, err := c.newSession()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.sess = s
	c.mu.Unlock()
	s.start()

	if err := s.awaitUp(ctx); err != nil {
		err = errors.Join(fmt.Errorf("zklock: connect: %w", err), c.serverErrors())
		_ = c.Close()
		return nil, err
	}
	if r.Registerer != nil {
		c.tasks.run(c.pollEnsemble)
	}
	return c, nil
}

// serverErrors joins the last failure of every server that has not answered since.
func (c *Client) serverErrors() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, a := range c.cfg.hosts.Addrs {
		if err := c.dialErrs[a]; err != nil {
			errs = append(errs, fmt.Errorf("server %s: %w", a, err))
		}
	}
	return errors.Join(errs...)
}

func (c *Client) noteServer(address string, err error) {
	c.mu.Lock()
	if err == nil {
		delete(c.dialErrs, address)
	} else {
		c.dialErrs[address] = err
	}
	c.mu.Unlock()
	if err != nil {
		c.log.Debug("zklock: server not usable", "server", address, "error", err)
	}
}

// SessionID is the id of the current session. It changes after a loss; 0 until
// the new session is there. It can be negative.
func (c *Client) SessionID() int64 {
	s := c.session()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// SessionTimeout is T, as the server granted it for the current connection. Until
// one has, it is what Config asked for.
func (c *Client) SessionTimeout() time.Duration {
	s := c.session()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timeout == 0 {
		return c.cfg.SessionTimeout
	}
	return s.timeout
}

// Conn is the current session's connection, for the caller's own requests; it is
// never nil. After a loss Conn returns another one and the old one is closed, so it
// should be asked for anew and not be kept. Its requests have no ctx; they wait
// while the connection is down and end with the session. Do not Close it. Paths
// include the chroot, if there is one.
func (c *Client) Conn() *zk.Conn { return c.session().conn }

func (c *Client) session() *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sess
}

// live returns the current session, ready for requests, or why there is none:
// ErrClosed or the cause of ctx's end.
func (c *Client) live(ctx context.Context) (*session, error) {
	for {
		s := c.session()
		err := s.awaitUp(ctx)
		if err == nil {
			return s, nil
		}
		if c.isClosing() {
			return nil, ErrClosed
		}
		if cause := context.Cause(ctx); cause != nil {
			if !errors.Is(err, cause) { // the session was lost before, and there is no other yet
				err = fmt.Errorf("%w: %w", cause, err)
			}
			return nil, err
		}
		if errors.Is(err, ErrAuthFailed) {
			return nil, err
		}
		select {
		case <-s.replaced:
		case <-c.closing:
		case <-ctx.Done():
		}
	}
}

func (c *Client) isClosing() bool {
	select {
	case <-c.closing:
		return true
	default:
		return false
	}
}

// sessionLost replaces a lost session by a new one, unless the client is closing.
func (c *Client) sessionLost(s *session, reason Reason, cause error) {
	if reason != ClientClosed {
		c.met.sessionLost()
		c.log.Warn("zklock: session lost", "event", "session_expired", "session_id", hexID(s.sessionID()), "reason", string(reason), "error", cause)
		c.setState(Lost, s.sessionID(), cause)
	}
	authErr := s.authFailure()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sess != s || c.isClosing() {
		return
	}
	next, err := c.newSession()
	if err != nil {
		// zk.Connect fails only on an empty server list, which resolve refused.
		c.log.Error("zklock: no new session", "error", err)
		return
	}
	next.authErr = authErr
	c.sess = next
	close(s.replaced)
	next.start()
}

// Close ends the client: waiters return ErrClosed, every lease is lost with
// reason ClientClosed, and then the session is ended, which deletes its nodes at
// once. The session of a Do whose function still runs is not ended before that
// function returns; Close waits for it up to the smaller of the session timeout
// and 5 s, and says in its error what it left to expire. Further calls return the
// same.
func (c *Client) Close() error {
	c.closeOnce.Do(func() { c.closeErr = c.shutdown() })
	return c.closeErr
}

const maxCloseWait = 5 * time.Second

func (c *Client) shutdown() error {
	wait := min(c.SessionTimeout(), maxCloseWait)
	c.mu.Lock()
	close(c.closing) // wakes the waiters
	s := c.sess
	c.mu.Unlock()

	// The gates close and the contexts end before anything is given up.
	id := s.sessionID()
	holds := s.closeHolds()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	var errs []error
	expired := false
	await := func(ch <-chan struct{}) bool {
		if expired {
			select {
			case <-ch:
				return true
			default:
				return false
			}
		}
		select {
		case <-ch:
			return true
		case <-timer.C:
			expired = true
			return false
		}
	}
	running := 0
	for _, h := range holds {
		if !await(h.unpinned()) {
			running++
		}
	}
	if running > 0 {
		errs = append(errs, fmt.Errorf("zklock: close: %d functions under a lock did not return within %v; their nodes go when session %s expires", running, wait, hexID(id)))
		s.lose(ClientClosed, ErrClosed) // cuts the socket and does not end the session
	} else {
		// This deletes every node of the session in one transaction, also those whose
		// create has not been answered: it is the last request on the connection.
		if acked := s.end(); !acked && id != 0 {
			errs = append(errs, fmt.Errorf("zklock: close: the ensemble did not confirm the end of session %s; it expires", hexID(id)))
		}
	}
	close(c.ended)
	c.setState(Closed, id, nil)
	await(c.tasks.done())
	await(c.logs.drained())
	return errors.Join(errs...)
}

// hexID prints a session id as the servers do.
func hexID(id int64) string { return fmt.Sprintf("0x%x", uint64(id)) }

// maxReply is the size of the largest reply that is taken.
func (c *Client) maxReply() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return cmp.Or(c.replies, wire.MaxReplyFrame)
}

// session is one ZooKeeper session: one zk.Conn, which is never used for another
// (the library would run requests queued before a loss on the next session).
type session struct {
	c      *Client
	conn   *zk.Conn
	dials  context.Context // ends with the session
	cancel context.CancelCauseFunc
	begun  chan struct{} // closed by start: conn is set
	dead   chan struct{} // closed when lost or ended
	// replaced is closed when the client has the next session. The gates of this
	// one's leases are closed by then.
	replaced chan struct{}
	wake     chan struct{} // tells the keeper to look again

	mu        sync.Mutex
	id        int64         // 0 until the first connect response
	timeout   time.Duration // T, 0 until then
	delay     time.Duration // R
	attempt   *wire.Conn    // dialled, perhaps not ready
	wire      *wire.Conn    // ready; nil while the connection is down
	changed   chan struct{} // closed and replaced when wire, suspended or isDead change
	suspended bool
	isDead    bool
	reason    Reason
	cause     error
	authErr   error                      // the last refusal of credentials
	lastTouch time.Time                  // when the newest answered request was sent
	anchor    time.Time                  // the newest anchor proved
	deadline  time.Time                  // D, the trust deadline
	nextBeat  time.Time                  // when the next proof, sync or ping is due
	nextPing  time.Time                  // when a ping between two of those is due
	keepsAt   time.Time                  // when the keeper looks again by itself
	beats     map[*beat]struct{}         // proofs and syncs not answered
	holds     map[*hold]struct{}         // what the proofs are about
	pinned    map[*hold]struct{}         // what functions of Do run under, lost or not
	creates   map[string]*czxidBox       // lock nodes being made, by the path asked for
	sent      map[string]func()          // what comes after a create or delete has been sent, by the path asked for
	owned     int                        // lock nodes that exist
	watches   map[string]<-chan zk.Event // on predecessors, not fired
	endAcked  bool                       // the ensemble confirmed closeSession

	// makers counts creates of containers in flight. The library reads the answer of
	// one while it may still be written, if the Conn is closed meanwhile.
	makers tasks
}

type czxidBox struct{ zxid int64 }

// errSessionOver wraps the reason a session ended for calls that wait on it.
var errSessionOver = errors.New("the session is over")

func (c *Client) newSession() (*session, error) {
	s := &session{
		c:        c,
		begun:    make(chan struct{}),
		dead:     make(chan struct{}),
		replaced: make(chan struct{}),
		wake:     make(chan struct{}, 1),
		changed:  make(chan struct{}),
		beats:    make(map[*beat]struct{}),
		holds:    make(map[*hold]struct{}),
		pinned:   make(map[*hold]struct{}),
		creates:  make(map[string]*czxidBox),
		sent:     make(map[string]func()),
		watches:  make(map[string]<-chan zk.Event),
	}
	s.dials, s.cancel = context.WithCancelCause(context.Background())
	// The library shuffles and formats the list; ours is what it asks for addresses.
	conn, _, err := zk.Connect(c.cfg.hosts.Addrs, c.cfg.SessionTimeout,
		zk.WithHostProvider(&sessionHosts{s}),
		zk.WithDialer(s.dial),
		zk.WithLogger(libraryLog{c.log}),
		zk.WithLogInfo(false),
		// A request that does not fit is refused with ErrShortBuffer instead of sent:
		// the server would drop the connection of every lock (4 bytes of length).
		zk.WithMaxConnBufferSize(c.cfg.MaxBuffer+4),
	)
	if err != nil {
		return nil, fmt.Errorf("zklock: %w", err)
	}
	s.conn = conn
	return s, nil
}

// start runs the keeper. The session must be the client's current one by then.
func (s *session) start() {
	close(s.begun)
	s.c.tasks.run(s.keep)
}

// libraryLog sends what the library prints to slog at Debug.
type libraryLog struct{ log *slog.Logger }

func (l libraryLog) Printf(format string, args ...any) {
	l.log.Debug("zklock: client library: " + fmt.Sprintf(format, args...))
}

// sessionHosts is the library's view of the servers during one session.
type sessionHosts struct{ s *session }

func (h *sessionHosts) Init([]string) error { return nil }
func (h *sessionHosts) Len() int            { return h.s.c.hosts.Len() }
func (h *sessionHosts) Connected()          {}

// Next says "start over" only when the session is over, since only then does the
// library look whether it should quit. Otherwise it would pause for a second and
// fail the queued requests at each round; the pauses are made by dial.
func (h *sessionHosts) Next() (string, bool) {
	if h.s.dials.Err() != nil {
		return h.s.c.cfg.hosts.Addrs[0], true // the turn belongs to the next session
	}
	return h.s.c.hosts.Next(), false
}

// dial is the library's dialer. It waits out the back-off, dials, and wraps.
func (s *session) dial(network, address string, _ time.Duration) (net.Conn, error) {
	<-s.begun
	if s.dials.Err() != nil {
		return nil, context.Cause(s.dials)
	}
	if d := s.c.hosts.Pause(); d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-s.dials.Done():
		}
	}
	if s.dials.Err() != nil {
		return nil, context.Cause(s.dials)
	}
	ctx, cancel := context.WithTimeoutCause(s.dials, s.c.cfg.DialTimeout, fmt.Errorf("no connection within %v", s.c.cfg.DialTimeout))
	defer cancel()
	raw, err := s.c.cfg.dialRaw(ctx, network, address)
	if err != nil {
		s.c.noteServer(address, err)
		return nil, err
	}
	w := wire.New(raw, address, s.c.cfg.auth, s.c.cfg.DialTimeout, s.c.cfg.Clock.Now, s)
	w.MaxReply = s.c.maxReply()
	s.mu.Lock()
	dead := s.isDead
	s.attempt = w
	s.mu.Unlock()
	if dead {
		w.Kill(errSessionOver)
		return nil, errSessionOver
	}
	return w, nil
}

// Handshake, Up, Down and the rest make session a wire.Events.

// Handshake checks whose session a server offers.
func (s *session) Handshake(w *wire.Conn, h wire.Handshake) (time.Duration, error) {
	s.mu.Lock()
	id := s.id
	s.mu.Unlock()
	switch {
	case h.SessionID == 0 && id == 0:
		return 0, errors.New("the server refused to make a session")
	case h.SessionID == 0:
		err := fmt.Errorf("%s: %w", w.Address(), zk.ErrSessionExpired)
		s.lose(SessionExpired, err)
		return 0, err
	case id != 0 && h.SessionID != id:
		err := fmt.Errorf("%s answered a reconnect of session %s with session %s", w.Address(), hexID(id), hexID(h.SessionID))
		s.lose(SessionReplaced, err)
		return 0, err
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isDead {
		return 0, errSessionOver
	}
	s.id = h.SessionID
	if h.Timeout != s.timeout {
		s.grantedLocked(h.Timeout, id == 0)
	}
	s.touchLocked(h.Sent)
	return s.delay, nil
}

// grantedLocked takes over a newly granted T. A smaller one lowers the trust
// deadline at once to what it allows.
func (s *session) grantedLocked(t time.Duration, first bool) {
	log, id := s.c.log, hexID(s.id)
	asked := s.c.cfg.SessionTimeout
	switch {
	case !first:
		log.Error("zklock: servers grant different session timeouts; their minSessionTimeout and maxSessionTimeout must be equal",
			"session_id", id, "before", s.timeout, "now", t)
	case t != asked:
		log.Warn("zklock: the server granted another session timeout than asked for", "session_id", id, "asked", asked, "granted", t)
	}
	s.delay = s.c.cfg.reportDelay(t)
	if s.c.cfg.Trust == TrustQuorum && trusted(t)-s.delay < 2*heartbeat(t) {
		log.Error("zklock: the trust window is too short to hold a lock: TickTime must be well under the granted session timeout",
			"session_id", id, "tick_time", s.delay, "granted", t)
	}
	s.timeout = t
	if !s.anchor.IsZero() {
		if d := s.anchor.Add(trusted(t)); d.Before(s.deadline) {
			s.deadline = d
		}
	}
}

// Up makes a connection the session's.
func (s *session) Up(w *wire.Conn) {
	s.mu.Lock()
	if s.isDead {
		s.mu.Unlock()
		return
	}
	s.wire = w
	s.authErr = nil
	s.nextBeat = s.c.cfg.Clock.Now() // a proof of what is held, at once
	s.nextPing = s.nextBeat.Add(heartbeat(s.timeout) / 2)
	if len(s.holds) == 0 {
		s.suspended = false
		s.nextBeat = s.nextBeat.Add(heartbeat(s.timeout))
	}
	if !s.suspended {
		s.c.setState(Reconnected, s.id, nil)
	}
	// After the state, so that whoever waits for the connection finds it changed.
	s.broadcastLocked()
	s.mu.Unlock()
	s.c.hosts.Connected()
	s.c.noteServer(w.Address(), nil)
	s.wakeKeeper()
}

// Down suspends the session: its connection is gone.
func (s *session) Down(w *wire.Conn, err error) {
	var auth *wire.AuthError
	s.mu.Lock()
	ours := s.wire == w || s.attempt == w
	up := s.wire == w
	if s.attempt == w {
		s.attempt = nil
	}
	dead := s.isDead
	if up && !dead {
		s.wire = nil
		s.suspendLocked(fmt.Errorf("connection to %s: %w", w.Address(), err))
		s.broadcastLocked()
	}
	s.mu.Unlock()
	if dead || !ours {
		return
	}
	s.c.noteServer(w.Address(), err)
	if errors.As(err, &auth) {
		s.authRefused(fmt.Errorf("%w: %w", ErrAuthFailed, auth))
	}
}

// authRefused ends the session and keeps the refusal for those who wait for it.
func (s *session) authRefused(err error) {
	s.mu.Lock()
	s.authErr = err
	s.broadcastLocked()
	s.mu.Unlock()
	s.lose(AuthFailed, err)
}

func (s *session) authFailure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.authErr
}

// Touch notes an answered request.
func (s *session) Touch(w *wire.Conn, sent, _ time.Time) {
	s.mu.Lock()
	if s.isDead || s.wire != w {
		s.mu.Unlock()
		return
	}
	s.touchLocked(sent)
	// With TrustQuorum the answer to a sync ends the suspension of an idle session: a
	// server that is cut off from the others answers pings too.
	if s.suspended && len(s.holds) == 0 && s.c.cfg.Trust == TrustConnection {
		s.suspended = false
		s.c.setState(Reconnected, s.id, nil)
		s.broadcastLocked()
	}
	s.mu.Unlock()
}

func (s *session) touchLocked(sent time.Time) {
	if sent.After(s.lastTouch) {
		s.lastTouch = sent
	}
	if s.c.cfg.Trust == TrustConnection {
		s.provedLocked(sent)
	}
}

// Proof moves the trust deadline: the ensemble committed a write of ours, so the
// session lived until its timeout after the anchor at least.
func (s *session) Proof(w *wire.Conn, anchor time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isDead || s.wire != w {
		return
	}
	s.provedLocked(anchor)
}

func (s *session) provedLocked(anchor time.Time) {
	if !anchor.After(s.anchor) {
		return
	}
	s.anchor = anchor
	if d := anchor.Add(trusted(s.timeout)); d.After(s.deadline) {
		s.deadline = d
	}
}

// Created keeps the czxid of a lock node that somebody waits for.
func (s *session) Created(path string, zxid int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if box := s.creates[path]; box != nil {
		box.zxid = zxid
	}
}

// WatchEvent counts a notification.
func (s *session) WatchEvent() { s.c.met.watchEvent() }

// Answered counts a request.
func (s *session) Answered(op string, took time.Duration) { s.c.met.operation(op, took) }

// Expired ends the session: the server said so in an answer.
func (s *session) Expired(w *wire.Conn) {
	s.lose(SessionExpired, fmt.Errorf("%s: %w", w.Address(), zk.ErrSessionExpired))
}

// lose ends the session for good: closes the gates of its leases, cuts its
// socket without ending the session at the ensemble, and opens the next one.
func (s *session) lose(reason Reason, cause error) {
	s.mu.Lock()
	if s.isDead {
		s.mu.Unlock()
		return
	}
	s.isDead, s.reason, s.cause = true, reason, cause
	s.wire = nil
	attempt := s.attempt
	holds := s.takeHoldsLocked()
	s.disownLocked()
	close(s.dead)
	s.broadcastLocked()
	s.mu.Unlock()

	for _, h := range holds {
		h.lose(reason, cause)
	}
	s.cancel(errSessionOver)
	if attempt != nil {
		attempt.Kill(errSessionOver)
	}
	s.c.tasks.run(s.closeConn)
	s.c.sessionLost(s, reason, cause)
}

// closeHolds closes the gates of all leases and returns the holds. The session
// and its connection stay, since nodes are still to be deleted.
func (s *session) closeHolds() []*hold {
	s.mu.Lock()
	holds := s.takeHoldsLocked()
	for h := range s.pinned {
		if !slices.Contains(holds, h) {
			holds = append(holds, h) // lost already, and its function runs
		}
	}
	s.mu.Unlock()
	for _, h := range holds {
		h.lose(ClientClosed, ErrClosed)
	}
	return holds
}

func (s *session) takeHoldsLocked() []*hold {
	holds := make([]*hold, 0, len(s.holds))
	for h := range s.holds {
		holds = append(holds, h)
	}
	clear(s.holds)
	return holds
}

// end sends closeSession and says whether the ensemble confirmed it.
func (s *session) end() bool {
	s.mu.Lock()
	w := s.wire
	if s.isDead {
		s.mu.Unlock()
		return s.reason == SessionExpired
	}
	s.isDead, s.reason, s.cause = true, ClientClosed, ErrClosed
	s.disownLocked()
	close(s.dead)
	s.wire = nil
	attempt := s.attempt
	s.broadcastLocked()
	s.mu.Unlock()

	if w == nil {
		// Not connected: the library's Close would wait for a second.
		s.cancel(errSessionOver)
		if attempt != nil {
			attempt.Kill(errSessionOver)
		}
		s.c.tasks.run(s.closeConn)
		return false
	}
	patience := time.NewTimer(time.Second)
	defer patience.Stop()
	select {
	case <-s.makers.done():
	case <-patience.C:
		w.Kill(errSessionOver) // what is in flight ends with the connection
	}
	s.closeConn() // sends closeSession and waits for its answer, at most one second
	s.cancel(errSessionOver)
	w.Kill(errSessionOver)
	acked := w.CloseAcknowledged()
	s.mu.Lock()
	s.endAcked = acked
	s.mu.Unlock()
	return acked
}

// closeConn closes the library's Conn. The connection is gone, or about to answer.
func (s *session) closeConn() {
	<-s.makers.done()
	s.conn.Close()
}

func (s *session) broadcastLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *session) wakeKeeper() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// connection is the current one, nil while there is none.
func (s *session) connection() *wire.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wire
}

func (s *session) sessionID() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// awaitUp returns nil once requests can be sent, or why they cannot.
func (s *session) awaitUp(ctx context.Context) error {
	for {
		s.mu.Lock()
		up, dead, authErr, changed := s.wire != nil, s.isDead, s.authErr, s.changed
		cause := s.cause
		s.mu.Unlock()
		switch {
		case authErr != nil:
			return authErr
		case dead:
			return fmt.Errorf("%w: %w", errSessionOver, cause)
		case up:
			return nil
		}
		select {
		case <-changed:
		case <-s.c.closing:
			return ErrClosed
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// explain says in words what the wrapper says in a number.
func (s *session) explain(err error) error {
	if n, ok := wire.Oversize(err); ok {
		return fmt.Errorf("%w: it has %d bytes, the limit is %d", errOversize, n, s.c.maxReply())
	}
	return err
}

// call runs one request under ctx, on this session and only while it is
// connected. When ctx or the session ends first, the outcome is unknown and the
// late result is dropped; what it may have left behind is the caller's business.
func call[T any](ctx context.Context, s *session, request func(*zk.Conn) (T, error)) (T, error) {
	var zero T
	if err := s.awaitUp(ctx); err != nil {
		return zero, fmt.Errorf("%w: %w", errNotSent, err)
	}
	if ctx.Err() != nil {
		return zero, fmt.Errorf("%w: %w", errNotSent, context.Cause(ctx))
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	s.c.tasks.run(func() {
		v, err := request(s.conn)
		done <- result{v, s.explain(err)}
	})
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return zero, context.Cause(ctx)
	case <-s.dead:
		return zero, fmt.Errorf("%w: %w", errSessionOver, s.cause)
	}
}
