package dedup_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/dedup/driver"
	"github.com/go-zklock/zklock/dedup/internal/zkstore"
	"github.com/go-zklock/zklock/zktest"
)

// simWorld is one run: an ensemble, the processes, and what goes wrong.
type simWorld struct {
	plan     *simPlan
	truth    *simTruth
	ens      *zktest.Ensemble
	slots    []*simSlot
	draining chan struct{} // closed when no new traffic begins
	verbose  bool
	traffic  sync.WaitGroup
	dead     sync.WaitGroup // processes that are being closed
}

// simSlot is a place for a process. When one is killed or closed, the next begins.
type simSlot struct {
	w     *simWorld
	index int

	mu     sync.Mutex
	proc   *simProcess // nil between two
	opened int
}

// simProcess is a client with its guard.
type simProcess struct {
	w      *simWorld
	name   string
	policy dedup.Policy
	ctx    context.Context // ends when the process is killed
	kill   context.CancelFunc
	client *zklock.Client

	mu      sync.Mutex
	guard   *dedup.Guard
	stopped time.Time     // since when; zero while it runs
	goes    chan struct{} // closed while it runs
}

// runSim runs a plan in virtual time and returns what happened.
func runSim(t *testing.T, p *simPlan, verbose bool) (truth *simTruth) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		truth = newSimTruth(p.sweepUnknown)
		w := &simWorld{plan: p, truth: truth, draining: make(chan struct{}), verbose: verbose}
		w.run()
	})
	return truth
}

func (w *simWorld) run() {
	p := w.plan
	ens, err := zktest.StartEnsemble(zktest.Config{
		TickTime: p.tick, Latency: p.latency, Jitter: p.jitter, PeerLatency: p.peer, Seed: p.seed,
		OnTxn: w.truth.txn, ContainerInterval: p.length / 7,
	}, p.servers)
	if err != nil {
		w.truth.violatef("the ensemble does not start: %v", err)
		return
	}
	defer ens.Close()
	w.ens = ens
	for i, lag := range p.lag {
		ens.Servers()[i].SetLag(lag)
	}
	for i := range p.slots {
		s := &simSlot{w: w, index: i}
		w.slots = append(w.slots, s)
		w.traffic.Go(s.open)
		for k := range p.workers {
			w.traffic.Go((&simWorker{slot: s, stream: uint64(1000 + 100*i + k)}).run)
		}
	}
	if p.reconciler {
		w.traffic.Go(w.reconcile)
	}
	if p.plainLocks {
		w.traffic.Go(w.takePlainLocks)
	}
	var faults sync.WaitGroup
	for i, f := range p.faults {
		faults.Go(func() { w.inject(i, f) })
	}
	time.Sleep(p.length)
	close(w.draining)
	faults.Wait()
	w.heal()
	w.finish()
	w.end()
}

// heal waits until everything works again and every call has returned.
func (w *simWorld) heal() {
	p := w.plan
	if !w.await(6*p.tick+2*time.Second, w.serving) {
		w.truth.violatef("the servers have found no leader since healing")
	}
	idle := make(chan struct{})
	go func() { w.traffic.Wait(); w.dead.Wait(); close(idle) }()
	// A call may wait for its turn behind every other, and for a session that has died.
	limit := p.waitLimit + 3*p.timeout + 10*time.Second + p.roundTrips(50)
	if !awaitFor(limit, idle) {
		w.truth.mu.Lock()
		for _, c := range w.truth.calls {
			if c.ended == 0 {
				w.truth.violateLockedf("liveness: a call of %s for %s since %v is not over", c.proc.name, c.key, c.began)
			}
		}
		if len(w.truth.violations) == 0 {
			w.truth.violateLockedf("liveness: something is not over")
		}
		w.truth.mu.Unlock()
		for _, s := range w.slots { // so that the run ends
			if pr := s.get(); pr != nil {
				pr.kill()
				_ = pr.client.Close()
			}
		}
		<-idle
	}
	w.truth.eventf("healed")
}

