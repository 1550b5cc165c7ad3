package zklock

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// changes records what a listener gets.
type changes struct {
	mu   sync.Mutex
	list []StateChange
}

func (r *changes) add(ch StateChange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, ch)
}

// states are the states in order, once nothing is under way.
func (r *changes) states() string {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	var s []string
	for _, ch := range r.list {
		s = append(s, ch.State.String())
	}
	return strings.Join(s, " ")
}

func (r *changes) all() []StateChange {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]StateChange(nil), r.list...)
}

// lose ends the client's session and waits until it has another one.
func (b *bundle) lose(c *Client) {
	b.t.Helper()
	expire(b, c, nil)
	time.Sleep(5 * time.Second)
	if c.State() != Reconnected {
		b.t.Fatalf("the client is %v", c.State())
	}
}

func TestStateChanges(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect()
		if c.State() != Connected {
			t.Errorf("after Connect the state is %v", c.State())
		}
		var got changes
		c.OnStateChange(got.add)
		first := c.SessionID()
		b.srv.CutConnections()
		time.Sleep(time.Second)
		b.lose(c)
		second := c.SessionID()
		must(t, c.Close())
		if s := got.states(); s != "Suspended Reconnected Suspended Lost Reconnected Closed" {
			t.Fatalf("states: %s", s)
		}
		sessions := []int64{first, first, first, first, second, second}
		previous := Connected
		var at time.Time
		for i, ch := range got.all() {
			if ch.SessionID != sessions[i] || ch.Previous != previous || ch.At.Before(at) {
				t.Errorf("change %d is %+v; want session %s, previous %v", i, ch, hexID(sessions[i]), previous)
			}
			if wantsErr := ch.State == Suspended || ch.State == Lost; wantsErr != (ch.Err != nil) {
				t.Errorf("%v has the error %v", ch.State, ch.Err)
			}
			previous, at = ch.State, ch.At
		}
		if first == second {
			t.Error("the session's id did not change")
		}
	})
}

// F20: one listener blocks and one panics; the others, the leases and the calls go
// on as if they were not there, and the blocked one misses nothing.
func TestListenersDoNotDelayAnything(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		reg := prometheus.NewRegistry()
		c := b.connect(func(cfg *Config) { cfg.Registerer = reg })
		m := b.mutex(c, "/dedup/a")
		var slow, bad, good changes
		gate := make(chan struct{})
		c.OnStateChange(func(ch StateChange) { slow.add(ch); <-gate })
		c.OnStateChange(func(ch StateChange) { bad.add(ch); panic(fmt.Sprint("listener of ", ch.State)) })
		c.OnStateChange(good.add)
		c.OnStateChange(nil)() // never called, and harmless

		l := b.acquire(m)
		b.srv.Refuse(true)
		b.srv.CutConnections()
		lostBy := l.Deadline()
		b.awaitLost(l)
		if late := time.Since(lostBy); late > time.Millisecond {
			t.Errorf("the lease was lost %v after its deadline", late)
		}
		if s := good.states(); s != "Suspended Lost" {
			t.Errorf("beside a blocked and a panicking listener: %s", s)
		}
		b.srv.Refuse(false)
		_ = l.Release(t.Context())
		b.release(b.acquire(m))
		b.lose(c)
		want := "Suspended Lost Reconnected Suspended Lost Reconnected"
		if s := good.states(); s != want {
			t.Errorf("states: %s, want %s", s, want)
		}
		if s := bad.states(); s != want {
			t.Errorf("a listener that panics gets %s, want %s", s, want)
		}
		if s := slow.states(); s != "Suspended" {
			t.Errorf("the blocked listener got %s", s)
		}
		if n := sample(t, reg, "zklock_listener_panics_total"); n != 6 {
			t.Errorf("%v panics counted, want 6", n)
		}
		if log := b.logged(); !strings.Contains(log, `panic="listener of Lost"`) || !strings.Contains(log, "stack=") {
			t.Errorf("the panic is not in the log:\n%s", log)
		}
		close(gate)
		if s := slow.states(); s != want {
			t.Errorf("the blocked listener got %s in the end, want %s", s, want)
		}
	})
}

