package zklock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/go-zookeeper/zk"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/go-zklock/zklock/zktest"
)

// Close ends the session while the function of a Do runs whose lease was revoked:
// the hold has left s.holds, so closeHolds does not find it.
func TestCloseDuringRevokedDo(t *testing.T) {
	inBubble(t, func(b *bundle) {
		c, rival := b.connect(), b.connect()
		m := b.mutex(c, "/l", WithRevocable())
		rm := b.mutex(rival, "/l")
		in, out := make(chan *Lease), make(chan struct{})
		var running atomic.Bool
		done := make(chan error, 1)
		go func() {
			done <- m.Do(b.t.Context(), func(_ context.Context, l *Lease) error {
				running.Store(true)
				in <- l
				<-out
				running.Store(false)
				return nil
			})
		}()
		l := <-in
		time.Sleep(time.Second) // the watch on the own node is set
		ps, err := rm.Participants(b.t.Context())
		if err != nil || len(ps) != 1 {
			t.Fatal(ps, err)
		}
		if err := rm.Revoke(b.t.Context(), ps[0]); err != nil {
			t.Fatal(err)
		}
		<-l.Lost()
		if !b.srv.Exists(l.Path()) {
			t.Fatal("the node went while fn runs")
		}
		got := acquireAsync(b.t.Context(), rm)
		notYet(t, got, "rival")
		closed := make(chan error, 1)
		go func() { closed <- c.Close() }()
		time.Sleep(time.Second)
		synctest.Wait()
		select {
		case r := <-got:
			if running.Load() {
				t.Errorf("the rival got %s while the function of Do runs; Close gave its node away", r.l.Path())
			}
		default:
		}
		close(out)
		if err := <-done; !errors.Is(err, ErrLost) {
			t.Errorf("Do: %v", err)
		}
		if err := <-closed; err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}

// grant → prove → NoNode: a hold that was never given out is "lost": the gauge
// held goes to -1, lost_total counts, the ticket leaves the queue while its attempt
// goes on, the ephemerals are subtracted twice.
func TestNodeDeletedBeforeGrantProof(t *testing.T) {
	inBubble(t, func(b *bundle) {
		reg := prometheus.NewRegistry()
		c := b.connect(func(c *Config) { c.Registerer = reg })
		holder := b.connect()
		m, hm := b.mutex(c, "/l"), b.mutex(holder, "/l")
		hl := b.acquire(hm)
		got := acquireAsync(b.t.Context(), m)
		names := b.awaitNodes("/l", 2)
		mine := "/l/" + names[0]
		if mine == hl.Path() {
			mine = "/l/" + names[1]
		}
		time.Sleep(30 * time.Second) // D has gone stale: the grant has to prove first
		f := b.srv.Inject(zktest.Before(func() { _ = b.srv.Delete(mine) }, zktest.OpMulti).Session(c.SessionID()))
		b.release(hl)
		l := granted(t, time.Minute, got, "waiter")
		if f.Hits() == 0 {
			t.Fatal("no proof before the grant")
		}
		if v := sample(t, reg, "zklock_held"); v != 1 {
			t.Errorf("zklock_held = %v while one lock is held, want 1", v)
		}
		if v := sample(t, reg, `zk_ephemeral_nodes_total{prefix="/dedup"}`); v != 1 {
			t.Errorf("zk_ephemeral_nodes_total = %v with one node, want 1", v)
		}
		// The ticket has left the line: others of this process overtake.
		if _, err := m.TryAcquire(context.Background()); !errors.Is(err, ErrHeld) {
			t.Errorf("TryAcquire: %v", err)
		}
		c.mu.Lock()
		if len(c.queues) != 1 {
			t.Errorf("the holder has no place in the local line: %d queues", len(c.queues))
		}
		c.mu.Unlock()
		b.release(l)
		synctest.Wait()
		if v := sample(t, reg, "zklock_held"); v != 0 {
			t.Errorf("zklock_held = %v at rest", v)
		}
	})
}

// A proof of many locks does not fit into MaxBuffer: nothing is ever proved, and
// every lease of the client is lost each T.
func TestSmallMaxBuffer(t *testing.T) {
	inBubble(t, func(b *bundle) {
		c := b.connect(func(c *Config) { c.MaxBuffer = 4096 })
		var ls []*Lease
		for i := range 60 {
			ls = append(ls, b.acquire(b.mutex(c, fmt.Sprintf("/dedup/order-%d", i))))
		}
		time.Sleep(30 * time.Second)
		if err := ls[0].Err(); err != nil {
			t.Errorf("60 locks, a healthy server, MaxBuffer 4096: %v", err)
		}
		for _, l := range ls {
			_ = l.Release(b.t.Context())
		}
	})
}

// One node that this client may not read takes every other lease down.
func TestOneUnreadableNode(t *testing.T) {
	inBubble(t, func(b *bundle) {
		c, op := b.connect(), b.connect()
		l1 := b.acquire(b.mutex(c, "/a"))
		l2 := b.acquire(b.mutex(c, "/b"))
		if _, err := op.Conn().SetACL(l1.Path(), []zk.ACL{{Perms: zk.PermRead, Scheme: "digest", ID: "x:y"}}, -1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		if err := l2.Err(); err != nil {
			t.Errorf("the lease of /b: %v", err)
		}
		_ = l2.Release(b.t.Context())
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = l1.Release(ctx)
	})
}

// watchers counts the watch channels that the library keeps.
func watchers(conn *zk.Conn) (n int) {
	v := reflect.ValueOf(conn).Elem()
	lock := (*sync.Mutex)(unsafe.Pointer(v.FieldByName("watchersLock").UnsafeAddr())) //nolint:gosec // the library shows its watchers to nobody
	lock.Lock()
	defer lock.Unlock()
	for it := v.FieldByName("watchers").MapRange(); it.Next(); {
		n += it.Value().Len()
	}
	return n
}

// Every Acquire that gives up leaves a channel in the library for as long as the
// predecessor lives.
func TestWatchChannelsPileUp(t *testing.T) {
	inBubble(t, func(b *bundle) {
		holder, c := b.connect(), b.connect()
		l := b.acquire(b.mutex(holder, "/l"))
		m := b.mutex(c, "/l")
		for range 1000 {
			ctx, cancel := context.WithTimeout(b.t.Context(), 100*time.Millisecond)
			_, _ = m.Acquire(ctx)
			cancel()
		}
		if n := watchers(c.Conn()); n > 10 {
			t.Errorf("%d watch channels after 1000 Acquires that gave up", n)
		}
		b.release(l)
	})
}

// Do is not bounded by its ctx: with the ensemble silent it returns up to T
// after ctx has ended and fn has returned.
func TestDoCtx(t *testing.T) {
	inBubble(t, func(b *bundle) {
		c := b.connect()
		m := b.mutex(c, "/l")
		ctx, cancel := context.WithTimeout(b.t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		f := (*zktest.Fault)(nil)
		err := m.Do(ctx, func(ctx context.Context, _ *Lease) error {
			f = b.srv.Inject(zktest.Blackhole(zktest.BothWays))
			<-ctx.Done()
			return nil
		})
		if d := time.Since(start); d > 1100*time.Millisecond {
			t.Errorf("Do with a ctx of 1 s returned after %v: %v", d, err)
		}
		f.Heal()
	})
}

// A server that completes the handshake and then hangs up is dialled without
// any pause.
func TestFlappingServerHotLoop(t *testing.T) {
	inBubble(t, func(b *bundle) {
		var dials atomic.Int64
		var flap atomic.Bool
		c := b.connect(func(cfg *Config) {
			dial := cfg.Dial
			cfg.Dial = func(ctx context.Context, n, a string) (net.Conn, error) {
				dials.Add(1)
				conn, err := dial(ctx, n, a)
				if err == nil && flap.Load() {
					conn = &hangup{Conn: conn}
				}
				return conn, err
			}
		})
		l := b.acquire(b.mutex(c, "/l"))
		flap.Store(true)
		_ = c.session().wire.Close()
		before := dials.Load()
		time.Sleep(5 * time.Second)
		if n := dials.Load() - before; n > 100 {
			t.Errorf("%d dials in 5 s", n)
		}
		flap.Store(false)
		time.Sleep(5 * time.Second)
		_ = l.Release(b.t.Context())
	})
}

// hangup closes itself when the second frame is read.
type hangup struct {
	net.Conn
	n int
}

func (h *hangup) Read(p []byte) (int, error) {
	if h.n++; h.n > 1 {
		_ = h.Conn.Close()
		return 0, net.ErrClosed
	}
	return h.Conn.Read(p)
}

// enabledBlocks blocks in Enabled.
type enabledBlocks struct {
	slog.Handler
	block *atomic.Bool
	free  chan struct{}
}

func (h enabledBlocks) Enabled(_ context.Context, l slog.Level) bool {
	if h.block.Load() && l >= slog.LevelInfo {
		<-h.free
	}
	return true
}
func (h enabledBlocks) WithAttrs([]slog.Attr) slog.Handler { return h }

// Enabled of the user's handler runs on the keeper's goroutine: a logger that
// blocks there keeps the second lease from being cancelled.
func TestLoggerBlocksInEnabled(t *testing.T) {
	inBubble(t, func(b *bundle) {
		h := enabledBlocks{slog.DiscardHandler, new(atomic.Bool), make(chan struct{})}
		c := b.connect(func(c *Config) { c.Logger = slog.New(h) })
		l1, l2 := b.acquire(b.mutex(c, "/a")), b.acquire(b.mutex(c, "/b"))
		time.Sleep(time.Second)
		h.block.Store(true)
		b.srv.Inject(zktest.Blackhole(zktest.BothWays))
		time.Sleep(20 * time.Second)
		synctest.Wait()
		for _, l := range []*Lease{l1, l2} {
			if l.Context().Err() == nil {
				t.Errorf("%s: the context is alive 20 s after the last packet, T = 12 s; the node is there: %v", l.Path(), b.srv.Exists(l.Path()))
			}
		}
		h.block.Store(false)
		close(h.free)
	})
}
