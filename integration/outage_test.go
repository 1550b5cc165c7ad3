package integration

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"go.uber.org/goleak"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/integration/internal/figures"
	"github.com/go-zklock/zklock/integration/zkcluster"
	"github.com/go-zklock/zklock/integration/zkproxy"
)

// late prints how much later than its deadline a call returned, and fails when that is
// more than a busy machine explains.
func late(t testing.TB, what string, deadline, returned time.Time) {
	t.Helper()
	d := returned.Sub(deadline)
	t.Logf("%s: returned %v after its deadline", what, ms(d))
	if d < 0 || d > 5*time.Second {
		t.Errorf("%s: returned %v after its deadline", what, d)
	}
}

// F26: no server answers for as long as Acquire may take. It returns in time, says
// why, and nothing of it is left when they are back.
func TestAcquireWithoutAnEnsembleReturnsWithItsContext(t *testing.T) {
	for _, tc := range []struct {
		name string
		away func(*zkcluster.Server, context.Context) error
	}{
		{"stopped", (*zkcluster.Server).Pause},
		{"killed", (*zkcluster.Server).Kill},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cluster := ensemble.Get(t)
			ctx := bounded(t)
			c := clientOf(t, cluster.Addrs(), 40*time.Second)
			st := watchStates(t, c)
			session := c.SessionID()
			warm, fresh := uniquePath(t), uniquePath(t)
			release(t, acquire(t, mutexOf(t, c, warm)))
			for _, s := range cluster.Servers() {
				must(t, tc.name, tc.away(s, ctx))
			}
			if tc.name == "killed" {
				st.await(t, zklock.Suspended, 1)
			}
			for _, path := range []string{warm, fresh} {
				m := mutexOf(t, c, path)
				for name, call := range map[string]func(context.Context) (*zklock.Lease, error){
					"Acquire":    func(ctx context.Context) (*zklock.Lease, error) { return m.Acquire(ctx) },
					"TryAcquire": func(ctx context.Context) (*zklock.Lease, error) { return m.TryAcquire(ctx) },
				} {
					short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
					deadline, _ := short.Deadline()
					_, err := call(short)
					late(t, name+" with all servers "+tc.name, deadline, time.Now())
					cancel()
					isErr(t, name, err, zklock.ErrNotAcquired, context.DeadlineExceeded)
				}
			}
			if tc.name == "killed" {
				// Once dials have failed, the error says which and how.
				eventually(t, "the servers' failures in the error", func() bool {
					short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
					defer cancel()
					_, err := mutexOf(t, c, fresh).Acquire(short)
					isErr(t, "Acquire", err, zklock.ErrNotAcquired, context.DeadlineExceeded)
					if !strings.Contains(err.Error(), cluster.Server(0).Addr()) {
						return false
					}
					t.Logf("it says: %v", err)
					return true
				})
			}
			must(t, "heal", cluster.Heal(ctx))
			// The client's own requests come behind what it had sent before.
			release(t, acquire(t, mutexOf(t, c, uniquePath(t))))
			_, leader := roles(t, cluster)
			observer := observe(t, leader)
			for _, path := range []string{warm, fresh} {
				awaitNodes(t, observer, path, 0)
			}
			time.Sleep(time.Second)
			for _, path := range []string{warm, fresh} {
				if left := nodes(t, observer, path); len(left) > 0 {
					t.Errorf("left at %s: %v", path, left)
				}
			}
			t.Logf("session kept: %v; states: %v", c.SessionID() == session, st)
		})
	}
}

// outages are the ways to cut one client off.
var outages = map[string]func(*zkproxy.Proxy) (back func()){"connection cut": cutOff, "silence": silence}

