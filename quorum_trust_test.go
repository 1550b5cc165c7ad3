package zklock

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zklock/zklock/internal/wire"
	"github.com/go-zklock/zklock/zktest"
)

// A server that is cut off from the others answers pings for up to ten seconds,
// and one that has stopped has not passed on what it heard last.

// cutOff cuts a holder's server off from its peers and returns how long before the
// node's end the context ended, and the client's states.
func cutOff(t *testing.T, timeout, phase time.Duration, trust TrustMode) (lead time.Duration, suspended time.Duration) {
	inEnsemble(t, 3, func(g *group) {
		t := g.t
		f, _ := g.follower()
		c := g.connect(pinned(f, "holder"), withTimeout(timeout), withTrust(trust))
		states := logStates(c)
		l := g.acquire(g.mutex(c, "/dedup/a"))
		ended := endOf(l)
		time.Sleep(timeout + phase)
		start := time.Now()
		f.CutFromPeers()
		gone := deletedAt(t, g.hist, 3*timeout, l.Path())
		if trust == TrustConnection && l.State() == LeaseHeld {
			lead = -1 // an overlap; how long it lasts does not matter
		}
		lost := within(t, 3*timeout, ended, "the context")
		if lead == 0 {
			lead = gone.Sub(lost)
		}
		if at := states.first(Suspended, start); !at.IsZero() {
			suspended = at.Sub(start)
		}
	})
	return lead, suspended
}

func TestServerCutFromItsPeersEndsTheContextBeforeTheNode(t *testing.T) {
	for _, timeout := range []time.Duration{6 * time.Second, 12 * time.Second} {
		t.Run(timeout.String(), func(t *testing.T) {
			var all leads
			for phase := range 8 {
				lead, suspended := cutOff(t, timeout, time.Duration(phase)*heartbeat(timeout)/8, TrustQuorum)
				all.add(t, fmt.Sprint("phase ", phase), lead)
				if limit := 2*heartbeat(timeout) + roundTrip; suspended == 0 || suspended > limit {
					t.Errorf("phase %d: suspended after %v, want at most %v", phase, suspended, limit)
				}
			}
			t.Logf("%d cuts, least lead %v", all.n, all.least)
		})
	}
}

// The control: without a quorum's word the lease says held while the node is gone.
// If this stops failing, the test above shows nothing.
func TestTrustConnectionOverlapsWhenTheServerIsCutOff(t *testing.T) {
	if lead, _ := cutOff(t, 6*time.Second, 0, TrustConnection); lead >= 0 {
		t.Errorf("no overlap, a lead of %v", lead)
	}
}

// margins is one fault under the rule in use and under the simpler one.
type margins struct {
	lead      time.Duration // of the context
	untrusted time.Duration // by how much "last acknowledged proof + T" is before the node's end
}

