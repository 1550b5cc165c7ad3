package zklock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zklock/zklock/zktest"
)

// Requests are what a lock costs the ensemble, so they are counted exactly. Pings and
// syncs are left out: they go out every so often whether or not there is a lock.

// requests is all that is no ping or sync, as text that is equal when the counts are.
func requests(c zktest.Counts) string {
	c.ByOp = maps.Clone(c.ByOp)
	delete(c.ByOp, zktest.OpPing)
	delete(c.ByOp, zktest.OpSync)
	return fmt.Sprint(c.ByOp, " watch events: ", c.WatchEvents)
}

func TestWarmAcquireAndReleaseCostTwoWritesAndOneRead(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		m := b.mutex(b.connect(), "/dedup/a")
		b.release(b.acquire(m))
		b.srv.Ops().Reset()

		b.release(b.acquire(m))
		synctest.Wait()
		if got, want := requests(b.srv.Ops().Counts()), requests(zktest.Counts{ByOp: map[zktest.Op]int{
			zktest.OpCreate: 1, zktest.OpGetChildren2: 1, zktest.OpDelete: 1,
		}}); got != want {
			t.Errorf("short hold: %s, want %s", got, want)
		}

		// Held for longer than 50 ms it gets a watch on its own node.
		time.Sleep(time.Second)
		b.srv.Ops().Reset()
		l := b.acquire(m)
		time.Sleep(ownWatchDelay + roundTrip)
		b.release(l)
		synctest.Wait()
		if got, want := requests(b.srv.Ops().Counts()), requests(zktest.Counts{ByOp: map[zktest.Op]int{
			zktest.OpCreate: 1, zktest.OpGetChildren2: 1, zktest.OpGetData: 1, zktest.OpDelete: 1,
		}, WatchEvents: 1}); got != want {
			t.Errorf("long hold: %s, want %s", got, want)
		}
	})
}

// The queue is listed right behind the create, and not after its answer.
func TestWarmAcquireTakesOneRoundTrip(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		m := b.mutex(b.connect(), "/dedup/a")
		b.release(b.acquire(m))
		start := time.Now()
		l := b.acquire(m)
		if took := time.Since(start); took != roundTrip {
			t.Errorf("it took %v, want one round trip", took)
		}
		b.release(l)
	})
}

func TestFreshPathCostsTwoWrites(t *testing.T) {
	for _, tc := range []struct {
		name     string
		existing string // made beforehand
		acquire  int    // writes
	}{
		{name: "with /dedup there", existing: "/dedup", acquire: 1},
		{name: "with nothing there", acquire: 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, func(b *bundle) {
				t := b.t
				if tc.existing != "" {
					if err := b.srv.Create(tc.existing, nil); err != nil {
						t.Fatal(err)
					}
				}
				m := b.mutex(b.connect(), "/dedup/fresh")
				b.srv.Ops().Reset()
				l := b.acquire(m)
				if n := b.srv.Ops().Writes(); n != tc.acquire {
					t.Errorf("acquire: %d writes, want %d", n, tc.acquire)
				}
				b.release(l)
				if n := b.srv.Ops().Writes(); n != tc.acquire+1 {
					t.Errorf("acquire and release: %d writes, want %d", n, tc.acquire+1)
				}
			})
		})
	}
}

func TestTryAcquireOnAPathHeldElsewhereCostsOneRead(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		l := b.acquire(b.mutex(b.connect(), "/dedup/a"))
		m := b.mutex(b.connect(), "/dedup/a")
		time.Sleep(ownWatchDelay + roundTrip) // the holder's own watch is not ours to count
		b.srv.Ops().Reset()

		start := time.Now()
		if _, err := m.TryAcquire(t.Context()); !errors.Is(err, ErrHeld) {
			t.Fatalf("TryAcquire: %v, want ErrHeld", err)
		}
		if took := time.Since(start); took != roundTrip {
			t.Errorf("it took %v, want one round trip", took)
		}
		synctest.Wait()
		if got, want := requests(b.srv.Ops().Counts()), requests(zktest.Counts{ByOp: map[zktest.Op]int{zktest.OpGetChildren2: 1}}); got != want {
			t.Errorf("requests: %s, want %s", got, want)
		}
		b.release(l)
	})
}

