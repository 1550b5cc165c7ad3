package zklock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock/internal/wire"
	"github.com/go-zklock/zklock/zktest"
)

// connectError connects to servers that cannot work and returns why, and how long
// it took.
func connectError(t *testing.T, cfg Config) (time.Duration, error) {
	t.Helper()
	start := time.Now()
	c, err := Connect(t.Context(), cfg)
	if err == nil {
		_ = c.Close()
		t.Fatal("Connect succeeded")
	}
	return time.Since(start), err
}

func TestConnectToNamesThatDoNotResolve(t *testing.T) {
	t.Parallel()
	// The real resolver's code, cut off from any name server.
	dialer := &net.Dialer{Resolver: &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("no name server")
	}}}
	took, err := connectError(t, Config{
		Servers: []string{"zk1.invalid:2181", "zk2.invalid:2182"}, SessionTimeout: 300 * time.Millisecond, Dial: dialer.DialContext,
	})
	wantErr(t, err, context.DeadlineExceeded, "server zk1.invalid:2181", "server zk2.invalid:2182", "lookup zk1.invalid", "session timeout of 300ms")
	var dns *net.DNSError
	if !errors.As(err, &dns) {
		t.Errorf("the error %v holds no *net.DNSError", err)
	}
	if took > 3*time.Second {
		t.Errorf("it took %v", took)
	}
}

// A net/http server answers only once it has read a line, which a connect request
// need not hold: with 2570 ms (0x0a0a) it does.
func TestConnectToAnHTTPServer(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.NotFoundHandler())
	defer srv.Close()
	addr := srv.Listener.Addr().String()

	ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	c, err := Connect(ctx, Config{Servers: []string{addr}, SessionTimeout: 2570 * time.Millisecond})
	if c != nil {
		t.Fatal("connected to an HTTP server")
	}
	wantErr(t, err, context.DeadlineExceeded, "server "+addr, "does not speak ZooKeeper's protocol", `"HTTP/1.1 400 Bad`)
	var not *wire.NotZooKeeperError
	if !errors.As(err, &not) {
		t.Errorf("no *wire.NotZooKeeperError in %v", err)
	}

	// Without a line it waits for more, and the handshake limit names the fault.
	_, err = connectError(t, Config{Servers: []string{addr}, SessionTimeout: 400 * time.Millisecond, DialTimeout: 100 * time.Millisecond})
	wantErr(t, err, wire.ErrHandshakeTimeout, "server "+addr, "100ms")
}

// peer makes a Dial that leads to a server made of one function. The function's
// connection is closed when it returns.
func peer(serve func(net.Conn)) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go func() {
			defer func() { _ = server.Close() }()
			serve(server)
		}()
		return client, nil
	}
}

