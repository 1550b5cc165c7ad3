package zklock

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock/zktest"
)

// The servers of these benchmarks are in the same process, so figures are of client and
// server together. BenchmarkRequests is the part that zklock does not add.

func benchServer(b *testing.B) (*zktest.Server, *Client) {
	b.Helper()
	srv := zktest.NewServer(b)
	c, err := Connect(b.Context(), Config{Servers: []string{srv.Addr()}, Dial: srv.Dial})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	return srv, c
}

func benchMutex(b *testing.B, c *Client) *InterProcessMutex {
	b.Helper()
	m, err := NewInterProcessMutex(c, "/dedup/a")
	if err != nil {
		b.Fatal(err)
	}
	return m
}

func BenchmarkAcquireRelease(b *testing.B) {
	_, c := benchServer(b)
	m := benchMutex(b, c)
	b.ReportAllocs()
	for b.Loop() {
		l, err := m.Acquire(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Release(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRequests makes the requests of BenchmarkAcquireRelease with the client library alone.
func BenchmarkRequests(b *testing.B) {
	srv, c := benchServer(b)
	l, err := benchMutex(b, c).Acquire(b.Context()) // makes the path
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Release(context.Background()) }()
	conn, events, err := zk.Connect([]string{srv.Addr()}, 10*time.Second, zk.WithLogger(quietly{}),
		zk.WithDialer(func(network, address string, _ time.Duration) (net.Conn, error) {
			return srv.Dial(context.Background(), network, address)
		}))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	for e := range events {
		if e.State == zk.StateHasSession {
			break
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		node, err := conn.Create("/dedup/a/_c_00000000-0000-0000-0000-000000000000-lock-", make([]byte, 100), zk.FlagEphemeralSequential, zk.WorldACL(zk.PermAll))
		if err != nil {
			b.Fatal(err)
		}
		if _, _, err := conn.Children("/dedup/a"); err != nil {
			b.Fatal(err)
		}
		if err := conn.Delete(node, -1); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkTryAcquireHeld(b *testing.B) {
	srv, c := benchServer(b)
	l, err := benchMutex(b, c).Acquire(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Release(context.Background()) }()
	other, err := Connect(b.Context(), Config{Servers: []string{srv.Addr()}, Dial: srv.Dial})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	m := benchMutex(b, other)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.TryAcquire(b.Context()); err == nil {
			b.Fatal("the lock is free")
		}
	}
}

// BenchmarkHandOver is a lock that goes round in one process.
func BenchmarkHandOver(b *testing.B) {
	_, c := benchServer(b)
	m := benchMutex(b, c)
	b.ReportAllocs()
	b.SetParallelism(10)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			l, err := m.Acquire(b.Context())
			if err != nil {
				b.Error(err)
				return
			}
			if err := l.Release(b.Context()); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
