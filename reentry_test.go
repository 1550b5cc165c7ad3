package zklock

import (
	"context"
	"errors"
	"sort"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zklock/zklock/zktest"
)

// within is a ctx that ends after d.
func (b *bundle) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(b.t.Context(), d)
	b.t.Cleanup(cancel)
	return ctx
}

// awaitLost waits for the loss of l, but not for ever: time in a bubble has no end.
func (b *bundle) awaitLost(l *Lease) {
	b.t.Helper()
	select {
	case <-l.Lost():
	case <-time.After(10 * time.Minute):
		b.t.Fatalf("the lease is %v and is not lost", l.State())
	}
}

func TestReentrySharesTheHold(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		m := b.mutex(b.connect(), "/dedup/a")
		outer := b.acquire(m)
		b.srv.Ops().Reset()
		inner, err := m.Acquire(outer.Context())
		must(t, err)
		third, err := b.mutex(outer.hold.c, "/dedup/a").TryAcquire(inner.Context()) // another mutex of the same path and client
		must(t, err)
		if n := b.srv.Ops().Reads() + b.srv.Ops().Writes(); n != 0 {
			t.Errorf("two re-entries cost %d requests", n)
		}
		if inner == outer || inner.Path() != outer.Path() || inner.Token() != outer.Token() || third.Token() != outer.Token() {
			t.Errorf("tokens %v, %v, %v and paths %s, %s of one hold", outer.Token(), inner.Token(), third.Token(), outer.Path(), inner.Path())
		}
		// In any order; each handle counts once, and the node goes with the last.
		for range 3 {
			b.release(outer)
		}
		wantErr(t, outer.Err(), ErrReleased)
		wantErr(t, context.Cause(outer.Context()), ErrReleased)
		if inner.Err() != nil || inner.Context().Err() != nil || third.Context().Err() != nil {
			t.Errorf("the release of one handle ended another: %v, %v", inner.Err(), third.Err())
		}
		b.release(third)
		must(t, inner.Verify(t.Context()))
		if n := len(b.nodes("/dedup/a")); n != 1 {
			t.Fatalf("%d nodes while one handle is held", n)
		}
		b.release(inner)
		if n := len(b.nodes("/dedup/a")); n != 0 {
			t.Errorf("%d nodes after the last release", n)
		}
	})
}

// An Acquire that does not come from the lease queues, also in the same process.
func TestNoReentryWithoutTheContext(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect()
		m := b.mutex(c, "/dedup/a")
		l := b.acquire(m)
		for name, try := range map[string]func() (*Lease, error){
			"another ctx":    func() (*Lease, error) { return m.Acquire(b.within(time.Second)) },
			"another client": func() (*Lease, error) { return b.tryUnder(l, b.connect(), "/dedup/a") },
		} {
			_, err := try()
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v, want a wait", name, err)
			}
		}
		// Another path under the lease's context is another lock.
		other, err := b.tryUnder(l, c, "/dedup/b")
		must(t, err)
		if other.Token() == l.Token() || other.Path() == l.Path() {
			t.Errorf("the lock of /dedup/b has node %s", other.Path())
		}
		b.release(other)
		b.release(l)
	})
}

// tryUnder acquires for a second under a lease's context.
func (b *bundle) tryUnder(l *Lease, c *Client, path string) (*Lease, error) {
	ctx, cancel := context.WithTimeout(l.Context(), time.Second)
	defer cancel()
	return b.mutex(c, path).Acquire(ctx)
}

// Every lease that a context carries counts, not only the innermost.
func TestReentryFromAnOuterLease(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect()
		ma, mb, mc := b.mutex(c, "/dedup/a"), b.mutex(c, "/dedup/b"), b.mutex(c, "/dedup/c")
		la := b.acquire(ma)
		lb, err := mb.Acquire(la.Context())
		must(t, err)
		lc, err := mc.Acquire(lb.Context())
		must(t, err)
		again, err := ma.Acquire(lc.Context())
		must(t, err)
		if again.Token() != la.Token() {
			t.Errorf("token %v, want that of the outer lease, %v", again.Token(), la.Token())
		}
		if got, ok := LeaseFromContext(again.Context()); !ok || got != again {
			t.Errorf("LeaseFromContext gives %v, want the innermost", got)
		}
		if got, ok := LeaseFromContext(lc.Context()); !ok || got != lc {
			t.Errorf("LeaseFromContext gives %v", got)
		}
		if _, ok := LeaseFromContext(t.Context()); ok {
			t.Error("a plain context carries a lease")
		}
		for _, l := range []*Lease{again, lc, lb, la} {
			b.release(l)
		}
		for _, p := range []string{"/dedup/a", "/dedup/b", "/dedup/c"} {
			if n := len(b.nodes(p)); n != 0 {
				t.Errorf("%d nodes left under %s", n, p)
			}
		}
	})
}

