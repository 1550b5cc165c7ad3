package cases

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-zklock/zklock/bench/internal/rig"
	"github.com/go-zklock/zklock/bench/internal/stat"
	"github.com/go-zklock/zklock/integration/peers"
	"github.com/go-zklock/zklock/integration/zkproxy"
)

// lookEvery is how often a crowd is asked whether all stand in line. There is no event for that.
const lookEvery = 20 * time.Millisecond

// Crowd is what it costs to wait among many.
type Crowd struct {
	Library   peers.Library
	Waiters   int
	Processes int

	P50, P99      time.Duration // of a hand-over
	Writes, Reads float64       // a hand-over
	Events        float64       // watch events a hand-over
	Nodes         int           // the most lock nodes at one time, the holder's among them
	Memory        int64         // bytes a waiter
}

// Crowds measures waiters on one path: the time in one run, and the requests in another, behind a proxy that counts.
func Crowds(ctx context.Context, r *rig.Rig, size Size, logf func(string, ...any)) ([]Crowd, error) {
	var all []Crowd
	for _, waiters := range size.Crowds {
		for _, library := range peers.Libraries {
			c, err := crowd(ctx, r, library, waiters, 1, size.Window)
			if err != nil {
				return nil, err
			}
			all = append(all, c)
		}
		logf("%d waiters on one path: done", waiters)
	}
	for _, waiters := range size.OwnCrowds {
		c, err := crowd(ctx, r, peers.Zklock, waiters, 1, size.Window)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
		logf("%d waiters on one path: done", waiters)
	}
	return all, nil
}

// CountedHandOvers counts the requests of the hand-overs that HandOver times.
func CountedHandOvers(ctx context.Context, r *rig.Rig, size Size, processes int) ([]Crowd, error) {
	var all []Crowd
	for _, library := range peers.Libraries {
		c := Crowd{Library: library, Waiters: size.Waiters, Processes: processes}
		if err := c.counted(ctx, r, size.Window); err != nil {
			return nil, fmt.Errorf("%d waiters of %s: %w", size.Waiters, library, err)
		}
		all = append(all, c)
	}
	return all, nil
}

func crowd(ctx context.Context, r *rig.Rig, library peers.Library, waiters, processes, window int) (Crowd, error) {
	c := Crowd{Library: library, Waiters: waiters, Processes: processes}
	err := c.timed(ctx, r, window)
	if err == nil {
		err = c.counted(ctx, r, window)
	}
	if err != nil {
		err = fmt.Errorf("%d waiters of %s: %w", waiters, library, err)
	}
	return c, err
}

func (c *Crowd) timed(ctx context.Context, r *rig.Rig, window int) error {
	g, err := r.Start(ctx, c.Library, c.Processes)
	if err != nil {
		return err
	}
	lines, err := c.run(ctx, r, g, window, func() {})
	if err != nil {
		return errors.Join(err, g.Close())
	}
	s, err := handOvers(lines, len(lines)/10, 0)
	c.P50, c.P99 = stat.Median(s.Times), stat.Quantile(s.Times, 0.99)
	return errors.Join(err, g.Close())
}

func (c *Crowd) counted(ctx context.Context, r *rig.Rig, window int) error {
	g, err := r.StartCounted(ctx, c.Library, c.Processes)
	if err != nil {
		return err
	}
	begun := func() { g.Proxy.Reset() }
	lines, err := c.run(ctx, r, g, window, begun)
	counts := g.Proxy.Snapshot().Total
	if n := float64(len(lines)); n > 0 {
		c.Writes, c.Reads, c.Events = float64(counts.Writes())/n, float64(counts.Reads())/n, float64(counts.WatchEvents())/n
	}
	if counts.Undecoded > 0 || counts.Of(zkproxy.UnknownRequest) > 0 {
		err = errors.Join(err, fmt.Errorf("the proxy cannot count: %s", counts))
	}
	return errors.Join(err, g.Close())
}

// run lets all stand in line behind a holder, who then gives the lock back, and returns the grants of the window that
// follows. Each waiter queues again after its turn, so their number stays.
func (c *Crowd) run(ctx context.Context, r *rig.Rig, g *rig.Group, window int, begun func()) ([]peers.Line, error) {
	path := r.Path()
	before, err := g.Status(ctx)
	if err != nil {
		return nil, err
	}
	if err := g.Send(0, "acquire "+path+" 0"); err != nil {
		return nil, err
	}
	if _, err := g.Next(ctx, 0, peers.Acquired); err != nil {
		return nil, err
	}
	each := c.Waiters / c.Processes
	loops := slices.Repeat([]string{fmt.Sprintf("loop %s %d 0", path, 1<<20)}, each)
	for i := range c.Processes {
		if err := g.Send(i, loops...); err != nil {
			return nil, err
		}
	}
	nodes := c.Waiters + 1
	if c.Library == peers.Zklock {
		nodes = min(each, 2) * c.Processes
	}
	if err := c.inLine(ctx, r, g, path, nodes); err != nil {
		return nil, err
	}
	with, err := g.Status(ctx)
	if err != nil {
		return nil, err
	}
	if c.Processes == 1 {
		c.Memory = (with.Memory - before.Memory) / int64(c.Waiters)
	}
	begun()
	if err := g.Send(0, "release "+path); err != nil {
		return nil, err
	}
	return c.grants(ctx, r, g, path, window)
}

// inLine waits until all processes have said that their calls wait, and the nodes are there.
func (c *Crowd) inLine(ctx context.Context, r *rig.Rig, g *rig.Group, path string, nodes int) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	for {
		status, err := g.Status(ctx)
		if err != nil {
			return err
		}
		there, err := r.Children(path)
		if err != nil {
			return err
		}
		if int(status.Waiting) >= c.Waiters/c.Processes && there >= nodes {
			return r.AwaitCalm(ctx) // each lists the others after it has made its node
		}
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
			return fmt.Errorf("%d calls wait and %d nodes are there, want %d and %d", status.Waiting, there, c.Waiters/c.Processes, nodes)
		}
	}
}

// grants reads so many grants of all processes, and looks at the nodes meanwhile.
func (c *Crowd) grants(ctx context.Context, r *rig.Rig, g *rig.Group, path string, window int) ([]peers.Line, error) {
	ctx, cancel := context.WithCancel(ctx)
	type said struct {
		line peers.Line
		err  error
	}
	all := make(chan said)
	done := make(chan struct{})
	defer func() { cancel(); <-done }()
	go func() {
		defer close(done)
		for g.Proxy != nil && ctx.Err() == nil { // it takes time, like the proxy
			n, err := r.Children(path)
			if err != nil {
				return
			}
			c.Nodes = max(c.Nodes, n)
		}
	}()
	for i := range c.Processes {
		go func() {
			for {
				l, err := g.Next(ctx, i, peers.Grant)
				select {
				case all <- said{l, err}:
				case <-ctx.Done():
				}
				if err != nil {
					return
				}
			}
		}()
	}
	var lines []peers.Line
	for len(lines) < window {
		s := <-all
		if s.err != nil {
			return nil, s.err
		}
		lines = append(lines, s.line)
	}
	return lines, nil
}
