package zklock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sort"
	"time"

	"github.com/go-zookeeper/zk"
)

// InterProcessMutex is a lock on one path, the equivalent of Curator's recipe of
// that name. It has no state of its own beyond its options: any number of them may
// exist for one path, in one process or many, and one may be used by any number of
// goroutines, which exclude each other.
type InterProcessMutex struct {
	c    *Client
	path string // as given
	full string // with the chroot
	opts mutexOptions
}

type mutexOptions struct {
	identifier string
	revocable  bool
	inside     bool // the path is a record's: it is not made, and re-entry is an error
}

// MutexOption is an option of NewInterProcessMutex.
type MutexOption func(*mutexOptions) error

// AcquireOption is an option of one acquisition; it goes before the mutex's own.
type AcquireOption func(*mutexOptions) error

// WithIdentifier sets what participants read about this one, at most 1 KiB.
// Default: Config.Identifier.
func WithIdentifier(id string) MutexOption {
	return func(o *mutexOptions) error { return o.setIdentifier(id) }
}

// AcquireIdentifier is WithIdentifier for one acquisition.
func AcquireIdentifier(id string) AcquireOption {
	return func(o *mutexOptions) error { return o.setIdentifier(id) }
}

func (o *mutexOptions) setIdentifier(id string) error {
	if len(id) > maxIdentifier {
		return fmt.Errorf("%w: identifier %s: longer than %d bytes", ErrInvalidConfig, shorten(id), maxIdentifier)
	}
	o.identifier = id
	return nil
}

// WithRevocable lets others ask for the lock: when they do (Revoke, or Curator's
// Revoker), the lease is lost with reason Revoked. Default: such requests are ignored.
func WithRevocable() MutexOption {
	return func(o *mutexOptions) error { o.revocable = true; return nil }
}

// revokeData is what Curator's Revoker writes into a node to ask for it.
const revokeData = "__REVOKE__"

// NewInterProcessMutex makes a lock on path, which has to be absolute and as
// ZooKeeper takes it (ErrInvalidPath otherwise; see EscapeKey for keys of any
// shape). Nothing is sent. The node at path and its parents are made when they are
// first needed, path itself as a container, which the ensemble removes some time after
// the last child has gone. ErrInvalidConfig for a nil client or a bad option.
func NewInterProcessMutex(c *Client, path string, opts ...MutexOption) (*InterProcessMutex, error) {
	if c == nil {
		return nil, fmt.Errorf("%w: the client is nil", ErrInvalidConfig)
	}
	if err := validatePath(path); err != nil {
		return nil, err
	}
	m := &InterProcessMutex{c: c, path: path, full: c.cfg.hosts.Chroot + path}
	m.opts.identifier = c.cfg.Identifier
	for _, opt := range opts {
		if err := opt(&m.opts); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Path is the path as given to NewInterProcessMutex.
func (m *InterProcessMutex) Path() string { return m.path }

// Acquire waits for the lock. ctx bounds the wait, requests included, and not the
// hold. When it gives up it returns ErrNotAcquired joined with context.Cause(ctx), or
// with the ensemble's answer (no permission, say), or with ErrClosed; then nothing is
// left at the ensemble, or the client is deleting it. A lost session is no error: the
// wait goes on with a new one, at the end of the queue.
//
// An Acquire whose ctx comes from a held lease of the same path and client returns
// at once with a handle of its own on the same hold, and fails if that is lost.
func (m *InterProcessMutex) Acquire(ctx context.Context, opts ...AcquireOption) (*Lease, error) {
	return m.acquire(ctx, false, opts)
}

// TryAcquire takes the lock if it is free, and returns ErrHeld if it is not. ctx
// bounds its requests. On a held path it costs one read and no write, and none at
// all when the holder is in this process.
func (m *InterProcessMutex) TryAcquire(ctx context.Context, opts ...AcquireOption) (*Lease, error) {
	return m.acquire(ctx, true, opts)
}

// Do runs fn under the lock. fn's ctx is a child of ctx and ends with it, with the
// loss of the lease, or with its Release, whichever is first; context.Cause says
// which. Do never returns, and never releases, before fn has returned: a lease that
// is lost meanwhile keeps its node until then, unless the session ends first.
//
// It returns what Acquire returns if there is no lock, *LostError if the lease was
// lost and fn returned nil, both joined if fn returned an error, and fn's error
// otherwise. A panic in fn goes on after the release, and so does Do: it waits for the
// node to go, up to the session timeout, but no more than 100 ms once ctx is over;
// the client goes on deleting.
func (m *InterProcessMutex) Do(ctx context.Context, fn func(ctx context.Context, l *Lease) error, opts ...AcquireOption) error {
	if fn == nil {
		return fmt.Errorf("%w: Do: fn is nil", ErrInvalidConfig)
	}
	l, err := m.acquire(ctx, false, opts)
	if err != nil {
		return err
	}
	l.hold.pin()
	if err := l.Err(); err != nil { // lost before it could be kept for fn
		l.hold.unpin()
		_ = l.Release(ctx)
		return err
	}
	fnCtx, cancel := l.bind(ctx)
	returned := false
	defer func() {
		if !returned { // fn panicked, or ended its goroutine
			_ = m.endDo(ctx, l, cancel)
		}
	}()
	fnErr := fn(fnCtx, l)
	returned = true
	released := m.endDo(ctx, l, cancel)
	var lost *LostError
	if errors.As(released, &lost) {
		return errors.Join(fnErr, lost)
	}
	// A release that is pending is no failure of fn: it ran under the lock, and the
	// client goes on deleting.
	return fnErr
}

// bind derives the ctx of a function that runs under the lease: a child of ctx that
// carries the lease, behind those that ctx carries, and ends with it. ctx need not be
// the one that the lease was acquired with.
func (l *Lease) bind(ctx context.Context) (context.Context, context.CancelFunc) {
	parent, _ := ctx.Value(leaseKey{}).(*leaseLink)
	bound, cancel := context.WithCancelCause(context.WithValue(ctx, leaseKey{}, &leaseLink{lease: l, parent: parent}))
	stop := context.AfterFunc(l.ctx, func() { cancel(context.Cause(l.ctx)) })
	return bound, func() {
		stop()
		cancel(ErrReleased)
	}
}

// releaseGrace is how long Do waits for its release after its ctx has ended.
const releaseGrace = 100 * time.Millisecond

// endDo releases what Do acquired. It does not wait longer than the session lives, nor
// longer than a moment once ctx is over.
func (m *InterProcessMutex) endDo(ctx context.Context, l *Lease, cancel context.CancelFunc) error {
	l.hold.unpin()
	wait, done := context.WithTimeout(context.WithoutCancel(ctx), m.c.SessionTimeout())
	defer done()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(releaseGrace, done) })()
	err := l.Release(wait)
	cancel()
	if errors.Is(err, ErrPending) {
		m.c.log.Warn("zklock: the release is pending", "znode_path", l.Path(), "error", err)
	}
	return err
}

