package zklock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zklock/zklock/zktest"
)

// Faults of the network and of the ensemble, met while a lock is waited for, held
// or given up.

// away cuts a client off: its connection ends, and it finds no other until it is back.
func (b *bundle) away(name string) (back func()) {
	cut := b.srv.Inject(zktest.CutAfter(zktest.OpPing).Client(name))
	<-cut.Hit()
	b.srv.Refuse(true)
	time.Sleep(2 * oneWay) // the end of the connection arrives
	synctest.Wait()
	return func() { b.srv.Refuse(false) }
}

func TestWaiterKeepsItsPlaceThroughAShortDisconnect(t *testing.T) {
	var hist zktest.History
	inBubble(t, func(b *bundle) {
		t := b.t
		holder := b.acquire(b.mutex(b.connect(pinned(b.srv, "holder")), "/dedup/a"))
		c := b.connect(pinned(b.srv, "waiter"))
		states := logStates(c)
		id := c.SessionID()
		waiter := acquireAsync(t.Context(), b.mutex(c, "/dedup/a"))
		before := b.awaitNodes("/dedup/a", 2)

		back := b.away("waiter")
		time.Sleep(4 * time.Second)
		if c.State() != Suspended {
			t.Fatalf("state %v while away", c.State())
		}
		notYet(t, waiter, "the waiter")
		back()
		time.Sleep(3 * time.Second)
		if c.SessionID() != id || states.count(Reconnected) != 1 || states.count(Lost) != 0 {
			t.Errorf("session %s became %s, states %v", hexID(id), hexID(c.SessionID()), states)
		}
		if after := b.nodes("/dedup/a"); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("nodes %v, want those of before: %v", after, before)
		}
		b.release(holder)
		l := granted(t, 3*roundTrip, waiter, "the waiter")
		if n := lockCreates(&hist, "/dedup/a"); n != 2 {
			t.Errorf("%d lock nodes were made, want one each", n)
		}
		b.release(l)
	}, withHistory(&hist))
}

// The watch fires while its client is away; the library hears of it on reconnect.
func TestWaiterIsGrantedWhenItsPredecessorLeftDuringADisconnect(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		holder := b.acquire(b.mutex(b.connect(pinned(b.srv, "holder")), "/dedup/a"))
		waiter := acquireAsync(t.Context(), b.mutex(b.connect(pinned(b.srv, "waiter")), "/dedup/a"))
		b.awaitNodes("/dedup/a", 2)
		back := b.away("waiter")
		b.release(holder)
		time.Sleep(4 * time.Second)
		notYet(t, waiter, "the waiter")
		back()
		b.release(granted(t, 2500*time.Millisecond, waiter, "the waiter"))
	})
}

func TestHolderIsSuspendedAndHeldAgainThroughAShortDisconnect(t *testing.T) {
	var hist zktest.History
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect(pinned(b.srv, "holder"))
		states := logStates(c)
		l := b.acquire(b.mutex(c, "/dedup/a"))
		path, token, id := l.Path(), l.Token(), c.SessionID()
		rival := acquireAsync(t.Context(), b.mutex(b.connect(pinned(b.srv, "rival")), "/dedup/a"))
		b.awaitNodes("/dedup/a", 2)

		back := b.away("holder")
		if got := l.State(); got != LeaseSuspended {
			t.Fatalf("state %v while away", got)
		}
		if err := l.Err(); err != nil {
			t.Errorf("Err while away: %v", err)
		}
		passed := make(chan error, 1)
		go func() { passed <- l.Await(t.Context()) }()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if err := l.Await(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Await with a ctx that ends: %v", err)
		}
		cancel()
		select {
		case err := <-passed:
			t.Fatalf("Await returned %v while away", err)
		default:
		}
		proof := b.srv.Inject(zktest.Before(func() {}, zktest.OpMulti).Client("holder"))
		back()
		if err := within(t, 2500*time.Millisecond, passed, "Await"); err != nil {
			t.Errorf("Await: %v", err)
		}
		if proof.Hits() == 0 {
			t.Error("held again without a proof")
		}
		if l.State() != LeaseHeld || l.Context().Err() != nil || l.Path() != path || l.Token() != token || c.SessionID() != id {
			t.Errorf("after: %v %s %s %s", l.State(), l.Path(), l.Token(), hexID(c.SessionID()))
		}
		synctest.Wait()
		if states.count(Suspended) != 1 || states.count(Reconnected) != 1 || states.count(Lost) != 0 {
			t.Errorf("states %v", states)
		}
		notYet(t, rival, "the rival")
		b.release(l)
		b.release(granted(t, 3*roundTrip, rival, "the rival"))
	}, withHistory(&hist))
}