func TestTryAcquireOnAPathHeldHereSendsNothing(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		m := b.mutex(b.connect(), "/dedup/a")
		l := b.acquire(m)
		b.srv.Ops().Reset()
		for range 10 {
			if _, err := m.TryAcquire(t.Context()); !errors.Is(err, ErrHeld) {
				t.Fatalf("TryAcquire: %v, want ErrHeld", err)
			}
		}
		synctest.Wait()
		if got, want := requests(b.srv.Ops().Counts()), requests(zktest.Counts{ByOp: map[zktest.Op]int{}}); got != want {
			t.Errorf("requests: %s, want %s", got, want)
		}
		b.release(l)
		l, err := m.TryAcquire(t.Context())
		if err != nil {
			t.Fatalf("TryAcquire on a free path: %v", err)
		}
		b.release(l)
	})
}

// A release wakes one waiter, however many there are.
func TestHandOverCostsTheSameWithFiveAndWithFiftyWaiters(t *testing.T) {
	run := func(waiters int) (got string) {
		inBubble(t, func(b *bundle) {
			t := b.t
			holder := b.acquire(b.mutex(b.connect(), "/dedup/a"))
			first := acquireAsync(t.Context(), b.mutex(b.connect(), "/dedup/a"))
			b.awaitNodes("/dedup/a", 2)
			var others []<-chan result
			for range waiters - 1 {
				others = append(others, acquireAsync(t.Context(), b.mutex(b.connect(), "/dedup/a")))
			}
			b.awaitNodes("/dedup/a", 1+waiters)
			time.Sleep(time.Second) // what they do on arrival is over
			b.srv.Ops().Reset()
			b.release(holder)
			next := granted(t, roundTrip*4, first, "the first waiter")
			time.Sleep(ownWatchDelay + 2*roundTrip)
			counts := b.srv.Ops().Counts()
			for _, ch := range others {
				notYet(t, ch, "a later waiter")
			}
			b.release(next)

			// A proof may fall due meanwhile, of the old or of the new holder.
			if n := counts.Proofs; n > 2 {
				t.Errorf("%d waiters: %d proofs during one hand-over", waiters, n)
			}
			delete(counts.ByOp, zktest.OpMulti)
			got = requests(counts)
		})
		return got
	}
	five, fifty := run(5), run(50)
	if five != fifty {
		t.Errorf("5 waiters: %s; 50 waiters: %s", five, fifty)
	}
	t.Logf("one hand-over: %s", five)
}