// finish has a new process call for every key: what is stored is replayed, and what
// is not is run.
func (w *simWorld) finish() {
	p := w.plan
	s := &simSlot{w: w, index: 99}
	s.open()
	pr := s.get()
	w.truth.mu.Lock()
	keys := slices.Sorted(maps.Keys(w.truth.lives))
	w.truth.mu.Unlock()
	for _, path := range keys {
		k, err := dedup.ParseKey(strings.TrimPrefix(path, simRoot+"/"))
		if err != nil {
			w.truth.violatef("%v", err)
			continue
		}
		began := time.Now()
		worker := &simWorker{slot: s, stream: 5}
		worker.rand = newSimRand(p.seed, 77)
		c := worker.call(pr, pr.getGuard(), k, simQuick, "payload", dedup.WithPolicy(dedup.Reexecute))
		// A claim of a session that has died stays until that has expired.
		for errors.Is(c.err, dedup.ErrInProgress) && time.Since(began) < 2*p.timeout {
			c = worker.call(pr, pr.getGuard(), k, simQuick, "payload", dedup.WithPolicy(dedup.Reexecute))
		}
		if limit := 2*p.timeout + p.waitLimit + p.roundTrips(50); time.Since(began) > limit {
			w.truth.violatef("the last call for %s took %v", k, time.Since(began))
		}
		if c.err != nil && !errors.Is(c.err, dedup.ErrFailed) && !errors.Is(c.err, dedup.ErrKeyReused) && !errors.Is(c.err, dedup.ErrOutcomeTooLarge) {
			w.truth.violatef("the last call for %s: %v", k, c.err)
		}
	}
	s.close()
	w.dead.Wait()
}

// end closes the processes and looks at what is left.
func (w *simWorld) end() {
	for _, s := range w.slots {
		if s.get() != nil {
			s.close()
		}
	}
	w.dead.Wait()
	leader := w.ens.Leader()
	if !w.await(w.plan.timeout+2*w.plan.tick, func() bool { return len(leader.Sessions()) == 0 }) {
		w.truth.violatef("%d sessions outlive their clients", len(leader.Sessions()))
	}
	w.truth.mu.Lock()
	defer w.truth.mu.Unlock()
	if left := w.truth.alive(""); len(left) > 0 {
		w.truth.violateLockedf("%d claims at rest: %+v", len(left), left[0])
	}
	filed := map[string]bool{}
	for _, key := range w.truth.entries {
		filed[key] = true
		if w.truth.life(key) == nil {
			w.truth.violateLockedf("the index has an entry for %s, which has no record", key)
		}
	}
	for key := range w.truth.lives {
		if w.truth.life(key) != nil && !filed[key] {
			w.truth.violateLockedf("%s has no entry in the index", key)
		}
	}
}

// await polls until cond holds, for at most d.
func (w *simWorld) await(d time.Duration, cond func() bool) bool {
	for end := time.Now().Add(d); ; time.Sleep(time.Millisecond) {
		synctest.Wait()
		if cond() {
			return true
		}
		if !time.Now().Before(end) {
			return false
		}
	}
}

func awaitFor(d time.Duration, ch <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ch:
		return true
	case <-t.C:
		return false
	}
}

func (w *simWorld) serving() bool {
	for _, s := range w.ens.Servers() {
		if s.Role() == "looking" {
			return false
		}
	}
	return true
}

// sleep waits for d, or less if the traffic ends; it says whether it has not.
func (w *simWorld) sleep(d time.Duration) bool { return !awaitFor(d, w.draining) }