func TestAcquireTimesOutAtItsDeadlineAndLeavesNoNode(t *testing.T) {
	cause := errors.New("changed my mind")
	ends := map[string]func(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc, error){
		"deadline": func(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc, error) {
			ctx, cancel := context.WithTimeout(ctx, d)
			return ctx, cancel, context.DeadlineExceeded
		},
		"cancel with a cause": func(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc, error) {
			ctx, cancel := context.WithCancelCause(ctx)
			stop := time.AfterFunc(d, func() { cancel(cause) })
			return ctx, func() { stop.Stop(); cancel(nil) }, cause
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			var hist zktest.History
			inBubble(t, func(b *bundle) {
				t := b.t
				holder := b.acquire(b.mutex(b.connect(), "/dedup/a"))
				const limit = 25 * time.Second // several re-checks fit in
				ctx, cancel, want := end(t.Context(), limit)
				defer cancel()
				start := time.Now()
				quitter := acquireAsync(ctx, b.mutex(b.connect(), "/dedup/a"))
				left := b.awaitNodes("/dedup/a", 2)[1]
				last := acquireAsync(t.Context(), b.mutex(b.connect(), "/dedup/a"))
				b.awaitNodes("/dedup/a", 3)

				r := within(t, time.Minute, quitter, "the one that gives up")
				if took := time.Since(start); took != limit {
					t.Errorf("it returned after %v, want %v", took, limit)
				}
				if !errors.Is(r.err, ErrNotAcquired) || !errors.Is(r.err, want) {
					t.Errorf("error %v, want ErrNotAcquired and %v", r.err, want)
				}
				returned := time.Now()
				b.awaitNodes("/dedup/a", 2)
				node := nodeOf(&hist, "/dedup/a", 1)
				if d := deletedAt(t, &hist, 0, node).Sub(returned); d > roundTrip {
					t.Errorf("%s went %v after the call returned", left, d)
				}
				// The last one now waits for the holder's node, and only for that.
				time.Sleep(3 * roundTrip)
				synctest.Wait()
				notYet(t, last, "the last one")
				if got := fmt.Sprint(b.srv.WatchedPaths()); got != fmt.Sprint([]string{holder.Path()}) {
					t.Errorf("watched: %s, want %s", got, holder.Path())
				}
				b.release(holder)
				b.release(granted(t, 3*roundTrip, last, "the last one"))
			}, withHistory(&hist))
		})
	}
}

// nodeOf is the path of the i-th lock node made below a path.
func nodeOf(h *zktest.History, path string, i int) string {
	for _, txn := range h.Txns() {
		for _, c := range txn.Changes {
			if c.Op == zktest.OpCreate && len(c.Path) > len(path)+4 && c.Path[:len(path)+4] == path+"/_c_" {
				if i == 0 {
					return c.Path
				}
				i--
			}
		}
	}
	return ""
}