// A handle that was released does not open the lock again, though another one of
// the hold may still be there: its own context must.
func TestNoReentryFromAReleasedHandle(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		m := b.mutex(b.connect(), "/dedup/a")
		outer := b.acquire(m)
		inner, err := m.Acquire(outer.Context())
		must(t, err)
		b.release(outer)
		// The context itself has ended.
		_, err = m.Acquire(outer.Context())
		wantErr(t, err, ErrNotAcquired)
		wantErr(t, err, ErrReleased)
		// Its values alone are no way in either.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(outer.Context()), time.Second)
		defer cancel()
		if _, err = m.Acquire(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("by the values of a released handle: %v, want a wait", err)
		}
		// The outer of two handles on one hold serves, if the inner one is released.
		third, err := m.Acquire(inner.Context())
		must(t, err)
		b.release(third)
		again, err := m.Acquire(context.WithoutCancel(third.Context()))
		must(t, err)
		if again.Token() != inner.Token() {
			t.Errorf("token %v, want %v", again.Token(), inner.Token())
		}
		b.release(again)
		b.release(inner)
	})
}

func TestReentryWhileSuspended(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect()
		m := b.mutex(c, "/dedup/a")
		l := b.acquire(m)
		b.srv.Refuse(true)
		b.srv.CutConnections()
		time.Sleep(100 * time.Millisecond)
		if l.State() != LeaseSuspended {
			t.Fatalf("the lease is %v", l.State())
		}
		again := acquireAsync(l.Context(), m)
		short, cancel := context.WithTimeout(l.Context(), time.Second)
		defer cancel()
		_, err := m.Acquire(short)
		wantErr(t, err, ErrNotAcquired)
		wantErr(t, err, context.DeadlineExceeded)
		select {
		case r := <-again:
			t.Fatalf("entered again while suspended: %v", r.err)
		default:
		}
		b.srv.Refuse(false)
		r := <-again
		must(t, r.err)
		if r.l.Token() != l.Token() || l.State() != LeaseHeld {
			t.Errorf("token %v and state %v after the reconnect, want %v, Held", r.l.Token(), l.State(), l.Token())
		}
		b.release(r.l)
		b.release(l)
	})
}

func TestReentryFailsWhenLost(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect()
		m := b.mutex(c, "/dedup/a")
		l := b.acquire(m)
		again, err := m.Acquire(l.Context())
		must(t, err)
		b.srv.Refuse(true)
		b.srv.CutConnections()
		time.Sleep(100 * time.Millisecond)
		waiting := acquireAsync(context.WithoutCancel(l.Context()), m)
		synctest.Wait()
		b.srv.Expire(c.SessionID())
		b.srv.Refuse(false)
		r := <-waiting
		var lost *LostError
		if !errors.As(r.err, &lost) || !errors.Is(r.err, ErrNotAcquired) || lost.Token != l.Token() {
			t.Errorf("a re-entry of a hold that is lost meanwhile: %v", r.err)
		}
		if _, err := m.Acquire(l.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("a re-entry of a lost hold: %v", err)
		}
		// All handles of a hold are lost with it, each once.
		for _, l := range []*Lease{l, again} {
			b.awaitLost(l)
			wantErr(t, context.Cause(l.Context()), ErrLost, string(SessionExpired))
			wantErr(t, l.Release(t.Context()), ErrLost)
			wantErr(t, l.Release(t.Context()), ErrLost)
		}
		b.release(b.acquire(m)) // F8: the mutex is usable again at once
	})
}

