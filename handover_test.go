package zklock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zklock/zklock/zktest"
)

// Who comes next, whatever happens in the queue meanwhile.

func TestParentReapedBeforeTheCreateIsMadeAgain(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		m := b.mutex(b.connect(), "/dedup/a")
		b.release(b.acquire(m))
		var last Token
		for i := range often(10_000) {
			reap := b.srv.Inject(zktest.Before(func() {
				if err := b.srv.Reap("/dedup/a"); err != nil {
					t.Errorf("round %d: reap: %v", i, err)
				}
			}, zktest.OpCreate))
			l, err := m.Acquire(t.Context())
			if err != nil {
				t.Fatalf("round %d: %v", i, err)
			}
			if reap.Hits() != 1 {
				t.Errorf("round %d: reaped %d times", i, reap.Hits())
			}
			reap.Heal()
			// The sequence starts anew with the parent; the token goes on.
			if l.Token() <= last {
				t.Errorf("round %d: token %s after %s", i, l.Token(), last)
			}
			last = l.Token()
			b.release(l)
		}
	})
}

func TestParentReapedWhileEverybodyIsAwayIsMadeAgain(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect()
		m := b.mutex(c, "/dedup/a")
		first := b.acquire(m)
		b.release(first)
		time.Sleep(5 * time.Minute)
		if b.srv.Exists("/dedup/a") {
			t.Fatal("the container was not reaped")
		}
		l := b.acquire(m)
		if l.Token() <= first.Token() {
			t.Errorf("token %s after %s", l.Token(), first.Token())
		}
		b.release(l)
		// The whole subtree, within the time for which it is taken for there.
		for _, p := range []string{"/dedup/a", "/dedup"} {
			if err := b.srv.Delete(p); err != nil {
				t.Fatal(err)
			}
		}
		b.release(b.acquire(m))
	})
}

// The next in a process lists the queue behind the delete of the one before it, on the
// same connection, and does not wait for the answer in between.
func TestHandOverInOneProcessTakesOneRoundTrip(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		m := b.mutex(b.connect(), "/dedup/a")
		l := b.acquire(m)
		var line []<-chan result
		for range 20 {
			line = append(line, acquireAsync(t.Context(), m))
			synctest.Wait() // in this order
		}
		time.Sleep(roundTrip) // the next has its node
		for i, next := range line {
			start := time.Now()
			b.release(l)
			l = granted(t, time.Second, next, fmt.Sprint("waiter ", i))
			if took := time.Since(start); took != roundTrip {
				t.Errorf("waiter %d: granted %v after the release, want one round trip", i, took)
			}
			if n := len(b.nodes("/dedup/a")); n > 2 {
				t.Errorf("waiter %d: %d nodes, want at most 2", i, n)
			}
		}
		b.release(l)
	})
}

// A delete that is lost on its way: whoever comes next finds the node listed and waits
// for it.
func TestHandOverInOneProcessWhenTheDeleteIsLost(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		m := b.mutex(b.connect(), "/dedup/a")
		l := b.acquire(m)
		next := acquireAsync(t.Context(), m)
		time.Sleep(time.Second)
		b.srv.Inject(zktest.DropRequest(zktest.OpDelete))
		released := make(chan error, 1)
		go func() { released <- l.Release(t.Context()) }()
		second := granted(t, time.Minute, next, "the next")
		if err := <-released; err != nil {
			t.Errorf("Release: %v", err)
		}
		if n := len(b.nodes("/dedup/a")); n != 1 {
			t.Errorf("%d nodes when the next has the lock, want its own", n)
		}
		b.release(second)
	})
}

// line is a holder, a middle one and a last one on three clients.
type line struct {
	holder       *Lease
	middle, last <-chan result
	nodes        []string // in order
	middleClient *Client
}