func TestAcquireTimesOutDuringAnOutageAndItsNodeGoesAfterIt(t *testing.T) {
	t.Run("silence shorter than the client's patience", func(t *testing.T) {
		var hist zktest.History
		inBubble(t, func(b *bundle) {
			t := b.t
			holder := b.acquire(b.mutex(b.connect(), "/dedup/a"))
			c := b.connect(pinned(b.srv, "waiter"))
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			start := time.Now()
			waiter := acquireAsync(ctx, b.mutex(c, "/dedup/a"))
			b.awaitNodes("/dedup/a", 2)
			time.Sleep(4*time.Second - time.Since(start))
			hole := b.srv.Inject(zktest.Blackhole(zktest.BothWays).Client("waiter"))
			if r := within(t, time.Minute, waiter, "the waiter"); !errors.Is(r.err, context.DeadlineExceeded) {
				t.Errorf("error %v", r.err)
			}
			if took := time.Since(start); took != 5*time.Second {
				t.Errorf("it returned after %v", took)
			}
			time.Sleep(time.Second)
			healed := time.Now()
			hole.Heal()
			if d := deletedAt(t, &hist, time.Minute, nodeOf(&hist, "/dedup/a", 1)).Sub(healed); d > roundTrip {
				t.Errorf("the node went %v after healing", d)
			}
			b.release(holder)
		}, withHistory(&hist))
	})
	t.Run("reconnect", func(t *testing.T) {
		var hist zktest.History
		inBubble(t, func(b *bundle) {
			t := b.t
			holder := b.acquire(b.mutex(b.connect(pinned(b.srv, "holder")), "/dedup/a"))
			c := b.connect(pinned(b.srv, "waiter"))
			id := c.SessionID()
			ctx, cancel := context.WithCancel(t.Context())
			waiter := acquireAsync(ctx, b.mutex(c, "/dedup/a"))
			b.awaitNodes("/dedup/a", 2)
			back := b.away("waiter")
			cancelled := time.Now()
			cancel()
			if r := within(t, time.Minute, waiter, "the waiter"); !errors.Is(r.err, context.Canceled) || !errors.Is(r.err, ErrNotAcquired) {
				t.Errorf("error %v", r.err)
			}
			if !time.Now().Equal(cancelled) {
				t.Errorf("it returned %v late", time.Since(cancelled))
			}
			time.Sleep(5 * time.Second)
			back()
			for c.State() != Reconnected {
				time.Sleep(oneWay)
			}
			healed := time.Now()
			if d := deletedAt(t, &hist, time.Minute, nodeOf(&hist, "/dedup/a", 1)).Sub(healed); d > roundTrip {
				t.Errorf("the node went %v after the reconnect", d)
			}
			if c.SessionID() != id {
				t.Error("the session did not survive")
			}
			b.release(holder)
		}, withHistory(&hist))
	})
	t.Run("expiry", func(t *testing.T) {
		var hist zktest.History
		inBubble(t, func(b *bundle) {
			t := b.t
			holder := b.acquire(b.mutex(b.connect(pinned(b.srv, "holder")), "/dedup/a"))
			c := b.connect(pinned(b.srv, "waiter"))
			ctx, cancel := context.WithCancel(t.Context())
			waiter := acquireAsync(ctx, b.mutex(c, "/dedup/a"))
			b.awaitNodes("/dedup/a", 2)
			hole := b.srv.Inject(zktest.Blackhole(zktest.BothWays).Client("waiter"))
			start := time.Now()
			cancel()
			<-waiter
			tick := 2 * time.Second
			gone := deletedAt(t, &hist, time.Minute, nodeOf(&hist, "/dedup/a", 1)).Sub(start)
			if most := c.SessionTimeout() + tick*3/2; gone > most {
				t.Errorf("the node went after %v, want at most %v", gone, most)
			}
			hole.Heal()
			b.release(holder)
		}, withHistory(&hist))
	})
}

