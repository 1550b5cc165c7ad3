package zklock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock/internal/claim"
)

// deletion is a lock node that has to go. The background deleter works on it until
// the ensemble says that it is gone, or its session is over for certain, or the
// client is closed (which ends the session).
type deletion struct {
	s    *session // that made the node
	path string
	done chan struct{} // closed at the end; the fields below are set by then
	// missing: the first delete found no node, and none of ours can have been lost.
	missing bool
	err     error // why the client gave up

	// refused is closed when the ensemble first refused the delete; refusal is set
	// by then. The client goes on trying.
	refused chan struct{}
	refusal error

	ticket *ticket    // of the hold; the third behind it gets its node with the delete. May be nil
	step   claim.Step // what to do instead of deleting path; nil: delete it
	after  func()     // runs before done is closed, and before a wait for Close; nil: nothing
	once   sync.Once  // of after
}

func newDeletion(s *session, path string) *deletion {
	return &deletion{s: s, path: path, done: make(chan struct{}), refused: make(chan struct{})}
}

func (d *deletion) finish(err error) {
	d.leave()
	d.err = err
	close(d.done)
}

// leave does what comes after the deletion, or after the hope for it.
func (d *deletion) leave() {
	if d.after != nil {
		d.once.Do(d.after)
	}
}

// startDeletion sends the delete at once if it can be sent, and keeps at it in the
// background otherwise.
func (c *Client) startDeletion(d *deletion) {
	c.met.pending(1)
	c.tasks.run(func() {
		do := c.delete
		if d.step != nil {
			do = c.carryOut
		}
		err := do(d)
		c.met.pending(-1)
		d.finish(err)
	})
}

// carryOut tries the step of a deletion until it is done. Unlike a delete, a step has
// something to find out also when the session that made the node is over.
func (c *Client) carryOut(d *deletion) error {
	pause := newBackoff(c.SessionTimeout())
	for {
		s, err := c.liveUntilClosed()
		if err != nil {
			d.leave() // Close waits for what is pinned
			<-c.ended
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), c.deleteTimeout())
		done := d.step(ctx, claimSession{s})
		cancel()
		if done {
			if d.path != "" {
				d.s.nodesOwned(-1)
			}
			return nil
		}
		c.pause(pause.NextBackOff())
	}
}

// deleteTimeout bounds one delete request; an unanswered one is sent again.
func (c *Client) deleteTimeout() time.Duration { return c.SessionTimeout() }

func (c *Client) delete(d *deletion) error {
	pause := newBackoff(c.SessionTimeout())
	for tries := 0; ; tries++ {
		if d.s.isOver() && d.s.endedAtEnsemble() {
			return nil // and its nodes with it
		}
		s, err := c.liveUntilClosed()
		if err != nil {
			<-c.ended // Close ends the session, and the node with it
			if d.s.endedAtEnsemble() {
				return nil
			}
			return err
		}
		// The next in this process need not wait for the answer: what it sends from here
		// on comes after the delete, also at the ensemble.
		var j *joining
		if s == d.s {
			s.onSent(d.path, d.leave)
			if tries == 0 && d.ticket != nil {
				j = d.ticket.third(s)
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), c.deleteTimeout())
		err = c.remove(ctx, s, d.path, j)
		cancel()
		s.onSent(d.path, nil)
		switch {
		case errors.Is(err, errJoinRefused):
			d.ticket = nil // by itself
			tries--
			continue
		case err == nil:
			d.s.nodesOwned(-1)
			return nil
		case errors.Is(err, zk.ErrNoNode):
			// After an unanswered delete that is what success looks like.
			d.missing = tries == 0 && s == d.s
			d.s.nodesOwned(-1)
			return nil
		case answered(err):
			// Not allowed, most likely. It stays until its session ends.
			if d.refusal == nil {
				c.log.Error("zklock: a lock node cannot be deleted", "znode_path", d.path, "error", err)
				d.refusal = err
				close(d.refused)
			}
		case errors.Is(err, errNotSent):
			tries-- // nothing has left this process
		}
		c.pause(pause.NextBackOff())
		// A node that may not be deleted goes with its session. One whose delete was not
		// answered is asked about again: a server that was stopped may yet read what an
		// old connection sent, and that keeps the session alive.
		if answered(err) && s != d.s && c.outlived(d.s) {
			return nil
		}
	}
}

// errJoinRefused: nothing was deleted, because the create beside it was refused, or both
// together are larger than a request may be.
var errJoinRefused = errors.New("the create that went along was refused")

