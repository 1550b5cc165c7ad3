package dedup_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/zktest"
)

// The server of these benchmarks is in the same process, so figures are of client and
// server together.

func benchGuard(b *testing.B) *dedup.Guard {
	b.Helper()
	srv := zktest.NewServer(b)
	c, err := zklock.Connect(b.Context(), zklock.Config{Servers: []string{srv.Addr()}, Dial: srv.Dial})
	if err != nil {
		b.Fatal(err)
	}
	g, err := dedup.New(c, dedup.Config{SweepInterval: -1})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = g.Close(context.Background())
		_ = c.Close()
	})
	return g
}

func benchDo(b *testing.B, g *dedup.Guard, key string) {
	_, err := dedup.Do(b.Context(), g, dedup.Key{ID: key}, dedup.Payload([]byte("payload")),
		func(context.Context, *dedup.Claim) (dedup.Raw, error) {
			return dedup.Raw("an outcome of the usual size"), nil
		})
	if err != nil {
		b.Error(err)
	}
}

func BenchmarkFresh(b *testing.B) {
	g := benchGuard(b)
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		benchDo(b, g, strconv.Itoa(n))
	}
}

// BenchmarkFreshTogether is 64 callers or more at the same time, each with keys of its own.
func BenchmarkFreshTogether(b *testing.B) {
	g := benchGuard(b)
	var n atomic.Int64
	b.ReportAllocs()
	b.SetParallelism(64)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			benchDo(b, g, strconv.FormatInt(n.Add(1), 10))
		}
	})
}

func BenchmarkReplay(b *testing.B) {
	g := benchGuard(b)
	benchDo(b, g, "key")
	b.ReportAllocs()
	for b.Loop() {
		benchDo(b, g, "key")
	}
}

func BenchmarkReplayTogether(b *testing.B) {
	g := benchGuard(b)
	benchDo(b, g, "0")
	var n atomic.Int64
	for i := range 64 {
		benchDo(b, g, strconv.Itoa(i))
	}
	b.ReportAllocs()
	b.SetParallelism(64)
	b.RunParallel(func(pb *testing.PB) {
		key := strconv.FormatInt(n.Add(1)%64, 10)
		for pb.Next() {
			benchDo(b, g, key)
		}
	})
}
