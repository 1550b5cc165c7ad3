package zklock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// Token is a fencing token: the czxid of the lock node. Tokens grow strictly from
// holder to holder of a path for as long as the ensemble lives, also when the
// parent node was removed and made again. A store that refuses a token smaller than
// the largest it has seen is safe from late writes. It fits a BIGINT.
type Token int64

// String prints the token in hexadecimal, as ZooKeeper prints a zxid: "0x10000002a".
func (t Token) String() string { return "0x" + strconv.FormatUint(uint64(t), 16) }

// LeaseState is what a Lease knows of itself.
type LeaseState int

const (
	// LeaseHeld: the lock is ours.
	LeaseHeld LeaseState = iota + 1
	// LeaseSuspended: it was ours, and we cannot tell now. Pause. It becomes Held
	// again after a proof, or Lost.
	LeaseSuspended
	// LeaseLost: it is not ours any more. Final.
	LeaseLost
	// LeaseReleased: Release was called. Final.
	LeaseReleased
)

// String returns "Held", "Suspended", "Lost" or "Released".
func (s LeaseState) String() string {
	switch s {
	case LeaseHeld:
		return "Held"
	case LeaseSuspended:
		return "Suspended"
	case LeaseLost:
		return "Lost"
	case LeaseReleased:
		return "Released"
	default:
		return fmt.Sprintf("LeaseState(%d)", int(s))
	}
}

// Lease is one acquisition of a lock. It is never revived: once lost or released it
// stays so. It is safe for concurrent use, and may be released by another goroutine
// than the one that acquired it.
type Lease struct {
	hold   *hold
	ctx    context.Context
	cancel context.CancelCauseFunc

	// Guarded by hold.mu.
	released bool
	last     bool       // its Release gave the node up
	lost     *LostError // what Release found, if the lease was lost before
}

// Context ends when the lease does: with cause *LostError or ErrReleased. It keeps
// the values of Acquire's ctx and not its end, since that ctx bounds the wait and
// not the hold. An Acquire of the same path under it is re-entrant. While the lease
// is suspended the context goes on; see Await.
func (l *Lease) Context() context.Context { return l.ctx }

