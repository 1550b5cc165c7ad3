package zklock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"
)

// attempt is one call of Acquire at the head of the local queue.
type attempt struct {
	m      *InterProcessMutex
	ticket *ticket
	try    bool
	opts   mutexOptions
}

// errAgain sends an attempt back to making a node: its session was lost, or the
// node is not in the queue any more.
var errAgain = errors.New("the node is gone")

// run makes a node and waits behind it until it is first, as often as needed.
func (a *attempt) run(ctx context.Context) (*Lease, error) {
	c := a.m.c
	for {
		s, err := c.live(ctx)
		if err != nil {
			return nil, err
		}
		if a.try {
			// One read tells that the lock is held; only then is a write worth it.
			err := a.look(ctx, s)
			if errors.Is(err, errAgain) {
				continue
			}
			if err != nil {
				return nil, err
			}
		}
		n, err := a.makeNode(ctx, s)
		if errors.Is(err, errAgain) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("make a lock node in %s: %w", a.m.full, err)
		}
		a.ticket.standsWith(&n.contender)
		l, err := a.wait(ctx, n)
		if err == nil {
			return l, nil
		}
		a.ticket.standsWith(nil)
		c.startDeletion(newDeletion(s, n.path))
		if !errors.Is(err, errAgain) {
			return nil, fmt.Errorf("queue of %s: %w", a.m.full, err)
		}
	}
}

// look returns ErrHeld if anybody is in the queue.
func (a *attempt) look(ctx context.Context, s *session) error {
	children, err := a.m.c.children(ctx, s, a.m.full)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return nil
	case a.m.c.transient(ctx, s, err):
		return nil // the connection broke; makeNode waits for the next
	case err != nil:
		if err = sessionGone(s, err); errors.Is(err, errAgain) {
			return err
		}
		return fmt.Errorf("queue of %s: %w", a.m.full, err)
	case len(contenders(children)) > 0:
		return ErrHeld
	}
	return nil
}

// wait waits until n is first in the queue, and takes the lock.
func (a *attempt) wait(ctx context.Context, n *node) (*Lease, error) {
	c, s := a.m.c, n.s
	// Behind a holder of this process there is nothing to watch: it tells us.
	if err := a.turn(ctx, s); err != nil {
		return nil, err
	}
	if p := a.ticket.predecessor(n.contender); p != nil && n.queue == nil && !a.try {
		if err := a.behind(ctx, s, n, a.m.full+"/"+p.name); err != nil {
			return nil, err
		}
	}
	for {
		if err := s.awaitUp(ctx); err != nil {
			return nil, sessionGone(s, err)
		}
		children, err := a.list(ctx, n)
		switch {
		case errors.Is(err, zk.ErrNoNode):
			return nil, errAgain
		case c.transient(ctx, s, err):
			continue // the connection broke; the node is still there
		case err != nil:
			return nil, sessionGone(s, err)
		}
		cs := contenders(children)
		c.met.queueLength(len(cs) + c.waitersWithoutNode(a.m.full))
		a.ticket.saw(cs)
		listed, predecessor := place(cs, n.contender)
		if !listed {
			return nil, errAgain
		}
		if predecessor == nil {
			l, err := a.grant(ctx, n)
			if l != nil || err != nil {
				return l, err
			}
			continue
		}
		if a.try {
			return nil, ErrHeld
		}
		// A deletion before us does not mean that it is our turn, so the queue is
		// always listed again.
		if err := a.behind(ctx, s, n, a.m.full+"/"+predecessor.name); err != nil {
			return nil, err
		}
	}
}

// list lists the queue, or takes the listing that was made right behind the create: if
// the node is in it, or if the next listing would fail as well.
func (a *attempt) list(ctx context.Context, n *node) ([]string, error) {
	c, behind := a.m.c, n.queue
	n.queue = nil
	switch {
	case behind == nil:
	case behind.err == nil && slices.Contains(behind.names, n.name):
		c.listed(n.s, a.m.full, behind.names)
		return behind.names, nil
	case behind.err != nil && !c.transient(ctx, n.s, behind.err):
		return nil, behind.err
	}
	return c.children(ctx, n.s, a.m.full)
}

