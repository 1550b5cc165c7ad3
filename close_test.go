package zklock

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock/zktest"
)

// F24: waiters are told at once, whatever they wait for; holders lose; the nodes go;
// synctest fails the test if a goroutine is left.
func TestCloseWithWaitersAndHolders(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect()
		other := b.acquire(b.mutex(b.connect(), "/dedup/b"))
		m, mb := b.mutex(c, "/dedup/a"), b.mutex(c, "/dedup/b")
		held := b.acquire(m)
		var waiters []<-chan result
		for range 4 {
			waiters = append(waiters,
				acquireAsync(context.Background(), m),  // behind a holder of this process
				acquireAsync(context.Background(), mb)) // behind somebody else's
		}
		time.Sleep(time.Second)
		start := time.Now()
		closed := make(chan error)
		go func() { closed <- c.Close() }()
		for _, w := range waiters {
			r := <-w
			wantErr(t, r.err, ErrClosed)
			wantErr(t, r.err, ErrNotAcquired)
			if r.l != nil {
				t.Error("a lease of a closed client")
			}
		}
		if d := time.Since(start); d > 0 {
			t.Errorf("waiters were told after %v", d)
		}
		<-held.Context().Done()
		wantErr(t, context.Cause(held.Context()), ErrLost, string(ClientClosed))
		wantErr(t, held.Err(), ErrClosed)
		must(t, <-closed)
		if d := time.Since(start); d > 100*time.Millisecond {
			t.Errorf("Close took %v", d)
		}
		if na, nb := b.nodes("/dedup/a"), b.nodes("/dedup/b"); len(na) != 0 || len(nb) != 1 {
			t.Errorf("nodes left: %q and %q, want the other client's one", na, nb)
		}
		must(t, other.Verify(t.Context()))
		b.release(other)
	})
}

func TestCloseWithoutConnection(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect()
		l := b.acquire(b.mutex(c, "/dedup/a"))
		waiter := acquireAsync(context.Background(), b.mutex(c, "/dedup/a"))
		b.srv.Refuse(true)
		b.srv.CutConnections()
		time.Sleep(time.Second)
		id := hexID(c.SessionID())
		start := time.Now()
		err := c.Close()
		if err == nil || !strings.Contains(err.Error(), id) || !strings.Contains(err.Error(), "expires") {
			t.Errorf("Close without a connection returned %v; it should say that session %s is left to expire", err, id)
		}
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("it took %v", d)
		}
		if again := c.Close(); !errors.Is(again, err) {
			t.Errorf("the second Close returned %v, the first %v", again, err)
		}
		wantErr(t, (<-waiter).err, ErrClosed)
		wantErr(t, l.Err(), ErrLost, string(ClientClosed))
		// What is left goes by expiry.
		b.srv.Refuse(false)
		time.Sleep(c.SessionTimeout() + 4*time.Second)
		if n := len(b.nodes("/dedup/a")); n != 0 {
			t.Errorf("%d nodes after the session must have expired", n)
		}
	})
}

// Close waits for a function of Do: its node may not go while it runs.
func TestCloseWaitsForDo(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect()
		m := b.mutex(c, "/dedup/a")
		running, done := make(chan *Lease), make(chan error, 1)
		var end time.Time
		go func() {
			done <- m.Do(context.Background(), func(ctx context.Context, l *Lease) error {
				running <- l
				<-ctx.Done()
				wantErr(t, context.Cause(ctx), ErrLost, string(ClientClosed))
				time.Sleep(3 * time.Second)
				if !b.srv.Exists(l.Path()) {
					t.Error("the node went before fn returned")
				}
				end = time.Now()
				return nil
			})
		}()
		<-running
		other := b.acquire(b.mutex(b.connect(), "/dedup/b"))
		waiters := []<-chan result{
			acquireAsync(context.Background(), m),                      // behind fn
			acquireAsync(context.Background(), m),                      // without a node
			acquireAsync(context.Background(), b.mutex(c, "/dedup/b")), // behind somebody else
		}
		time.Sleep(time.Second)
		start := time.Now()
		told := make(chan time.Duration, len(waiters))
		for _, w := range waiters {
			go func() {
				wantErr(t, (<-w).err, ErrClosed)
				told <- time.Since(start)
			}()
		}
		must(t, c.Close())
		for range waiters {
			if d := <-told; d > 0 {
				t.Errorf("a waiter was told %v after Close began: it waited for fn", d)
			}
		}
		b.release(other)
		if end.IsZero() || time.Since(end) > 100*time.Millisecond {
			t.Errorf("Close returned %v after its begin, fn at %v", time.Since(start), end)
		}
		wantErr(t, <-done, ErrLost, string(ClientClosed))
		if n := len(b.nodes("/dedup/a")); n != 0 {
			t.Errorf("%d nodes after Close", n)
		}
	})
}

