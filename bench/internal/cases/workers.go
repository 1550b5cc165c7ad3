package cases

import (
	"context"
	"fmt"

	"github.com/go-zklock/zklock/bench/internal/rig"
)

// together is the limit for what many workers do at the same time.
func together(workers, n, writes, reads int) func(*rig.Limit) (Sample, error) {
	return func(l *rig.Limit) (Sample, error) {
		times, rate, err := l.Together(workers, n, writes, reads)
		return Sample{Times: times, Rate: rate}, err
	}
}

// bareTogether is the requests of zklock, by many workers.
func bareTogether(workers, n int, do rig.Recipe) func(*rig.Limit) (Sample, error) {
	return func(l *rig.Limit) (Sample, error) {
		times, rate, err := l.BareTogether(workers, n, do)
		return Sample{Times: times, Rate: rate}, err
	}
}

// Workers is many workers in one process, each on paths of its own.
func Workers(size Size, keys int) *Case {
	each := max(keys/size.Workers, 1)
	cycles := (size.Cycles + each - 1) / each * each // each path as often as the others
	c := &Case{
		ID:      fmt.Sprintf("workers-%d", keys),
		Title:   fmt.Sprintf("%d workers on %d keys, each on its own", size.Workers, each*size.Workers),
		LimitIs: "2 writes and 1 read, by as many workers", limit: together(size.Workers, size.Cycles, 2, 1),
		BareIs: "create, getChildren, delete", bare: bareTogether(size.Workers, size.Cycles, rig.AcquireAndRelease),
		ByRate: true, Rounds: size.Rounds,
	}
	var path string
	c.setUp = func(_ context.Context, r *rig.Rig) (err error) {
		path, err = r.Fresh()
		return err
	}
	c.peer = func(ctx context.Context, g *rig.Group, _ int) (Sample, error) {
		lines, err := g.Run(ctx, func(int) []string {
			var commands []string
			for w := range size.Workers {
				commands = append(commands, fmt.Sprintf("cycle %s/%s %d %d %d", path, g.Library, w*each, each, cycles))
			}
			return commands
		})
		return sample(lines), err
	}
	return c
}