func (b *bundle) line(hist *zktest.History) line {
	var l line
	l.holder = b.acquire(b.mutex(b.connect(pinned(b.srv, "holder")), "/dedup/a"))
	l.middleClient = b.connect(pinned(b.srv, "middle"))
	l.middle = acquireAsync(b.t.Context(), b.mutex(l.middleClient, "/dedup/a"))
	b.awaitNodes("/dedup/a", 2)
	l.last = acquireAsync(b.t.Context(), b.mutex(b.connect(pinned(b.srv, "last")), "/dedup/a"))
	b.awaitNodes("/dedup/a", 3)
	for i := range 3 {
		l.nodes = append(l.nodes, nodeOf(hist, "/dedup/a", i))
	}
	time.Sleep(time.Second)
	synctest.Wait()
	return l
}

func TestPredecessorThatGoesBetweenListingAndWatchIsNoGrant(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		holder := b.acquire(b.mutex(b.connect(pinned(b.srv, "holder")), "/dedup/a"))
		ctx, quit := context.WithCancel(t.Context())
		middle := acquireAsync(ctx, b.mutex(b.connect(pinned(b.srv, "middle")), "/dedup/a"))
		b.awaitNodes("/dedup/a", 2)
		// The middle one leaves after the last one has listed it.
		gone := b.srv.Inject(zktest.Before(func() {
			quit()
			<-middle
			for len(b.srv.Children("/dedup/a")) != 2 {
				time.Sleep(oneWay)
			}
		}, zktest.OpGetData).Client("last"))
		last := acquireAsync(t.Context(), b.mutex(b.connect(pinned(b.srv, "last")), "/dedup/a"))
		<-gone.Hit()
		time.Sleep(time.Second)
		notYet(t, last, "the last one")
		if got := fmt.Sprint(b.srv.WatchedPaths()); got != fmt.Sprint([]string{holder.Path()}) {
			t.Errorf("watched: %s, want %s", got, holder.Path())
		}
		b.release(holder)
		b.release(granted(t, 3*roundTrip, last, "the last one"))
	})
}

func TestHolderThatGoesBetweenListingAndWatchMakesWay(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		holder := b.acquire(b.mutex(b.connect(pinned(b.srv, "holder")), "/dedup/a"))
		b.srv.Inject(zktest.Before(func() { b.release(holder) }, zktest.OpGetData).Client("next"))
		next := acquireAsync(t.Context(), b.mutex(b.connect(pinned(b.srv, "next")), "/dedup/a"))
		b.release(granted(t, 10*roundTrip, next, "the next one"))
	})
}

func TestMiddleWaiterThatGoesWakesItsSuccessorAndGrantsNothing(t *testing.T) {
	for name, leave := range map[string]func(b *bundle, l line){
		"its node is deleted": func(b *bundle, l line) { _ = b.srv.Delete(l.nodes[1]) },
		"its session expires": func(b *bundle, l line) { b.srv.Expire(l.middleClient.SessionID()) },
		"its client closes":   func(_ *bundle, l line) { go func() { _ = l.middleClient.Close() }() },
	} {
		t.Run(name, func(t *testing.T) {
			var hist zktest.History
			inBubble(t, func(b *bundle) {
				t := b.t
				l := b.line(&hist)
				leave(b, l)
				deletedAt(t, &hist, time.Second, l.nodes[1])
				time.Sleep(5 * roundTrip)
				notYet(t, l.last, "the last one")
				b.release(l.holder)
				b.release(granted(t, 5*roundTrip, l.last, "the last one"))
				if name == "its client closes" {
					if r := <-l.middle; !errors.Is(r.err, ErrClosed) {
						t.Errorf("the middle one: %v", r.err)
					}
					return
				}
				// It queued up again, at the end.
				b.release(granted(t, time.Minute, l.middle, "the middle one"))
			}, withHistory(&hist))
		})
	}
}