// A listener may end its goroutine, as a failed check of a test does. It goes on
// getting changes like one that panics.
func TestListenerGoexit(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect()
		var got changes
		c.OnStateChange(func(ch StateChange) { got.add(ch); runtime.Goexit() })
		b.lose(c)
		if s := got.states(); s != "Suspended Lost Reconnected" {
			t.Errorf("states: %s", s)
		}
	})
}

// Listeners may call anything, on the spot.
func TestListenersCallBack(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect()
		m := b.mutex(c, "/dedup/a")
		l := b.acquire(m)
		var again *Lease
		var stop func()
		stopped := 0
		stop = c.OnStateChange(func(StateChange) { stopped++; stop() })
		acquired := make(chan error, 1)
		first := c.SessionID()
		c.OnStateChange(func(ch StateChange) {
			if ch.SessionID != first {
				return
			}
			switch ch.State {
			case Suspended:
				if l.State() != LeaseSuspended || c.State() == Connected {
					t.Errorf("in a listener of Suspended: lease %v, client %v", l.State(), c.State())
				}
				if err := l.Await(context.Background()); err == nil {
					t.Error("Await inside a listener of Suspended returned before the loss")
				}
			case Lost:
				if err := l.Release(context.Background()); err == nil {
					t.Error("Release inside a listener of Lost: no error")
				}
				var err error
				again, err = m.Acquire(context.Background())
				acquired <- err
			}
		})
		b.srv.CutConnections()
		b.srv.Expire(c.SessionID())
		must(t, <-acquired)
		if stopped != 1 {
			t.Errorf("a listener that stops itself was called %d times", stopped)
		}
		must(t, again.Verify(t.Context()))

		// Close from a listener; it waits for no listener.
		closed := make(chan error, 1)
		c.OnStateChange(func(ch StateChange) {
			if ch.State == Suspended {
				closed <- c.Close()
			}
		})
		b.srv.CutConnections()
		if err := <-closed; err == nil || !strings.Contains(err.Error(), "expires") || c.State() != Closed {
			t.Errorf("Close without a connection, from a listener: %v; the state is %v", err, c.State())
		}
	})
}

func TestStopListening(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect()
		var first, second changes
		gate := make(chan struct{})
		stop := c.OnStateChange(func(ch StateChange) { first.add(ch); <-gate })
		c.OnStateChange(second.add)
		b.lose(c)
		stop()
		stop()
		close(gate) // what was queued behind the call under way is dropped
		b.lose(c)
		if s := first.states(); s != "Suspended" {
			t.Errorf("a stopped listener got %s", s)
		}
		if s := second.states(); s != "Suspended Lost Reconnected Suspended Lost Reconnected" {
			t.Errorf("the other one got %s", s)
		}
	})
}

// blockingHandler is a logger behind a full pipe.
type blockingHandler struct {
	slog.Handler
	gate chan struct{}
}

func (h blockingHandler) Handle(context.Context, slog.Record) error { <-h.gate; return nil }
func (h blockingHandler) WithAttrs([]slog.Attr) slog.Handler        { return h }

// What is true of listeners is true of the logger.
func TestLoggerDoesNotDelayALoss(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		h := blockingHandler{slog.DiscardHandler, make(chan struct{})}
		enabled := slog.NewTextHandler(b.log, nil)
		h.Handler = enabled
		c := b.connect(func(cfg *Config) { cfg.Logger = slog.New(h) })
		m := b.mutex(c, "/dedup/a")
		l := b.acquire(m)
		b.srv.Refuse(true)
		b.srv.CutConnections()
		by := l.Deadline()
		<-l.Context().Done()
		if late := time.Since(by); late > time.Millisecond {
			t.Errorf("lost %v after the deadline", late)
		}
		start := time.Now()
		_ = c.Close() // bounded, with the records still stuck
		if d := time.Since(start); d > maxCloseWait+time.Second {
			t.Errorf("Close took %v", d)
		}
		close(h.gate)
	})
}