func TestConnectToAPeerThatDoesNotAnswer(t *testing.T) {
	half := []byte{0, 0, 0, 37, 0, 0, 0, 0, 0, 0} // the length and six bytes of a connect response
	for _, tc := range []struct {
		name  string
		serve func(net.Conn)
		parts []string
	}{
		{"silent", func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, []string{"did not answer the connect request in time (500ms)"}},
		{"half an answer", func(c net.Conn) {
			_, _ = c.Read(make([]byte, 256))
			_, _ = c.Write(half)
			_, _ = io.Copy(io.Discard, c)
		}, []string{"did not answer the connect request in time (500ms)"}},
		{"half an answer and gone", func(c net.Conn) {
			_, _ = c.Read(make([]byte, 256))
			_, _ = c.Write(half)
		}, []string{"EOF"}},
		{"closes at once", func(c net.Conn) { _, _ = c.Read(make([]byte, 256)) }, nil},
		{"nginx", func(c net.Conn) {
			_, _ = c.Read(make([]byte, 256))
			_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\nServer: nginx\r\n\r\n")
		}, []string{"does not speak ZooKeeper's protocol", `"HTTP/1.1 400 Bad`}},
		{"SSH", func(c net.Conn) {
			_, _ = c.Read(make([]byte, 256))
			_, _ = io.WriteString(c, "SSH-2.0-OpenSSH_9.2\r\n")
			_, _ = io.Copy(io.Discard, c)
		}, []string{"does not speak ZooKeeper's protocol", `"SSH-2.0-`}},
		{"no session", func(c net.Conn) {
			_, _ = c.Read(make([]byte, 256))
			_, _ = c.Write(append([]byte{0, 0, 0, 37}, make([]byte, 37)...))
			_, _ = io.Copy(io.Discard, c)
		}, []string{"refused to make a session"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, func(b *bundle) {
				t := b.t
				took, err := connectError(t, Config{
					Servers: []string{"zk1"}, Clock: zktest.Clock{}, Seed: 1, Dial: peer(tc.serve),
					SessionTimeout: 3 * time.Second, DialTimeout: 500 * time.Millisecond,
				})
				wantErr(t, err, context.DeadlineExceeded, append(tc.parts, "server zk1:2181", "session timeout of 3s")...)
				// The caller's time, and the second that the library takes to close.
				if took > 4*time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// A peer that hangs costs the handshake limit, once, and no more.
func TestSilentServerAmongGoodOnes(t *testing.T) {
	for seed := range uint64(4) {
		inBubble(t, func(b *bundle) {
			t := b.t
			silent := peer(func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
			start := time.Now()
			c := b.connect(func(cfg *Config) {
				cfg.Seed = seed + 1
				cfg.Servers = append(cfg.Servers, "silent:2181")
				cfg.DialTimeout = 700 * time.Millisecond
				cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
					if addr == "silent:2181" {
						return silent(ctx, network, addr)
					}
					return b.srv.Dial(ctx, network, addr)
				}
			})
			if took := time.Since(start); took > 800*time.Millisecond {
				t.Errorf("seed %d: connected after %v, want at most the limit and a dial", seed+1, took)
			}
			b.release(b.acquire(b.mutex(c, "/dedup/a")))
		})
	}
}

// F16: every timer uses what was granted, and the log says so.
func TestGrantedTimeoutFarFromAsked(t *testing.T) {
	for _, tc := range []struct{ asked, granted time.Duration }{
		{60 * time.Second, 40 * time.Second}, {500 * time.Millisecond, 4 * time.Second},
	} {
		inBubble(t, func(b *bundle) {
			t := b.t
			c := b.connect(func(cfg *Config) { cfg.SessionTimeout = tc.asked; cfg.TickTime = 500 * time.Millisecond })
			if c.SessionTimeout() != tc.granted {
				t.Errorf("SessionTimeout is %v, want %v", c.SessionTimeout(), tc.granted)
			}
			want := fmt.Sprintf("session_id=%s asked=%v granted=%v", hexID(c.SessionID()), tc.asked, tc.granted)
			if log := b.logged(); !strings.Contains(log, want) || !strings.Contains(log, "level=WARN") {
				t.Errorf("no warning with %q in the log:\n%s", want, log)
			}
			l := b.acquire(b.mutex(c, "/dedup/a"))
			left := time.Until(l.Deadline())
			if lim := trusted(tc.granted); left > lim || left < lim/2 {
				t.Errorf("T %v: the trust deadline is %v away", tc.granted, left)
			}
			b.release(l)
		})
	}
}

func TestBadPathsAndKeys(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect()
		b.srv.Ops().Reset()
		huge := strings.Repeat("k", 1<<20)
		for _, tc := range []struct{ path, rule string }{
			{"", "empty"}, {"dedup/a", "absolute"}, {"/dedup//a", "empty element"}, {"/dedup/.", "element ."}, {"/dedup/..", "element .."},
			{"/dedup/a\x00b", "U+0000"}, {"/dedup/a/", "ends with a slash"}, {"/", "root"}, {"/dedup/" + huge, "longer than"},
		} {
			m, err := NewInterProcessMutex(c, tc.path)
			wantErr(t, err, ErrInvalidPath, tc.rule, shorten(tc.path))
			if m != nil {
				t.Errorf("%s: a mutex beside an error", shorten(tc.path))
			}
		}
		_, err := EscapeKey(huge)
		wantErr(t, err, ErrInvalidPath, "longer than 1024 bytes", "1048576 bytes")
		_, err = NewInterProcessMutex(nil, "/dedup/a")
		wantErr(t, err, ErrInvalidConfig, "the client is nil")
		long := strings.Repeat("i", maxIdentifier+1)
		_, err = NewInterProcessMutex(c, "/dedup/a", WithIdentifier(long))
		wantErr(t, err, ErrInvalidConfig, "identifier", "(1025 bytes)", "longer than 1024 bytes")
		m := b.mutex(c, "/dedup/a", WithIdentifier(long[1:]))
		if _, err = m.Acquire(t.Context(), AcquireIdentifier(long)); true {
			wantErr(t, err, ErrInvalidConfig, "identifier", "longer than 1024 bytes")
		}
		if _, err = m.TryAcquire(t.Context(), AcquireIdentifier(long)); true {
			wantErr(t, err, ErrInvalidConfig, "identifier")
		}
		wantErr(t, m.Do(t.Context(), nil), ErrInvalidConfig, "fn is nil")
		if n := b.srv.Ops().Reads() + b.srv.Ops().Writes(); n != 0 {
			t.Errorf("refused input cost %d requests", n)
		}
		b.release(b.acquire(m)) // the longest identifier works
	})
}

func TestUseAfterClose(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect()
		m := b.mutex(c, "/dedup/a")
		l := b.acquire(m)
		released := b.acquire(b.mutex(c, "/dedup/b"))
		b.release(released)
		for range 2 {
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
		start := time.Now()
		ctx := context.Background() // nothing may need its end
		_, err := m.Acquire(ctx)
		wantErr(t, err, ErrClosed)
		wantErr(t, err, ErrNotAcquired)
		_, err = m.TryAcquire(ctx)
		wantErr(t, err, ErrClosed)
		wantErr(t, err, ErrNotAcquired)
		wantErr(t, m.Do(ctx, func(context.Context, *Lease) error { t.Error("fn ran"); return nil }), ErrClosed)
		_, err = m.Participants(ctx)
		wantErr(t, err, ErrClosed, "/dedup/a")
		wantErr(t, m.Revoke(ctx, Participant{Path: "/dedup/a/x"}), ErrClosed)
		for what, err := range map[string]error{
			"Err": l.Err(), "Await": l.Await(ctx), "Verify": l.Verify(ctx), "Release": l.Release(ctx), "Release again": l.Release(ctx),
		} {
			var lost *LostError
			if !errors.As(err, &lost) || lost.Reason != ClientClosed || lost.Path != l.Path() || lost.Token != l.Token() {
				t.Errorf("%s of a lease of a closed client: %v", what, err)
			}
		}
		if err := released.Release(ctx); err != nil {
			t.Errorf("a lease released before Close, released again: %v", err)
		}
		if m, err := NewInterProcessMutex(c, "/dedup/c"); err == nil {
			_, err = m.Acquire(ctx)
			wantErr(t, err, ErrClosed)
		}
		if c.State() != Closed || c.Conn() == nil || l.State() != LeaseLost || !l.Deadline().Before(start.Add(time.Nanosecond)) {
			t.Errorf("state %v, conn %v, lease %v until %v", c.State(), c.Conn(), l.State(), l.Deadline())
		}
		c.OnStateChange(func(ch StateChange) { t.Errorf("a change after Closed: %+v", ch) })()
		if _, _, err := c.Conn().Exists("/"); err == nil {
			t.Error("a request on a closed client's connection succeeded")
		}
		if d := time.Since(start); d > 0 {
			t.Errorf("calls on a closed client took %v", d)
		}
	})
}

func TestReleaseTwice(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect()
		m := b.mutex(c, "/dedup/a")
		l := b.acquire(m)
		b.release(l)
		next := b.acquire(m)
		writes := b.srv.Ops().Writes()
		for range 3 {
			b.release(l)
		}
		if n := b.srv.Ops().Writes() - writes; n != 0 {
			t.Errorf("releasing a released lease sent %d writes", n)
		}
		wantErr(t, l.Err(), ErrReleased)
		wantErr(t, l.Await(t.Context()), ErrReleased)
		wantErr(t, l.Verify(t.Context()), ErrReleased)
		wantErr(t, context.Cause(l.Context()), ErrReleased)
		select {
		case <-l.Lost():
			t.Error("Lost is closed by a release")
		default:
		}
		if err := next.Verify(t.Context()); err != nil {
			t.Errorf("the next holder: %v", err)
		}
		b.release(next)
	})
}

