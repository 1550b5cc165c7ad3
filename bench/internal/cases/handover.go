package cases

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-zklock/zklock/bench/internal/rig"
	"github.com/go-zklock/zklock/integration/peers"
)

// HandOver is a lock that goes from one of many waiters to the next.
func HandOver(size Size, processes int) *Case {
	c := &Case{Rounds: size.Rounds, Processes: processes, ByRate: true}
	if processes == 1 {
		c.ID, c.Title = "handover-1", fmt.Sprintf("Hand-over: %d waiters in one process", size.Waiters)
		c.LimitIs, c.limit = "1 write", sequence(size.Waiters, 1, 0)
		c.BareIs, c.bare = "delete and create in one transaction, getChildren", bare(size.Waiters, rig.HandOver)
	} else {
		c.ID, c.Title = "handover-many", fmt.Sprintf("Hand-over: %d waiters in %d processes", size.Waiters, processes)
		c.LimitIs, c.limit = "1 write and 1 read", sequence(size.Waiters, 1, 1)
	}
	c.Note = "The time from the call that releases to the return of the next acquire. Each waiter gives the lock back at once and queues again."
	var path string
	c.setUp = func(_ context.Context, r *rig.Rig) (err error) {
		path, err = r.Fresh()
		return err
	}
	c.peer = func(ctx context.Context, g *rig.Group, _ int) (Sample, error) {
		lines, err := g.Run(ctx, func(int) []string {
			return slices.Repeat([]string{fmt.Sprintf("cycle %s/%s 0 1 %d", path, g.Library, size.Turns)}, size.Waiters/processes)
		})
		if err != nil {
			return Sample{}, err
		}
		if want := size.Waiters / processes * processes * size.Turns; len(lines) != want {
			return Sample{}, fmt.Errorf("%d grants, want %d", len(lines), want)
		}
		// While the queue builds up, and when it runs dry, there are fewer waiters.
		n := len(lines)
		s, err := handOvers(lines, n/size.Turns, n/size.Turns)
		s.N = n
		return s, err
	}
	return c
}

// handOvers looks at the grants of one lock, without so many at the beginning and at the end.
func handOvers(lines []peers.Line, head, tail int) (Sample, error) {
	slices.SortFunc(lines, func(a, b peers.Line) int { return cmp.Compare(a.Got, b.Got) })
	lines = lines[head : len(lines)-tail]
	var s Sample
	for i, l := range lines[1:] {
		if l.Got < lines[i].End {
			return s, fmt.Errorf("%s: granted %v before it was given back", l.Path, time.Duration(lines[i].End-l.Got))
		}
		s.Times = append(s.Times, time.Duration(l.Got-lines[i].End))
	}
	s.Rate = float64(len(lines)-1) / time.Duration(lines[len(lines)-1].Got-lines[0].Got).Seconds()
	return s, nil
}
