package zklock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zklock/zklock/zktest"
)

// What a lease is trusted for. The measure is always the ensemble's own history:
// the context has to end before the transaction that deletes the node.

// asLost checks an error for a loss with the given reason.
func asLost(t *testing.T, err error, reason Reason) {
	t.Helper()
	var lost *LostError
	if !errors.As(err, &lost) || !errors.Is(err, ErrLost) || lost.Reason != reason {
		t.Errorf("error %v, want a loss for %s", err, reason)
	}
}

func TestTimersUseTheTimeoutThatWasGranted(t *testing.T) {
	for _, tc := range []struct{ asked, granted time.Duration }{
		{60 * time.Second, 20 * time.Second},
		{500 * time.Millisecond, 2 * time.Second},
		{12 * time.Second, 12 * time.Second},
	} {
		t.Run(fmt.Sprint(tc.asked), func(t *testing.T) {
			var hist zktest.History
			inBubble(t, func(b *bundle) {
				t := b.t
				var tp tap
				c := b.connect(pinned(b.srv, "holder"), withTimeout(tc.asked), withTick(time.Second), tp.into)
				if got := c.SessionTimeout(); got != tc.granted {
					t.Fatalf("granted %v, want %v", got, tc.granted)
				}
				l := b.acquire(b.mutex(c, "/dedup/a"))
				// The connect request is the only anchor there is yet.
				deadline := tp.connect().Add(tc.granted - tc.granted/100)
				if got := l.Deadline(); !got.Equal(deadline) {
					t.Errorf("deadline %v after the connect request, want %v", got.Sub(tp.connect()), deadline.Sub(tp.connect()))
				}
				ended := endOf(l)
				b.srv.Inject(zktest.Blackhole(zktest.BothWays))
				if got := within(t, time.Minute, ended, "the context"); !got.Equal(deadline) {
					t.Errorf("the context ended %v from its deadline", got.Sub(deadline))
				}
				asLost(t, l.Await(t.Context()), TrustExpired)
				if gone := deletedAt(t, &hist, time.Minute, l.Path()); !gone.After(deadline) {
					t.Errorf("the node was deleted %v before the deadline", deadline.Sub(gone))
				}
				// Close waits half a second at the most where that is the session timeout asked
				// for. The library's may take a second.
				_ = c.Close()
				time.Sleep(time.Second)
			}, zktest.WithTickTime(time.Second), withHistory(&hist))
		})
	}
}

func TestDeadlineMovesWithEveryProofAndIsExact(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect(pinned(b.srv, "holder"))
		l := b.acquire(b.mutex(c, "/dedup/a"))
		timeout := c.SessionTimeout()
		for range 5 {
			time.Sleep(heartbeat(timeout))
			// Proofs go out every H. The anchor is a touch at least a tick older, and the
			// next older one is at most H away.
			left := time.Until(l.Deadline())
			most := trusted(timeout) - 2*time.Second
			least := trusted(timeout) - 2*time.Second - 2*heartbeat(timeout) - 10*roundTrip
			if left > most || left < least {
				t.Errorf("%v are left, want %v to %v", left, least, most)
			}
		}
		b.srv.Inject(zktest.Blackhole(zktest.BothWays))
		deadline := l.Deadline()
		if got := within(t, timeout, endOf(l), "the context"); !got.Equal(deadline) {
			t.Errorf("the context ended %v from its deadline", got.Sub(deadline))
		}
		if got := l.State(); got != LeaseLost {
			t.Errorf("state %v at the deadline", got)
		}
	})
}

// silentTicks are tick and session timeout of the ensembles that leads are measured on.
var silentTicks = []struct{ tick, timeout time.Duration }{
	{500 * time.Millisecond, 3 * time.Second},
	{2 * time.Second, 6 * time.Second},
	{2 * time.Second, 12 * time.Second},
	{2 * time.Second, 30 * time.Second},
}

// leads collects by how much each context ended before its node did.
type leads struct {
	mu    sync.Mutex
	n     int
	least time.Duration
}

