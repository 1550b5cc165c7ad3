package dedup_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup/driver"
)

// The simulation runs dedup against zktest in virtual time: several processes have
// work done for a few keys while requests, replies, servers and processes fail, all of
// it drawn from one number, the seed. After each run its history is checked against
// the ensemble's own (simulation_check_test.go, simulation_truth_test.go).
//
//	go test ./dedup -run TestSimulation               30 seeds
//	go test ./dedup -run TestSimulation -v -seed 17   one seed, with a trace of the run
//	go test ./dedup -run TestSimulation -seeds 5000   more seeds
//	make soak                                         2,000 seeds
//
// The package comes first: behind a flag of the test, go takes it for an argument.
var (
	flagSeed  = flag.Int64("seed", -1, "run the simulation of this seed only, and print its trace")
	flagSeeds = flag.Int("seeds", 30, "number of seeds that the simulation runs")
	flagFirst = flag.Uint64("first", 0, "first seed that the simulation runs")
	flagSoak  = flag.Bool("soak", false, "run 2,000 seeds")
)

const soakSeeds = 2000

func TestSimulation(t *testing.T) {
	if *flagSeed >= 0 {
		truth := runSim(t, newSimPlan(uint64(*flagSeed)), true)
		v := truth.judge()
		t.Logf("seed %d: %+v\n%s\n%s", *flagSeed, *newSimPlan(uint64(*flagSeed)), strings.Join(truth.events, "\n"), v)
		for _, text := range v.violations {
			t.Error(text)
		}
		return
	}
	seeds := *flagSeeds
	if *flagSoak {
		seeds = soakSeeds
	}
	began := time.Now()
	total := runSeeds(t, seeds, func(uint64) *simPlan { return nil })
	t.Logf("seeds %d to %d in %v\n%s", *flagFirst, *flagFirst+uint64(seeds)-1, time.Since(began).Round(time.Millisecond), total)
	// A simulation in which little happens shows little.
	if runs, faults := total.counts["runs"], total.hits(); runs < 10*seeds || faults < 3*seeds {
		t.Errorf("%d runs and %d faults that hit; %d and %d are wanted", runs, faults, 10*seeds, 3*seeds)
	}
	for _, what := range []string{"replayed", "indeterminate", "swept", "run again after an unknown outcome", "key reused", "in progress", "unavailable"} {
		if total.counts[what] == 0 && seeds >= 30 {
			t.Errorf("nothing was %q", what)
		}
	}
}

// runSeeds runs seeds, two at a time. change may give another plan than the seed's.
func runSeeds(t *testing.T, seeds int, change func(seed uint64) *simPlan) (total simVerdict) {
	t.Helper()
	var next atomic.Uint64
	next.Store(*flagFirst)
	var mu sync.Mutex
	t.Run("seeds", func(t *testing.T) {
		for range 2 {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for {
					seed := next.Add(1) - 1
					if seed >= *flagFirst+uint64(seeds) {
						return
					}
					p := change(seed)
					control := p != nil
					if !control {
						p = newSimPlan(seed)
					}
					v := runSeed(t, seed, p)
					if len(v.violations) > 0 && !control {
						t.Errorf("seed %d violates:\n\t%s\nrepeat: go test ./dedup -run 'TestSimulation$' -v -seed %d", seed, strings.Join(v.violations, "\n\t"), seed)
					}
					mu.Lock()
					total.add(v)
					mu.Unlock()
				}
			})
		}
	})
	return total
}

func runSeed(t *testing.T, seed uint64, p *simPlan) simVerdict {
	t.Helper()
	defer func() {
		if p := recover(); p != nil { // a goroutine that is left over, for one
			panic(fmt.Sprintf("seed %d: %v", seed, p))
		}
	}()
	return runSim(t, p, false).judge()
}

// The control: with a store that does not write "running" before another attempt, the
// simulation has to find that two attempts are the same.
func TestSimulationFindsAStoreThatDoesNotSayRunning(t *testing.T) {
	total := runSeeds(t, 4, func(seed uint64) *simPlan {
		p := newSimPlan(seed)
		p.breakStore = func(s driver.Store) driver.Store { return lazyStore{s} }
		return p
	})
	if len(total.violations) == 0 {
		t.Error("the simulation has found nothing")
	}
}