// stopAfterFirstCreate stops a follower right after the first create of a client
// that had nothing to prove before.
func stopAfterFirstCreate(t *testing.T, timeout, idle time.Duration) (s margins) {
	inEnsemble(t, 3, func(g *group) {
		t := g.t
		f, _ := g.follower()
		var tp tap
		c := g.connect(pinned(f, "holder"), withTimeout(timeout), tp.into)
		if err := g.ens.Servers()[0].Create("/dedup", nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(timeout + idle)
		l := g.acquire(g.mutex(c, "/dedup/a"))
		f.Pause()
		s.measure(g, l, &tp, timeout)
	})
	return s
}

// measure waits until the lease and its node are gone.
func (s *margins) measure(g *group, l *Lease, tp *tap, timeout time.Duration) {
	lost := within(g.t, 3*timeout, endOf(l), "the context")
	gone := deletedAt(g.t, g.hist, 3*timeout, l.Path())
	s.lead = gone.Sub(lost)
	s.untrusted = gone.Sub(tp.proof().Add(timeout))
}

func TestServerStoppedAfterTheFirstCreateEndsTheContextBeforeTheNode(t *testing.T) {
	const timeout = 30 * time.Second
	var all leads
	late := 0
	for phase := range 16 {
		s := stopAfterFirstCreate(t, timeout, time.Duration(phase)*heartbeat(timeout)/16)
		all.add(t, fmt.Sprint("phase ", phase), s.lead)
		if s.untrusted < 0 {
			late++
		}
	}
	t.Logf("%d stops, least lead %v; the time of the last proof plus T was after the node's end in %d", all.n, all.least, late)
	if late == 0 {
		t.Error("the rule without an anchor would have done: this shows nothing")
	}
}

// stall keeps what the client sends from a follower for a while, lets it through,
// and then stops the follower.
func stall(t *testing.T, timeout, phase, stalled time.Duration) (s margins) {
	inEnsemble(t, 3, func(g *group) {
		f, _ := g.follower()
		var tp tap
		c := g.connect(pinned(f, "holder"), withTimeout(timeout), tp.into)
		l := g.acquire(g.mutex(c, "/dedup/a"))
		time.Sleep(timeout + phase)
		hole := f.Inject(zktest.Blackhole(zktest.ClientToServer).Client("holder"))
		time.Sleep(stalled)
		hole.Heal()
		time.Sleep(2 * roundTrip) // the backlog is answered
		f.Pause()
		s.measure(g, l, &tp, timeout)
	})
	return s
}

func TestStalledUplinkAndAStopEndTheContextBeforeTheNode(t *testing.T) {
	var all leads
	for _, timeout := range []time.Duration{6 * time.Second, 12 * time.Second, 30 * time.Second} {
		for _, stalled := range []time.Duration{timeout * 3 / 10, timeout * 6 / 10} {
			for phase := range 4 {
				s := stall(t, timeout, time.Duration(phase)*heartbeat(timeout)/4, stalled)
				all.add(t, fmt.Sprintf("T %v, stalled for %v, phase %d", timeout, stalled, phase), s.lead)
			}
		}
	}
	t.Logf("%d stops, least lead %v", all.n, all.least)
}

func TestHolderMovesOverFromACutOffServer(t *testing.T) {
	const timeout = 12 * time.Second
	h := heartbeat(timeout)
	var slowest time.Duration
	for phase := range 8 {
		inEnsemble(t, 3, func(g *group) {
			t := g.t
			f, _ := g.follower()
			var roam atomic.Bool
			c := g.connect(g.startingAt(f, "holder", &roam), withTimeout(timeout))
			roam.Store(true)
			states := logStates(c)
			l := g.acquire(g.mutex(c, "/dedup/a"))
			path, token, id := l.Path(), l.Token(), c.SessionID()
			time.Sleep(timeout + time.Duration(phase)*h/8)

			start := time.Now()
			f.CutFromPeers()
			for l.State() == LeaseHeld {
				time.Sleep(h / 100)
			}
			if got := l.State(); got != LeaseSuspended {
				t.Fatalf("phase %d: state %v, want suspended", phase, got)
			}
			blocked := time.Now()
			if err := l.Await(t.Context()); err != nil {
				t.Fatalf("phase %d: Await: %v", phase, err)
			}
			if time.Now().Equal(blocked) {
				t.Errorf("phase %d: Await did not wait", phase)
			}
			// The first proof after the cut goes out within H and is given 2H.
			moved := time.Since(start)
			slowest = max(slowest, moved)
			if limit := 3*h + 10*roundTrip; moved > limit {
				t.Errorf("phase %d: moved over after %v, want at most %v", phase, moved, limit)
			}
			if at := states.first(Suspended, start); at.Sub(start) > 2*h+roundTrip {
				t.Errorf("phase %d: suspended after %v", phase, at.Sub(start))
			}
			if l.Path() != path || l.Token() != token || c.SessionID() != id {
				t.Errorf("phase %d: %s %s %s became %s %s %s", phase, path, token, hexID(id), l.Path(), l.Token(), hexID(c.SessionID()))
			}
			if err := l.Verify(t.Context()); err != nil {
				t.Errorf("phase %d: Verify: %v", phase, err)
			}
			if context.Cause(l.Context()) != nil || states.count(Lost) > 0 || states.count(Reconnected) != 1 {
				t.Errorf("phase %d: cause %v, states %v", phase, context.Cause(l.Context()), states)
			}
			time.Sleep(2 * timeout)
			g.release(l)
		})
	}
	t.Logf("moved over after at most %v", slowest)
}

// A client that holds nothing leaves a server that is cut off from the others as a
// holder does: its syncs are not answered, though its pings and reads would be.
func TestIdleClientMovesOverFromACutOffServer(t *testing.T) {
	const timeout = 12 * time.Second
	h := heartbeat(timeout)
	for _, waits := range []bool{false, true} {
		for phase := range 4 {
			inEnsemble(t, 3, func(g *group) {
				t := g.t
				f, others := g.follower()
				var holder *Lease
				if waits {
					holder = g.acquire(g.mutex(g.connect(pinned(others[0], "holder"), withTimeout(timeout)), "/dedup/a"))
				}
				var roam atomic.Bool
				c := g.connect(g.startingAt(f, "idle", &roam), withTimeout(timeout))
				roam.Store(true)
				states := logStates(c)
				id := c.SessionID()
				var waiter <-chan result
				if waits {
					waiter = acquireAsync(t.Context(), g.mutex(c, "/dedup/a"))
					g.awaitNodes("/dedup/a", 2)
				}
				time.Sleep(timeout + time.Duration(phase)*h/4)

				start := time.Now()
				f.CutFromPeers()
				// The first sync after the cut goes out within H and is given 2H.
				time.Sleep(3*h + 10*roundTrip)
				if suspended := states.first(Suspended, start); suspended.IsZero() || suspended.Sub(start) > 2*h+roundTrip {
					t.Errorf("phase %d: suspended after %v", phase, suspended.Sub(start))
				}
				if states.count(Suspended) != 1 || states.count(Reconnected) != 1 || states.count(Lost) != 0 || c.SessionID() != id {
					t.Errorf("phase %d: states %v, session %s became %s", phase, states, hexID(id), hexID(c.SessionID()))
				}
				if !waits {
					g.release(g.acquire(g.mutex(c, "/dedup/b")))
					return
				}
				// The deletion would not have been heard of over there.
				g.release(holder)
				g.release(granted(t, 10*roundTrip, waiter, "the waiter"))
			})
		}
	}
}

// A leader that is slow to answer suspends an idle client, which stays where it is.
func TestIdleClientStaysThroughAShortStopOfTheLeader(t *testing.T) {
	const timeout = 12 * time.Second
	h := heartbeat(timeout)
	inEnsemble(t, 3, func(g *group) {
		t := g.t
		f, _ := g.follower()
		c := g.connect(pinned(f, "idle"), withTimeout(timeout))
		states := logStates(c)
		conn := c.session().ready()
		for i := range 3 {
			time.Sleep(time.Until(nextBeat(c)) + 10*roundTrip)
			start := time.Now()
			g.ens.Leader().Pause()
			time.Sleep(h * 5 / 2) // the sync after H is overdue for H/2
			if at := states.first(Suspended, start); states.count(Suspended) != i+1 || at.Sub(start) > 2*h {
				t.Errorf("suspended after %v: %v", at.Sub(start), states)
			}
			g.ens.Leader().Resume()
			time.Sleep(10 * roundTrip)
			if states.count(Suspended) != i+1 || states.count(Reconnected) != i+1 || c.session().ready() != conn {
				t.Errorf("states %v, another connection: %v", states, c.session().ready() != conn)
			}
			g.release(g.acquire(g.mutex(c, "/dedup/a")))
		}
		if states.count(Lost) != 0 {
			t.Errorf("states %v", states)
		}
	})
}

// nextBeat is when the next proof, or what stands for it, is due.
func nextBeat(c *Client) time.Time {
	s := c.session()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nextBeat
}

// ready is the session's connection, nil while there is none.
func (s *session) ready() *wire.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wire
}