// Await is the gate to pass before every step that must not be taken by two: nil
// while the lease is held; it waits while the lease is suspended, and returns
// *LostError once it is lost, ErrReleased after Release, or the cause of ctx's end.
// It compares the clock with the trust deadline, so a process that was stopped and
// goes on gets the truth here without waiting for any event. It sends nothing.
func (l *Lease) Await(ctx context.Context) error {
	for {
		state, err, changed := l.look()
		if state != LeaseSuspended {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Lost is closed when the lease is lost: before a Release, or by one that finds the node
// gone.
func (l *Lease) Lost() <-chan struct{} { return l.hold.lostC }

// Err is nil while the lease is held or suspended, *LostError when it is lost and
// ErrReleased after Release. Like Await it looks at the clock.
func (l *Lease) Err() error {
	_, err, _ := l.look()
	return err
}

// State is the lease's state. Like Await it looks at the clock.
func (l *Lease) State() LeaseState {
	state, _, _ := l.look()
	return state
}

// look is what every gate does.
func (l *Lease) look() (state LeaseState, err error, changed <-chan struct{}) { //nolint:revive,staticcheck // err beside its state reads best here
	h := l.hold
	h.s.checkTrust(h)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case l.lost != nil:
		return LeaseLost, l.lost, nil
	case l.released:
		return LeaseReleased, ErrReleased, nil
	case h.state == LeaseLost:
		return LeaseLost, h.err, nil
	default:
		return h.state, nil, h.changed
	}
}

// Deadline is the trust deadline as of now: unless a new proof arrives, the lease is
// lost at that time. It is for planning; the gates decide. After the lease has
// ended it is in the past.
func (l *Lease) Deadline() time.Time {
	left := l.hold.s.trustUntil().Sub(l.hold.c.cfg.Clock.Now())
	if l.Err() != nil {
		left = min(left, 0)
	}
	return time.Now().Add(left)
}

// Token is the fencing token of this hold; leases that share a hold share it.
func (l *Lease) Token() Token { return l.hold.token }

// Path is the lock node, with the chroot, as Conn takes it.
func (l *Lease) Path() string { return l.hold.node }

// Verify asks the ensemble, in one quorum round trip, whether the lease is still
// ours: nil if it is, *LostError if not, and any other error if that is not known.
// An answer is about the past by the time it arrives; only the token, or Guard in
// the same transaction, protects a write.
func (l *Lease) Verify(ctx context.Context) error {
	if err := l.Err(); err != nil {
		return err
	}
	err := l.hold.s.verify(ctx, l.hold)
	if lost := l.Err(); lost != nil {
		return lost
	}
	if err != nil {
		return fmt.Errorf("zklock: verify %s: %w", l.hold.node, err)
	}
	return nil
}

// Guard is the condition that the lock node still exists, to go into a Multi of the
// caller's together with writes to the same ensemble: they are made only while the
// lock is held.
func (l *Lease) Guard() *zk.CheckVersionRequest {
	return &zk.CheckVersionRequest{Path: l.hold.node, Version: -1}
}

// Release gives the lease up: first its gates close and its context ends, then the
// node is deleted, with the last lease that shares it. It returns nil when the node
// is gone, *LostError if the lease had been lost before, or ErrPending when ctx ends
// first (joined with its cause) or the ensemble refuses the delete (joined with its
// answer): then the client goes on deleting for as long as the session lives. Calling
// it again is allowed and waits for the same thing.
func (l *Lease) Release(ctx context.Context) error {
	h := l.hold
	h.s.checkTrust(h)
	h.mu.Lock()
	if !l.released {
		l.released = true
		delete(h.leases, l)
		if h.state == LeaseLost {
			l.lost = h.err
		}
		if len(h.leases) == 0 {
			l.last = true
			if h.state != LeaseLost {
				h.setLocked(LeaseReleased)
			}
		}
	}
	lost, last := l.lost, l.last
	h.mu.Unlock()

	l.cancel(ErrReleased)
	if !last {
		if lost != nil {
			return lost
		}
		return nil
	}
	d := h.giveUp(nil)
	if lost != nil {
		return lost
	}
	defer h.ticket.leave()
	select {
	case <-d.done:
	case <-d.refused:
		select {
		case <-d.done: // it went after all
		default:
			return fmt.Errorf("%w: %s: %w", ErrPending, h.node, d.refusal)
		}
	case <-ctx.Done():
		select {
		case <-d.done:
		default:
			return fmt.Errorf("%w: %s: %w", ErrPending, h.node, context.Cause(ctx))
		}
	}
	if d.missing {
		return l.foundGone()
	}
	if d.err != nil {
		return fmt.Errorf("%w: %s: %w", ErrPending, h.node, d.err)
	}
	return nil
}

// foundGone makes a lost lease of one whose Release was the first to notice that
// somebody had deleted the node.
func (l *Lease) foundGone() error {
	h := l.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil {
		h.err = &LostError{Path: h.node, Token: h.token, Reason: NodeDeleted, At: h.c.cfg.Clock.Now(), Err: zk.ErrNoNode}
		close(h.lostC)
		h.c.met.lostAtRelease(NodeDeleted)
	}
	l.lost = h.err
	return l.lost
}

// hold is one lock node that is ours, shared by the leases that entered it again.
type hold struct {
	c        *Client
	s        *session
	path     string // the lock path, with the chroot
	node     string // the lock node
	token    Token
	ticket   *ticket
	revoke   bool // WithRevocable
	acquired time.Time
	lostC    chan struct{}

	// mu may be taken under the session's lock, so the session's lock is never taken
	// under mu.
	mu       sync.Mutex
	state    LeaseState
	err      *LostError
	changed  chan struct{} // closed and replaced when state changes
	leases   map[*Lease]struct{}
	pins     int           // functions of Do that run under it
	free     chan struct{} // closed while pins is zero
	given    *deletion     // since the node was given up
	giveLate bool          // it is to be given up once pins is zero
}

// newLease makes a handle on a hold; the caller adds it to h.leases.
func (h *hold) newLease(ctx context.Context) *Lease {
	l := &Lease{hold: h}
	base := context.WithoutCancel(ctx)
	parent, _ := base.Value(leaseKey{}).(*leaseLink)
	base = context.WithValue(base, leaseKey{}, &leaseLink{lease: l, parent: parent})
	l.ctx, l.cancel = context.WithCancelCause(base)
	return l
}

func (h *hold) setLocked(s LeaseState) {
	h.state = s
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *hold) suspend() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state == LeaseHeld {
		h.setLocked(LeaseSuspended)
	}
}

func (h *hold) resume() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state == LeaseSuspended {
		h.setLocked(LeaseHeld)
	}
}