func TestTwoHundredGoroutinesOnOneMutexCostLittle(t *testing.T) {
	const goroutines = 200
	var mu sync.Mutex
	nodes, most := 0, 0
	countNodes := func(txn zktest.Txn) {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range txn.Changes {
			switch {
			case !strings.HasPrefix(c.Path, "/dedup/a/"):
			case c.Op == zktest.OpCreate:
				nodes++
			case c.Op == zktest.OpDelete:
				nodes--
			}
		}
		most = max(most, nodes)
	}
	inBubble(t, func(b *bundle) {
		t := b.t
		m := b.mutex(b.connect(), "/dedup/a")
		b.srv.Ops().Reset()
		var inside, runs int // under the lock, so without another: the race detector looks on
		// Far longer than it takes: it ends a wait that nobody would end.
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		for i := range goroutines {
			wg.Go(func() {
				err := m.Do(ctx, func(context.Context, *Lease) error {
					if inside++; inside != 1 {
						t.Errorf("%d inside", inside)
					}
					runs++
					if i%10 == 0 {
						time.Sleep(2 * ownWatchDelay)
					}
					inside--
					return nil
				})
				if err != nil {
					t.Errorf("goroutine %d: %v", i, err)
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		c := b.srv.Ops().Counts()
		// One for each, and one for the last who leaves. The first two both look for the
		// path and its parent, and both make them.
		if w := c.Writes(); w > goroutines+8 {
			t.Errorf("%d writes for %d hand-overs", w, goroutines)
		}
		if r := c.Reads(); r > 2*goroutines+4 {
			t.Errorf("%d reads for %d hand-overs", r, goroutines)
		}
		if runs != goroutines {
			t.Errorf("%d runs, want %d", runs, goroutines)
		}
	}, zktest.WithOnTxn(countNodes))
	if most > 2 {
		t.Errorf("%d nodes at one time, want at most 2", most)
	}
	if nodes != 0 {
		t.Errorf("%d nodes left", nodes)
	}
}

func TestIdleClientSendsOneSyncEveryHeartbeat(t *testing.T) {
	for _, tc := range []struct {
		trust TrustMode
		op    zktest.Op
	}{{TrustQuorum, zktest.OpSync}, {TrustConnection, zktest.OpPing}} {
		inBubble(t, func(b *bundle) {
			t := b.t
			c := b.connect(withTrust(tc.trust))
			b.srv.Ops().Reset()
			time.Sleep(time.Minute + roundTrip)
			counts := b.srv.Ops().Counts()
			want := int(time.Minute / heartbeat(c.SessionTimeout()))
			if tc.op == zktest.OpPing {
				want += int(time.Minute / (c.SessionTimeout() / 3)) // those of the client library
			}
			if n := counts.ByOp[tc.op]; n < want-1 || n > want {
				t.Errorf("mode %v: %d of %v in a minute, want %d", tc.trust, n, tc.op, want)
			}
			delete(counts.ByOp, tc.op)
			if got, want := requests(counts), requests(zktest.Counts{ByOp: map[zktest.Op]int{}}); got != want {
				t.Errorf("mode %v: beside them: %s", tc.trust, got)
			}
		})
	}
}

func TestHolderSendsOneProofEveryHeartbeat(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect()
		a := b.acquire(b.mutex(c, "/dedup/a"))
		z := b.acquire(b.mutex(c, "/dedup/z")) // goes along in the same proof
		time.Sleep(time.Second)
		b.srv.Ops().Reset()
		time.Sleep(time.Minute)
		counts := b.srv.Ops().Counts()
		if n, want := counts.Proofs, int(time.Minute/heartbeat(c.SessionTimeout())); n != want {
			t.Errorf("%d proofs in a minute, want %d", n, want)
		}
		if w, r := counts.Writes(), counts.Reads(); w != 0 || r != 0 {
			t.Errorf("beside the proofs: %d writes and %d reads", w, r)
		}
		b.release(a)
		b.release(z)
	})
}

// A proof that names a node whose delete was sent fails for all the others in it.
func TestReleasedLockIsLeftOutOfTheProofs(t *testing.T) {
	var hist zktest.History
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect(pinned(b.srv, "holder"))
		var held []*Lease
		for i := range 10 {
			held = append(held, b.acquire(b.mutex(c, fmt.Sprint("/dedup/", i))))
		}
		for _, l := range held[1:] {
			// Slow, so that proofs fall due while a delete is under way.
			b.srv.Inject(zktest.DelayReply(heartbeat(c.SessionTimeout())*3/4, zktest.OpDelete))
			b.release(l)
			time.Sleep(heartbeat(c.SessionTimeout()))
		}
		if txn, found := hist.Find(func(txn zktest.Txn) bool { return txn.Op == zktest.OpMulti && txn.Err != zktest.CodeOK }); found {
			t.Errorf("a proof failed: %+v", txn)
		}
		if got := held[0].State(); got != LeaseHeld {
			t.Errorf("the lock that stays is %v", got)
		}
		b.release(held[0])
	}, withHistory(&hist))
}
