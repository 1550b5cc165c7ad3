package zklock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-zklock/zklock/zktest"
)

// scenarioClient is one process of a scenario.
type scenarioClient struct {
	sc     *scenario
	name   string
	client *Client
	leases map[string]*Lease // by the name that the scenario gives them; guarded by sc.mu
	conns  []*scenarioConn   // guarded by sc.mu
	made   int               // lock nodes so far; guarded by sc.mu
	away   atomic.Bool       // no connection can be made
	gone   atomic.Bool       // killed: nothing of it is seen any more
}

func (sc *scenario) startEnsemble(n string) error {
	servers, err := strconv.Atoi(n)
	if err != nil {
		return err
	}
	sc.ens, err = zktest.StartEnsemble(zktest.Config{
		TickTime: 2 * time.Second, Latency: time.Millisecond, PeerLatency: time.Millisecond, OnTxn: sc.txn,
	}, servers)
	return err
}

func (sc *scenario) server(n string, f func(*zktest.Server)) error {
	i, err := strconv.Atoi(n)
	if err != nil || i < 1 || i > len(sc.ens.Servers()) {
		return fmt.Errorf("no server %s", n)
	}
	f(sc.ens.Servers()[i-1])
	return nil
}

func (sc *scenario) with(name string, f func(c *scenarioClient) error) error {
	c := sc.clients[name]
	if c == nil {
		return fmt.Errorf("no client %s", name)
	}
	return f(c)
}

// open opens a client. If it is to start on a certain server, it may go to the others
// later.
func (sc *scenario) open(name, timeout string, server []string) error {
	d, err := time.ParseDuration(timeout)
	if err != nil {
		return err
	}
	c := &scenarioClient{sc: sc, name: name, leases: map[string]*Lease{}}
	sc.clients[name] = c
	only := ""
	if len(server) > 0 {
		if err := sc.server(server[0], func(s *zktest.Server) { only = s.Addr() }); err != nil {
			return err
		}
	}
	dial := sortedDialer(c.observed(sc.ens.Dialer(name)), nil)
	opened := false
	c.client, err = Connect(context.Background(), Config{
		Servers: sc.ens.Addrs(), SessionTimeout: d, TickTime: 2 * time.Second, Clock: zktest.Clock{}, Seed: 1,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if c.away.Load() || only != "" && !opened && address != only {
				return nil, errors.New("unreachable")
			}
			return dial(ctx, network, address)
		},
	})
	if err != nil {
		return err
	}
	opened = true
	sc.see(c, seenState, "state", fmt.Sprintf("%v, T is %v", c.client.State(), c.client.SessionTimeout()))
	c.client.OnStateChange(func(ch StateChange) {
		text := ch.State.String()
		if ch.Err != nil && ch.State == Lost {
			text += ": " + sc.short(ch.Err.Error())
		}
		sc.see(c, seenState, "state", text)
	})
	return nil
}

// cut ends the connections of a client and lets it make no others.
func (c *scenarioClient) cut() {
	c.away.Store(true)
	c.sc.mu.Lock()
	conns := c.conns
	c.conns = nil
	c.sc.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Conn.Close()
	}
}

func (c *scenarioClient) mutex(key string) (*InterProcessMutex, error) {
	return NewInterProcessMutex(c.client, "/dedup/"+key)
}

// acquire calls Acquire on a goroutine of its own and tells when it has returned.
func (c *scenarioClient) acquire(key, as string, limit []string) error {
	m, err := c.mutex(key)
	if err != nil {
		return err
	}
	timeout := time.Hour
	if len(limit) > 0 {
		if timeout, err = time.ParseDuration(limit[0]); err != nil {
			return err
		}
	}
	c.call(as, timeout, m.Acquire)
	return nil
}

func (c *scenarioClient) try(key, as string) error {
	m, err := c.mutex(key)
	if err != nil {
		return err
	}
	c.call(as, time.Hour, m.TryAcquire)
	return nil
}

func (c *scenarioClient) call(as string, timeout time.Duration, acquire func(context.Context, ...AcquireOption) (*Lease, error)) {
	go func() {
		ctx, cancel := context.WithTimeout(c.sc.t.Context(), timeout)
		defer cancel()
		l, err := acquire(ctx)
		c.returned(as, l, err)
	}()
}

func (c *scenarioClient) returned(as string, l *Lease, err error) {
	if err != nil {
		c.sc.see(c, seenCall, "call", as+": "+c.sc.short(err.Error()))
		return
	}
	c.sc.mu.Lock()
	c.leases[as] = l
	c.sc.mu.Unlock()
	c.sc.see(c, seenCall, "call", fmt.Sprintf("%s: acquired %s, token %s", as, c.sc.short(l.Path()), l.Token()))
	go c.follow(as, l)
}

// follow tells how a lease goes on.
func (c *scenarioClient) follow(as string, l *Lease) {
	for last := LeaseHeld; ; {
		state, err, changed := l.look()
		if state != last {
			text := as + ": " + state.String()
			var lost *LostError
			if errors.As(err, &lost) {
				text += " (" + string(lost.Reason) + ")"
			}
			c.sc.see(c, seenLease, "lease", text)
			last = state
		}
		if changed == nil {
			return
		}
		select {
		case <-changed:
		case <-l.Context().Done():
		}
	}
}

func (c *scenarioClient) lease(name string) (*Lease, error) {
	c.sc.mu.Lock()
	defer c.sc.mu.Unlock()
	l := c.leases[name]
	if l == nil {
		return nil, fmt.Errorf("%s has no lease %s", c.name, name)
	}
	return l, nil
}

func (c *scenarioClient) enter(outer, as string) error {
	l, err := c.lease(outer)
	if err != nil {
		return err
	}
	m := &InterProcessMutex{c: c.client, path: l.hold.path, full: l.hold.path}
	go func() {
		again, err := m.Acquire(l.Context())
		c.returned(as, again, err)
	}()
	return nil
}

func (c *scenarioClient) gate(name string) error {
	l, err := c.lease(name)
	if err != nil {
		return err
	}
	go func() {
		switch err := l.Await(c.sc.t.Context()); err {
		case nil:
			c.sc.see(c, seenCall, "call", "gate of "+name+": open")
		default:
			c.sc.see(c, seenCall, "call", "gate of "+name+": "+c.sc.short(err.Error()))
		}
	}()
	return nil
}

func (c *scenarioClient) release(name string) error {
	l, err := c.lease(name)
	if err != nil {
		return err
	}
	go func() {
		text := "released"
		if err := l.Release(c.sc.t.Context()); err != nil {
			text = c.sc.short(err.Error())
		}
		c.sc.see(c, seenCall, "call", name+": "+text)
	}()
	return nil
}

func (c *scenarioClient) close() {
	go func() {
		text := "closed"
		if err := c.client.Close(); err != nil {
			text = c.sc.short(err.Error())
		}
		c.sc.see(c, seenCall, "call", text)
	}()
}