// Whatever the session timeout is in ticks and however far the servers are, the
// deadline of a healthy holder stays well ahead: it is never suspended, and proves once
// every H and once for a grant at the most.
func TestDeadlineOfAHealthyHolderStaysAhead(t *testing.T) {
	const tick = 2 * time.Second
	for _, tc := range []struct {
		ticks int
		ahead float64 // of now, at the least, in H
	}{{2, 0.7}, {3, 1.8}, {4, 1.9}, {6, 2.5}, {10, 2.8}, {12, 3.3}, {20, 3.3}} {
		timeout := time.Duration(tc.ticks) * tick
		h := heartbeat(timeout)
		for _, latency := range []time.Duration{time.Millisecond, 20 * time.Millisecond} {
			inEnsemble(t, 3, func(g *group) {
				t := g.t
				f, _ := g.follower()
				c := g.connect(pinned(f, "holder"), withTimeout(timeout), withTick(tick))
				states := logStates(c)
				least, first := timeout, timeout
				for phase := range 8 {
					time.Sleep(timeout + time.Duration(phase)*h/8) // idle
					g.ens.Ops().Reset()
					l := g.acquire(g.mutex(c, "/dedup/a"))
					if n := g.ens.Ops().Proofs(); n > 0 {
						t.Errorf("T %v, latency %v, phase %d: %d proofs before the grant", timeout, latency, phase, n)
					}
					first = min(first, time.Until(l.Deadline()))
					for range 10 * 10 {
						time.Sleep(h / 10)
						least = min(least, time.Until(l.Deadline()))
					}
					if n := g.ens.Ops().Proofs(); n > 11 {
						t.Errorf("T %v, latency %v, phase %d: %d proofs in 10 H", timeout, latency, phase, n)
					}
					g.release(l)
				}
				t.Logf("T %v, latency %v: at least %.2f H ahead, %.2f H at the grant", timeout, latency, float64(least)/float64(h), float64(first)/float64(h))
				if float64(least) < tc.ahead*float64(h) || first < h {
					t.Errorf("T %v, latency %v: %v ahead at the grant and %v later, H is %v", timeout, latency, first, least, h)
				}
				if states.count(Suspended) > 0 || states.count(Lost) > 0 {
					t.Errorf("T %v, latency %v: states %v", timeout, latency, states)
				}
			}, zktest.WithLatency(latency, 0, 1), func(c *zktest.Config) { c.PeerLatency = latency })
		}
	}
}

