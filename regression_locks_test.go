package zklock

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zklock/zklock/zktest"
)

// hookClock calls fn once, when it is read inside (*hold).giveUp.
type hookClock struct {
	armed atomic.Bool
	fn    func()
}

func (c *hookClock) Now() time.Time {
	if c.armed.Load() {
		buf := make([]byte, 4096)
		if strings.Contains(string(buf[:runtime.Stack(buf, false)]), "(*hold).giveUp") && c.armed.CompareAndSwap(true, false) {
			c.fn()
		}
	}
	return time.Now()
}

// giveUp holds h.mu and takes s.mu (sessionID for the log, dropHold); suspendLocked
// holds s.mu and takes h.mu. A connection that breaks while a lease is released
// stops the client for good: keeper, gates, Close.
func TestReleaseWhileConnectionBreaks(t *testing.T) {
	srv, err := zktest.Start(zktest.Config{Name: "192.0.2.1:2181"})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	clock := &hookClock{}
	c, err := Connect(t.Context(), Config{Servers: []string{srv.Addr()}, Dial: srv.Dial, Clock: clock, SessionTimeout: 4 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	m, _ := NewInterProcessMutex(c, "/a")
	other, _ := NewInterProcessMutex(c, "/b")
	l, err := m.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l2, err := other.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	clock.fn = func() {
		w := c.session().wire
		go w.Kill(context.Canceled) // the connection breaks
		time.Sleep(200 * time.Millisecond)
	}
	clock.armed.Store(true)
	done := make(chan struct{})
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = l.Release(ctx)
		_ = l2.State()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(8 * time.Second):
		buf := make([]byte, 1<<20)
		buf = buf[:runtime.Stack(buf, true)]
		for g := range strings.SplitSeq(string(buf), "\n\n") {
			if strings.Contains(g, "sync.Mutex") {
				t.Log(g)
			}
		}
		select {
		case <-l2.Context().Done():
			t.Log("l2 was lost")
		default:
			t.Log("l2's context is alive 8 s after the connection broke, T = 4 s")
		}
		t.Fatal("deadlock: Release with a ctx of 1 s has not returned after 8 s")
	}
	_ = c.Close()
}

// The same without any hook: locks come and go while the connection is cut again and
// again, on real goroutines and real time, which virtual time cannot show.
func TestLocksGoOnWhileTheConnectionIsCut(t *testing.T) {
	srv, err := zktest.Start(zktest.Config{Name: "192.0.2.1:2181"})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	c, err := Connect(t.Context(), Config{Servers: []string{srv.Addr()}, Dial: srv.Dial, SessionTimeout: 6 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var taken atomic.Int64
	var group sync.WaitGroup
	stop := make(chan struct{})
	for i := range 32 {
		m, err := NewInterProcessMutex(c, fmt.Sprintf("/k%d", i))
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				if l, err := m.Acquire(ctx); err == nil {
					_ = l.Release(ctx)
					taken.Add(1)
				}
				cancel()
			}
		})
	}
	for range 8 {
		f := srv.Inject(zktest.CutAfter(zktest.OpCreate, zktest.OpDelete).Nth(20))
		select {
		case <-f.Hit():
		case <-time.After(20 * time.Second):
			t.Fatalf("nothing moves any more after %d locks", taken.Load())
		}
	}
	close(stop)
	group.Wait()
	if err := c.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// A client that waits on watches reconnects again and again, and proves its session at once.
// The race detector looks on: the answer to that proof must not meet the library while it
// asks for the watches again, which it did once in some tens of rounds. Every waiter is woken
// in the end.
func TestProofsDoNotOutrunTheWatches(t *testing.T) {
	e := zktest.NewEnsemble(t, 3)
	connect := func() *Client {
		c, err := Connect(t.Context(), Config{Servers: e.Addrs(), Dial: e.Dial})
		must(t, err)
		t.Cleanup(func() { must(t, c.Close()) })
		return c
	}
	holder, waiter := connect(), connect()
	back := make(chan struct{}, 1)
	defer waiter.OnStateChange(func(s StateChange) {
		if s.State == Reconnected {
			back <- struct{}{}
		}
	})()
	var held []*Lease
	var waits sync.WaitGroup
	for i := range 4 {
		m, err := NewInterProcessMutex(holder, fmt.Sprintf("/k%d", i))
		must(t, err)
		l, err := m.Acquire(t.Context())
		must(t, err)
		held = append(held, l)
		m, err = NewInterProcessMutex(waiter, m.Path())
		must(t, err)
		waits.Go(func() {
			l, err := m.Acquire(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			if err := l.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	for range 15 {
		for _, s := range e.Servers() {
			s.CutConnections()
		}
		select {
		case <-back:
		case <-time.After(20 * time.Second):
			t.Fatal("the waiter does not come back")
		}
	}
	for _, l := range held {
		must(t, l.Release(t.Context()))
	}
	waits.Wait()
}