// turn waits until the one before us in this process has left.
func (a *attempt) turn(ctx context.Context, s *session) error {
	select {
	case <-a.ticket.turn:
		return nil
	default:
	}
	select {
	case <-a.ticket.turn:
		return nil
	case <-s.dead:
		return sessionGone(s, nil)
	case <-a.m.c.closing:
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// sessionGone is errAgain if s was lost, since the wait goes on with the next
// session, and err otherwise.
func sessionGone(s *session, err error) error {
	if s.c.isClosing() {
		return ErrClosed
	}
	if s.isOver() {
		return errAgain
	}
	return err
}

// behind waits until something happens to the predecessor, or to the session. It
// watches with getData, which leaves no watch on a node that is gone already.
func (a *attempt) behind(ctx context.Context, s *session, n *node, predecessor string) error {
	c := a.m.c
	events, err := s.watchNode(ctx, predecessor)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return nil
	case errors.Is(err, zk.ErrNoAuth):
		events = nil // its owner hides it: the re-check has to do
	case c.transient(ctx, s, err):
		return nil
	case err != nil:
		return sessionGone(s, err)
	}
	hidden := events == nil
	for {
		recheck := time.NewTimer(c.recheckPeriod(s, a.m.full))
		select {
		case ev := <-events:
			recheck.Stop()
			s.unwatch(predecessor)
			c.logNode(s, n.path, n.token, "watch_fired", nil, "watch", ev.Type.String(), "predecessor", predecessor)
			return nil
		case <-s.dead:
			recheck.Stop()
			return sessionGone(s, nil)
		case <-c.closing:
			recheck.Stop()
			return ErrClosed
		case <-ctx.Done():
			recheck.Stop()
			return context.Cause(ctx)
		case <-recheck.C:
		}
		// A watch may have been lost, by the server or when the library could not
		// set it again. The one we have stays, so this asks without another.
		if hidden {
			return nil
		}
		if _, err := get(ctx, s, predecessor); errors.Is(err, zk.ErrNoNode) {
			return nil
		}
	}
}

// watchNode reads a node and watches it: one request, with or without a new watch.
// The library cannot take a watch back, so callers that give up and come again share
// one: its channel gets one event and is then closed, which wakes them all.
func (s *session) watchNode(ctx context.Context, path string) (<-chan zk.Event, error) {
	s.mu.Lock()
	events := s.watches[path]
	s.mu.Unlock()
	if events != nil {
		if _, err := get(ctx, s, path); err != nil {
			return nil, err
		}
		return events, nil
	}
	_, events, err := getW(ctx, s, path)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for other, ch := range s.watches {
		if len(ch) > 0 { // it fired after everybody had gone
			delete(s.watches, other)
		}
	}
	s.watches[path] = events
	return events, nil
}

// unwatch forgets a watch that has fired.
func (s *session) unwatch(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watches, path)
}

// recheckPeriod is T less up to a quarter, so that many waiters do not ask at once.
func (c *Client) recheckPeriod(s *session, path string) time.Duration {
	s.mu.Lock()
	t := s.timeout
	s.mu.Unlock()
	return t - c.hosts.Jitter(path, t/4)
}

// grant takes the lock for a node that was listed first. It returns neither a lease
// nor an error when the queue has to be listed again first.
func (a *attempt) grant(ctx context.Context, n *node) (*Lease, error) {
	c, s := a.m.c, n.s
	h := &hold{
		c: c, s: s, path: a.m.full, node: n.path, token: n.token,
		ticket: a.ticket, revoke: a.opts.revocable,
		acquired: c.cfg.Clock.Now(), lostC: make(chan struct{}), state: LeaseHeld,
		changed: make(chan struct{}), leases: make(map[*Lease]struct{}), free: make(chan struct{}),
	}
	close(h.free)
	for {
		// The lease has its handle before anything can be lost with it.
		l := h.newLease(ctx)
		h.leases[l] = struct{}{}
		added, changed, err := s.addHold(h)
		if added {
			c.met.granted()
			c.logNode(s, n.path, n.token, "acquired", nil)
			c.young.add(h)
			return l, nil
		}
		delete(h.leases, l)
		l.cancel(ErrNotAcquired)
		switch {
		case err != nil:
			return nil, sessionGone(s, err)
		case changed != nil:
			select {
			case <-changed:
				return nil, nil
			case <-c.closing:
				return nil, ErrClosed
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		if err := a.prove(ctx, s, h); err != nil {
			return nil, err
		}
	}
}

// prove moves the trust deadline before a grant: it was too near.
func (a *attempt) prove(ctx context.Context, s *session, h *hold) error {
	before := s.trustUntil()
	err := s.verify(ctx, h)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return errAgain
	case err != nil && !a.m.c.transient(ctx, s, err):
		return sessionGone(s, fmt.Errorf("proof of %s: %w", h.node, err))
	}
	if err == nil && s.trustUntil().After(before) {
		return nil
	}
	// The newest anchor is too old for now, or the connection is gone: let a touch
	// get old enough to anchor at.
	s.mu.Lock()
	pause := heartbeat(s.timeout) / 2
	s.mu.Unlock()
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-s.dead:
		return sessionGone(s, nil)
	case <-a.m.c.closing:
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