func (m *InterProcessMutex) acquire(ctx context.Context, try bool, opts []AcquireOption) (*Lease, error) {
	o := m.opts
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return nil, err
		}
	}
	if !o.inside {
		if l, err := m.reentrant(ctx); l != nil || err != nil {
			return l, err
		}
	}
	if ctx.Err() != nil {
		return nil, notAcquired(context.Cause(ctx))
	}
	if m.c.isClosing() {
		return nil, notAcquired(ErrClosed)
	}
	start := m.c.cfg.Clock.Now()
	m.c.met.waiting(1)
	l, err := m.queueUp(ctx, try, o)
	m.c.met.waiting(-1)
	m.c.met.acquired(outcome(ctx, err), m.c.cfg.Clock.Now().Sub(start))
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, ErrHeld):
		return nil, ErrHeld
	case m.c.session().awaitUp(ended) != nil:
		// No connection: what the servers said last belongs to the reason.
		return nil, notAcquired(errors.Join(err, m.c.serverErrors()))
	default:
		return nil, notAcquired(err)
	}
}

// ended is a context that is over, for a look without a wait.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// outcome is the label of zklock_acquire_seconds. The reason for the end of ctx is the
// caller's to choose, so the error does not tell.
func outcome(ctx context.Context, err error) string {
	switch ended := ctx.Err(); {
	case err == nil:
		return "acquired"
	case errors.Is(err, ErrHeld):
		return "held"
	case errors.Is(err, ErrClosed):
		return "closed"
	case errors.Is(ended, context.DeadlineExceeded):
		return "timeout"
	case ended != nil:
		return "canceled"
	default:
		return "error"
	}
}

// queueUp stands in line in this process, and then at the ensemble.
func (m *InterProcessMutex) queueUp(ctx context.Context, try bool, o mutexOptions) (l *Lease, err error) {
	data := m.c.nodeData(o.identifier, time.Now())
	t := m.c.enqueue(m.full, try, data)
	if t == nil {
		return nil, ErrHeld
	}
	defer func() {
		if err != nil {
			t.leave()
		}
	}()
	if err := m.c.await(ctx, t.node); err != nil {
		return nil, err
	}
	a := &attempt{m: m, ticket: t, try: try, opts: o}
	return a.run(ctx)
}

