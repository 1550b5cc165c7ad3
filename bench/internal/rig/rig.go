// Package rig is what is measured and what it is measured against: three servers, the libraries' programs, and the
// limit, which is what a committed write and a local read take through the same client library.
package rig

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock/integration/peers"
	"github.com/go-zklock/zklock/integration/zkcluster"
)

// Timeout is the session timeout that every program asks for: zklock's default.
const Timeout = 12 * time.Second

// Rig is a cluster and the programs. Close ends them.
type Rig struct {
	Cluster *zkcluster.Cluster
	Kit     *peers.Kit
	// Follower is the server that programs talk to that are compared one against one: a leader answers writes
	// sooner, so it matters which server one has.
	Follower *zkcluster.Server
	Observer *zk.Conn // talks to the leader
	Limit    *Limit

	groups []*Group
	paths  int
}

// New starts the servers and compiles the programs. logf hears of long steps.
func New(ctx context.Context, logf func(string, ...any)) (_ *Rig, err error) {
	r := &Rig{}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	r.Cluster, err = zkcluster.Run(ctx, zkcluster.Options{Servers: 3, JVMFlags: []string{
		"-Xmx512m", "-XX:TieredStopAtLevel=4",
		"-Dznode.container.checkIntervalMs=60000", // ZooKeeper's default: a warm path stays
	}}, logf)
	if err != nil {
		return nil, err
	}
	if r.Kit, err = peers.NewKit(ctx, logf); err != nil {
		return nil, err
	}
	followers, err := r.Cluster.Followers(ctx)
	if err != nil {
		return nil, err
	}
	leader, err := r.Cluster.Leader(ctx)
	if err != nil {
		return nil, err
	}
	r.Follower = followers[0]
	if r.Observer, err = connect(ctx, leader.Addr()); err != nil {
		return nil, err
	}
	if _, err := r.Observer.Create(limitNode, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		return nil, fmt.Errorf("making %s: %w", limitNode, err)
	}
	r.Limit, err = newLimit(ctx, r.Follower.Addr())
	return r, err
}

// Close ends everything.
func (r *Rig) Close() error {
	var errs []error
	for _, g := range r.groups {
		errs = append(errs, g.Close())
	}
	if r.Limit != nil {
		r.Limit.conn.Close()
	}
	if r.Observer != nil {
		r.Observer.Close()
	}
	if r.Kit != nil {
		errs = append(errs, r.Kit.Close())
	}
	if r.Cluster != nil {
		errs = append(errs, r.Cluster.Close())
	}
	return errors.Join(errs...)
}

// Path is a path that nobody has used.
func (r *Rig) Path() string {
	r.paths++
	return "/bench/" + strconv.Itoa(r.paths)
}

// Fresh is a path that nobody has used and whose parent is there, so that only its own nodes are missing.
func (r *Rig) Fresh() (string, error) {
	path := r.Path()
	for _, p := range []string{"/bench", path} {
		if _, err := r.Observer.Create(p, nil, 0, zk.WorldACL(zk.PermAll)); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return "", fmt.Errorf("making %s: %w", p, err)
		}
	}
	// The observer talks to the leader. A program on a follower has to see it too.
	_, err := r.Limit.conn.Sync(path)
	return path, err
}

// Children is the number of nodes below a path, 0 if it is not there.
func (r *Rig) Children(path string) (int, error) {
	children, _, err := r.Observer.Children(path)
	if errors.Is(err, zk.ErrNoNode) {
		return 0, nil
	}
	return len(children), err
}

// calm is how many packets a server may get in calmFor when nobody does anything but keep sessions alive.
const (
	calm    = 40
	calmFor = 250 * time.Millisecond
)

// AwaitCalm returns when the servers have little to do: what was sent to them has been worked off. There is no event for
// that.
func (r *Rig) AwaitCalm(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	last := -1
	for {
		now := 0
		for _, s := range r.Cluster.Servers() {
			state, err := s.Monitor(ctx)
			if err != nil {
				return err
			}
			n, err := strconv.Atoi(state["zk_packets_received"])
			if err != nil {
				return fmt.Errorf("server %d: zk_packets_received: %w", s.ID(), err)
			}
			now += n
		}
		if last >= 0 && now-last <= calm {
			return nil
		}
		last = now
		select {
		case <-time.After(calmFor):
		case <-ctx.Done():
			return fmt.Errorf("the servers do not come to rest: %w", context.Cause(ctx))
		}
	}
}

// Version is that of the servers.
func (r *Rig) Version(ctx context.Context) (string, error) {
	text, err := r.Follower.FourLetter(ctx, "srvr")
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(text, "\n")
	version, _, _ := strings.Cut(strings.TrimPrefix(line, "Zookeeper version: "), "-")
	return version, nil
}

// silent keeps the client library from printing.
type silent struct{}

func (silent) Printf(string, ...any) {}

func connect(ctx context.Context, server string) (*zk.Conn, error) {
	conn, events, err := zk.Connect([]string{server}, Timeout, zk.WithLogger(silent{}))
	if err != nil {
		return nil, err
	}
	up := make(chan struct{})
	go func() {
		var once sync.Once
		for e := range events {
			if e.State == zk.StateHasSession {
				once.Do(func() { close(up) })
			}
		}
	}()
	select {
	case <-up:
		return conn, nil
	case <-ctx.Done():
		conn.Close()
		return nil, fmt.Errorf("a session with %s: %w", server, context.Cause(ctx))
	}
}