// A lease that is granted when the deadline is near is proved at once, whenever the
// keeper would have looked by itself; one that has time is proved with the next beat.
func TestLeaseGrantedNearItsDeadlineIsProvedAtOnce(t *testing.T) {
	for _, tenths := range []int{11, 13, 15, 17, 19, 21, 25, 29} {
		t.Run(fmt.Sprintf("%d tenths of H", tenths), func(t *testing.T) {
			inBubble(t, func(b *bundle) {
				t := b.t
				holder := b.acquire(b.mutex(b.connect(pinned(b.srv, "holder")), "/dedup/a"))
				c := b.connect(pinned(b.srv, "waiter"))
				h := heartbeat(c.SessionTimeout())
				got := acquireAsync(t.Context(), b.mutex(c, "/dedup/a"))
				b.awaitNodes("/dedup/a", 2)
				time.Sleep(roundTrip)
				// It takes as long as a release, an event and a listing until the grant.
				time.Sleep(time.Until(c.session().trustUntil()) - time.Duration(tenths)*h/10 - 2*roundTrip)
				b.release(holder)
				l := granted(t, 2*roundTrip, got, "the waiter")
				left := time.Until(l.Deadline())
				if left < h || left > 3*h {
					t.Fatalf("%v are left at the grant, with H = %v", left, h)
				}
				b.srv.Ops().Reset()
				time.Sleep(roundTrip)
				synctest.Wait()
				if n := b.srv.Ops().Counts().Proofs; (n == 1) != (left < 2*h) {
					t.Errorf("%d proofs a round trip after the grant with %v left", n, left)
				}
				b.release(l)
			})
		})
	}
}

// After a suspend the keeper's timer has as long to go as before it, so a lease that is
// granted then does not rely on it.
func TestLeaseGrantedAfterASuspendIsProvedAtOnce(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		clock := new(jumpClock)
		c := b.connect(func(cfg *Config) { cfg.Clock = clock })
		h := heartbeat(c.SessionTimeout())
		m := b.mutex(c, "/dedup/a")
		b.release(b.acquire(m))
		time.Sleep(5*h + h/10)
		clock.ahead.Add(int64(3 * h))
		b.srv.Ops().Reset()
		l := b.acquire(m)
		if left := time.Until(l.Deadline()); left < h || left >= 2*h {
			t.Fatalf("%v are left at the grant, with H = %v", left, h)
		}
		time.Sleep(roundTrip)
		synctest.Wait()
		if n := b.srv.Ops().Counts().Proofs; n != 1 {
			t.Errorf("%d proofs a round trip after the grant", n)
		}
		b.release(l)
	})
}