// F21, and the bad children of issue 2.
func TestForeignChildren(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		odd := []string{
			"config", "0", "_c_", "_c_x", "_c_x-lock-", "_c_-lock-0000000000", "_c_x-lock-99999999999", "-lock-0000000000",
			"lock-0000000000", "x__lock__", "_c_x-read-0000000000", "é 日",
		}
		for _, p := range []string{"/dedup", "/dedup/a"} {
			must(t, b.srv.Create(p, nil))
		}
		for _, name := range odd {
			must(t, b.srv.Create("/dedup/a/"+name, []byte("mine")))
		}
		c := b.connect()
		m := b.mutex(c, "/dedup/a")
		l, err := m.TryAcquire(t.Context())
		if err != nil {
			t.Fatalf("TryAcquire among foreign children: %v", err)
		}
		b.release(l)
		l = b.acquire(m)
		waiter := acquireAsync(b.within(10*time.Minute), b.mutex(b.connect(), "/dedup/a"))
		time.Sleep(30 * time.Second)
		b.release(l)
		r := <-waiter
		if r.err != nil {
			t.Fatal(r.err)
		}
		ps, err := m.Participants(t.Context())
		if err != nil || len(ps) != 1 || !ps[0].Holder {
			t.Errorf("participants: %+v, %v; want the holder alone", ps, err)
		}
		b.release(r.l)
		if left := b.nodes("/dedup/a"); len(left) != len(odd) {
			t.Errorf("children left: %q; want the foreign ones, %q", left, odd)
		}
	})
}