func TestGoroutinesExcludeEachOther(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		m := b.mutex(b.connect(), "/dedup/a")
		inside, most, runs := 0, 0, 0
		var last Token
		done := make(chan error, 8)
		for range 8 {
			go func() {
				done <- m.Do(b.within(time.Minute), func(_ context.Context, l *Lease) error {
					if inside++; inside > most { // unsynchronised: the race detector is the judge
						most = inside
					}
					if l.Token() <= last {
						t.Errorf("token %v after %v", l.Token(), last)
					}
					last = l.Token()
					time.Sleep(time.Second)
					inside--
					runs++
					return nil
				})
			}()
		}
		for range 8 {
			if err := <-done; err != nil {
				t.Errorf("a waiter: %v", err)
			}
		}
		if most != 1 || runs != 8 {
			t.Errorf("%d at a time, %d runs", most, runs)
		}
	})
}

// The first two in line here have nodes, and the ensemble may have theirs the other
// way round. Neither may wait for the other then.
func TestFirstInLineWithTheSecondNode(t *testing.T) {
	for name, swap := range map[string]func(b *bundle, c *Client, nodes []string){
		// The first finds its node gone and makes another one, behind the second's.
		"node deleted": func(b *bundle, _ *Client, nodes []string) { must(b.t, b.srv.Delete("/dedup/a/"+nodes[1])) },
		// Both make new nodes at the same time.
		"session lost": expire2,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bundle) {
				t := b.t
				holder := b.acquire(b.mutex(b.connect(), "/dedup/a"))
				c := b.connect()
				m := b.mutex(c, "/dedup/a")
				done := make(chan error, 8)
				for range 2 {
					go func() {
						done <- m.Do(b.within(2*time.Minute), func(context.Context, *Lease) error { return nil })
					}()
					time.Sleep(time.Second) // the nodes are made one after the other
				}
				nodes := contenders(b.nodes("/dedup/a"))
				if len(nodes) != 3 {
					t.Fatalf("%d nodes, want the holder's and two", len(nodes))
				}
				sort.Slice(nodes, func(i, j int) bool { return nodes[i].before(nodes[j]) })
				swap(b, c, []string{nodes[0].name, nodes[1].name, nodes[2].name})
				time.Sleep(10 * time.Second)
				b.release(holder)
				for range 2 {
					if err := <-done; err != nil {
						t.Errorf("a waiter: %v", err)
					}
				}
			})
		})
	}
}

func expire2(b *bundle, c *Client, _ []string) { expire(b, c, nil) }

// The same when both begin at once.
func TestTwoInLineAtOnce(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		m := b.mutex(b.connect(), "/dedup/a")
		for range 40 {
			done := make(chan error, 8)
			for range 3 {
				go func() {
					done <- m.Do(b.within(2*time.Minute), func(context.Context, *Lease) error { return nil })
				}()
			}
			for range 3 {
				if err := <-done; err != nil {
					t.Fatalf("a waiter: %v", err)
				}
			}
		}
	})
}

type ctxKey struct{}

func TestLeaseContext(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		m := b.mutex(b.connect(), "/dedup/a")
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), ctxKey{}, "v"), time.Second)
		l, err := m.Acquire(ctx)
		must(t, err)
		cancel()
		time.Sleep(time.Minute)
		if l.Context().Err() != nil || l.Err() != nil {
			t.Errorf("Acquire's ctx bounds the wait only; the lease's has ended: %v", context.Cause(l.Context()))
		}
		if _, ok := l.Context().Deadline(); ok {
			t.Error("the lease's context has the deadline of Acquire's")
		}
		if l.Context().Value(ctxKey{}) != "v" {
			t.Error("the lease's context lacks a value of Acquire's")
		}
		must(t, b.srv.Delete(l.Path()))
		<-l.Context().Done()
		wantErr(t, context.Cause(l.Context()), ErrLost, string(NodeDeleted), l.Path())
		if !errors.Is(l.Context().Err(), context.Canceled) {
			t.Errorf("Context().Err() is %v", l.Context().Err())
		}
	}, func(cfg *zktest.Config) { cfg.Latency = 2 * time.Millisecond })
}
