// The adapter of go-zookeeper's Lock: see package peers. That lock says nothing of a loss and takes no context; what
// its user can do is to listen to the events of the connection, and to give a lock back that came too late.
package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock/integration/internal/report"
	"github.com/go-zklock/zklock/integration/peers/internal/adapter"
)

func main() { adapter.Main(connect) }

type client struct{ conn *zk.Conn }

type silent struct{}

func (silent) Printf(string, ...any) {}

func connect(ctx context.Context, s adapter.Settings) (adapter.Client, error) {
	conn, events, err := zk.Connect(strings.Split(s.Servers, ","), s.Timeout, zk.WithLogger(silent{}))
	if err != nil {
		return nil, err
	}
	ready := make(chan struct{})
	go func() {
		had := false
		for e := range events {
			if e.Type != zk.EventSession {
				continue
			}
			switch e.State {
			case zk.StateHasSession:
				if had {
					s.Out.Line(report.Line{Event: report.Reconnected})
				} else {
					close(ready)
				}
				had = true
			case zk.StateDisconnected:
				s.Out.Line(report.Line{Event: report.Suspended})
			case zk.StateExpired:
				s.Out.Line(report.Line{Event: report.Lost})
			}
		}
	}()
	select {
	case <-ready:
		return client{conn}, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (c client) State() string { return c.conn.State().String() }

func (c client) Close() error {
	c.conn.Close()
	return nil
}

func (c client) Lock(path string) (adapter.Lock, error) {
	return &lock{conn: c.conn, path: path, lock: zk.NewLock(c.conn, path, zk.WorldACL(zk.PermAll))}, nil
}

// outcome is what a record holds, of a size that is usual for one.
const outcome = `{"status":"captured","payment":"pay_29a8c1","amount":1999}`

// Guard takes the lock, looks for the record, writes it if it is not there, and gives the lock back.
func (c client) Guard(ctx context.Context, prefix, key string) (replayed bool, err error) {
	path := prefix + "/" + key
	l, err := c.Lock(path)
	if err != nil {
		return false, err
	}
	if err := l.Acquire(ctx); err != nil {
		return false, err
	}
	_, _, err = c.conn.Get(path + "-record")
	if replayed = err == nil; errors.Is(err, zk.ErrNoNode) {
		_, err = c.conn.Create(path+"-record", []byte(outcome), 0, zk.WorldACL(zk.PermAll))
	}
	return replayed, errors.Join(err, l.Release(ctx))
}

type lock struct {
	conn *zk.Conn
	path string
	lock *zk.Lock
}

func (l *lock) Acquire(ctx context.Context) error {
	done := make(chan error, 1)
	this := l.lock
	go func() { done <- this.Lock() }()
	select {
	case err := <-done:
		if err != nil {
			l.renew() // this one may answer ErrDeadlock for ever
		}
		return err
	case <-ctx.Done():
		go func() {
			if err := <-done; err == nil {
				_ = this.Unlock()
			}
		}()
		l.renew()
		return context.Cause(ctx)
	}
}

func (l *lock) renew() { l.lock = zk.NewLock(l.conn, l.path, zk.WorldACL(zk.PermAll)) }

func (l *lock) Release(context.Context) error {
	err := l.lock.Unlock()
	if err != nil {
		l.renew()
	}
	return err
}

// Node looks for the child that this session owns, since the lock does not tell.
func (l *lock) Node(context.Context) (string, error) {
	children, _, err := l.conn.Children(l.path)
	if err != nil {
		return "", err
	}
	for _, child := range children {
		node := l.path + "/" + child
		_, stat, err := l.conn.Exists(node)
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return "", err
		}
		if stat != nil && stat.EphemeralOwner == l.conn.SessionID() {
			return node, nil
		}
	}
	return "", fmt.Errorf("no child of %s is this session's", l.path)
}