// The waiter's session dies, and then its predecessor leaves: being next in line
// with a node that is gone is no grant.
func TestWaiterWithoutANodeIsNotGranted(t *testing.T) {
	for name, take := range map[string]func(b *bundle, l line){
		"session expired": func(b *bundle, l line) { b.srv.Expire(l.middleClient.SessionID()) },
		"node deleted":    func(b *bundle, l line) { _ = b.srv.Delete(l.nodes[1]) },
	} {
		t.Run(name, func(t *testing.T) {
			var hist zktest.History
			inBubble(t, func(b *bundle) {
				t := b.t
				l := b.line(&hist)
				// When the middle one lists the queue after the holder's release, its own
				// node goes just before the answer.
				hit := b.srv.Inject(zktest.Before(func() { take(b, l) }, zktest.OpGetChildren2).Client("middle"))
				b.release(l.holder)
				<-hit.Hit()
				last := granted(t, 10*roundTrip, l.last, "the last one")
				time.Sleep(time.Second)
				notYet(t, l.middle, "the middle one")
				b.release(last)
				middle := granted(t, time.Minute, l.middle, "the middle one")
				if middle.Path() == l.nodes[1] || middle.Token() <= last.Token() {
					t.Errorf("granted on %s, token %s after %s", middle.Path(), middle.Token(), last.Token())
				}
				b.release(middle)
			}, withHistory(&hist))
		})
	}
}

func TestLostWatchWakesWithinTheSessionTimeout(t *testing.T) {
	for range 5 {
		inBubble(t, func(b *bundle) {
			t := b.t
			holder := b.acquire(b.mutex(b.connect(pinned(b.srv, "holder")), "/dedup/a"))
			c := b.connect(pinned(b.srv, "waiter"))
			waiter := acquireAsync(t.Context(), b.mutex(c, "/dedup/a"))
			b.awaitNodes("/dedup/a", 2)
			time.Sleep(time.Second)
			lost := b.srv.Inject(zktest.LoseWatch().Client("waiter"))
			b.release(holder)
			if lost.Hits() != 1 {
				t.Fatal("no watch was lost")
			}
			b.release(granted(t, c.SessionTimeout()+5*roundTrip, waiter, "the waiter"))
		})
	}
}

// A lease that was lost long ago is released after its path has been reaped and
// made again, with the same sequence number.
func TestLateReleaseDeletesNothingOfItsSuccessor(t *testing.T) {
	var hist zktest.History
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect(pinned(b.srv, "late"))
		late := b.acquire(b.mutex(c, "/dedup/a"))
		m := b.mutex(b.connect(pinned(b.srv, "next")), "/dedup/a")
		hole := b.srv.Inject(zktest.Blackhole(zktest.BothWays).Client("late"))
		deletedAt(t, &hist, time.Minute, late.Path())
		asLost(t, late.Err(), TrustExpired)
		if err := b.srv.Delete("/dedup/a"); err != nil {
			t.Fatal(err)
		}
		next := b.acquire(m)
		if a, z := late.Path()[len(late.Path())-10:], next.Path()[len(next.Path())-10:]; a != z {
			t.Fatalf("sequence %s after %s, the test wants them equal", z, a)
		}
		hole.Heal()
		asLost(t, late.Release(t.Context()), TrustExpired)
		time.Sleep(time.Minute)
		if err := next.Verify(t.Context()); err != nil {
			t.Errorf("the successor: %v", err)
		}
		if next.Token() <= late.Token() {
			t.Errorf("token %s after %s", next.Token(), late.Token())
		}
		b.release(next)
	}, withHistory(&hist))
}

