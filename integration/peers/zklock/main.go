// The adapter of zklock: see package peers. Its best practice is the package comment's: the lease tells.
package main

import (
	"context"
	"errors"
	"sync"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/integration/internal/report"
	"github.com/go-zklock/zklock/integration/peers/internal/adapter"
)

func main() { adapter.Main(connect) }

type client struct {
	*zklock.Client
	out *report.Writer

	mu     sync.Mutex
	guards map[string]*dedup.Guard // by prefix
}

func connect(ctx context.Context, s adapter.Settings) (adapter.Client, error) {
	c, err := zklock.Connect(ctx, zklock.Config{Servers: []string{s.Servers}, SessionTimeout: s.Timeout, TickTime: s.Tick})
	if err != nil {
		return nil, err
	}
	c.OnStateChange(func(change zklock.StateChange) {
		switch change.State {
		case zklock.Suspended:
			s.Out.Line(report.Line{Event: report.Suspended})
		case zklock.Reconnected:
			s.Out.Line(report.Line{Event: report.Reconnected})
		}
	})
	return &client{Client: c, out: s.Out, guards: make(map[string]*dedup.Guard)}, nil
}

func (c *client) State() string { return c.Client.State().String() }

func (c *client) Close() error {
	var err error
	for _, g := range c.guards {
		err = errors.Join(err, g.Close(context.Background()))
	}
	return errors.Join(err, c.Client.Close())
}

// outcome is what a record holds, of a size that is usual for one.
var outcome = dedup.Raw(`{"status":"captured","payment":"pay_29a8c1","amount":1999}`)

func (c *client) Guard(ctx context.Context, prefix, key string) (replayed bool, err error) {
	g, err := c.guard(prefix)
	if err != nil {
		return false, err
	}
	r, err := dedup.Do(ctx, g, dedup.Key{ID: key}, dedup.Payload(outcome),
		func(context.Context, *dedup.Claim) (dedup.Raw, error) { return outcome, nil })
	return r.Replayed, err
}

func (c *client) guard(prefix string) (*dedup.Guard, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.guards[prefix]
	if g == nil {
		var err error
		if g, err = dedup.New(c.Client, dedup.Config{Root: prefix}); err != nil {
			return nil, err
		}
		c.guards[prefix] = g
	}
	return g, nil
}

func (c *client) Lock(path string) (adapter.Lock, error) {
	m, err := zklock.NewInterProcessMutex(c.Client, path)
	return &lock{mutex: m, out: c.out}, err
}

type lock struct {
	mutex *zklock.InterProcessMutex
	out   *report.Writer
	lease *zklock.Lease
}

func (l *lock) Acquire(ctx context.Context) (err error) {
	if l.lease, err = l.mutex.Acquire(ctx); err != nil {
		return err
	}
	lease := l.lease
	context.AfterFunc(lease.Context(), func() {
		at := report.Now()
		if err := lease.Err(); lease.State() == zklock.LeaseLost {
			l.out.Line(report.Line{Event: report.Lost, At: at, Path: l.mutex.Path(), Error: err.Error()})
		}
	})
	return nil
}

// Try asks once.
func (l *lock) Try(ctx context.Context) (bool, error) {
	lease, err := l.mutex.TryAcquire(ctx)
	if errors.Is(err, zklock.ErrHeld) {
		return false, nil
	}
	l.lease = lease
	return err == nil, err
}

func (l *lock) Release(ctx context.Context) error {
	err := l.lease.Release(ctx)
	if errors.Is(err, zklock.ErrLost) {
		return zklock.ErrLost // without the node's name
	}
	return err
}

func (l *lock) Node(context.Context) (string, error) { return l.lease.Path(), nil }