func TestExpiredSessionIsLostOnceForEachLeaseAndTheMutexGoesOn(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect(pinned(b.srv, "holder"))
		states := logStates(c)
		m := b.mutex(c, "/dedup/a")
		held := []*Lease{b.acquire(m), b.acquire(b.mutex(c, "/dedup/b"))}
		rival := acquireAsync(t.Context(), b.mutex(b.connect(pinned(b.srv, "rival")), "/dedup/a"))
		b.awaitNodes("/dedup/a", 2)
		lost := make(chan *Lease, 10)
		for _, l := range held {
			context.AfterFunc(l.Context(), func() { lost <- l })
		}
		b.srv.Expire(c.SessionID())
		winner := granted(t, time.Second, rival, "the rival")
		for range held {
			asLost(t, within(t, time.Second, lost, "the loss").Err(), SessionExpired)
		}
		synctest.Wait()
		if len(lost) > 0 || states.count(Lost) != 1 {
			t.Errorf("%d losses too many; states %v", len(lost), states)
		}
		again := acquireAsync(t.Context(), m)
		b.awaitNodes("/dedup/a", 2)
		b.srv.Ops().Reset()
		for _, l := range held {
			for range 2 {
				asLost(t, l.Release(t.Context()), SessionExpired)
			}
		}
		synctest.Wait()
		if n := b.srv.Ops().Count(zktest.OpDelete); n != 0 {
			t.Errorf("Release of a lost lease sent %d deletes", n)
		}
		if err := winner.Verify(t.Context()); err != nil {
			t.Errorf("the rival's lease: %v", err)
		}
		b.release(winner)
		b.release(granted(t, 3*roundTrip, again, "the same mutex"))
	})
}

func TestReleaseDuringAnOutageFreesTheLockOnceHealed(t *testing.T) {
	for _, silence := range []time.Duration{time.Second, 6 * time.Second} {
		t.Run(silence.String(), func(t *testing.T) {
			inBubble(t, func(b *bundle) {
				t := b.t
				c := b.connect(pinned(b.srv, "holder"))
				id := c.SessionID()
				l := b.acquire(b.mutex(c, "/dedup/a"))
				next := acquireAsync(t.Context(), b.mutex(b.connect(pinned(b.srv, "next")), "/dedup/a"))
				b.awaitNodes("/dedup/a", 2)
				hole := b.srv.Inject(zktest.Blackhole(zktest.BothWays).Client("holder"))
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), silence)
				defer cancel()
				err := l.Release(ctx)
				if !errors.Is(err, ErrPending) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Release: %v, want pending", err)
				}
				if took := time.Since(start); took != silence {
					t.Errorf("Release took %v, want %v", took, silence)
				}
				if err := l.Await(t.Context()); !errors.Is(err, ErrReleased) {
					t.Errorf("Await: %v", err)
				}
				notYet(t, next, "the next one")
				hole.Heal()
				// The connection survived a short silence; after a long one it is dialled anew.
				limit := 3 * roundTrip
				if silence > 4*time.Second {
					limit += 2 * time.Second
				}
				b.release(granted(t, limit, next, "the next one"))
				if err := l.Release(t.Context()); err != nil {
					t.Errorf("Release again: %v", err)
				}
				if c.SessionID() != id {
					t.Error("the session did not survive")
				}
			})
		})
	}
}

func TestAcquireWithNoServersReturnsAtItsDeadlineAndLeavesNothing(t *testing.T) {
	for _, when := range []string{"before the call", "before the create", "after the create"} {
		t.Run(when, func(t *testing.T) {
			var hist zktest.History
			inBubble(t, func(b *bundle) {
				t := b.t
				c := b.connect()
				m := b.mutex(c, "/dedup/a")
				b.release(b.acquire(m))
				switch when {
				case "before the call":
					b.srv.Stop()
					synctest.Wait()
				case "before the create":
					b.srv.Inject(zktest.Before(b.srv.Stop, zktest.OpCreate))
				case "after the create":
					b.srv.Inject(zktest.Before(b.srv.Stop, zktest.OpGetChildren2))
				}
				ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				defer cancel()
				start := time.Now()
				_, err := m.Acquire(ctx)
				if took := time.Since(start); took != 500*time.Millisecond {
					t.Errorf("it returned after %v", took)
				}
				if !errors.Is(err, ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("error %v, want ErrNotAcquired and DeadlineExceeded", err)
				}
				time.Sleep(time.Second)
				b.srv.Restart()
				for c.State() != Reconnected {
					time.Sleep(oneWay)
				}
				time.Sleep(5 * roundTrip)
				if nodes := b.nodes("/dedup/a"); len(nodes) != 0 {
					t.Errorf("left behind: %v", nodes)
				}
				b.release(b.acquire(m))
			}, withHistory(&hist))
		})
	}
}