// F4: a waiter gives up, and a newcomer too, while their client is cut off. Both
// nodes go once it is back, in the same session.
func TestGivingUpDuringAnOutageLeavesNothing(t *testing.T) {
	cluster := ensemble.Get(t)
	version := versionOf(t, cluster)
	follower, leader := roles(t, cluster)
	observer := observe(t, leader)
	for name, cut := range outages {
		t.Run(name, func(t *testing.T) {
			ctx := bounded(t)
			c, p := viaProxy(t, follower, 30*time.Second)
			session := c.SessionID()
			path, free := uniquePath(t), uniquePath(t)
			ensure(t, observer, free)
			holder := acquire(t, mutexOf(t, clientOf(t, []string{leader.Addr()}, 30*time.Second), path))
			waiting, cancel := context.WithCancel(ctx)
			waiter := acquireAsync(waiting, mutexOf(t, c, path))
			awaitNodes(t, observer, path, 2)

			back := cut(p)
			short, stop := context.WithTimeout(ctx, 500*time.Millisecond)
			deadline, _ := short.Deadline()
			newcomer := returned(t, "newcomer", acquireAsync(short, mutexOf(t, c, free)))
			stop()
			late(t, "newcomer", deadline, newcomer.at)
			isErr(t, "newcomer", newcomer.err, zklock.ErrNotAcquired, context.DeadlineExceeded)
			notYet(t, "the waiter", waiter)
			canceled := time.Now()
			cancel()
			r := returned(t, "waiter", waiter)
			late(t, "waiter", canceled, r.at)
			isErr(t, "waiter", r.err, zklock.ErrNotAcquired, context.Canceled)

			back()
			healed := time.Now()
			awaitNodes(t, observer, path, 1)
			awaitNodes(t, observer, free, 0)
			figures.Record(t, "giving up: "+name, version, figures.Recovery, time.Since(healed))
			t.Logf("the nodes were gone %v after the heal; the session would have lived for %v", ms(time.Since(healed)), 30*time.Second)
			time.Sleep(500 * time.Millisecond)
			if left := nodes(t, observer, free); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
			if c.SessionID() != session {
				t.Errorf("session %x became %x: nothing was deleted, it expired", session, c.SessionID())
			}
			release(t, holder)
		})
	}
}

// F13: the holder releases while it is cut off, and comes back before its session
// expires. The lock is free with the heal and not with the expiry.
func TestReleaseDuringAnOutageFreesTheLockWithTheHeal(t *testing.T) {
	cluster := ensemble.Get(t)
	version := versionOf(t, cluster)
	follower, leader := roles(t, cluster)
	observer := observe(t, leader)
	for name, cut := range outages {
		t.Run(name, func(t *testing.T) {
			ctx := bounded(t)
			c, p := viaProxy(t, follower, 40*time.Second)
			session := c.SessionID()
			path := uniquePath(t)
			l := acquire(t, mutexOf(t, c, path))
			waiter := acquireAsync(ctx, mutexOf(t, clientOf(t, []string{leader.Addr()}, 30*time.Second), path))
			awaitNodes(t, observer, path, 2)

			back := cut(p)
			short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
			deadline, _ := short.Deadline()
			err := l.Release(short)
			late(t, "Release", deadline, time.Now())
			cancel()
			isErr(t, "Release", err, zklock.ErrPending, context.DeadlineExceeded)
			isErr(t, "the lease after Release", l.Err(), zklock.ErrReleased)
			notYet(t, "the waiter", waiter)

			back()
			healed := time.Now()
			must(t, "Release again", l.Release(ctx))
			released := time.Since(healed)
			next := granted(t, "waiter", waiter)
			figures.Record(t, "release: "+name, version, figures.HandOver, time.Since(healed))
			t.Logf("released %v and handed over %v after the heal", ms(released), ms(time.Since(healed)))
			if c.SessionID() != session {
				t.Errorf("session %x became %x: it expired", session, c.SessionID())
			}
			release(t, next)
		})
	}
}