func (h *hold) isSuspended() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state == LeaseSuspended
}

// lose ends the hold. Only the first end counts: a released one is not lost.
func (h *hold) lose(reason Reason, cause error) (lost bool) {
	h.mu.Lock()
	if !h.aliveLocked() {
		h.mu.Unlock()
		return false
	}
	h.err = &LostError{Path: h.node, Token: h.token, Reason: reason, At: h.c.cfg.Clock.Now(), Err: cause}
	h.setLocked(LeaseLost)
	close(h.lostC)
	leases := make([]*Lease, 0, len(h.leases))
	for l := range h.leases {
		leases = append(leases, l)
	}
	err := h.err
	h.mu.Unlock()

	for _, l := range leases {
		l.cancel(err)
	}
	h.ticket.leave() // the next in this process need not wait for our Release
	h.c.met.lost(reason, h.c.cfg.Clock.Now().Sub(h.acquired))
	h.c.logNode(h.s, h.node, h.token, "lost", err)
	if reason == Revoked {
		h.giveUp(nil)
	}
	return true
}

// nodeGone loses a hold whose node somebody deleted. It does nothing to one that
// was released: then the delete was ours.
func (h *hold) nodeGone() {
	h.s.checkTrust(h) // in a process that was stopped, that is what has happened
	// Lost before it leaves the proofs: until then the gates look at the deadline.
	if h.lose(NodeDeleted, zk.ErrNoNode) {
		h.s.nodesOwned(-1)
	}
	h.s.dropHold(h)
}

// giveUp has the node deleted, by e if that is given: at once, or, while a function
// of Do runs under a hold that was lost, once that function has returned.
func (h *hold) giveUp(e *ending) *deletion {
	h.mu.Lock()
	d, first := h.given, h.given == nil
	start := false
	if first {
		d = newDeletion(h.s, h.node)
		d.ticket = h.ticket
		if e != nil {
			d.step = e.step
		}
		d.after = func() {
			h.ticket.leave() // the next in this process
			if e != nil && e.pinned {
				h.unpin()
			}
		}
		h.given = d
		switch {
		case h.err != nil && (h.err.Reason == NodeDeleted || h.err.Reason == SessionExpired):
			d.finish(nil) // it is gone already
		case h.err != nil && h.pins > 0:
			h.giveLate = true
		default:
			start = true
		}
	}
	released := first && h.state == LeaseReleased
	h.mu.Unlock()
	// Without h.mu: the session takes it while it holds its own lock.
	if released {
		h.c.met.released(h.c.cfg.Clock.Now().Sub(h.acquired))
		h.c.logNode(h.s, h.node, h.token, "released", nil)
	}
	if start {
		h.startDeletion(d)
	}
	return d
}

func (h *hold) startDeletion(d *deletion) {
	// Out of the proofs before the delete is sent: an answer that the node is gone
	// must not be taken for somebody else's doing.
	h.s.dropHold(h)
	h.c.startDeletion(d)
}

// pin keeps the node for as long as a function of Do runs.
func (h *hold) pin() {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.s.pinned[h] = struct{}{}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pins++; h.pins == 1 {
		h.free = make(chan struct{})
	}
}

func (h *hold) unpin() {
	h.s.mu.Lock()
	h.mu.Lock()
	var late *deletion
	if h.pins--; h.pins == 0 {
		delete(h.s.pinned, h)
		close(h.free)
		if h.giveLate {
			late, h.giveLate = h.given, false
		}
	}
	h.mu.Unlock()
	h.s.mu.Unlock()
	if late != nil {
		h.startDeletion(late)
	}
}

// unpinned is closed when no function of Do runs under the hold.
func (h *hold) unpinned() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.free
}

// ownWatchDelay is how long a lease has to be held before a watch on its node is
// worth a request.
const ownWatchDelay = 50 * time.Millisecond