func TestTryAcquireDuringAnOutageReturnsAtItsDeadline(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect(pinned(b.srv, "c"))
		m := b.mutex(c, "/dedup/a")
		b.release(b.acquire(m))
		hole := b.srv.Inject(zktest.Blackhole(zktest.BothWays).Client("c"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		_, err := m.TryAcquire(ctx)
		if took := time.Since(start); took != time.Second {
			t.Errorf("it returned after %v", took)
		}
		if !errors.Is(err, ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		hole.Heal()
		time.Sleep(c.SessionTimeout())
		if nodes := b.nodes("/dedup/a"); len(nodes) != 0 {
			t.Errorf("left behind: %v", nodes)
		}
	})
}

// A session that is lost while TryAcquire looks is no answer: it looks again on the
// next one.
func TestTryAcquireGoesOnWithTheNextSession(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		var on atomic.Bool
		var hits atomic.Int64
		const sessionExpired = -112
		c := b.connect(answering(int32(zktest.OpGetChildren2), sessionExpired, &on, &hits))
		m := b.mutex(c, "/dedup/a")
		b.release(b.acquire(m))
		c.OnStateChange(func(ch StateChange) {
			if ch.State == Lost {
				on.Store(false)
			}
		})
		on.Store(true)
		l, err := m.TryAcquire(b.within(time.Minute))
		if err != nil {
			t.Fatalf("TryAcquire: %v", err)
		}
		if hits.Load() == 0 {
			t.Error("the session was not lost")
		}
		b.release(l)
	})
}

// slowClock keeps whoever asks for the time first once a session is over waiting until
// goOn is closed. That is the one who makes the next session.
type slowClock struct {
	session atomic.Pointer[session]
	asked   chan struct{}
	goOn    chan struct{}
	used    atomic.Bool
}

func (c *slowClock) Now() time.Time {
	if s := c.session.Load(); s != nil {
		select {
		case <-s.dead:
			if c.used.CompareAndSwap(false, true) { // the others must not wait
				close(c.asked)
				<-c.goOn
			}
		default:
		}
	}
	return time.Now()
}

// The wait ends between the loss of a session and the next session: its reason is that of
// ctx, as always, and the loss is named beside it.
func TestAcquireThatEndsBetweenTwoSessionsSaysWhy(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		clock := &slowClock{asked: make(chan struct{}), goOn: make(chan struct{})}
		c := b.connect(func(cfg *Config) { cfg.Clock = clock })
		b.acquire(b.mutex(b.connect(), "/dedup/a"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		waiter := acquireAsync(ctx, b.mutex(c, "/dedup/a"))
		b.awaitNodes("/dedup/a", 2)
		clock.session.Store(c.session())
		b.srv.Expire(c.session().sessionID())
		<-clock.asked
		cancel()
		r := within(t, time.Second, waiter, "the end of the wait")
		close(clock.goOn)
		if !errors.Is(r.err, ErrNotAcquired) || !errors.Is(r.err, context.Canceled) || !strings.Contains(fmt.Sprint(r.err), "the session is over") {
			t.Errorf("%v, want the end of the context and the loss", r.err)
		}
	})
}
