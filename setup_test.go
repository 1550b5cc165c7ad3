package zklock

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/go-zklock/zklock/internal/testlog"
	"github.com/go-zklock/zklock/zktest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// go test takes a package behind a flag of the test for an argument of the test, and
	// runs the one of the current directory instead.
	if rest := flag.Args(); len(rest) > 0 && rest[0] != "." {
		fmt.Fprintf(os.Stderr, "%s is no package here: name it before the flags\n", rest[0])
		os.Exit(2)
	}
	goleak.VerifyTestMain(m)
}

// bundle is what a test in virtual time works with.
type bundle struct {
	t   *testing.T
	srv *zktest.Server
	log *logBuffer
}

// inBubble runs f in virtual time against one in-process server with 1 ms latency
// each way.
func inBubble(t *testing.T, f func(b *bundle), opts ...zktest.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		opts = append([]zktest.Option{func(c *zktest.Config) { c.Latency = time.Millisecond }}, opts...)
		f(&bundle{t: t, srv: zktest.NewServer(t, opts...), log: &logBuffer{}})
	})
}

// connect opens a client that is closed with the test.
func (b *bundle) connect(opts ...func(*Config)) *Client {
	b.t.Helper()
	cfg := Config{
		Servers: []string{b.srv.Addr()}, Dial: b.srv.Dial, Clock: zktest.Clock{}, Seed: 1,
		TickTime: 2 * time.Second,
		Logger:   slog.New(slog.NewTextHandler(b.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, o := range opts {
		o(&cfg)
	}
	c, err := Connect(b.t.Context(), cfg)
	if err != nil {
		b.t.Fatalf("Connect: %v", err)
	}
	b.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (b *bundle) mutex(c *Client, path string, opts ...MutexOption) *InterProcessMutex {
	b.t.Helper()
	m, err := NewInterProcessMutex(c, path, opts...)
	if err != nil {
		b.t.Fatal(err)
	}
	return m
}

func (b *bundle) acquire(m *InterProcessMutex) *Lease {
	b.t.Helper()
	l, err := m.Acquire(b.t.Context())
	if err != nil {
		b.t.Fatalf("Acquire: %v", err)
	}
	return l
}

func (b *bundle) release(l *Lease) {
	b.t.Helper()
	if err := l.Release(b.t.Context()); err != nil {
		b.t.Fatalf("Release: %v", err)
	}
}

// nodes returns the children of a path, as the server has them.
func (b *bundle) nodes(path string) []string {
	return b.srv.Children(path)
}

// logBuffer keeps a log for a test to look at.
type logBuffer = testlog.Buffer

// result is what a call on another goroutine returned.
type result struct {
	l   *Lease
	err error
}

// acquireAsync acquires on a goroutine of its own.
func acquireAsync(ctx context.Context, m *InterProcessMutex) <-chan result {
	ch := make(chan result, 1)
	go func() {
		l, err := m.Acquire(ctx)
		ch <- result{l, err}
	}()
	return ch
}
