// Package cases is what is measured side by side.
package cases

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-zklock/zklock/bench/internal/rig"
	"github.com/go-zklock/zklock/bench/internal/stat"
	"github.com/go-zklock/zklock/integration/peers"
)

// Limit and Bare are names among the participants of a case: what no recipe can be quicker than, and the requests that
// zklock sends, without zklock.
const (
	Limit peers.Library = "limit"
	Bare  peers.Library = "bare"
)

// Case is one thing that every library does, in rounds that alternate between the libraries.
type Case struct {
	ID        string
	Title     string
	Note      string // what the reader has to know; may be empty
	LimitIs   string // what the limit does, in words
	BareIs    string // what is sent without a lock, in words; empty if nothing is
	Processes int    // of each library; 0 is 1
	NoTry     bool   // for libraries that have a try only
	ByRate    bool   // what counts is how often a second, not how long once
	Rounds    int

	setUp func(ctx context.Context, r *rig.Rig) error // once, before the first round; may be nil
	peer  func(ctx context.Context, g *rig.Group, round int) (Sample, error)
	limit func(l *rig.Limit) (Sample, error)
	bare  func(l *rig.Limit) (Sample, error) // may be nil
}

// Sample is what one round of one participant gave.
type Sample struct {
	Times []time.Duration // how long each took
	Rate  float64         // how many a second; 0 if that was not measured
	N     int             // how many operations there were; 0: as many as Times
}

// Figures are what all rounds of one participant gave.
type Figures struct {
	P50, P99 time.Duration
	Rate     float64       // the median of the rounds
	N        int           // how many were timed
	CPU      time.Duration // processor time of the library's processes for one operation

	rounds []round
}

// round is what one round gave: the median time, and the rate.
type round struct {
	p50  time.Duration
	rate float64
}

// Result is a case with its figures.
type Result struct {
	*Case
	Of map[peers.Library]Figures
}

// Participants are the libraries that the case is about, and the limit.
func (c *Case) Participants() []peers.Library {
	var all []peers.Library
	for _, library := range peers.Libraries {
		if !c.NoTry || library != peers.GoZooKeeper {
			all = append(all, library)
		}
	}
	if c.bare != nil {
		all = append(all, Bare)
	}
	return append(all, Limit)
}

// Run measures the case. The round before the first is a warm-up and does not count. Each round begins with another
// participant, so that none always comes after the same one.
func (c *Case) Run(ctx context.Context, r *rig.Rig, groups map[peers.Library]*rig.Group) (Result, error) {
	if c.setUp != nil {
		if err := c.setUp(ctx, r); err != nil {
			return Result{}, fmt.Errorf("%s: setting up: %w", c.ID, err)
		}
	}
	all := c.Participants()
	times := make(map[peers.Library][]time.Duration)
	rounds := make(map[peers.Library][]round)
	cpu, done := make(map[peers.Library]time.Duration), make(map[peers.Library]int)
	for n := range c.Rounds + 1 {
		for i := range all {
			who := all[(n+i)%len(all)]
			var s Sample
			var err error
			switch who {
			case Limit:
				s, err = c.limit(r.Limit)
			case Bare:
				s, err = c.bare(r.Limit)
			default:
				var used time.Duration
				s, used, err = c.measured(ctx, groups[who], n)
				if n > 0 {
					cpu[who] += used
					done[who] += max(s.N, len(s.Times))
				}
			}
			if err != nil {
				return Result{}, fmt.Errorf("%s: round %d of %s: %w", c.ID, n, who, err)
			}
			if n > 0 {
				times[who] = append(times[who], s.Times...)
				rounds[who] = append(rounds[who], round{stat.Median(s.Times), s.Rate})
			}
		}
	}
	result := Result{Case: c, Of: make(map[peers.Library]Figures)}
	for _, who := range all {
		if len(times[who]) == 0 {
			return Result{}, fmt.Errorf("%s: no figures of %s", c.ID, who)
		}
		var rates []float64
		for _, one := range rounds[who] {
			rates = append(rates, one.rate)
		}
		result.Of[who] = Figures{
			P50: stat.Median(times[who]), P99: stat.Quantile(times[who], 0.99), Rate: stat.Median(rates), N: len(times[who]),
			CPU: cpu[who] / time.Duration(max(done[who], 1)), rounds: rounds[who],
		}
	}
	return result, nil
}

// measured lets processes do a round, and says what processor time they took for it.
func (c *Case) measured(ctx context.Context, g *rig.Group, n int) (s Sample, used time.Duration, err error) {
	before, err := g.CPU()
	if err != nil {
		return s, 0, err
	}
	if s, err = c.peer(ctx, g, n); err != nil {
		return s, 0, err
	}
	after, err := g.CPU()
	return s, after - before, err
}

// Best is the quickest of the peers.
func (r Result) Best() (best peers.Library) {
	for _, who := range r.Participants() {
		if who == Limit || who == Bare || who == peers.Zklock {
			continue
		}
		if best == "" || r.cost(who) < r.cost(best) {
			best = who
		}
	}
	return best
}

// cost is smaller for the better.
func (r Result) cost(who peers.Library) float64 {
	if r.ByRate {
		return 1 / r.Of[who].Rate
	}
	return float64(r.Of[who].P50)
}

// AgainstBest is somebody's time divided by the best peer's, or the rate if rates count: the median of the ratios within
// each round, since what a machine does beside this changes from round to round.
func (r Result) AgainstBest(who peers.Library) float64 { return r.against(who, r.Best(), r.ByRate) }

// AgainstLimit is how many times as long as the limit somebody takes, in the same way.
func (r Result) AgainstLimit(who peers.Library) float64 { return r.against(who, Limit, false) }

func (r Result) against(who, other peers.Library, byRate bool) float64 {
	var ratios []float64
	theirs := r.Of[other].rounds
	for i, ours := range r.Of[who].rounds {
		if byRate {
			ratios = append(ratios, stat.Ratio(ours.rate, theirs[i].rate))
		} else {
			ratios = append(ratios, stat.Ratio(ours.p50, theirs[i].p50))
		}
	}
	return stat.Median(ratios)
}

// took is how long each of the lines took, from the question to the end.
func took(lines []peers.Line) []time.Duration {
	times := make([]time.Duration, 0, len(lines))
	for _, l := range lines {
		times = append(times, time.Duration(l.Done-l.Asked))
	}
	return times
}

// span is the time from the first question to the last end.
func span(lines []peers.Line) time.Duration {
	if len(lines) == 0 {
		return 0
	}
	first := slices.MinFunc(lines, func(a, b peers.Line) int { return int(a.Asked - b.Asked) })
	last := slices.MaxFunc(lines, func(a, b peers.Line) int { return int(a.Done - b.Done) })
	return time.Duration(last.Done - first.Asked)
}

// sample is what lines come to that were worked off by one or many at the same time.
func sample(lines []peers.Line) Sample {
	return Sample{Times: took(lines), Rate: float64(len(lines)) / span(lines).Seconds()}
}
