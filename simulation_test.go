package zklock

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// The simulation runs the real code against zktest in virtual time: several processes
// and goroutines take locks while requests, replies, watches, servers and processes
// fail, all of it drawn from one number, the seed. After each run the history is
// checked (simulation_check_test.go).
//
//	go test . -run TestSimulation              300 seeds, 150 with -race
//	go test . -run TestSimulation -v -seed 17  one seed, with a trace of the run
//	go test . -run TestSimulation -seeds 5000  more seeds
//	make soak                                  until 100,000 grants and 10,000 faults
//
// Two runs of a seed give the same trace up to the order within one instant, but for
// the few that TestSimulationRepeats tells of.
var (
	flagSeed  = flag.Int64("seed", -1, "run the simulation of this seed only, and print its trace")
	flagSeeds = flag.Int("seeds", usualSeeds, "number of seeds that the simulation runs")
	flagFirst = flag.Uint64("first", 0, "first seed that the simulation runs")
	flagSoak  = flag.Bool("soak", false, "run seeds until 100,000 grants and 10,000 faults that hit")
)

const (
	soakGrants = 100_000
	soakFaults = 10_000
	soakTime   = 29 * time.Minute
)

func TestSimulation(t *testing.T) {
	if *flagSeed >= 0 {
		repeatSeed(t, uint64(*flagSeed))
		return
	}
	seeds := *flagSeeds
	if *flagSoak {
		seeds = 0
	}
	total := simulate(t, seeds, func(seed uint64) simVerdict { return runSeed(t, seed, simOptions{}) })
	// A simulation in which little happens shows little.
	grants, faults := 10*seeds, 2*seeds
	if *flagSoak {
		grants, faults = soakGrants, soakFaults
	}
	if total.grants < grants || total.faults < faults {
		t.Errorf("%d grants and %d faults that hit; %d and %d are wanted", total.grants, total.faults, grants, faults)
	}
	if total.leads == 0 && seeds >= 100 {
		t.Error("no holder lost its node to the ensemble")
	}
}

// simulate runs seeds from -first on, two at a time; 0: until the figures of a soak are
// reached, something is violated, or soakTime is over.
func simulate(t *testing.T, seeds int, run func(seed uint64) simVerdict) (total simVerdict) {
	t.Helper()
	began := time.Now()
	var mu sync.Mutex
	next := *flagFirst
	take := func() (seed uint64, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		over := next == *flagFirst+uint64(seeds)
		if seeds == 0 {
			over = total.grants >= soakGrants && total.faults >= soakFaults || len(total.violations) > 0 || time.Since(began) > soakTime
		}
		if over {
			return 0, false
		}
		next++
		return next - 1, true
	}
	t.Run("seeds", func(t *testing.T) {
		for range 2 {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for seed, ok := take(); ok; seed, ok = take() {
					v := run(seed)
					mu.Lock()
					total.add(v)
					mu.Unlock()
				}
			})
		}
	})
	t.Logf("seeds %d to %d in %v\n%s", *flagFirst, next-1, time.Since(began).Round(time.Millisecond), total)
	return total
}

// runSeed runs one seed and reports what it violates.
func runSeed(t *testing.T, seed uint64, opts simOptions) simVerdict {
	t.Helper()
	p := newSimPlan(seed, opts)
	defer func() {
		if p := recover(); p != nil { // a goroutine that is left over, for one
			t.Errorf("seed %d: %v\nrepeat: %s", seed, p, repeat(seed))
			panic(p)
		}
	}()
	v := runSim(t, p, false).judge(p)
	if len(v.violations) > 0 {
		t.Errorf("seed %d violates:\n\t%s\nrepeat: %s", seed, strings.Join(v.violations, "\n\t"), repeat(seed))
	}
	return v
}

func repeat(seed uint64) string {
	return fmt.Sprintf("go test . -run 'TestSimulation$' -v -seed %d", seed)
}

// repeatSeed runs one seed with a trace.
func repeatSeed(t *testing.T, seed uint64) {
	t.Helper()
	p := newSimPlan(seed, simOptions{})
	rec := runSim(t, p, true)
	v := rec.judge(p)
	t.Logf("seed %d: %d servers, tick %v, T %v, latency %v to %v, lag %v, %d clients of %d goroutines, keys %+v\n%s\n%s",
		seed, p.servers, p.tick, p.timeout, p.latency, p.latency+p.jitter, p.lag, p.clients, p.workers, p.keys,
		strings.Join(rec.trace(true), "\n"), v)
	for _, text := range v.violations {
		t.Error(text)
	}
}

func (v simVerdict) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d grants of %d calls, %d faults that hit, %d stale writes refused, %d nodes taken by the ensemble", v.grants, v.calls, v.faults, v.stale, v.leads)
	if v.leads > 0 {
		fmt.Fprintf(&b, ", at the earliest %v after the holder had let go", v.lead)
	}
	for _, m := range []map[string]int{v.byKind, v.losses} {
		b.WriteString("\n\t")
		for _, k := range slices.Sorted(maps.Keys(m)) {
			fmt.Fprintf(&b, "%s %d; ", k, m[k])
		}
	}
	return b.String()
}
