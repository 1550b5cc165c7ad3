package dedup

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/go-zklock/zklock/dedup/driver"
)

// SweepReport is what one pass of the sweeper did.
type SweepReport = driver.SweepReport

// Sweep makes one pass at once: it removes the records whose retention is over. Only
// one process at a time sweeps; while another does, it returns ErrInProgress. Guards
// sweep by themselves (Config.SweepInterval); this is for tools and tests.
func (g *Guard) Sweep(ctx context.Context) (SweepReport, error) {
	if err := g.begin(); err != nil {
		return SweepReport{}, err
	}
	defer g.end()
	ctx, cancel := g.untilClosed(ctx)
	defer cancel()
	return g.sweep(ctx, 0)
}

func (g *Guard) sweep(ctx context.Context, interval time.Duration) (SweepReport, error) {
	r, err := g.store.Sweep(ctx, driver.SweepOptions{
		Interval: interval, Unknown: g.cfg.SweepUnknown,
		// A pass can remove a hundred thousand.
		Evicted: func(key string, r driver.Record) { g.logKey(slog.LevelDebug, "evicted", key, r) },
	})
	g.met.sweptSome(r.Swept)
	g.met.premature(r.Missing)
	g.met.tableSize(r.Records)
	if r.Swept > 0 || r.Missing > 0 {
		g.log.Info("dedup: swept", "event", "swept", "swept", r.Swept, "moved", r.Moved, "unknown", r.Unknown, "missing", r.Missing)
	}
	if r.Unusable > 0 {
		g.log.Error("dedup: records cannot be read", "unusable", r.Unusable)
	}
	switch {
	case errors.Is(err, driver.ErrClaimed):
		return r, ErrInProgress
	case err != nil:
		return r, unavailable(err)
	}
	return r, nil
}

// sweepAlways sweeps every SweepInterval, at a moment of its own within it.
func (g *Guard) sweepAlways() {
	ctx, cancel := context.WithCancel(g.closing)
	defer cancel()
	every := g.cfg.SweepInterval
	for wait := rand.N(every) + 1; ; wait = every {
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		case <-g.store.Closing():
			t.Stop()
			return
		}
		_, err := g.sweep(ctx, every)
		if err != nil && !errors.Is(err, ErrInProgress) && ctx.Err() == nil {
			g.log.Log(ctx, slog.LevelWarn, "dedup: the sweep was not finished", "error", err)
		}
	}
}
