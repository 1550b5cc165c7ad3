package zklock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock/internal/wire"
)

// The trust deadline (doc.go, "The trust window"). The ensemble expires a session when its
// leader has not heard of it for T. The leader hears of it when the session is made
// or resumed, and otherwise by what followers report every half tick. What a
// client is told does not show that: a server cut off from the quorum answers
// pings, and a committed write does not touch the session at the leader. So a
// committed write counts as a proof that everything answered a report delay
// before it has been reported, if another answer of the leader shows that it ran
// when the report was due. The session is trusted until T after the newest such touch
// was sent.

// trusted is how long after an anchor a session of timeout t is trusted: T less
// one percent, for clocks that run at different speeds.
func trusted(t time.Duration) time.Duration { return t - t/100 }

// heartbeat is H: how often a proof goes out, or what stands for it while nothing is
// held.
func heartbeat(t time.Duration) time.Duration { return t / 6 }

const (
	// maxProof is how many nodes one proof is about, and maxProofBytes how many
	// bytes their paths may have: a request over jute.maxbuffer costs the connection.
	maxProof      = 1000
	maxProofBytes = 256 << 10
	// checkOverhead is what a check takes besides its path.
	checkOverhead = 17
)

var errSilent = errors.New("the server does not answer")

// beat is one proof or sync in flight, meant for the connection w. One that the library
// still had queued when that broke goes out on the next; its age says nothing of that.
type beat struct {
	w    *wire.Conn
	sent time.Time
}

// keep runs for as long as the session: it sends proofs and syncs, notices when
// they stay unanswered, and ends the session when its deadline passes.
func (s *session) keep() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.wake:
		case <-s.dead:
			return
		}
		timer.Reset(s.beat())
	}
}

// beat does what is due and returns how long it may wait for the next time: never
// more than H, since timers stand still while the system is suspended and the
// clock does not.
func (s *session) beat() time.Duration {
	now := s.c.cfg.Clock.Now()
	s.mu.Lock()
	if s.isDead || s.timeout == 0 {
		s.keepsAt = now.Add(time.Second)
		s.mu.Unlock()
		return time.Second // nothing to keep yet; the first connection wakes us
	}
	h := heartbeat(s.timeout)
	end := s.endLocked()
	if !now.Before(end) {
		err := s.silenceLocked(now)
		s.mu.Unlock()
		s.lose(TrustExpired, err)
		return h
	}
	next := end
	// Under the lock under which next was found: what comes earlier later on can tell.
	rest := func() time.Duration {
		d := min(next.Sub(now), h)
		s.keepsAt = now.Add(d)
		return d
	}
	w := s.wire
	if w == nil {
		defer s.mu.Unlock()
		return rest()
	}

	oldest, waiting := s.oldestBeatLocked(w)
	if waiting && (now.Sub(oldest) >= 2*h || now.Sub(oldest) >= h && s.hurriedLocked(now)) {
		d := rest()
		s.mu.Unlock()
		// A good server is a dial away; this one may be cut off from the others.
		w.Kill(fmt.Errorf("%s: %w", w.Address(), errSilent))
		return d
	}
	late := waiting && now.Sub(oldest) >= h
	if !now.Before(s.nextBeat) {
		s.nextBeat, s.nextPing = now.Add(h), now.Add(h/2)
		s.sendBeatLocked(w, now)
	} else if !now.Before(s.nextPing) {
		s.nextPing = s.nextBeat.Add(h / 2)
		s.sendHalfBeatLocked(w, now)
	}
	for _, t := range []time.Time{s.nextBeat, s.nextPing} {
		if t.Before(next) {
			next = t
		}
	}
	if waiting {
		for _, t := range []time.Time{oldest.Add(h), oldest.Add(2 * h), s.deadline.Add(-h)} {
			if t.After(now) && t.Before(next) {
				next = t
			}
		}
	}
	d := rest()
	s.mu.Unlock()
	if late {
		s.suspend(fmt.Errorf("%s has not answered for %v", w.Address(), now.Sub(oldest).Round(time.Millisecond)))
	}
	return d
}

// hurriedLocked says whether to leave a server after H of silence already: the
// leases held would be lost before 2H and a dial have passed. With the longer
// timeouts there is time to let a slow ensemble answer.
func (s *session) hurriedLocked(now time.Time) bool {
	return len(s.holds) > 0 && s.deadline.Sub(now) <= heartbeat(s.timeout)
}

// endLocked is when the session is over for us: D while a lease is held, and T
// after the last touch otherwise.
func (s *session) endLocked() time.Time {
	if len(s.holds) > 0 {
		return s.deadline
	}
	return s.lastTouch.Add(s.timeout)
}

// silenceLocked says how long nothing has been heard.
func (s *session) silenceLocked(now time.Time) error {
	if len(s.holds) > 0 {
		return fmt.Errorf("nothing proves that session %s has been heard of in the last %v", hexID(s.id), now.Sub(s.anchor).Round(time.Millisecond))
	}
	return fmt.Errorf("no request of session %s was answered in the last %v", hexID(s.id), now.Sub(s.lastTouch).Round(time.Millisecond))
}

