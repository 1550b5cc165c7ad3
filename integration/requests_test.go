package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/integration/zkproxy"
)

// What a lock costs the ensemble is counted between client and server. Pings and
// proofs go out from time to time whether or not a lock changes hands, so they are
// counted apart.

// ownWatch is how long a lease is held before it gets a watch on its own node.
const ownWatch = 50 * time.Millisecond

// cost counts what f sends.
func cost(p *zkproxy.Proxy, f func()) zkproxy.Counts {
	p.Reset()
	f()
	return p.Snapshot().Total
}

func TestWarmAcquireAndReleaseCostTwoWritesAndOneRead(t *testing.T) {
	follower, leader := roles(t, ensemble.Get(t))
	path := uniquePath(t)
	ensure(t, observe(t, leader), path) // no container: it must not be reaped in between
	c, p := viaProxy(t, follower, 30*time.Second)
	m := mutexOf(t, c, path)
	release(t, acquire(t, m))

	// On a busy machine a hold may take longer than it should; then it is made again.
	short := func() (counts zkproxy.Counts) {
		for range 100 {
			var took time.Duration
			counts = cost(p, func() {
				begun := time.Now()
				release(t, acquire(t, m))
				took = time.Since(begun)
			})
			if took < ownWatch {
				return counts
			}
		}
		t.Fatalf("no acquire and release within %v in 100 tries", ownWatch)
		return counts
	}
	counts := short()
	t.Logf("short hold: %v", counts)
	if got, want := fmt.Sprint(counted(counts)), fmt.Sprint(map[zkproxy.Kind]int{
		zkproxy.Create: 1, zkproxy.GetChildren: 1, zkproxy.Delete: 1,
	}); got != want {
		t.Errorf("short hold: %s, want %s", got, want)
	}

	counts = cost(p, func() {
		l := acquire(t, m)
		awaitOwnWatch(t, p)
		time.Sleep(4 * ownWatch)
		release(t, l)
	})
	t.Logf("long hold: %v", counts)
	if got, want := fmt.Sprint(counted(counts)), fmt.Sprint(map[zkproxy.Kind]int{
		zkproxy.Create: 1, zkproxy.GetChildren: 1, zkproxy.GetData: 1, zkproxy.Delete: 1,
	}); got != want {
		t.Errorf("long hold: %s, want %s", got, want)
	}
}

func TestFreshPathCostsTwoWrites(t *testing.T) {
	follower, leader := roles(t, ensemble.Get(t))
	ensure(t, observe(t, leader), "/dedup")
	c, p := viaProxy(t, follower, 30*time.Second)
	for _, tc := range []struct {
		name, path string
		writes     int
	}{
		{"parent there", uniquePath(t), 1},
		{"nothing there", "/fresh" + uniquePath(t)[len("/dedup/it"):] + "/key", 2},
	} {
		var l *zklock.Lease
		counts := cost(p, func() { l = acquire(t, mutexOf(t, c, tc.path)) })
		t.Logf("%s: %v", tc.name, counts)
		if n := counts.Writes(); n != tc.writes {
			t.Errorf("%s: %d writes, want %d", tc.name, n, tc.writes)
		}
		release(t, l)
		// The path is a container, so it goes.
		observer := observe(t, leader)
		for {
			there, _, events, err := observer.ExistsW(tc.path)
			must(t, "look for "+tc.path, err)
			if !there {
				break
			}
			select {
			case <-events:
			case <-bounded(t).Done():
				t.Fatalf("%s is not reaped", tc.path)
			}
		}
	}
}

func TestTryAcquireOnAHeldPathCostsOneRead(t *testing.T) {
	cluster := ensemble.Get(t)
	follower, leader := roles(t, cluster)
	path := uniquePath(t)
	l := acquire(t, mutexOf(t, clientOf(t, []string{follower.Addr()}, 30*time.Second), path))
	awaitNodes(t, observe(t, leader), path, 1)
	c, p := viaProxy(t, follower, 30*time.Second)
	m := mutexOf(t, c, path)
	var err error
	counts := cost(p, func() { _, err = m.TryAcquire(bounded(t)) })
	t.Logf("held by another client: %v", counts)
	isErr(t, "TryAcquire", err, zklock.ErrHeld)
	if got, want := fmt.Sprint(counted(counts)), fmt.Sprint(map[zkproxy.Kind]int{zkproxy.GetChildren: 1}); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	release(t, l)
}