// Lock nodes of other libraries are waited for in their turn, and left alone.
func TestNodesOfOtherLibraries(t *testing.T) {
	for _, name := range []string{
		"_c_5f2d0c1e-6a55-4c39-9f0d-0d9c2f6f1a11-lock-0000000000", // Curator
		"_c_5f2d0c1e6a554c399f0d0d9c2f6f1a11-lock-0000000000",     // go-zookeeper
		"5f2d0c1e6a554c399f0d0d9c2f6f1a11__lock__0000000000",      // kazoo
	} {
		inBubble(t, func(b *bundle) {
			t := b.t
			for _, p := range []string{"/dedup", "/dedup/a", "/dedup/a/" + name} {
				must(t, b.srv.Create(p, nil))
			}
			m := b.mutex(b.connect(), "/dedup/a")
			if _, err := m.TryAcquire(t.Context()); !errors.Is(err, ErrHeld) {
				t.Errorf("TryAcquire behind %s: %v", name, err)
			}
			waiter := acquireAsync(b.within(10*time.Minute), m)
			time.Sleep(time.Minute)
			select {
			case r := <-waiter:
				t.Fatalf("passed %s: %v", name, r.err)
			default:
			}
			freed := time.Now()
			must(t, b.srv.Delete("/dedup/a/"+name))
			r := <-waiter
			if r.err != nil {
				t.Fatal(r.err)
			}
			if d := time.Since(freed); d > 10*time.Millisecond {
				t.Errorf("woke %v after %s had gone", d, name)
			}
			b.release(r.l)
		})
	}
}