// oldestBeatLocked returns when the oldest unanswered proof, sync or ping was sent.
func (s *session) oldestBeatLocked(w *wire.Conn) (oldest time.Time, waiting bool) {
	oldest, waiting = w.OldestPing()
	for b := range s.beats {
		if b.w != w {
			continue
		}
		if !waiting || b.sent.Before(oldest) {
			oldest, waiting = b.sent, true
		}
	}
	return oldest, waiting
}

// sendBeatLocked sends proofs of all that is held, or what keeps a first lease from
// having to wait if nothing is.
func (s *session) sendBeatLocked(w *wire.Conn, now time.Time) {
	if s.c.cfg.Trust == TrustConnection && !(s.suspended && len(s.holds) > 0) {
		s.c.tasks.run(w.Ping) // the cheapest request that the server counts as hearing from us
		return
	}
	if len(s.holds) == 0 {
		s.syncLocked(w, now)
		return
	}
	var chunk []*hold
	size := 0
	flush := func() {
		if len(chunk) > 0 {
			s.proveLocked(w, chunk, now)
		}
		chunk, size = nil, 0
	}
	// In the order of their tokens, so that a run can be repeated.
	for _, h := range slices.SortedFunc(maps.Keys(s.holds), func(a, b *hold) int { return cmp.Compare(a.token, b.token) }) {
		if len(chunk) == maxProof || size+len(h.node)+checkOverhead > min(maxProofBytes, s.c.cfg.MaxBuffer/2) {
			flush()
		}
		chunk = append(chunk, h)
		size += len(h.node) + checkOverhead
	}
	flush()
}

// sendHalfBeatLocked sends something halfway between two proofs that makes the anchor of
// the next younger, often by half of H: a ping to be anchored at, or, where H is long
// enough for the last proof to be that, a sync to show that the leader ran since.
func (s *session) sendHalfBeatLocked(w *wire.Conn, now time.Time) {
	switch {
	case s.c.cfg.Trust == TrustConnection: // every answer is an anchor
	case len(s.holds) > 0 && heartbeat(s.timeout) >= 2*s.delay:
		s.syncLocked(w, now)
	default:
		s.c.tasks.run(w.Ping)
	}
}

// proveLocked sends one proof about holds and sees to its answer.
func (s *session) proveLocked(w *wire.Conn, holds []*hold, now time.Time) {
	b := &beat{w: w, sent: now}
	s.beats[b] = struct{}{}
	s.c.tasks.run(func() {
		failed, err := s.check(s.conn, holds)
		s.mu.Lock()
		delete(s.beats, b)
		s.mu.Unlock()
		s.c.met.proof(s.c.cfg.Clock.Now().Sub(now))
		s.proved(w, holds, failed, err)
	})
}

// syncLocked sends a sync and sees to its answer. Unlike a ping's, it comes from the
// leader: it is what a later proof needs to be anchored at what was answered before,
// and its absence shows a server that is cut off from the others. Unlike a proof it
// writes nothing.
func (s *session) syncLocked(w *wire.Conn, now time.Time) {
	b := &beat{w: w, sent: now}
	s.beats[b] = struct{}{}
	s.c.tasks.run(func() {
		_, err := s.conn.Sync("/")
		s.mu.Lock()
		delete(s.beats, b)
		s.mu.Unlock()
		if err == nil {
			s.resume(w, nil)
		}
	})
}

// check runs multi{check(node)…}. failed is the first hold whose check failed.
func (s *session) check(conn *zk.Conn, holds []*hold) (failed *hold, err error) {
	ops := make([]any, len(holds))
	for i, h := range holds {
		ops[i] = &zk.CheckVersionRequest{Path: h.node, Version: -1}
	}
	results, err := conn.Multi(ops...)
	if err == nil {
		return nil, nil
	}
	for i, r := range results {
		// Only the first error means anything: the server stops checking there.
		if r.Error != nil && i < len(holds) {
			return holds[i], r.Error
		}
	}
	return nil, err
}

// proved draws the conclusions from a proof's answer.
func (s *session) proved(w *wire.Conn, holds []*hold, failed *hold, err error) {
	switch {
	case err == nil:
		s.resume(w, holds)
	case failed == nil:
		// Unanswered, or a connection that is gone: others notice that.
	case errors.Is(err, zk.ErrNoNode):
		// A node whose delete was sent has left the proofs; this one may have been
		// under way. Either way the others have yet to be proved.
		failed.nodeGone()
		s.beatNow()
	case errors.Is(err, zk.ErrNoAuth):
		// Somebody took the right to read it away. It cannot be proved any more, and
		// would take the other leases with it.
		s.c.log.Error("zklock: a held lock cannot be proved; its node must be readable for this client",
			"znode_path", failed.node, "session_id", hexID(s.sessionID()), "error", err)
		failed.lose(TrustExpired, fmt.Errorf("proof of %s: %w", failed.node, err))
		s.dropHold(failed)
		s.beatNow()
	default:
		s.c.log.Warn("zklock: a proof was refused", "session_id", hexID(s.sessionID()), "error", err)
	}
}