type lazyStore struct{ driver.Store }

func (s lazyStore) Queue(ctx context.Context, key string, wait bool) (driver.Claim, error) {
	c, err := s.Store.Queue(ctx, key, wait)
	if err != nil {
		return nil, err
	}
	return lazyClaim{c}, nil
}

type lazyClaim struct{ driver.Claim }

func (lazyClaim) Renew(context.Context, driver.Record) error { return nil }

// Two more: an attempt that is left out, and one that is written, and followed by the
// next under the same claim.
func TestSimulationFindsAttemptsWithoutARun(t *testing.T) {
	for _, written := range []bool{false, true} {
		total := runSeeds(t, 4, func(seed uint64) *simPlan {
			p := newSimPlan(seed)
			p.breakStore = func(s driver.Store) driver.Store { return hastyStore{s, written} }
			return p
		})
		if !slices.ContainsFunc(total.violations, func(text string) bool { return strings.Contains(text, "has no run") }) {
			t.Errorf("written %v: the simulation has found %q", written, total.violations)
		}
	}
}

// hastyStore counts two attempts for one.
type hastyStore struct {
	driver.Store
	written bool
}

func (s hastyStore) Queue(ctx context.Context, key string, wait bool) (driver.Claim, error) {
	c, err := s.Store.Queue(ctx, key, wait)
	if err != nil {
		return nil, err
	}
	return hastyClaim{c, s.written}, nil
}

type hastyClaim struct {
	driver.Claim
	written bool
}

func (c hastyClaim) Renew(ctx context.Context, r driver.Record) error {
	if c.written {
		if err := c.Claim.Renew(ctx, r); err != nil {
			return err
		}
	}
	r.Attempt++
	return c.Claim.Renew(ctx, r)
}

// Runs are compared with all that came before, also with one in between.
func TestSimulationComparesRunsThatAreNotNeighbours(t *testing.T) {
	type run struct {
		token       zklock.Token
		start, over time.Duration
		excused     bool
	}
	for name, tc := range map[string]struct {
		want string // the violation; empty: none
		runs []run
	}{
		"one after the other":        {"", []run{{1, 0, 2, false}, {2, 2, 4, false}, {3, 5, 6, false}}},
		"neighbours":                 {"overlap", []run{{1, 0, 3, false}, {2, 2, 4, false}}},
		"one that is not over":       {"overlap", []run{{1, 0, 0, false}, {2, 2, 4, false}}},
		"only with one excused":      {"", []run{{1, 0, 2, false}, {2, 1, 9, true}, {3, 3, 4, false}}},
		"around one excused":         {"overlap", []run{{1, 0, 9, false}, {2, 1, 2, true}, {3, 3, 4, false}}},
		"tokens around one excused":  {"tokens", []run{{3, 0, 2, false}, {4, 2, 3, true}, {3, 3, 4, false}}},
		"with the last but one only": {"8ns (8ns); run 3", []run{{1, 0, 8, false}, {2, 1, 2, false}, {3, 3, 4, false}}},
	} {
		r := newSimTruth(false)
		var runs []*simExec
		for i, x := range tc.runs {
			if x.excused {
				r.byToken[x.token] = &simClaim{how: "by hand"}
			}
			runs = append(runs, &simExec{
				call: &simCall{}, value: fmt.Sprint("run ", i+1), token: x.token, start: x.start, over: x.over, done: x.over,
			})
		}
		var found []string
		r.judgeOrder(runs, func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) })
		all := strings.Join(found, "\n")
		if tc.want == "" && all != "" || !strings.Contains(all, tc.want) {
			t.Errorf("%s: found %q, want %q", name, all, tc.want)
		}
	}
}

// printOf is what dedup.Payload makes of a payload.
func printOf(payload string) []byte {
	h := sha256.New()
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(payload)))
	h.Write(n[:])
	h.Write([]byte(payload))
	return h.Sum(nil)
}