func TestSequenceThatWrapsKeepsTheOrder(t *testing.T) {
	var hist zktest.History
	inBubble(t, func(b *bundle) {
		t := b.t
		b.release(b.acquire(b.mutex(b.connect(), "/dedup/a")))
		if err := b.srv.SetSequence("/dedup/a", 2147483645); err != nil {
			t.Fatal(err)
		}
		held := b.acquire(b.mutex(b.connect(), "/dedup/a"))
		var queue []<-chan result
		for i := range 6 {
			queue = append(queue, acquireAsync(t.Context(), b.mutex(b.connect(), "/dedup/a")))
			b.awaitNodes("/dedup/a", i+2)
		}
		if len(nodeOf(&hist, "/dedup/a", 6)) <= len(held.Path()) {
			t.Errorf("%s is not past the wrap", nodeOf(&hist, "/dedup/a", 6))
		}
		token := held.Token()
		for i, ch := range queue {
			for _, later := range queue[i:] {
				notYet(t, later, "one of those that wait")
			}
			b.release(held)
			held = granted(t, 4*roundTrip, ch, fmt.Sprint("waiter ", i))
			if held.Token() <= token {
				t.Errorf("waiter %d: token %s after %s", i, held.Token(), token)
			}
			token = held.Token()
		}
		b.release(held)
	}, withHistory(&hist))
}

// F27: with no time to think in between.
func TestThousandsOfHandOversLoseNoWakeUp(t *testing.T) {
	const clients, each = 4, 5
	rounds := often(100_000) / (clients * each)
	inBubble(t, func(b *bundle) {
		t := b.t
		var inside, runs int // under the lock: the race detector looks on
		var last Token
		var wg sync.WaitGroup
		for range clients {
			m := b.mutex(b.connect(), "/dedup/a")
			for range each {
				wg.Go(func() {
					for range rounds {
						// Far longer than the whole test takes in virtual time.
						ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
						l, err := m.Acquire(ctx)
						cancel()
						if err != nil {
							t.Errorf("after %d hand-overs: %v", runs, err)
							return
						}
						if inside++; inside != 1 {
							t.Errorf("%d inside", inside)
						}
						if l.Token() <= last {
							t.Errorf("token %s after %s", l.Token(), last)
						}
						last = l.Token()
						runs++
						inside--
						if err := l.Release(t.Context()); err != nil {
							t.Errorf("Release: %v", err)
						}
					}
				})
			}
		}
		wg.Wait()
		if runs != clients*each*rounds {
			t.Errorf("%d hand-overs, want %d", runs, clients*each*rounds)
		}
		b.atRest("/dedup/a")
	})
}