func (s *simSlot) get() *simProcess {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

// take takes the process out, so that nobody begins anything in it.
func (s *simSlot) take() *simProcess {
	s.mu.Lock()
	defer s.mu.Unlock()
	pr := s.proc
	s.proc = nil
	return pr
}

// open starts a process; it tries until the ensemble lets it.
func (s *simSlot) open() {
	w, p := s.w, s.w.plan
	s.opened++
	pr := &simProcess{w: w, name: fmt.Sprintf("p%d.%d", s.index, s.opened), goes: make(chan struct{})}
	close(pr.goes)
	if s.index < p.slots {
		pr.policy = p.policies[s.index]
	}
	pr.ctx, pr.kill = context.WithCancel(context.Background())
	logger := slog.New(slog.DiscardHandler)
	if w.verbose {
		logger = slog.New(simLog{pr})
	}
	for {
		ctx, cancel := context.WithTimeout(pr.ctx, 2*p.timeout)
		c, err := zklock.Connect(ctx, zklock.Config{
			Servers: w.ens.Addrs(), Dial: w.ens.Dialer(pr.name), Clock: pr, Seed: p.seed<<8 + uint64(s.index) + 1,
			SessionTimeout: p.timeout, TickTime: p.tick, Logger: logger, MaxBuffer: 64 << 10,
		})
		cancel()
		if err == nil {
			pr.client = c
			break
		}
	}
	pr.openGuard(s.index < p.slots && p.claimFirst[s.index], s.index < p.slots)
	w.truth.eventf("opened %s", pr.name)
	s.mu.Lock()
	s.proc = pr
	s.mu.Unlock()
}

func (pr *simProcess) openGuard(claimFirst, sweeps bool) {
	p := pr.w.plan
	cfg := dedup.Config{
		Retention: p.retention, WaitLimit: p.waitLimit, Policy: pr.policy, ClaimFirst: claimFirst,
		SweepInterval: p.sweepEvery, SweepUnknown: p.sweepUnknown, MaxOutcome: simMaxOutcome, Owner: pr.name,
	}
	if !sweeps {
		cfg.SweepInterval = -1
	}
	if pr.w.verbose {
		cfg.Logger = slog.New(simLog{pr})
	}
	g, err := pr.newGuard(cfg)
	if err != nil {
		pr.w.truth.violatef("New: %v", err)
		return
	}
	pr.mu.Lock()
	defer pr.mu.Unlock()
	pr.guard = g
}

func (pr *simProcess) newGuard(cfg dedup.Config) (*dedup.Guard, error) {
	if pr.w.plan.breakStore == nil {
		return dedup.New(pr.client, cfg)
	}
	store, err := zkstore.New(pr.client, simRoot, time.Now)
	if err != nil {
		return nil, err
	}
	return dedup.NewWithStore(pr.w.plan.breakStore(driver.Store(store)), cfg)
}

func (pr *simProcess) getGuard() *dedup.Guard {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	return pr.guard
}

// close ends the process in good order.
func (s *simSlot) close() {
	pr := s.take()
	if pr == nil {
		return
	}
	s.w.dead.Go(func() {
		pr.running()
		ctx, cancel := context.WithTimeout(context.Background(), s.w.plan.timeout)
		defer cancel()
		began := time.Now()
		err := pr.getGuard().Close(ctx)
		if took := time.Since(began); took > s.w.plan.timeout {
			s.w.truth.violatef("%s: Guard.Close took %v", pr.name, took)
		}
		s.w.truth.eventf("guard closed %s: %v", pr.name, err)
		pr.end()
	})
}

// end closes the client. Functions that still run are told by their ctx.
func (pr *simProcess) end() {
	_ = pr.client.Close()
	pr.kill()
	_ = pr.getGuard().Close(context.Background())
	pr.w.truth.eventf("closed %s", pr.name)
}

// die kills the process: from now on nothing that it sends arrives.
func (s *simSlot) die() bool {
	pr := s.take()
	if pr == nil {
		return false
	}
	s.w.truth.eventf("killed %s", pr.name)
	s.w.ens.Inject(zktest.Blackhole(zktest.BothWays).Client(pr.name))
	s.w.dead.Go(func() {
		time.Sleep(s.w.plan.timeout * 2) // longer than its session lives
		pr.end()
	})
	return true
}

// Now is the process's clock. It stands still while the process is stopped.
func (pr *simProcess) Now() time.Time {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	if !pr.stopped.IsZero() {
		return pr.stopped
	}
	return time.Now()
}

// running waits while the process is stopped.
func (pr *simProcess) running() {
	for {
		pr.mu.Lock()
		goes := pr.goes
		pr.mu.Unlock()
		select {
		case <-goes:
			return
		default:
		}
		<-goes
	}
}

// stop stops the process as SIGSTOP does: its clock stands still, nothing that it
// sends or is sent arrives, and its functions do nothing.
func (pr *simProcess) stop(f simFault) bool {
	pr.mu.Lock()
	if !pr.stopped.IsZero() {
		pr.mu.Unlock()
		return false
	}
	pr.stopped, pr.goes = time.Now(), make(chan struct{})
	pr.mu.Unlock()
	hole := pr.w.ens.Inject(zktest.Blackhole(zktest.BothWays).Client(pr.name))
	from := pr.w.truth.now()
	stop := simStop{proc: pr, from: from, to: math.MaxInt64}
	pr.w.truth.mu.Lock()
	i := len(pr.w.truth.stops)
	pr.w.truth.stops = append(pr.w.truth.stops, stop)
	pr.w.truth.mu.Unlock()
	pr.w.lasts(f)
	pr.w.truth.mu.Lock()
	pr.w.truth.stops[i].to = pr.w.truth.now()
	pr.w.truth.mu.Unlock()
	hole.Heal()
	pr.mu.Lock()
	defer pr.mu.Unlock()
	pr.stopped = time.Time{}
	close(pr.goes)
	return true
}

// simLog puts a process's log into the trace.
type simLog struct{ pr *simProcess }

func (simLog) Enabled(context.Context, slog.Level) bool { return true }
func (l simLog) WithAttrs([]slog.Attr) slog.Handler     { return l }
func (l simLog) WithGroup(string) slog.Handler          { return l }

func (l simLog) Handle(_ context.Context, r slog.Record) error {
	text := l.pr.name + " says " + r.Message
	r.Attrs(func(a slog.Attr) bool {
		text += " " + a.String()
		return true
	})
	l.pr.w.truth.eventf("%s", text)
	return nil
}