func (l *leads) add(t *testing.T, what string, lead time.Duration) {
	t.Helper()
	if lead <= 0 {
		t.Errorf("%s: the context ended %v after the node was gone", what, -lead)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n++; l.n == 1 || lead < l.least {
		l.least = lead
	}
}

func TestSilentPartitionEndsTheContextBeforeTheNode(t *testing.T) {
	for _, tc := range silentTicks {
		t.Run(tc.timeout.String(), func(t *testing.T) {
			var all leads
			for phase := range 8 {
				var hist zktest.History
				inBubble(t, func(b *bundle) {
					t := b.t
					c := b.connect(pinned(b.srv, "holder"), withTimeout(tc.timeout), withTick(tc.tick))
					l := b.acquire(b.mutex(c, "/dedup/a"))
					ended := endOf(l)
					time.Sleep(tc.timeout + time.Duration(phase)*heartbeat(tc.timeout)/8)
					b.srv.Inject(zktest.Blackhole(zktest.BothWays).Client("holder"))
					lost := within(t, 2*tc.timeout, ended, "the context")
					gone := deletedAt(t, &hist, 2*tc.timeout, l.Path())
					all.add(t, fmt.Sprint("phase ", phase), gone.Sub(lost))
				}, zktest.WithTickTime(tc.tick), withHistory(&hist))
			}
			t.Logf("%d cuts, least lead %v", all.n, all.least)
		})
	}
}

// A server that grants less than the one before it lowers the deadline with its
// connect response, and not with the next proof.
func TestShorterTimeoutOnReconnectLowersTheDeadlineAtOnce(t *testing.T) {
	const before, after = 20 * time.Second, 12 * time.Second
	var hist zktest.History
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect(pinned(b.srv, "holder"), withTimeout(before))
		l := b.acquire(b.mutex(c, "/dedup/a"))
		time.Sleep(time.Minute)
		anchor := l.Deadline().Add(-trusted(before))

		b.srv.SetMaxSessionTimeout(after)
		proofs := b.srv.Inject(zktest.DropRequest(zktest.OpMulti).Always())
		b.srv.CutConnections()
		for c.SessionTimeout() != after {
			time.Sleep(oneWay / 10)
		}
		deadline := l.Deadline()
		if want := anchor.Add(trusted(after)); deadline.After(want) {
			t.Errorf("the deadline is %v later than the new timeout allows", deadline.Sub(want))
		}
		lost := within(t, before, endOf(l), "the context")
		if lost.After(deadline) {
			t.Errorf("the context ended %v after the deadline", lost.Sub(deadline))
		}
		proofs.Heal()
		// The session goes on at the ensemble, so Release still has a node to delete.
		if err := l.Release(t.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("Release: %v", err)
		}
	}, withHistory(&hist))

	// Away for longer than the shorter timeout: over with the connect response.
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect(pinned(b.srv, "holder"), withTimeout(before))
		l := b.acquire(b.mutex(c, "/dedup/a"))
		time.Sleep(time.Minute)
		b.srv.SetMaxSessionTimeout(4 * time.Second)
		b.srv.Refuse(true)
		b.srv.CutConnections()
		time.Sleep(6 * time.Second)
		if got := l.State(); got != LeaseSuspended {
			t.Fatalf("state %v while away", got)
		}
		b.srv.Inject(zktest.DropRequest(zktest.OpMulti).Always()) // no proof can say otherwise
		b.srv.Refuse(false)
		for c.SessionTimeout() == before {
			time.Sleep(oneWay / 10)
		}
		if err := l.Await(t.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("Await: %v, want lost", err)
		}
	})
}

// jumpClock is a clock that can be set on by hand, as a system suspend sets on
// CLOCK_BOOTTIME and no timer.
type jumpClock struct{ ahead atomic.Int64 }

func (c *jumpClock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

func TestFirstGateAfterAStopSaysLost(t *testing.T) {
	gates := map[string]func(t *testing.T, l *Lease) error{
		"Await": func(t *testing.T, l *Lease) error { return l.Await(t.Context()) },
		"Err":   func(_ *testing.T, l *Lease) error { return l.Err() },
		"State": func(_ *testing.T, l *Lease) error {
			if l.State() != LeaseLost {
				return nil
			}
			return l.Err()
		},
		"Verify":  func(t *testing.T, l *Lease) error { return l.Verify(t.Context()) },
		"Release": func(t *testing.T, l *Lease) error { return l.Release(t.Context()) },
	}
	for name, gate := range gates {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bundle) {
				t := b.t
				clock := new(jumpClock)
				l := b.acquire(b.mutex(b.connect(func(c *Config) { c.Clock = clock }), "/dedup/a"))
				other := b.acquire(b.mutex(l.hold.c, "/dedup/b"))
				time.Sleep(10 * time.Second)
				synctest.Wait()
				before := time.Now()
				clock.ahead.Store(int64(time.Until(l.Deadline())))
				asLost(t, gate(t, l), TrustExpired)
				asLost(t, other.Err(), TrustExpired)
				if !time.Now().Equal(before) {
					t.Errorf("the gate waited for %v", time.Since(before))
				}
				if l.Context().Err() == nil || other.Context().Err() == nil {
					t.Error("a context goes on")
				}
			})
		})
	}
}