// The first two of one process make their nodes at the same time, and the ensemble
// may see them in the other order. Each then waits for the other unless the line
// in the process follows the one at the ensemble.
func TestLineInAProcessFollowsTheOneAtTheEnsemble(t *testing.T) {
	t.Run("the second create arrives first", func(t *testing.T) {
		inBubble(t, func(b *bundle) {
			t := b.t
			c := b.connect()
			m := b.mutex(c, "/dedup/a")
			b.release(b.acquire(m))
			for range 100 {
				first, second := acquireAsync(t.Context(), m), acquireAsync(t.Context(), m)
				var one, two result
				select {
				case one = <-first:
				case one = <-second:
					second = first
				case <-time.After(time.Minute):
					t.Fatalf("two callers wait for each other: %v", b.nodes("/dedup/a"))
				}
				if one.err != nil {
					t.Fatal(one.err)
				}
				b.release(one.l)
				if two = within(t, time.Minute, second, "the second"); two.err != nil {
					t.Fatal(two.err)
				}
				b.release(two.l)
			}
		})
	})
	t.Run("the first has to make its node again", func(t *testing.T) {
		var hist zktest.History
		inBubble(t, func(b *bundle) {
			t := b.t
			holder := b.acquire(b.mutex(b.connect(), "/dedup/a"))
			m := b.mutex(b.connect(), "/dedup/a")
			first := acquireAsync(t.Context(), m)
			b.awaitNodes("/dedup/a", 2)
			second := acquireAsync(t.Context(), m)
			b.awaitNodes("/dedup/a", 3)
			if err := b.srv.Delete(nodeOf(&hist, "/dedup/a", 1)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			b.release(holder)
			for range 2 {
				select {
				case r := <-first:
					b.release(r.l)
				case r := <-second:
					b.release(r.l)
				case <-time.After(time.Minute):
					t.Fatalf("two callers wait for each other: %v", b.nodes("/dedup/a"))
				}
			}
		}, withHistory(&hist))
	})
	t.Run("both lose their session", func(t *testing.T) {
		inBubble(t, func(b *bundle) {
			t := b.t
			holder := b.acquire(b.mutex(b.connect(pinned(b.srv, "holder")), "/dedup/a"))
			for range 20 {
				c := b.connect()
				m := b.mutex(c, "/dedup/a")
				first, second := acquireAsync(t.Context(), m), acquireAsync(t.Context(), m)
				b.awaitNodes("/dedup/a", 3)
				b.srv.Expire(c.SessionID())
				b.awaitNodes("/dedup/a", 3)
				b.release(holder)
				for range 2 {
					select {
					case r := <-first:
						b.release(r.l)
					case r := <-second:
						b.release(r.l)
					case <-time.After(time.Minute):
						t.Fatalf("two callers wait for each other: %v", b.nodes("/dedup/a"))
					}
				}
				holder = b.acquire(b.mutex(holder.hold.c, "/dedup/a"))
			}
			b.release(holder)
		})
	})
}

// mixed is a line of two callers of one process, with a caller of another between them at
// the ensemble: the first of the two holds.
func (b *bundle) mixed() (held *Lease, other, last <-chan result, otherGivesUp context.CancelFunc) {
	b.t.Helper()
	here, there := b.connect(pinned(b.srv, "here")), b.connect(pinned(b.srv, "there"))
	m := b.mutex(here, "/dedup/a")
	first := b.acquire(m)
	second := acquireAsync(b.t.Context(), m)
	b.awaitNodes("/dedup/a", 2)
	ctx, cancel := context.WithCancel(b.t.Context())
	other = acquireAsync(ctx, b.mutex(there, "/dedup/a"))
	b.awaitNodes("/dedup/a", 3)
	time.Sleep(3 * oneWay) // until the other hears of its node and watches
	last = acquireAsync(b.t.Context(), m)
	synctest.Wait()
	b.release(first)
	held = granted(b.t, roundTrip, second, "the second")
	b.awaitNodes("/dedup/a", 3)
	time.Sleep(2 * ownWatchDelay)
	return held, other, last, cancel
}

// Whoever comes next in a process has been seen in the queue by the one before it, so it
// need not list the queue to know whom to wait for.
func TestNextInAProcessWaitsForWhomItWasSeenBehind(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		held, other, last, _ := b.mixed()
		b.srv.Ops().Reset()
		b.release(held)
		l := granted(t, 2*roundTrip, other, "the other process")
		time.Sleep(roundTrip)
		notYet(t, last, "the last")
		if got, want := requests(b.srv.Ops().Counts()), requests(zktest.Counts{ByOp: map[zktest.Op]int{
			zktest.OpDelete: 1, zktest.OpGetChildren2: 1, zktest.OpGetData: 1, // the listing is the other's
		}, WatchEvents: 2}); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		b.release(l)
		b.release(granted(t, 2*roundTrip, last, "the last"))
		b.atRest("/dedup/a")
	})
}

// Whom it was seen behind has gone meanwhile.
func TestNextInAProcessWhoseNeighbourHasGone(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		held, other, last, giveUp := b.mixed()
		giveUp()
		if r := within(t, time.Nanosecond, other, "the other process"); !errors.Is(r.err, context.Canceled) {
			t.Errorf("the other process: %+v", r)
		}
		b.awaitNodes("/dedup/a", 2)
		b.release(held)
		b.release(granted(t, 2*roundTrip, last, "the last"))
		b.atRest("/dedup/a")
	})
}
