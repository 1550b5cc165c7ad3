package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-zklock/zklock/integration/peers"
	"github.com/go-zklock/zklock/integration/zkproxy"
)

// patience bounds each step that is waited for.
const patience = 3 * time.Minute

// Group is some processes of one library.
type Group struct {
	Library peers.Library
	// Proxy counts what the processes send, if the group was started with one.
	Proxy *zkproxy.Proxy

	members []*peers.Peer
}

// Start starts processes of a library on the follower, or, if they are many, on the servers in turn.
func (r *Rig) Start(ctx context.Context, library peers.Library, processes int) (*Group, error) {
	servers := []string{r.Follower.Addr()}
	if processes > 1 {
		servers = r.Cluster.Addrs()
	}
	g := &Group{Library: library}
	return g, r.startGroup(ctx, g, servers, processes)
}

// StartCounted starts processes behind a proxy that counts their requests. A proxy takes time, so such processes are
// not for measuring any.
func (r *Rig) StartCounted(ctx context.Context, library peers.Library, processes int) (*Group, error) {
	proxy, err := zkproxy.Start(r.Follower.Addr())
	if err != nil {
		return nil, err
	}
	g := &Group{Library: library, Proxy: proxy}
	return g, r.startGroup(ctx, g, []string{proxy.Addr()}, processes)
}

func (r *Rig) startGroup(ctx context.Context, g *Group, servers []string, processes int) error {
	r.groups = append(r.groups, g)
	for i := range processes {
		p, err := r.Kit.Start(ctx, g.Library, peers.Options{
			Servers: servers[i%len(servers)], Timeout: Timeout, CuratorNames: true,
			Java: []string{"-Xmx256m", "-XX:+UseSerialGC"},
		})
		if err != nil {
			return err
		}
		g.members = append(g.members, p)
	}
	for _, p := range g.members {
		if _, err := wait(ctx, p, peers.Ready); err != nil {
			return err
		}
	}
	return nil
}

// wait is Next in bounded time.
func wait(ctx context.Context, p *peers.Peer, events ...peers.Event) (peers.Line, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return p.Next(ctx, events...)
}

// Close ends the processes.
func (g *Group) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var errs []error
	for _, p := range g.members {
		errs = append(errs, p.Close(ctx))
	}
	g.members = nil
	if g.Proxy != nil {
		g.Proxy.Close()
	}
	return errors.Join(errs...)
}

// Send gives commands to a process, in one write.
func (g *Group) Send(process int, commands ...string) error {
	return g.members[process].Command("%s", strings.Join(commands, "\n"))
}

// Next is the next line of a process that is about one of the events.
func (g *Group) Next(ctx context.Context, process int, events ...peers.Event) (peers.Line, error) {
	return wait(ctx, g.members[process], events...)
}

// Run gives every process its commands, waits for all to finish, and returns what they said.
func (g *Group) Run(ctx context.Context, commands func(process int) []string) ([]peers.Line, error) {
	counts := make([]int, len(g.members))
	for i := range g.members {
		list := commands(i)
		counts[i] = len(list)
		if err := g.Send(i, list...); err != nil {
			return nil, err
		}
	}
	var lines []peers.Line
	for i := range g.members {
		for counts[i] > 0 {
			l, err := g.Next(ctx, i, peers.Grant, peers.Tried, peers.Guarded, peers.Finished)
			if err != nil {
				return nil, err
			}
			if l.Event == peers.Finished {
				counts[i]--
				continue
			}
			lines = append(lines, l)
		}
	}
	return lines, nil
}

// Status asks a process what it waits for and what it needs.
func (g *Group) Status(ctx context.Context) (peers.Line, error) {
	if err := g.Send(0, "status"); err != nil {
		return peers.Line{}, err
	}
	return g.Next(ctx, 0, peers.Status)
}

// CPU is the processor time that the processes have used.
func (g *Group) CPU() (time.Duration, error) {
	var sum time.Duration
	for _, p := range g.members {
		used, err := cpu(p.PID())
		if err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, nil
}

func cpu(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// Behind the name in parentheses, which may hold blanks: utime and stime are the fields 14 and 15 of all, in
	// hundredths of a second.
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("process %d: %q", pid, text)
	}
	var ticks int
	for _, field := range fields[11:13] {
		n, err := strconv.Atoi(field)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}