// It gives up after the smaller of T and 5 s, says so, and leaves the session to
// expire: ending it would free the lock while fn runs.
func TestCloseGivesUpOnDo(t *testing.T) {
	for _, tc := range []struct{ timeout, wait time.Duration }{
		{12 * time.Second, 5 * time.Second}, {4 * time.Second, 4 * time.Second},
	} {
		inBubble(t, func(b *bundle) {
			t := b.t
			c := b.connect(func(cfg *Config) { cfg.SessionTimeout = tc.timeout; cfg.TickTime = time.Second })
			m := b.mutex(c, "/dedup/a")
			running, done := make(chan *Lease), make(chan error, 1)
			go func() {
				done <- m.Do(context.Background(), func(_ context.Context, l *Lease) error {
					running <- l
					time.Sleep(time.Minute) // deaf to its ctx
					return errFn
				})
			}()
			<-running
			start := time.Now()
			id := hexID(c.SessionID())
			err := c.Close()
			if err == nil || !strings.Contains(err.Error(), "1 functions") || !strings.Contains(err.Error(), id) {
				t.Errorf("Close returned %v; it should say that one function of session %s runs", err, id)
			}
			if d := time.Since(start); d < tc.wait || d > tc.wait+100*time.Millisecond {
				t.Errorf("T %v: Close took %v, want %v", tc.timeout, d, tc.wait)
			}
			if n := len(b.nodes("/dedup/a")); n != 1 {
				t.Errorf("%d nodes while fn runs and the session may live", n)
			}
			time.Sleep(tc.timeout + 4*time.Second)
			if n := len(b.nodes("/dedup/a")); n != 0 {
				t.Errorf("%d nodes after the session must have expired", n)
			}
			err = <-done
			wantErr(t, err, ErrLost, string(ClientClosed))
			wantErr(t, err, errFn)
		})
	}
}

func TestCloseDuringConnect(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		b.srv.Refuse(true)
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("not today")
		time.AfterFunc(time.Second, func() { cancel(cause) })
		start := time.Now()
		_, err := Connect(ctx, Config{Servers: []string{b.srv.Addr()}, Dial: b.srv.Dial, Clock: zktest.Clock{}, Seed: 3})
		wantErr(t, err, cause, "server "+b.srv.Addr(), "refused")
		if d := time.Since(start); d < time.Second || d > 2*time.Second+100*time.Millisecond {
			t.Errorf("Connect returned after %v", d)
		}
	})
}

// A Dial that never returns and ignores its ctx must hang neither Connect nor Close.
func TestDialThatIgnoresItsContext(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		forever := make(chan struct{})
		defer close(forever) // so that the bubble can end
		stuck := func(context.Context, string, string) (net.Conn, error) {
			<-forever
			return nil, errors.New("too late")
		}
		took, err := connectError(t, Config{
			Servers: []string{"zk1"}, Dial: stuck, Clock: zktest.Clock{}, SessionTimeout: 2 * time.Second, DialTimeout: 500 * time.Millisecond,
		})
		wantErr(t, err, context.DeadlineExceeded, "server zk1:2181", "no connection within 500ms")
		if took > 3*time.Second {
			t.Errorf("Connect took %v", took)
		}

		// The same after a first connection that worked.
		dials := 0
		c := b.connect(func(cfg *Config) {
			cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if dials++; dials > 1 {
					return stuck(ctx, network, addr)
				}
				return b.srv.Dial(ctx, network, addr)
			}
		})
		l := b.acquire(b.mutex(c, "/dedup/a"))
		b.srv.CutConnections()
		time.Sleep(time.Second)
		start := time.Now()
		if _, err := b.mutex(c, "/dedup/a").Acquire(b.within(300 * time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 300*time.Millisecond {
			t.Errorf("Acquire: %v after %v", err, time.Since(start))
		}
		start = time.Now()
		_ = c.Close()
		if d := time.Since(start); d > 1100*time.Millisecond {
			t.Errorf("Close took %v", d)
		}
		wantErr(t, l.Err(), ErrLost)
		synctest.Wait()
	})
}

// The client library runs what was queued before a loss on the next session. One
// connection object per session keeps that apart: here a server answers the
// reconnect with a new session, and says nothing of an expiry.
func TestRequestsStayInTheirSession(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect()
		m := b.mutex(c, "/dedup/a")
		l := b.acquire(m)
		conn, id := c.Conn(), c.SessionID()
		b.srv.ForgetSessions(true)
		b.srv.Refuse(true)
		b.srv.CutConnections()
		time.Sleep(10 * time.Millisecond)
		queued := make(chan error, 1)
		go func() {
			_, err := conn.Create("/queued", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
			queued <- err
		}()
		synctest.Wait()
		b.srv.Refuse(false)
		b.awaitLost(l)
		wantErr(t, l.Err(), ErrLost, string(SessionReplaced), hexID(id))
		if err := <-queued; err == nil {
			t.Error("a request of the old session succeeded")
		}
		must(t, awaitState(c, Reconnected))
		if c.Conn() == conn || c.SessionID() == id {
			t.Error("the new session uses the old connection object")
		}
		time.Sleep(time.Minute)
		if b.srv.Exists("/queued") {
			t.Error("a request of the old session ran on the new one")
		}
		// One session is ours, and the old one has expired.
		if s := b.srv.Sessions(); len(s) != 1 || s[0].ID != c.SessionID() {
			t.Errorf("sessions: %+v", s)
		}
		wantErr(t, l.Release(t.Context()), ErrLost)
		b.release(b.acquire(m))
	})
}