// remove deletes a node on session s, and carries out j in the same transaction.
func (c *Client) remove(ctx context.Context, s *session, path string, j *joining) error {
	if j == nil {
		_, err := call(ctx, s, func(conn *zk.Conn) (struct{}, error) { return struct{}{}, conn.Delete(path, -1) })
		return err
	}
	s.expectIn(j.box, j.create.Path)
	results, err := call(ctx, s, func(conn *zk.Conn) ([]zk.MultiResponse, error) {
		results, err := conn.Multi(&zk.DeleteRequest{Path: path, Version: -1}, j.create)
		s.unexpect(j.create.Path)
		j.answer <- joinedBy(results, err)
		return results, err
	})
	if errors.Is(err, errNotSent) {
		s.unexpect(j.create.Path)
		j.answer <- made{err: errAbsent}
		return err
	}
	op, err := claim.FailedOp(results, err)
	if op == 1 || errors.Is(err, zk.ErrShortBuffer) {
		return errJoinRefused
	}
	return err
}

// joinedBy is what the answer to the transaction of remove says of its create.
func joinedBy(results []zk.MultiResponse, err error) made {
	op, opErr := claim.FailedOp(results, err)
	switch {
	case err == nil:
		return secondOf(results)
	case op == 0, errors.Is(opErr, zk.ErrShortBuffer):
		return made{err: errAbsent}
	default:
		return made{err: opErr}
	}
}

// secondOf is the node that the second operation of a transaction made.
func secondOf(results []zk.MultiResponse) made {
	if len(results) < 2 { // it is looked for, then
		return made{err: errors.New("the answer to a transaction has too few results")}
	}
	return made{path: results[1].String}
}

// liveUntilClosed waits for a live session for as long as the client is open.
func (c *Client) liveUntilClosed() (*session, error) {
	for {
		s, err := c.live(context.Background())
		if err == nil || errors.Is(err, ErrClosed) {
			return s, err
		}
		// Credentials refused: the client goes on trying.
		if !c.pause(c.SessionTimeout() / 4) {
			return nil, ErrClosed
		}
	}
}

// pause waits, and says whether the client is still open.
func (c *Client) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-c.closing:
		return false
	}
}

// newBackoff is the pause between requests that fail though the connection is
// there.
func newBackoff(timeout time.Duration) *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(10*time.Millisecond),
		backoff.WithMaxInterval(max(timeout/4, 10*time.Millisecond)),
		backoff.WithMaxElapsedTime(0),
		backoff.WithRandomizationFactor(0),
	)
}

// endedAtEnsemble says whether the ensemble itself said that the session is over.
func (s *session) endedAtEnsemble() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.isDead && (s.reason == SessionExpired || s.endAcked)
}

// outlived says whether a lost session must have expired by now: T and two report
// delays after its last request, with a live ensemble.
func (c *Client) outlived(s *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.isDead && c.cfg.Clock.Now().Sub(s.lastTouch) > s.timeout+2*s.delay
}

// abandon sees to it that a create whose caller has gone leaves no node. answer
// delivers what the library says of the create, if that is still to come.
func (c *Client) abandon(s *session, dir, id string, answer <-chan made) {
	c.remember(s, id)
	c.met.pending(1)
	c.tasks.run(func() {
		defer c.met.pending(-1)
		if answer != nil {
			// The library always answers: with the reply, or when the connection or
			// the session ends. Only then can nothing of it still be queued.
			if m := <-answer; m.err == nil {
				c.forgive(id)
				s.nodesOwned(1)
				d := newDeletion(s, m.path)
				_ = c.delete(d)
				return
			} else if answered(m.err) || errors.Is(m.err, errAbsent) || errors.Is(m.err, errParents) {
				c.forgive(id)
				return
			}
		}
		c.hunt(s, dir, id)
	})
}

// abandonJoining does so for a create that goes along with a delete.
func (c *Client) abandonJoining(dir string, j *joining) {
	c.abandon(j.s, dir, j.id, j.answer)
}

// hunt looks for the node of an abandoned create until it is found and deleted, or
// certainly not there: absence counts on the session that sent the create, and
// otherwise once that session must have expired.
func (c *Client) hunt(s *session, dir, id string) {
	pause := newBackoff(c.SessionTimeout())
	for {
		cur, err := c.liveUntilClosed()
		if err != nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), c.deleteTimeout())
		name, err := c.search(ctx, cur, dir, id)
		cancel()
		if err == nil && name != "" {
			c.forgive(id)
			s.nodesOwned(1)
			d := newDeletion(s, dir+"/"+name)
			_ = c.delete(d)
			return
		}
		if err == nil && (cur == s || s.endedAtEnsemble() || c.outlived(s)) {
			return // isAbandoned keeps it for later listings
		}
		if !c.pause(pause.NextBackOff()) {
			return
		}
	}
}

// remember keeps the uuid of a create whose fate is open: any later listing that
// shows it deletes its node.
func (c *Client) remember(s *session, id string) {
	s.mu.Lock()
	until := c.cfg.Clock.Now().Add(2*s.timeout + 2*s.delay)
	s.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.cfg.Clock.Now()
	for other, t := range c.abandoned {
		if now.After(t) {
			delete(c.abandoned, other)
		}
	}
	c.abandoned[id] = until
}

func (c *Client) forgive(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.abandoned, id)
}

func (c *Client) anyAbandoned() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.abandoned) > 0
}

func (c *Client) isAbandoned(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.abandoned[id]
	return ok
}