// beatNow has the next proof sent at once.
func (s *session) beatNow() {
	s.mu.Lock()
	s.nextBeat = s.c.cfg.Clock.Now()
	s.mu.Unlock()
	s.wakeKeeper()
}

// suspend marks the session and its leases as not known to be alive.
func (s *session) suspend(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.suspendLocked(cause)
	s.broadcastLocked()
}

// suspendLocked tells the client's state too: under the lock, so that listeners
// hear of it and of its end in that order.
func (s *session) suspendLocked(cause error) {
	if s.isDead || s.suspended {
		return
	}
	s.suspended = true
	for h := range s.holds {
		h.suspend()
	}
	s.c.log.Warn("zklock: suspended", "event", "suspended", "session_id", hexID(s.id), "error", cause)
	s.c.setState(Suspended, s.id, cause)
}

// resume gives leases back that were proved on the connection in use, and ends
// the suspension of the session when none is left without a proof.
func (s *session) resume(w *wire.Conn, holds []*hold) {
	s.mu.Lock()
	if s.isDead || s.wire != w || !s.suspended {
		s.mu.Unlock()
		return
	}
	for _, h := range holds {
		if _, ours := s.holds[h]; ours {
			h.resume()
		}
	}
	for h := range s.holds {
		if h.isSuspended() {
			s.mu.Unlock()
			return
		}
	}
	s.suspended = false
	s.c.setState(Reconnected, s.id, nil)
	s.broadcastLocked()
	s.mu.Unlock()
}

// trustUntil is D as of now.
func (s *session) trustUntil() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.deadline
}

// checkTrust compares the clock with the deadline, and ends the session when it has
// passed. Gates call it, so that a process that was stopped learns of its loss at
// its first gate and need not wait for a timer; nor for another goroutine that has
// begun to end the session and not come to h.
func (s *session) checkTrust(h *hold) {
	now := s.c.cfg.Clock.Now()
	s.mu.Lock()
	// Without a lease nothing proves the session, and D means nothing.
	over := !s.isDead && len(s.holds) > 0 && !now.Before(s.deadline)
	var err error
	if over {
		err = s.silenceLocked(now)
	}
	dead, reason, cause := s.isDead, s.reason, s.cause
	s.mu.Unlock()
	if over {
		s.lose(TrustExpired, err)
		s.mu.Lock()
		dead, reason, cause = s.isDead, s.reason, s.cause
		s.mu.Unlock()
	}
	if dead {
		h.lose(reason, cause)
	}
}

// addHold makes h a lease's hold if the session is fit to give one out: connected,
// not suspended, and trusted for at least H. Otherwise it says what to do first:
// wait for changed, or prove.
func (s *session) addHold(h *hold) (added bool, changed <-chan struct{}, err error) {
	now := s.c.cfg.Clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.c.isClosing():
		return false, nil, ErrClosed
	case s.isDead:
		return false, nil, fmt.Errorf("%w: %w", errSessionOver, s.cause)
	case s.wire == nil || s.suspended:
		return false, s.changed, nil
	case s.deadline.Sub(now) < heartbeat(s.timeout):
		return false, nil, nil
	}
	if len(s.holds) == 0 {
		// Until now only syncs went out. The next beat is a proof, at once if the last
		// one (a create, usually) will not carry us over two beats.
		h := heartbeat(s.timeout)
		s.nextBeat = now
		if s.deadline.Sub(now) >= 2*h {
			s.nextBeat = now.Add(h)
		}
		// A keeper that looks in time by itself need not be woken for every short hold.
		// One whose time is over was stopped with the system and has not run since.
		if due := s.deadline.Add(-h); s.keepsAt.After(due) || s.keepsAt.After(s.nextBeat) || s.keepsAt.Before(now) {
			s.wakeKeeper()
		}
	}
	s.holds[h] = struct{}{}
	return true, nil, nil
}

// dropHold takes h out of the proofs.
func (s *session) dropHold(h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.holds, h)
}

// verify proves one hold in one quorum round trip.
func (s *session) verify(ctx context.Context, h *hold) error {
	w := s.connection()
	type answer struct {
		failed *hold
		err    error
	}
	a, err := call(ctx, s, func(conn *zk.Conn) (answer, error) {
		failed, err := s.check(conn, []*hold{h})
		return answer{failed, err}, nil
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	_, held := s.holds[h] // not yet, if the proof comes before a grant
	s.mu.Unlock()
	if held && (a.failed != nil || a.err == nil) {
		s.proved(w, []*hold{h}, a.failed, a.err)
	}
	return a.err
}