// await waits for ch, ctx or Close.
func (c *Client) await(ctx context.Context, ch <-chan struct{}) error {
	select {
	case <-ch:
		return nil
	default:
	}
	select {
	case <-ch:
		return nil
	case <-c.closing:
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// identity is the data of a lock node, for people and tools.
type identity struct {
	ID    string    `json:"id"`
	Host  string    `json:"host,omitempty"`
	PID   int       `json:"pid,omitempty"`
	Since time.Time `json:"since"`
}

// nodeData is the data of a lock node. All but the time is the same every time.
func (c *Client) nodeData(id string, since time.Time) []byte {
	head := c.head
	if id != c.cfg.Identifier {
		head = identityHead(id, c.cfg.host)
	}
	data := make([]byte, 0, len(head)+len(`"`+time.RFC3339Nano+`"}`))
	return append(since.UTC().Round(time.Millisecond).AppendFormat(append(data, head...), `"`+time.RFC3339Nano+`"`), '}')
}

// identityHead is an identity without its time, which is the last field.
func identityHead(id, host string) []byte {
	data, err := json.Marshal(identity{ID: id, Host: host, PID: os.Getpid()})
	if err != nil {
		return []byte(`{"since":`) // strings, a number and a time: it cannot fail
	}
	return data[:bytes.LastIndex(data, []byte(`"since":`))+len(`"since":`)]
}

// Participant is one contender for a lock: the holder, or one that waits.
type Participant struct {
	Path       string    // its lock node, with the chroot
	Sequence   int32     // its sequence number; it wraps, so it is no measure of age
	SessionID  int64     // the session that owns the node
	Token      Token     // its fencing token, once it holds
	Identifier string    // what it says of itself; the raw data if it is not one of ours
	Since      time.Time // when it joined, by its own clock; by the server's if it does not say
	Holder     bool      // first in the queue
}

// Participants lists the contenders as of now, the holder first, then in the order
// in which they will get the lock. It syncs with the leader first and reads each
// node: 2 requests and one for every participant. An empty list means that nobody
// is there, or that the path does not exist.
func (m *InterProcessMutex) Participants(ctx context.Context) ([]Participant, error) {
	for {
		s, err := m.c.live(ctx)
		if err == nil {
			var ps []Participant
			if ps, err = m.participants(ctx, s); err == nil {
				return ps, nil
			}
			if !answered(err) && !unknownCode(err) && ctx.Err() == nil && !m.c.isClosing() {
				continue // the connection broke, or the session was lost: ask the next
			}
		}
		return nil, fmt.Errorf("zklock: participants of %s: %w", m.path, err)
	}
}

func (m *InterProcessMutex) participants(ctx context.Context, s *session) ([]Participant, error) {
	if _, err := call(ctx, s, func(conn *zk.Conn) (string, error) { return conn.Sync(m.full) }); err != nil {
		return nil, err
	}
	children, err := m.c.children(ctx, s, m.full)
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	cs := contenders(children)
	sort.Slice(cs, func(i, j int) bool { return cs[i].before(cs[j]) })
	var ps []Participant
	for _, c := range cs {
		node := m.full + "/" + c.name
		r, err := get(ctx, s, node)
		if errors.Is(err, zk.ErrNoNode) {
			continue // gone since the listing
		}
		if err != nil {
			return nil, err
		}
		p := Participant{
			Path: node, Sequence: c.seq, SessionID: r.stat.EphemeralOwner, Token: Token(r.stat.Czxid),
			Identifier: string(r.data), Since: time.UnixMilli(r.stat.Ctime), Holder: len(ps) == 0,
		}
		var id identity
		if json.Unmarshal(r.data, &id) == nil && id.ID != "" {
			p.Identifier, p.Since = id.ID, id.Since
		}
		ps = append(ps, p)
	}
	return ps, nil
}

// Revoke asks p to give the lock up, by writing what Curator's Revoker writes into
// its node. Only a lease acquired with WithRevocable, or Curator's equivalent, obeys.
// A participant that is gone is no error.
func (m *InterProcessMutex) Revoke(ctx context.Context, p Participant) error {
	s, err := m.c.live(ctx)
	if err == nil {
		_, err = call(ctx, s, func(conn *zk.Conn) (*zk.Stat, error) { return conn.Set(p.Path, []byte(revokeData), -1) })
	}
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return fmt.Errorf("zklock: revoke %s: %w", p.Path, err)
	}
	return nil
}
