package zklock

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/go-zklock/zklock/zktest"
)

// Release after a refused delete that has succeeded since: a coin decides.
func TestReleaseAfterRefusalTellsNoTruth(t *testing.T) {
	inBubble(t, func(b *bundle) {
		var on atomic.Bool
		var hits atomic.Int64
		c := b.connect(answering(2, -102, &on, &hits)) // delete: NoAuth (it takes effect at the server)
		l := b.acquire(b.mutex(c, "/l"))
		on.Store(true)
		if err := l.Release(b.t.Context()); !errors.Is(err, ErrPending) {
			t.Fatal(err)
		}
		on.Store(false)
		time.Sleep(time.Minute)
		if b.srv.Exists(l.Path()) {
			t.Fatal("the node is there")
		}
		pending := 0
		for range 100 {
			if errors.Is(l.Release(b.t.Context()), ErrPending) {
				pending++
			}
		}
		if pending > 0 {
			t.Errorf("%d of 100 calls of Release say pending; the node has been gone for a minute", pending)
		}
	})
}

// onSuspended runs fn when the record "suspended" is about to be made: a stand-in for
// a goroutine that is preempted between giving s.mu back and setState.
type onSuspended struct {
	slog.Handler
	armed *atomic.Bool
	fn    func()
}

func (h onSuspended) Enabled(_ context.Context, l slog.Level) bool {
	if l == slog.LevelWarn && h.armed.CompareAndSwap(true, false) {
		h.fn()
	}
	return true
}
func (h onSuspended) WithAttrs([]slog.Attr) slog.Handler { return h }

// Suspended is told after the Reconnected that ended it: the client says
// Suspended for good while its lease is Held.
func TestStateStuckSuspended(t *testing.T) {
	inBubble(t, func(b *bundle) {
		armed := new(atomic.Bool)
		c := b.connect(func(c *Config) {
			c.Logger = slog.New(onSuspended{slog.DiscardHandler, armed, func() { time.Sleep(time.Second) }})
		})
		l := b.acquire(b.mutex(c, "/l"))
		time.Sleep(time.Second)
		armed.Store(true)
		// A proof that is answered after H and before 2H, H = 2 s.
		b.srv.Inject(zktest.DelayReply(2500*time.Millisecond, zktest.OpMulti))
		time.Sleep(time.Minute)
		synctest.Wait()
		if c.State() == Suspended && l.State() == LeaseHeld {
			t.Errorf("a minute later the client says %v, the lease %v", c.State(), l.State())
		}
		b.release(l)
	})
}

// trapCtx runs fn at the nth look-up of the lease.
type trapCtx struct {
	context.Context
	n  *atomic.Int64
	at int64
	fn func()
}

func (c trapCtx) Value(k any) any {
	if _, ok := k.(leaseKey); ok && c.n.Add(1) == c.at {
		c.fn()
	}
	return c.Context.Value(k)
}

// A hold that is lost between the gate and the entry: the re-entrant Acquire
// does not fail, it queues up for a lock of its own.
func TestReentryLostInBetween(t *testing.T) {
	inBubble(t, func(b *bundle) {
		c := b.connect()
		m := b.mutex(c, "/l")
		l := b.acquire(m)
		time.Sleep(time.Second)
		ctx := trapCtx{l.Context(), new(atomic.Int64), 2, func() {
			_ = b.srv.Delete(l.Path())
			<-l.Lost()
		}}
		again, err := m.Acquire(ctx)
		if !errors.Is(err, ErrLost) {
			t.Errorf("Acquire under a lost lease: %v, %v; want ErrLost", again, err)
		}
		if again != nil {
			_ = again.Release(context.Background())
		}
		_ = l.Release(context.Background())
	})
}

// Close during a Release: the session is ended, the node gone, and Release says
// pending for ever.
func TestReleaseAcrossClose(t *testing.T) {
	inBubble(t, func(b *bundle) {
		c := b.connect()
		l := b.acquire(b.mutex(c, "/l"))
		f := b.srv.Inject(zktest.DropReply(zktest.OpDelete))
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		res := make(chan error, 1)
		go func() { res <- l.Release(ctx) }()
		<-f.Hit()
		time.Sleep(8 * time.Millisecond) // connected again, and not yet sent again
		_ = c.Close()
		err := <-res
		if errors.Is(err, ErrPending) && !b.srv.Exists(l.Path()) {
			t.Errorf("node gone, session ended; Release: %v; again: %v", err, l.Release(ctx))
		}
	})
}

// Close and Acquire from listeners and from inside Do must end.
func TestCloseInOddPlaces(t *testing.T) {
	inBubble(t, func(b *bundle) {
		c := b.connect()
		m := b.mutex(c, "/l")
		done := make(chan struct{})
		c.OnStateChange(func(ch StateChange) {
			if ch.State == Suspended {
				_ = c.Close()
				close(done)
			}
		})
		start := time.Now()
		err := m.Do(b.t.Context(), func(ctx context.Context, _ *Lease) error {
			_ = c.session().wire.Close()
			<-done
			_, err := m.Acquire(ctx)
			return err
		})
		t.Log(time.Since(start), err)
		if !errors.Is(err, ErrLost) {
			t.Error(err)
		}
		time.Sleep(2 * time.Second) // Close did not wait any more for the library's, which takes one
	})
}

// A wrapped Registerer that is shared.
func TestWrappedRegisterer(t *testing.T) {
	inBubble(t, func(b *bundle) {
		reg := prometheus.WrapRegistererWith(prometheus.Labels{"app": "x"}, prometheus.NewRegistry())
		b.connect(func(c *Config) { c.Registerer = reg })
		b.connect(func(c *Config) { c.Registerer = reg })
	})
}
