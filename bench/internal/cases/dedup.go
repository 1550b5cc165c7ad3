package cases

import (
	"context"
	"fmt"
	"slices"

	"github.com/go-zklock/zklock/bench/internal/rig"
	"github.com/go-zklock/zklock/integration/peers"
)

const dedupNote = "zklock: dedup.Do with the default settings. The others: take the lock, look for the record, write it if it is not there, give the lock back."

// onlyState fails if a line does not say what it should.
func onlyState(lines []peers.Line, state string) error {
	for _, l := range lines {
		if l.State != state {
			return fmt.Errorf("%s: the key was %q, want %q", l.Path, l.State, state)
		}
	}
	return nil
}

// Dedup is keys one after the other, and then the same keys again.
func Dedup(size Size) (fresh, replay *Case) {
	return dedup(size, 1, size.Operations)
}

// DedupTogether is the same by many workers.
func DedupTogether(size Size) (fresh, replay *Case) {
	return dedup(size, size.Workers, size.Cycles)
}

func dedup(size Size, workers, n int) (fresh, replay *Case) {
	fresh = &Case{ID: "dedup-fresh", Title: "dedup: fresh key with a stored outcome", LimitIs: "2 writes", Rounds: size.Rounds, Note: dedupNote}
	replay = &Case{ID: "dedup-replay", Title: "dedup: replay", LimitIs: "1 read", Rounds: size.Rounds}
	fresh.limit, replay.limit = sequence(n, 2, 0), sequence(n, 0, 1)
	fresh.BareIs, fresh.bare = "getData, 3 creates, then check, setData and delete", bare(n, rig.FreshKey)
	if workers > 1 {
		for _, c := range []*Case{fresh, replay} {
			c.ID += "-together"
			c.Title += fmt.Sprintf(", %d workers", workers)
			c.LimitIs += ", by as many workers"
			c.ByRate = true
		}
		fresh.limit, replay.limit = together(workers, n, 2, 0), together(workers, n, 0, 1)
		fresh.bare = bareTogether(workers, n, rig.FreshKey)
	}
	var path string
	fresh.setUp = func(_ context.Context, r *rig.Rig) (err error) {
		path, err = r.Fresh()
		return err
	}
	command := func(state string) func(context.Context, *rig.Group, int) (Sample, error) {
		return func(ctx context.Context, g *rig.Group, round int) (Sample, error) {
			lines, err := g.Run(ctx, func(int) []string {
				var commands []string
				for w := range workers {
					commands = append(commands, fmt.Sprintf("guard %s/%s %d %d %d", path, g.Library, (round*workers+w)*n, n, n))
				}
				return commands
			})
			if err == nil {
				err = onlyState(lines, state)
			}
			return sample(lines), err
		}
	}
	fresh.peer, replay.peer = command("ran"), command("replayed")
	return fresh, replay
}

// Duplicates is one key that many ask for at the same moment, in one process.
func Duplicates(size Size) *Case {
	c := &Case{
		ID: "duplicates", Title: fmt.Sprintf("dedup: %d duplicates of a fresh key at the same time", size.Duplicates), Rounds: size.Rounds,
		Note:    "The time from the first question until all have the outcome.",
		LimitIs: "2 writes", limit: sequence(size.Hundreds, 2, 0),
	}
	var path string
	c.setUp = func(_ context.Context, r *rig.Rig) (err error) {
		path, err = r.Fresh()
		return err
	}
	c.peer = func(ctx context.Context, g *rig.Group, round int) (Sample, error) {
		var s Sample
		for i := range size.Hundreds {
			lines, err := g.Run(ctx, func(int) []string {
				return slices.Repeat([]string{fmt.Sprintf("guard %s/%s %d 1 1", path, g.Library, round*size.Hundreds+i)}, size.Duplicates)
			})
			if err != nil {
				return s, err
			}
			ran := 0
			for _, l := range lines {
				if l.State == "ran" {
					ran++
				}
			}
			if ran != 1 {
				return s, fmt.Errorf("%d of %d ran, want 1", ran, len(lines))
			}
			s.Times = append(s.Times, span(lines))
		}
		return s, nil
	}
	return c
}
