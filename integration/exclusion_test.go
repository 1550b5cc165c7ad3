package integration

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/integration/internal/mutexmodel"
	"github.com/go-zklock/zklock/integration/internal/report"
	"github.com/go-zklock/zklock/integration/zkcluster"
)

// history turns grants of one key into operations of the mutex model.
func history(grants []report.Line) []porcupine.Operation {
	var holds []mutexmodel.Hold
	for _, g := range grants {
		holds = append(holds, mutexmodel.Hold{Token: g.Token, Asked: g.Asked, Got: g.Got, End: g.End, Done: g.Done})
	}
	return mutexmodel.Operations(holds)
}

// The model has to find an overlap, or it shows nothing.
func TestMutexModelFindsAnOverlap(t *testing.T) {
	a := report.Line{Token: 1, Asked: 1, Got: 2, End: 10, Done: 11}
	behind := report.Line{Token: 2, Asked: 1, Got: 12, End: 13, Done: 14}
	overlaps := report.Line{Token: 2, Asked: 1, Got: 9, End: 13, Done: 14}
	open := report.Line{Token: 1, Asked: 1, Got: 2, End: 10}
	for _, tc := range []struct {
		grants []report.Line
		ok     bool
	}{{[]report.Line{a, behind}, true}, {[]report.Line{a, overlaps}, false}, {[]report.Line{open, behind}, true}, {[]report.Line{open, overlaps}, false}} {
		if got := porcupine.CheckOperations(mutexmodel.Model, history(tc.grants)); got != tc.ok {
			t.Errorf("%+v: %v, want %v", tc.grants, got, tc.ok)
		}
	}
}

// Five processes with four goroutines each take four locks in turn, while servers are
// killed and come back.
func TestExclusionWhileServersAreKilled(t *testing.T) {
	const (
		processes  = 5
		goroutines = 4
		keys       = 4
		grants     = 2000
	)
	for round := range zkcluster.Repeat(t) {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			cluster := ensemble.Get(t)
			var paths []string
			for range keys {
				paths = append(paths, uniquePath(t))
			}
			program := buildWorker(t)
			var workers []*process
			begun := time.Now()
			for i := range processes {
				workers = append(workers, startWorker(t, program, "-mode", "contend", "-servers", cluster.ConnectString(),
					"-timeout", []string{"6s", "12s"}[i%2], "-paths", strings.Join(paths, ","),
					"-goroutines", fmt.Sprint(goroutines), "-grants", fmt.Sprint(grants/processes), "-hold", "150ms"))
			}
			lines := make(chan []report.Line)
			for _, w := range workers {
				go func() { lines <- untilFinished(w) }()
			}
			var all []report.Line
			kills, left := 0, processes
			ctx, cancel := context.WithCancel(bounded(t))
			faults := make(chan error, 1)
			go func() { faults <- killInTurn(ctx, cluster, &kills) }()
			for ; left > 0; left-- {
				all = append(all, <-lines...)
			}
			took := time.Since(begun)
			cancel()
			must(t, "kill and restart", <-faults)
			t.Logf("%d grants in %v, %d servers killed and restarted", len(all), ms(took), kills)
			if kills < 3 {
				t.Errorf("only %d kills", kills)
			}
			checkGrants(t, all, paths, grants)

			// The clients are still there, and have nothing left to wait for.
			must(t, "quorum", cluster.WaitQuorum(bounded(t)))
			nothingLeft(t, cluster, paths)
			for _, w := range workers {
				w.finish(t) // looks for goroutines
			}
		})
	}
}

// untilFinished collects a worker's grants, and a line that says Failed if there is one.
func untilFinished(w *process) []report.Line {
	var grants []report.Line
	for l := range w.lines {
		if l.Event == report.Finished {
			return grants
		}
		grants = append(grants, l)
	}
	return append(grants, report.Line{Event: report.Failed, Error: "the worker ended too early"})
}

// killInTurn kills a random server and starts it again, until ctx ends.
func killInTurn(ctx context.Context, cluster *zkcluster.Cluster, kills *int) error {
	for {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil
		}
		s := cluster.Server(rand.IntN(cluster.Size()))
		// Once begun, it is ended: the next test needs all servers.
		whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		err := s.Kill(whole)
		if err == nil {
			time.Sleep(rand.N(2 * time.Second))
			err = s.Start(whole)
		}
		if err == nil {
			err = cluster.WaitQuorum(whole)
		}
		cancel()
		if err != nil {
			return fmt.Errorf("server %d: %w", s.ID(), err)
		}
		*kills++
	}
}

func checkGrants(t *testing.T, all []report.Line, paths []string, want int) {
	t.Helper()
	byPath := make(map[string][]report.Line)
	lost := 0
	for _, g := range all {
		switch g.Event {
		case report.Grant:
			byPath[g.Path] = append(byPath[g.Path], g)
			if g.Lost {
				lost++
			}
		default:
			t.Errorf("a worker reports %q: %s", g.Event, g.Error)
		}
	}
	if len(all) != want {
		t.Errorf("%d grants, want %d", len(all), want)
	}
	if got := slices.Sorted(maps.Keys(byPath)); len(got) != len(paths) {
		t.Errorf("grants of %v, want of %v", got, paths)
	}
	for path, grants := range byPath {
		slices.SortFunc(grants, func(a, b report.Line) int { return int(a.Got - b.Got) })
		var wait, least time.Duration = 0, math.MaxInt64
		for i, g := range grants {
			wait = max(wait, time.Duration(g.Got-g.Asked))
			if i == 0 {
				continue
			}
			before := grants[i-1]
			if g.Token <= before.Token {
				t.Errorf("%s: token %v after %v", path, zklock.Token(g.Token), zklock.Token(before.Token))
			}
			least = min(least, time.Duration(g.Got-before.End))
		}
		t.Logf("%s: %d grants; the smallest gap between two holders is %v; the longest wait %v", path, len(grants), least, ms(wait))
		switch res := porcupine.CheckOperationsTimeout(mutexmodel.Model, history(grants), time.Minute); res {
		case porcupine.Ok:
		default:
			t.Errorf("%s: the mutex model says %v", path, res)
		}
	}
	t.Logf("%d leases were lost while held", lost)
}

// nothingLeft waits until no server has a node under the paths, nor a watch.
func nothingLeft(t *testing.T, cluster *zkcluster.Cluster, paths []string) {
	t.Helper()
	ctx := bounded(t)
	for _, s := range cluster.Servers() {
		var words string
		eventually(t, fmt.Sprintf("server %d: no lock node and no watch", s.ID()), func() bool {
			dump, err := s.FourLetter(ctx, "dump")
			must(t, "dump", err)
			words = dump
			for _, path := range paths {
				if strings.Contains(dump, path+"/") {
					return false
				}
			}
			return watches(t, s) == 0
		})
		if t.Failed() {
			t.Logf("server %d: %s", s.ID(), words)
		}
	}
	_, leader := roles(t, cluster)
	observer := observe(t, leader)
	for _, path := range paths {
		if left := nodes(t, observer, path); len(left) > 0 {
			t.Errorf("left at %s: %v", path, left)
		}
	}
}