// youngHolds are the holds that are too young for a watch of their own. Most end before
// they are old enough, so they share one timer: to set one at every grant, and to have
// it fire for nothing, costs more than anything else that a grant does here.
type youngHolds struct {
	mu    sync.Mutex
	line  []youngHold // the oldest first
	armed bool
}

type youngHold struct {
	h   *hold
	due time.Time
}

func (y *youngHolds) add(h *hold) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.line = append(y.line, youngHold{h, time.Now().Add(ownWatchDelay)})
	if !y.armed {
		y.armed = true
		time.AfterFunc(ownWatchDelay, y.grow)
	}
}

// grow lets those that are old enough watch their nodes.
func (y *youngHolds) grow() {
	now := time.Now()
	y.mu.Lock()
	defer y.mu.Unlock()
	n := 0
	for n < len(y.line) && (!y.line[n].due.After(now) || !y.line[n].h.alive()) {
		if h := y.line[n].h; h.alive() {
			h.c.tasks.run(h.watchOwn)
		}
		n++
	}
	y.line = slices.Delete(y.line, 0, n)
	if y.armed = len(y.line) > 0; y.armed {
		time.AfterFunc(y.line[0].due.Sub(now), y.grow)
	}
}

// watchOwn watches the own node, so that a deletion by somebody else is seen at
// once and not with the next proof. It is off the critical path, and a hold that
// is over by then costs no request.
func (h *hold) watchOwn() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for h.alive() {
		data, events, err := getW(ctx, h.s, h.node)
		switch {
		case errors.Is(err, zk.ErrNoNode):
			h.nodeGone()
			return
		case err != nil:
			// Unknown: again on the next connection. NoAuth: the proofs have to do.
			if answered(err) || unknownCode(err) || h.s.isOver() {
				return
			}
			continue
		}
		if h.revoke && string(data) == revokeData {
			h.lose(Revoked, nil)
			h.s.dropHold(h)
			return
		}
		ev, ok := h.ownEvent(events)
		if !ok {
			return
		}
		if ev.Type == zk.EventNodeDeleted {
			h.nodeGone()
			return
		}
	}
}

// ownEvent waits for the watch on the own node for as long as the hold lives.
func (h *hold) ownEvent(events <-chan zk.Event) (zk.Event, bool) {
	for {
		h.mu.Lock()
		alive, changed := h.aliveLocked(), h.changed
		h.mu.Unlock()
		if !alive {
			return zk.Event{}, false
		}
		select {
		case ev := <-events:
			return ev, true
		case <-h.s.dead:
			return zk.Event{}, false
		case <-changed: // suspended, resumed or over
		}
	}
}

func (h *hold) aliveLocked() bool { return h.state == LeaseHeld || h.state == LeaseSuspended }

func (h *hold) alive() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.aliveLocked()
}

type leaseKey struct{}

// leaseLink chains the leases that a context carries, innermost first.
type leaseLink struct {
	lease  *Lease
	parent *leaseLink
}

// LeaseFromContext returns the innermost lease that ctx carries: of Lease.Context,
// or of the ctx that Do gives to its function.
func LeaseFromContext(ctx context.Context) (*Lease, bool) {
	link, _ := ctx.Value(leaseKey{}).(*leaseLink)
	if link == nil {
		return nil, false
	}
	return link.lease, true
}

// reentrant returns a new handle on the hold of the same path and client that ctx
// carries, if there is one. It waits while that hold is suspended.
func (m *InterProcessMutex) reentrant(ctx context.Context) (*Lease, error) {
	link, _ := ctx.Value(leaseKey{}).(*leaseLink)
	for ; link != nil; link = link.parent {
		l := link.lease
		if l.hold.c != m.c || l.hold.path != m.full {
			continue
		}
		switch err := l.Await(ctx); {
		case errors.Is(err, ErrReleased):
			continue // that handle is over; an outer one may not be
		case err != nil:
			return nil, notAcquired(err)
		}
		if again := l.hold.enter(ctx); again != nil {
			return again, nil
		}
	}
	return nil, nil
}

// enter adds a handle unless the hold has ended.
func (h *hold) enter(ctx context.Context) *Lease {
	l := h.newLease(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.aliveLocked() {
		l.cancel(ErrReleased)
		return nil
	}
	h.leases[l] = struct{}{}
	return l
}