// logged is the log once the records that are under way have been written.
func (b *bundle) logged() string {
	synctest.Wait()
	return b.log.String()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A request over jute.maxbuffer would make the server drop the connection, and
// every lock with it. Around the limit each one either works or is refused.
func TestRequestsOverMaxBuffer(t *testing.T) {
	const limit = 4096
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect(func(cfg *Config) { cfg.MaxBuffer = limit })
		var changes atomic.Int32
		c.OnStateChange(func(StateChange) { changes.Add(1) })
		l := b.acquire(b.mutex(c, "/dedup/a"))
		worked, refused := 0, 0
		for size := limit - 120; size < limit+20; size++ {
			_, err := c.Conn().Create(fmt.Sprintf("/n%04d", size), make([]byte, size), 0, zk.WorldACL(zk.PermAll))
			switch {
			case err == nil && refused == 0:
				worked++
			case errors.Is(err, zk.ErrShortBuffer):
				refused++
			default:
				t.Fatalf("%d bytes, after %d refused: %v", size, refused, err)
			}
		}
		if worked == 0 || refused == 0 {
			t.Errorf("%d worked and %d were refused", worked, refused)
		}
		if _, err := c.Conn().Set("/dedup", bytes.Repeat([]byte("x"), 2<<20), -1); !errors.Is(err, zk.ErrShortBuffer) {
			t.Errorf("2 MiB: %v", err)
		}
		must(t, l.Verify(t.Context()))
		if n := changes.Load(); n != 0 || l.State() != LeaseHeld {
			t.Errorf("%d changes of state, the lease is %v", n, l.State())
		}
		b.release(l)
	}, func(cfg *zktest.Config) { cfg.JuteMaxBuffer = limit })
}

// A listing that is larger than what is taken refuses the calls that need it, and says
// so. The connection and the other locks on it notice nothing, and nothing is asked for
// again.
func TestReplyOverTheLimit(t *testing.T) {
	const limit = 4096
	inBubble(t, func(b *bundle) {
		t := b.t
		for _, p := range []string{"/dedup", "/dedup/big"} {
			must(t, b.srv.Create(p, nil))
		}
		for i := range 100 {
			must(t, b.srv.Create(fmt.Sprintf("/dedup/big/_c_00000000-0000-0000-0000-%012d-lock-%010d", i, i), nil))
		}
		must(t, b.srv.SetSequence("/dedup/big", 100))
		c := b.connect()
		c.mu.Lock()
		c.replies = limit
		c.mu.Unlock()
		b.srv.CutConnections() // the next connection takes no more
		time.Sleep(time.Second)
		states := logStates(c)
		other := b.acquire(b.mutex(c, "/dedup/other"))
		conn, connections := c.session().ready(), b.srv.Connections()
		time.Sleep(ownWatchDelay + roundTrip)

		big := b.mutex(c, "/dedup/big")
		for _, tc := range []struct {
			name string
			call func(ctx context.Context) error
		}{
			{"Acquire", func(ctx context.Context) error { _, err := big.Acquire(ctx); return err }},
			{"TryAcquire", func(ctx context.Context) error { _, err := big.TryAcquire(ctx); return err }},
			{"Participants", func(ctx context.Context) error { _, err := big.Participants(ctx); return err }},
		} {
			b.srv.Ops().Reset()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			err := tc.call(ctx)
			cancel()
			if err == nil || !strings.Contains(err.Error(), "the reply is too large: it has ") || !strings.Contains(err.Error(), "bytes, the limit is 4096") {
				t.Errorf("%s: %v", tc.name, err)
			}
			time.Sleep(time.Minute)
			if n := b.srv.Ops().Count(zktest.OpGetChildren, zktest.OpGetChildren2); n != 1 {
				t.Errorf("%s: %d listings, want one", tc.name, n)
			}
			if n := len(b.nodes("/dedup/big")); n != 100 {
				t.Errorf("%s: %d nodes, want the 100 of others", tc.name, n)
			}
		}
		if c.session().ready() != conn || b.srv.Connections() != connections || states.count(Suspended) != 0 {
			t.Errorf("%d connections, %d before; states %v", b.srv.Connections(), connections, states)
		}
		must(t, other.Verify(t.Context()))
		b.release(other)
		b.release(b.acquire(b.mutex(c, "/dedup/small")))
	})
}
