package torture

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zklock/zklock/integration/internal/figures"
	"github.com/go-zklock/zklock/integration/internal/report"
	"github.com/go-zklock/zklock/integration/zkcluster"
)

const (
	workers = 6
	locks   = 4
	tick    = 500 * time.Millisecond

	// patience bounds each wait for something that comes.
	patience = 2 * time.Minute
	// turn is how long a worker needs to get a lock, as a rule.
	turn = time.Second
	// rest is how long everything is left in peace between two faults.
	rest = 500 * time.Millisecond
	// grantsPerFault are wanted during each kind of fault. A run too short for them goes on.
	grantsPerFault = 50
	// longestFault bounds a fault. Most are longer than the workers' session timeouts.
	longestFault = 8 * time.Second
	// extraRounds bounds how often it does, for the kinds that have had too few.
	extraRounds = 8
)

// timeouts are those of the workers, in turn.
var timeouts = []time.Duration{2 * time.Second, 3 * time.Second}

// run is what the faults act on.
type run struct {
	cluster *zkcluster.Cluster
	history *history
	workers []*worker
	paths   []string
	victim  *worker // of the fault that is made; it clings to a lock
}

// TestTorture makes one fault after the other under workers that take locks all the time, and judges the histories
// of all processes: holds of a path do not overlap (a mutex model; holds of processes that were stopped or killed end
// with that), tokens grow, a store refuses what comes too late, what an observer reads at the servers agrees, each
// kind of fault has had enough grants, every fault is recovered from, and nothing is left at the end.
func TestTorture(t *testing.T) {
	folder := figures.Folder()
	if folder == "" {
		folder = t.TempDir()
	}
	must(t, "folder", os.MkdirAll(folder, 0o755)) //nolint:gosec // for everybody to read
	h, err := newHistory(filepath.Join(folder, "torture.jsonl"))
	must(t, "history", err)
	cluster := zkcluster.Start(t, zkcluster.Options{Servers: 3, TickTime: tick, InitLimit: 40})
	r := &run{cluster: cluster, history: h}
	for i := range locks {
		r.paths = append(r.paths, fmt.Sprintf("/torture/%d", i))
	}
	ctx := bounded(t)
	store, err := startProcess(h, "store", "store")
	must(t, "store", err)
	t.Cleanup(store.kill)
	url, err := store.awaitLine(ctx, listening)
	must(t, "store", err)
	o, err := newObserver(ctx, cluster.Addrs(), "/observer/own")
	must(t, "observer", err)
	defer o.conn.Close()
	watching, stopWatching := context.WithCancel(t.Context())
	var watcher sync.WaitGroup
	watcher.Go(func() { o.watch(watching, r.paths) })
	defer watcher.Wait()
	defer stopWatching()
	for i := range workers {
		w, err := newWorker(t, h, cluster, i, "ZKLOCK_TORTURE_PATHS="+strings.Join(r.paths, ","),
			"ZKLOCK_TORTURE_TIMEOUT="+timeouts[i%len(timeouts)].String(), "ZKLOCK_TORTURE_STORE="+url.State)
		must(t, "worker", err)
		t.Cleanup(func() { w.kill() })
		r.workers = append(r.workers, w)
	}
	for _, w := range r.workers {
		_, err := w.awaitLine(ctx, report.Ready)
		must(t, "worker", err)
	}

	begun := time.Now()
	left := r.torment(t, time.Duration(*minutes*float64(time.Minute)))
	t.Logf("faults for %v", time.Since(begun).Round(time.Second))

	r.finish(t)
	stopWatching()
	watcher.Wait()
	r.atRest(t, o)
	entries, err := h.close()
	must(t, "history", err)
	s := tell(entries)
	s.judge(t, o)
	version, err := cluster.Server(0).Version(bounded(t))
	must(t, "version", err)
	s.count(t, o, version, left)
	verdict := "clean"
	if t.Failed() {
		verdict = "NOT clean"
		for _, w := range r.workers {
			t.Logf("%s:\n%s", w.name, w.log.tail())
		}
	}
	t.Logf("verdict: %s", verdict)
}