// F25. A goroutine that has the lock alone counts without another lock.
func TestTwoHundredGoroutinesOnOneMutexCostLittle(t *testing.T) {
	const goroutines = 200
	follower, leader := roles(t, ensemble.Get(t))
	observer := observe(t, leader)
	path := uniquePath(t)
	ensure(t, observer, path)
	c, p := viaProxy(t, follower, 40*time.Second)
	m := mutexOf(t, c, path)
	release(t, acquire(t, m))

	stop := make(chan struct{})
	most := make(chan int)
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				most <- n
				return
			default:
			}
			children, _, err := observer.Children(path)
			if err != nil && !errors.Is(err, zk.ErrConnectionClosed) {
				t.Errorf("children: %v", err)
			}
			n = max(n, len(children))
		}
	}()
	var inside atomic.Int32
	runs := 0
	ctx := bounded(t)
	begun := time.Now()
	counts := cost(p, func() {
		var wg sync.WaitGroup
		for range goroutines {
			wg.Go(func() {
				err := m.Do(ctx, func(context.Context, *zklock.Lease) error {
					if n := inside.Add(1); n != 1 {
						t.Errorf("%d goroutines inside", n)
					}
					runs++
					inside.Add(-1)
					return nil
				})
				if err != nil {
					t.Errorf("Do: %v", err)
				}
			})
		}
		wg.Wait()
	})
	took := time.Since(begun)
	close(stop)
	n := <-most
	t.Logf("%d runs in %v, at most %d nodes at a time; %v", runs, ms(took), n, counts)
	if runs != goroutines {
		t.Errorf("%d runs, want %d", runs, goroutines)
	}
	if n > 2 {
		t.Errorf("%d nodes at a time, want at most 2", n)
	}
	// One each, and few more while the line begins and ends.
	if w := counts.Writes(); w > goroutines+goroutines/4 {
		t.Errorf("%d writes for %d hand-overs", w, goroutines)
	}
	if r := counts.Reads(); r > 2*goroutines {
		t.Errorf("%d reads for %d hand-overs", r, goroutines)
	}
	if left := nodes(t, observer, path); len(left) > 0 {
		t.Errorf("left: %s", strings.Join(left, " "))
	}
}

// F16: every timer goes by what the server granted.
func TestTimersGoByTheGrantedTimeout(t *testing.T) {
	t.Parallel()
	follower, _ := roles(t, ensemble.Get(t))
	for _, tc := range []struct{ asked, granted time.Duration }{
		{60 * time.Second, 40 * time.Second},
		{500 * time.Millisecond, 4 * time.Second},
	} {
		t.Run(fmt.Sprint(tc.asked), func(t *testing.T) {
			t.Parallel()
			c, p := viaProxy(t, follower, tc.asked)
			st := watchStates(t, c)
			if got := c.SessionTimeout(); got != tc.granted {
				t.Fatalf("asked for %v, granted %v, want %v", tc.asked, got, tc.granted)
			}
			path := uniquePath(t)
			p.Reset()
			before := time.Now()
			l := acquire(t, mutexOf(t, c, path))
			after := time.Now()
			least, most := before.Add(tc.granted/6), after.Add(tc.granted-tc.granted/100)
			if d := l.Deadline(); d.Before(least) || d.After(most) {
				t.Errorf("trusted until %v from now; with T = %v it has to be from %v to %v", ms(time.Until(d)), tc.granted,
					ms(time.Until(least)), ms(time.Until(most)))
			}
			const hold = 8 * time.Second
			time.Sleep(hold)
			proofs := p.Snapshot().Total.Proofs()
			rhythm := int(hold / (tc.granted / 6))
			t.Logf("asked %v, granted %v: %d proofs in %v, one every H = %v would be %d; states: %v", tc.asked, tc.granted, proofs, hold, ms(tc.granted/6), rhythm, st)
			if proofs < rhythm/2 || proofs > rhythm+2 {
				t.Errorf("%d proofs, want about %d", proofs, rhythm)
			}
			must(t, "after a while", l.Err())
			if c.SessionTimeout() != tc.granted || st.count(zklock.Lost) > 0 {
				t.Errorf("T is %v, states %v", c.SessionTimeout(), st)
			}
			release(t, l)
		})
	}
}