// F3: a waiter in the middle gives up. It returns in time, its node goes, and the one
// behind it stands behind the holder and is next.
func TestWaiterThatGivesUpLeavesTheLine(t *testing.T) {
	follower, leader := roles(t, ensemble.Get(t))
	observer := observe(t, leader)
	addr := []string{follower.Addr()}
	for _, name := range []string{"timeout", "cancel"} {
		t.Run(name, func(t *testing.T) {
			ctx := bounded(t)
			path := uniquePath(t)
			holder := acquire(t, mutexOf(t, clientOf(t, addr, 30*time.Second), path))
			middle, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			deadline, _ := middle.Deadline()
			if name == "cancel" {
				middle, cancel = context.WithCancel(ctx)
				defer cancel()
			}
			leaves := acquireAsync(middle, mutexOf(t, clientOf(t, addr, 30*time.Second), path))
			awaitNodes(t, observer, path, 2)
			stays := acquireAsync(ctx, mutexOf(t, clientOf(t, addr, 30*time.Second), path))
			want := context.DeadlineExceeded
			if name == "cancel" {
				awaitNodes(t, observer, path, 3)
				deadline, want = time.Now(), context.Canceled
				cancel()
			}
			r := returned(t, "the waiter in the middle", leaves)
			late(t, name, deadline, r.at)
			isErr(t, name, r.err, zklock.ErrNotAcquired, want)
			queue := awaitNodes(t, observer, path, 2)
			t.Logf("its node was gone at most %v after its return", ms(time.Since(r.at)))
			notYet(t, "the last waiter", stays)
			release(t, holder)
			next := granted(t, "the last waiter", stays)
			if next.Path() != path+"/"+queue[1] {
				t.Errorf("the last waiter holds %s, queued with %s", next.Path(), queue[1])
			}
			release(t, next)
		})
	}
}

// F24: Close tells everybody at once and leaves no node.
func TestCloseWithWaitersAndHoldersOnRealServers(t *testing.T) {
	follower, leader := roles(t, ensemble.Get(t))
	observer := observe(t, leader)
	ctx := bounded(t)
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) }) // after both clients are closed
	c := clientOf(t, []string{follower.Addr()}, 30*time.Second)
	other := clientOf(t, []string{follower.Addr()}, 30*time.Second)
	var ours, theirs []string
	var leases, kept []*zklock.Lease
	var waiters []<-chan result
	for range 3 {
		a, b := uniquePath(t), uniquePath(t)
		ours, theirs = append(ours, a), append(theirs, b)
		leases = append(leases, acquire(t, mutexOf(t, c, a)))
		kept = append(kept, acquire(t, mutexOf(t, other, b)))
		waiters = append(waiters,
			acquireAsync(ctx, mutexOf(t, c, a)), // behind a holder of the same client
			acquireAsync(ctx, mutexOf(t, c, b))) // behind another's
		awaitNodes(t, observer, b, 2)
	}
	begun := time.Now()
	if err := c.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	t.Logf("Close took %v", ms(time.Since(begun)))
	for _, w := range waiters {
		isErr(t, "a waiter", returned(t, "a waiter", w).err, zklock.ErrClosed, zklock.ErrNotAcquired)
	}
	for _, l := range leases {
		await(t, "the context of a lease", l.Context().Done())
		var lost *zklock.LostError
		if err := context.Cause(l.Context()); !errors.As(err, &lost) || lost.Reason != zklock.ClientClosed {
			t.Errorf("the context ended with %v", err)
		}
	}
	for i := range ours {
		awaitNodes(t, observer, ours[i], 0)
		if left := nodes(t, observer, theirs[i]); len(left) != 1 {
			t.Errorf("at %s: %v, want the other client's node", theirs[i], left)
		}
		must(t, "the other's lease", kept[i].Err())
		release(t, kept[i])
	}
	if _, err := mutexOf(t, c, ours[0]).Acquire(ctx); !errors.Is(err, zklock.ErrClosed) {
		t.Errorf("Acquire after Close: %v", err)
	}
	if _, _, err := c.Conn().Get("/"); !errors.Is(err, zk.ErrClosing) && !errors.Is(err, zk.ErrConnectionClosed) {
		t.Errorf("Conn after Close: %v", err)
	}
}
