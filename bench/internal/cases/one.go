package cases

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zklock/zklock/bench/internal/rig"
	"github.com/go-zklock/zklock/integration/peers"
)

// one makes a process do a single command.
func one(ctx context.Context, g *rig.Group, format string, args ...any) ([]peers.Line, error) {
	return g.Run(ctx, func(int) []string { return []string{fmt.Sprintf(format, args...)} })
}

// sequence is the limit for what is done one after the other.
func sequence(n, writes, reads int) func(*rig.Limit) (Sample, error) {
	return func(l *rig.Limit) (Sample, error) {
		times, err := l.Sequence(n, writes, reads)
		return Sample{Times: times}, err
	}
}

// bare is the requests of zklock, one after the other.
func bare(n int, do rig.Recipe) func(*rig.Limit) (Sample, error) {
	return func(l *rig.Limit) (Sample, error) {
		times, err := l.Bare(n, do)
		return Sample{Times: times}, err
	}
}

// Warm is an acquire and release of a free lock whose path is there.
func Warm(size Size) *Case {
	c := &Case{
		ID: "warm", Title: "Warm acquire and release, nobody else there", Rounds: 2 * size.Rounds,
		LimitIs: "2 writes and 1 read", limit: sequence(size.Operations, 2, 1),
		BareIs: "create, getChildren, delete", bare: bare(size.Operations, rig.AcquireAndRelease),
	}
	var path string
	c.setUp = func(_ context.Context, r *rig.Rig) (err error) {
		path, err = r.Fresh()
		return err
	}
	c.peer = func(ctx context.Context, g *rig.Group, _ int) (Sample, error) {
		lines, err := one(ctx, g, "cycle %s/%s 0 1 %d", path, g.Library, size.Operations)
		return sample(lines), err
	}
	return c
}

// Fresh is an acquire and release of a lock whose path has to be made.
func Fresh(size Size) *Case {
	c := &Case{
		ID: "fresh", Title: "Fresh key: acquire and release of a path that is not there", Rounds: size.Rounds,
		LimitIs: "2 writes and 1 read", limit: sequence(size.Operations, 2, 1),
	}
	var path string
	c.setUp = func(_ context.Context, r *rig.Rig) (err error) {
		path, err = r.Fresh()
		return err
	}
	c.peer = func(ctx context.Context, g *rig.Group, round int) (Sample, error) {
		lines, err := one(ctx, g, "cycle %s/%s %d %d %d", path, g.Library, round*size.Operations, size.Operations, size.Operations)
		return sample(lines), err
	}
	return c
}

// Try is a try on a lock that another process holds.
func Try(size Size) *Case {
	c := &Case{
		ID: "try", Title: "TryAcquire on a held lock", Rounds: size.Rounds, NoTry: true,
		Note:    "Curator: acquire(0, ms). kazoo: acquire(blocking=False). go-zookeeper's Lock has no such call, and no way to give a wait up.",
		LimitIs: "1 read", limit: sequence(size.Operations, 0, 1),
	}
	var path string
	c.setUp = func(ctx context.Context, r *rig.Rig) error {
		path = r.Path()
		holder, err := r.Start(ctx, peers.Zklock, 1)
		if err != nil {
			return err
		}
		if err := holder.Send(0, "acquire "+path+" 0"); err != nil {
			return err
		}
		_, err = holder.Next(ctx, 0, peers.Acquired)
		return err
	}
	c.peer = func(ctx context.Context, g *rig.Group, _ int) (Sample, error) {
		lines, err := one(ctx, g, "try %s %d", path, size.Operations)
		for _, l := range lines {
			if l.State != "held" {
				err = errors.Join(err, fmt.Errorf("a try says %q on a lock that is held", l.State))
			}
		}
		return sample(lines), err
	}
	return c
}