// torment makes faults for a while, each kind as often as any other, and then more of those that have had too few
// grants. It returns the kinds that can be made here.
func (r *run) torment(t *testing.T, long time.Duration) []kind {
	t.Helper()
	possible := slices.Clone(kinds)
	end := time.Now().Add(long)
	// A round of all kinds has to fit, with as long again for recoveries.
	longest := min(longestFault, long/time.Duration(2*len(kinds)))
	for round := 0; round == 0 || time.Now().Before(end); round++ {
		for _, k := range shuffled(possible) {
			if round > 0 && time.Now().After(end) {
				break
			}
			if !r.make(t, k, longest/2+rand.N(longest/2+1)) {
				possible = slices.DeleteFunc(possible, func(p kind) bool { return p.name == k.name })
			}
		}
	}
	for range extraRounds {
		s := tell(r.history.soFar())
		for _, k := range possible {
			if s.duringAll(k.name) < grantsPerFault {
				r.make(t, k, longestFault)
			}
		}
	}
	return possible
}

func shuffled(kinds []kind) []kind {
	all := slices.Clone(kinds)
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// make makes a fault, unless this machine cannot.
func (r *run) make(t *testing.T, k kind, long time.Duration) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := r.fault(ctx, k, long)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Logf("%q cannot be made here: %v", k.name, err)
		return false
	}
	if err != nil {
		// A worker that has failed is a better reason than what failed because of it.
		for _, e := range tell(r.history.soFar()).failed {
			t.Errorf("%s: %s", e.Process, e.Error)
		}
		t.Fatalf("%s: %v", k.name, err)
	}
	return true
}

// fault makes one fault, ends it, and waits until every lock goes from hand to hand again. One worker, the one that
// the fault befalls if it befalls one, keeps a lock meanwhile for as long as it can.
func (r *run) fault(ctx context.Context, k kind, long time.Duration) error {
	r.victim = r.workers[rand.IntN(len(r.workers))]
	if err := r.victim.tell(cling); err != nil {
		return err
	}
	time.Sleep(turn)
	begun := report.Now()
	end, err := k.begin(ctx, r)
	if err != nil {
		return err
	}
	// The fault began before this line was written. What it was told to be is known only now.
	r.history.add("faults", report.Line{Event: faultBegins, At: begun, State: k.name})
	time.Sleep(long)
	if err := errors.Join(end(ctx), r.victim.tell(letGo)); err != nil {
		return err
	}
	if err := r.cluster.WaitQuorum(ctx); err != nil {
		return err
	}
	healed := report.Now()
	r.history.add("faults", report.Line{Event: faultEnds, At: healed, State: k.name})
	for {
		all, news := r.history.grantedSince(r.paths, healed)
		if all {
			break
		}
		select {
		case <-news:
		case <-ctx.Done():
			return fmt.Errorf("not every lock was granted again: %w", context.Cause(ctx))
		}
	}
	r.history.add("faults", report.Line{Event: recovered, State: k.name})
	time.Sleep(rest)
	return nil
}

// finish lets the workers come to their end, which includes a look for goroutines.
func (r *run) finish(t *testing.T) {
	t.Helper()
	for _, w := range r.workers {
		must(t, "end of input", w.stdin.Close())
	}
	for _, w := range r.workers {
		_, err := w.awaitLine(bounded(t), report.Closed)
		must(t, "end of a worker", err)
		<-w.ended
		if w.err != nil {
			t.Fatalf("%s: %v\n%s", w.name, w.err, w.log.tail())
		}
	}
}

// atRest looks for what was left at the ensemble.
func (r *run) atRest(t *testing.T, o *observer) {
	t.Helper()
	for _, path := range r.paths {
		nodes, err := o.read(path)
		must(t, "look at "+path, err)
		if len(nodes) > 0 {
			t.Errorf("left at %s: %v", path, nodes)
		}
	}
	for _, s := range r.cluster.Servers() {
		wchs, err := s.FourLetter(bounded(t), "wchs")
		must(t, "wchs", err)
		if !strings.Contains(wchs, "Total watches:0") {
			t.Errorf("server %d keeps watches: %s", s.ID(), wchs)
		}
	}
}

func must(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func bounded(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}
