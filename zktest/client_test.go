package zktest_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock/zktest"
)

// dialFunc is the shape of Server.Dial and Ensemble.Dial.
type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// client is a go-zookeeper connection whose session events can be waited for.
type client struct {
	*zk.Conn
	mu     sync.Mutex
	states []zk.State // not yet awaited
	all    []zk.State
	wake   chan struct{}
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

// connect opens a session and returns once it is there.
func connect(t *testing.T, dial dialFunc, timeout time.Duration, addrs ...string) *client {
	t.Helper()
	c := &client{wake: make(chan struct{}, 1)}
	conn, _, err := zk.Connect(addrs, timeout,
		zk.WithDialer(func(network, address string, d time.Duration) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(context.Background(), d)
			defer cancel()
			return dial(ctx, network, address)
		}),
		zk.WithLogger(quiet{}),
		zk.WithLogInfo(false),
		zk.WithEventCallback(func(e zk.Event) {
			if e.Type != zk.EventSession {
				return
			}
			c.mu.Lock()
			c.states = append(c.states, e.State)
			c.all = append(c.all, e.State)
			c.mu.Unlock()
			select {
			case c.wake <- struct{}{}:
			default:
			}
		}))
	if err != nil {
		t.Fatal(err)
	}
	c.Conn = conn
	t.Cleanup(conn.Close)
	c.await(t, zk.StateHasSession)
	return c
}

// await waits until the state has been seen since the last await.
func (c *client) await(t *testing.T, want zk.State) {
	t.Helper()
	deadline := time.After(10 * time.Minute)
	for {
		c.mu.Lock()
		for i, s := range c.states {
			if s == want {
				c.states = c.states[i+1:]
				c.mu.Unlock()
				return
			}
		}
		c.mu.Unlock()
		select {
		case <-c.wake:
		case <-deadline:
			t.Fatalf("state %v did not come", want)
		}
	}
}

// forget drops the states seen so far.
func (c *client) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.states = nil
}

// saw reports whether the state has ever come.
func (c *client) saw(s zk.State) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(c.all, s)
}

// bubble runs a test in virtual time.
func bubble(t *testing.T, fn func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, fn)
}

// world is the open ACL.
var world = zk.WorldACL(zk.PermAll)

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error is %v, want %v", err, want)
	}
}

// raw is a connection that speaks the protocol byte by byte.
type raw struct {
	t  *testing.T
	nc net.Conn
}

func rawDial(t *testing.T, s *zktest.Server) *raw {
	t.Helper()
	nc := must[net.Conn](t)(s.Dial(context.Background(), "tcp", s.Addr()))
	t.Cleanup(func() { nc.Close() })
	return &raw{t, nc}
}

func (r *raw) send(body []byte) {
	r.t.Helper()
	must[int](r.t)(r.nc.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)))
}

// recv returns one frame, or nil when the server has closed the connection.
func (r *raw) recv() []byte {
	r.t.Helper()
	var word [4]byte
	if _, err := io.ReadFull(r.nc, word[:]); err != nil {
		return nil
	}
	body := make([]byte, binary.BigEndian.Uint32(word[:]))
	if _, err := io.ReadFull(r.nc, body); err != nil {
		r.t.Fatalf("frame ends early: %v", err)
	}
	return body
}

// open performs the connect exchange and returns the granted timeout, session id and password.
func (r *raw) open(timeout time.Duration, session int64, passwd []byte) (time.Duration, int64, []byte) {
	r.t.Helper()
	b := binary.BigEndian.AppendUint32(nil, 0)
	b = binary.BigEndian.AppendUint64(b, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(timeout/time.Millisecond))
	b = binary.BigEndian.AppendUint64(b, uint64(session))
	b = binary.BigEndian.AppendUint32(b, uint32(len(passwd)))
	b = append(b, passwd...)
	r.send(b)
	p := r.recv()
	if len(p) < 20+16 {
		r.t.Fatalf("connect response has %d bytes", len(p))
	}
	return time.Duration(binary.BigEndian.Uint32(p[4:])) * time.Millisecond, int64(binary.BigEndian.Uint64(p[8:])), p[20:36]
}

// request sends a request with a body built by the caller.
func (r *raw) request(xid int32, op zktest.Op, body []byte) {
	b := binary.BigEndian.AppendUint32(nil, uint32(xid))
	b = binary.BigEndian.AppendUint32(b, uint32(op))
	r.send(append(b, body...))
}

// header splits a reply.
func header(p []byte) (xid int32, zxid int64, code zktest.Code, body []byte) {
	return int32(binary.BigEndian.Uint32(p)), int64(binary.BigEndian.Uint64(p[4:])), zktest.Code(int32(binary.BigEndian.Uint32(p[12:]))), p[16:]
}
