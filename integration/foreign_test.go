package integration

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/integration/internal/figures"
)

// F21: children that are no contenders neither block nor break anything.
func TestForeignChildrenAreIgnored(t *testing.T) {
	ctx := bounded(t)
	follower, leader := roles(t, ensemble.Get(t))
	observer := observe(t, leader)
	path := uniquePath(t)
	ensure(t, observer, path)
	odd := []string{"config", "0", "_c_x", "_c_", "_c_x-lock-", "lock", "-lock-", "lock-", "-lock-abc", "__lock__", "0000000000", "größe"}
	for _, name := range odd {
		ensure(t, observer, path+"/"+name)
	}
	ensure(t, observer, path+"/config/deeper")
	a := clientOf(t, []string{follower.Addr()}, 30*time.Second)
	b := clientOf(t, []string{leader.Addr()}, 30*time.Second)
	ma, mb := mutexOf(t, a, path), mutexOf(t, b, path)
	free, err := ma.TryAcquire(ctx)
	must(t, "TryAcquire beside foreign children", err)
	waiter := acquireAsync(ctx, mb)
	if ps := participants(t, ma, 2); ps[0] != free.Path() {
		t.Errorf("participants %v, the holder is %s", ps, free.Path())
	}
	_, err = mb.TryAcquire(ctx)
	isErr(t, "TryAcquire behind a holder", err, zklock.ErrHeld)
	release(t, free)
	release(t, granted(t, "the waiter", waiter))
	for _, name := range odd {
		if there, _, err := observer.Exists(path + "/" + name); err != nil || !there {
			t.Errorf("child %q is gone: %v", name, err)
		}
	}
}

// F21: go-zookeeper's own Lock on the same path takes turns with ours.
func TestTurnsWithGoZooKeepersLock(t *testing.T) {
	const rounds = 15
	ctx := bounded(t)
	cluster := ensemble.Get(t)
	path := uniquePath(t)
	var inside atomic.Int32
	var wg sync.WaitGroup
	var ours, theirs int // under the lock
	enter := func(count *int) {
		if n := inside.Add(1); n != 1 {
			t.Errorf("%d inside", n)
		}
		*count++
		time.Sleep(time.Millisecond)
		inside.Add(-1)
	}
	for _, s := range cluster.Servers() {
		m := mutexOf(t, clientOf(t, []string{s.Addr()}, 30*time.Second), path)
		lock := zk.NewLock(observe(t, s), path, zk.WorldACL(zk.PermAll))
		wg.Go(func() {
			for range rounds {
				err := m.Do(ctx, func(context.Context, *zklock.Lease) error { enter(&ours); return nil })
				if err != nil {
					t.Errorf("Do: %v", err)
					return
				}
			}
		})
		wg.Go(func() {
			for range rounds {
				err := lock.Lock()
				if err == nil {
					enter(&theirs)
					err = lock.Unlock()
				}
				if err != nil {
					t.Errorf("go-zookeeper's Lock: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d turns of ours, %d of go-zookeeper's", ours, theirs)
	if want := rounds * cluster.Size(); ours != want || theirs != want {
		t.Errorf("%d and %d turns, want %d each", ours, theirs, want)
	}
}

// F22: an operator deletes the holder's node, or all there is.
func TestDeletionByAnOperatorIsSeenAtWatchSpeed(t *testing.T) {
	for _, name := range []string{"the node", "the subtree"} {
		t.Run(name, func(t *testing.T) {
			ctx := bounded(t)
			cluster := ensemble.Get(t)
			version := versionOf(t, cluster)
			follower, leader := roles(t, cluster)
			operator := observe(t, leader)
			path := uniquePath(t)
			// H is 6.7 s: what is seen much sooner was seen by the watch.
			c, p := viaProxy(t, follower, 40*time.Second)
			waits := clientOf(t, []string{follower.Addr()}, 40*time.Second)
			l := acquire(t, mutexOf(t, c, path))
			waiter := acquireAsync(ctx, mutexOf(t, waits, path))
			queue := awaitNodes(t, operator, path, 2)
			awaitOwnWatch(t, p)

			begun := time.Now()
			doomed := queue[:1]
			if name == "the subtree" {
				doomed = queue
			}
			var ops []any // in one transaction, so that the waiter has no turn in between
			for _, n := range doomed {
				ops = append(ops, &zk.DeleteRequest{Path: path + "/" + n, Version: -1})
			}
			if name == "the subtree" {
				ops = append(ops, &zk.DeleteRequest{Path: path, Version: -1})
			}
			_, err := operator.Multi(ops...)
			must(t, "delete "+name, err)
			await(t, "loss", l.Lost())
			took := time.Since(begun)
			var lost *zklock.LostError
			if err := l.Await(ctx); !errors.As(err, &lost) || lost.Reason != zklock.NodeDeleted {
				t.Errorf("Await: %v, want reason %v", err, zklock.NodeDeleted)
			}
			next := granted(t, "the waiter", waiter)
			figures.Record(t, "an operator deletes "+name, version, figures.HandOver, time.Since(begun))
			t.Logf("lost %v and handed over %v after the deletion", ms(took), ms(time.Since(begun)))
			if took > 5*time.Second {
				t.Errorf("the loss was seen after %v: not by the watch", took)
			}
			isErr(t, "Release", l.Release(ctx), zklock.ErrLost)
			if name == "the node" && next.Path() != path+"/"+queue[1] {
				t.Errorf("the waiter holds %s, queued with %s", next.Path(), queue[1])
			}
			if next.Token() <= l.Token() {
				t.Errorf("token %v after %v", next.Token(), l.Token())
			}
			must(t, "the next holder", next.Verify(ctx))
			release(t, next)
			// The client goes on as if nothing had been.
			release(t, acquire(t, mutexOf(t, c, path)))
		})
	}
}
