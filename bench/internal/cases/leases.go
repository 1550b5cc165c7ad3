package cases

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-zklock/zklock/bench/internal/rig"
	"github.com/go-zklock/zklock/integration/peers"
	"github.com/go-zklock/zklock/integration/zkproxy"
)

// settled is when all watches on own nodes are set after an acquire.
const settled = 3 * time.Second

// Idle is what a process costs that does nothing but hold leases.
type Idle struct {
	Leases int
	Proofs float64 // transactions a second
	Others float64 // other requests a second
	CPU    float64 // share of a core
}

// IdleLeases measures processes of zklock, all at the same time.
func IdleLeases(ctx context.Context, r *rig.Rig, size Size) ([]Idle, error) {
	groups := make([]*rig.Group, len(size.Leases))
	before := make([]time.Duration, len(groups))
	for i, leases := range size.Leases {
		g, err := r.StartCounted(ctx, peers.Zklock, 1)
		if err != nil {
			return nil, err
		}
		groups[i] = g
		path := r.Path()
		for k := range leases {
			if err := g.Send(0, fmt.Sprintf("acquire %s/%d 0", path, k)); err != nil {
				return nil, err
			}
		}
		for range leases {
			if _, err := g.Next(ctx, 0, peers.Acquired); err != nil {
				return nil, err
			}
		}
	}
	if err := sleep(ctx, settled); err != nil {
		return nil, err
	}
	for i, g := range groups {
		var err error
		if before[i], err = g.CPU(); err != nil {
			return nil, err
		}
		g.Proxy.Reset()
	}
	begun := time.Now()
	if err := sleep(ctx, time.Duration(size.IdleFor)*time.Second); err != nil {
		return nil, err
	}
	took := time.Since(begun)
	all := make([]Idle, len(groups))
	var errs []error
	for i, g := range groups {
		after, err := g.CPU()
		counts := g.Proxy.Snapshot().Total
		others := counts.Writes() + counts.Reads() + counts.Of(zkproxy.Sync, zkproxy.Ping)
		all[i] = Idle{
			Leases: size.Leases[i],
			Proofs: float64(counts.Proofs()) / took.Seconds(),
			Others: float64(others) / took.Seconds(),
			CPU:    (after - before[i]).Seconds() / took.Seconds(),
		}
		errs = append(errs, err, g.Close())
	}
	return all, errors.Join(errs...)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
