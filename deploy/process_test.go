package deploy

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/zktest"
)

// process is what a process of a fleet has: a client, a guard, and metrics that are scraped.
type process struct {
	t        *testing.T
	ensemble *zktest.Ensemble
	client   *zklock.Client
	guard    *dedup.Guard
	registry *prometheus.Registry
	target   string // host:port of its metrics
}

func startProcess(t *testing.T, ensemble *zktest.Ensemble, name string) *process {
	t.Helper()
	p := &process{t: t, ensemble: ensemble, registry: prometheus.NewRegistry()}
	web := httptest.NewServer(promhttp.HandlerFor(p.registry, promhttp.HandlerOpts{}))
	t.Cleanup(web.Close)
	p.target = strings.TrimPrefix(web.URL, "http://")
	p.client = p.connect(name)
	var err error
	p.guard, err = dedup.New(p.client, dedup.Config{
		Retention: 5 * time.Second, WaitLimit: 5 * time.Second, SweepInterval: 500 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := p.guard.Close(ctx); err != nil {
			t.Errorf("close %s: %v", name, err)
		}
		_ = p.client.Close()
	})
	return p
}

// connect opens a client more that counts for this process.
func (p *process) connect(name string) *zklock.Client {
	p.t.Helper()
	client, err := zklock.Connect(p.t.Context(), zklock.Config{
		Servers: p.ensemble.Addrs(), Dial: p.ensemble.Dial, Identifier: name, Registerer: p.registry,
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return client
}

func (p *process) mutex(path string) *zklock.InterProcessMutex {
	p.t.Helper()
	m, err := zklock.NewInterProcessMutex(p.client, path)
	if err != nil {
		p.t.Fatal(err)
	}
	return m
}

var serial atomic.Int64

// once runs a function once for a key that two calls have.
func (p *process) once(ctx context.Context, fn func() error) error {
	key := dedup.Key{ID: fmt.Sprint(serial.Add(1) / 2)}
	_, err := dedup.Do(ctx, p.guard, key, dedup.Payload(nil),
		func(context.Context, *dedup.Claim) (string, error) { return "done", fn() })
	return err
}

// work is what a fleet does on a good day, until stop is called: locks that are waited for, tried for and
// not got in time, and functions that run once, with duplicates and failures of both kinds.
func work(t *testing.T, fleet []*process) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	forever := func(fn func() error) {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := fn(); err != nil && ctx.Err() == nil {
					t.Errorf("on a good day: %v", err)
					return
				}
			}
		})
	}
	allow := func(err error, allowed ...error) error {
		for _, a := range allowed {
			if errors.Is(err, a) {
				return nil
			}
		}
		return err
	}
	for i, p := range fleet {
		held := p.mutex(fmt.Sprintf("/dedup/held-%d", i)) // long enough for proofs
		forever(func() error {
			return held.Do(ctx, func(ctx context.Context, _ *zklock.Lease) error {
				<-ctx.Done()
				return context.Cause(ctx)
			})
		})
		mutex := p.mutex("/dedup/shared")
		forever(func() error {
			return mutex.Do(ctx, func(ctx context.Context, _ *zklock.Lease) error {
				return pause(ctx, 80*time.Millisecond) // long enough for a watch on the own node
			})
		})
		forever(func() error {
			if lease, err := mutex.TryAcquire(ctx); err == nil {
				return lease.Release(ctx)
			} else if err := allow(err, zklock.ErrHeld); err != nil {
				return err
			}
			return pause(ctx, 100*time.Millisecond)
		})
		forever(func() error {
			wait, done := context.WithTimeout(ctx, 20*time.Millisecond)
			defer done()
			lease, err := mutex.Acquire(wait)
			if err == nil {
				err = lease.Release(ctx)
			}
			return errors.Join(allow(err, context.DeadlineExceeded), pause(ctx, 100*time.Millisecond))
		})
		again, final := errors.New("again"), dedup.Permanent(errors.New("no such account"))
		var failed *dedup.FailedError
		for _, outcome := range []error{nil, again, final} {
			forever(func() error {
				err := p.once(ctx, func() error { return outcome })
				if errors.As(err, &failed) {
					err = nil
				}
				// On a machine that is very busy even a good day has answers that come too late.
				return errors.Join(allow(err, again, dedup.ErrUnavailable), pause(ctx, 50*time.Millisecond))
			})
		}
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