func TestGatesHoldUpToTheDeadlineAndNotBeyond(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		clock := new(jumpClock)
		l := b.acquire(b.mutex(b.connect(func(c *Config) { c.Clock = clock }), "/dedup/a"))
		synctest.Wait()
		clock.ahead.Store(int64(time.Until(l.Deadline()) - time.Nanosecond))
		if err := l.Await(t.Context()); err != nil {
			t.Errorf("just before the deadline: %v", err)
		}
		clock.ahead.Add(1)
		asLost(t, l.Await(t.Context()), TrustExpired)
	})
}

// While the session is being ended on one goroutine, the gates on others say lost
// already: what counts is the clock and not how far that goroutine has come.
func TestGateSaysLostWhileTheLossIsUnderWay(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		clock := new(jumpClock)
		l := b.acquire(b.mutex(b.connect(func(c *Config) { c.Clock = clock }), "/dedup/a"))
		synctest.Wait()
		s := l.hold.s
		clock.ahead.Store(int64(time.Until(l.Deadline())))
		// As lose leaves it before it comes to the leases.
		s.mu.Lock()
		s.isDead, s.reason, s.cause = true, TrustExpired, errSilent
		s.mu.Unlock()
		if err := l.Await(t.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("Await: %v, want lost", err)
		}
		s.mu.Lock()
		s.isDead = false // the test's own doing: let it end as usual
		s.mu.Unlock()
		s.lose(TrustExpired, errSilent)
	})
}

// A lease that is over has no say in the session: asking it anything, long after
// the deadline of its time has passed, must not end what others wait on.
func TestGatesOfAReleasedLeaseLeaveTheSessionAlone(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect()
		states := logStates(c)
		l := b.acquire(b.mutex(c, "/dedup/a"))
		b.release(l)
		id := c.SessionID()
		time.Sleep(time.Minute)
		if err := l.Err(); !errors.Is(err, ErrReleased) {
			t.Errorf("Err: %v, want ErrReleased", err)
		}
		if got := l.State(); got != LeaseReleased {
			t.Errorf("State: %v", got)
		}
		if err := l.Await(t.Context()); !errors.Is(err, ErrReleased) {
			t.Errorf("Await: %v, want ErrReleased", err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("Release again: %v", err)
		}
		synctest.Wait()
		if got := c.SessionID(); got != id || states.count(Lost) > 0 {
			t.Errorf("session %s became %s", hexID(id), hexID(got))
		}
	})
}

// blockedHandler is a logger that never comes back, as one that writes to a pipe
// that nobody reads.
type blockedHandler struct {
	slog.Handler
	until chan struct{}
}

func (h blockedHandler) Enabled(context.Context, slog.Level) bool  { return true }
func (h blockedHandler) Handle(context.Context, slog.Record) error { <-h.until; return nil }
func (h blockedHandler) WithAttrs([]slog.Attr) slog.Handler        { return h }

func TestBlockedLoggerDelaysNoLoss(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		block := blockedHandler{slog.DiscardHandler, make(chan struct{})}
		defer close(block.until)
		c := b.connect(pinned(b.srv, "holder"), func(c *Config) { c.Logger = slog.New(block) })
		leases := []*Lease{b.acquire(b.mutex(c, "/dedup/a")), b.acquire(b.mutex(c, "/dedup/b")), b.acquire(b.mutex(c, "/dedup/c"))}
		time.Sleep(time.Minute)
		b.srv.Inject(zktest.Blackhole(zktest.BothWays).Client("holder"))
		deadline := leases[0].Deadline()
		for _, l := range leases {
			if got := within(t, time.Minute, endOf(l), "the context"); !got.Equal(deadline) {
				t.Errorf("the context of %s ended %v from its deadline", l.Path(), got.Sub(deadline))
			}
			asLost(t, l.Await(t.Context()), TrustExpired)
		}
	})
}

func TestReplacedSessionIsLostAtOnce(t *testing.T) {
	var hist zktest.History
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect(pinned(b.srv, "holder"))
		m := b.mutex(c, "/dedup/a")
		l := b.acquire(m)
		id := c.SessionID()
		ended := endOf(l)
		b.srv.ForgetSessions(true)
		start := time.Now()
		b.srv.CutConnections()
		if took := within(t, c.SessionTimeout(), ended, "the context").Sub(start); took > 3*roundTrip {
			t.Errorf("the context ended after %v, want a reconnect", took)
		}
		asLost(t, l.Err(), SessionReplaced)
		b.srv.ForgetSessions(false)

		// The mutex goes on with a new session, once the old node is gone.
		next := b.acquire(m)
		if c.SessionID() == id {
			t.Error("the session is still the same")
		}
		if gone := deletedAt(t, &hist, time.Minute, l.Path()); !time.Now().After(gone) {
			t.Error("acquired while the old node was there")
		}
		if next.Token() <= l.Token() {
			t.Errorf("token %s after %s", next.Token(), l.Token())
		}
		b.release(next)
	}, withHistory(&hist))
}
