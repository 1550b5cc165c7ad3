package zklock

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zklock/zklock/zktest"
)

// simWorld is one run: an ensemble, its clients, and what goes wrong.
type simWorld struct {
	plan     *simPlan
	rec      *simRecord
	ens      *zktest.Ensemble
	clients  []*simClient
	ctx      context.Context // ends when a run is given up
	draining chan struct{}   // closed when no new traffic begins and holders release
	verbose  bool            // logs go into the trace
}

// runSim runs a plan in virtual time and returns what happened.
func runSim(t *testing.T, p *simPlan, verbose bool) (rec *simRecord) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		rec = newSimRecord(!p.opts.noFence)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		w := &simWorld{plan: p, rec: rec, ctx: ctx, draining: make(chan struct{}), verbose: verbose}
		w.run(cancel)
	})
	return rec
}

func (w *simWorld) run(giveUp context.CancelFunc) {
	p := w.plan
	cfg := zktest.Config{
		TickTime: p.tick, Latency: p.latency, Jitter: p.jitter, PeerLatency: p.peer, Seed: p.seed,
		OnTxn: w.rec.txn, ContainerInterval: p.length / 7,
	}
	if w.verbose {
		cfg.Logf = func(format string, args ...any) { w.rec.event("", fmt.Sprintf(format, args...)) }
	}
	ens, err := zktest.StartEnsemble(cfg, p.servers)
	if err != nil {
		w.rec.violatef("the ensemble does not start: %v", err)
		return
	}
	defer ens.Close()
	w.ens = ens
	for i, lag := range p.lag {
		ens.Servers()[i].SetLag(lag)
	}
	w.makeKeys()

	var traffic, faults sync.WaitGroup
	for i := range p.clients {
		c := newSimClient(w, i)
		w.clients = append(w.clients, c)
		traffic.Go(c.live)
		for k := range p.workers {
			sw := &simWorker{c: c, name: fmt.Sprintf("c%d/%d", i, k), stream: uint64(1000 + 100*i + k)}
			traffic.Go(sw.run)
		}
	}
	for i, f := range p.faults {
		faults.Go(func() { w.inject(i, f) })
	}
	time.Sleep(p.length)
	close(w.draining)
	faults.Wait()
	w.drain(&traffic, giveUp)
	w.end()
}

// makeKeys makes the paths that are to be there from the start.
func (w *simWorld) makeKeys() {
	leader := w.ens.Leader()
	for _, k := range w.plan.keys {
		if !k.made {
			continue
		}
		if !leader.Exists("/sim") {
			w.must(leader.Create("/sim", nil))
		}
		w.must(leader.Create(k.path, nil))
		w.must(leader.SetSequence(k.path, k.sequence))
	}
}

func (w *simWorld) must(err error) {
	if err != nil {
		w.rec.violatef("setup: %v", err)
	}
}

// Bounds of the time after healing.

// roundTrips is n round trips of a write that a follower passes on, at the most.
func (p *simPlan) roundTrips(n int) time.Duration {
	trip := 2*(p.latency+p.jitter) + 2*p.peer
	for _, lag := range p.lag {
		trip = max(trip, 2*(p.latency+p.jitter)+2*p.peer+lag)
	}
	return time.Duration(n) * trip
}

// reconnect is how long a client may be without a connection once everything works:
// the longest pause between two rounds of dials, and a dial or handshake that began
// while it did not.
func (p *simPlan) reconnect() time.Duration { return 2*time.Second + 5*time.Second + p.roundTrips(10) }

// liveness is how long a waiter may take once everything works: T + 1.5 ticks for a
// session that has died, and a few round trips for everybody before it.
func (p *simPlan) liveness() time.Duration {
	return p.timeout + p.tick*3/2 + p.roundTrips(10+8*p.clients*p.workers)
}

// drain waits until everything works again and all calls have returned, and checks
// that this takes no longer than it may.
func (w *simWorld) drain(traffic *sync.WaitGroup, giveUp context.CancelFunc) {
	p := w.plan
	idle := make(chan struct{})
	go func() { traffic.Wait(); close(idle) }()

	if !w.await(p.tick*time.Duration(6)+2*time.Second, w.serving) {
		w.rec.violatef("the servers have found no leader since healing")
	}
	if !w.await(p.reconnect(), w.connected) {
		w.rec.violatef("not connected again: %s", w.states())
	}
	w.rec.event("healed", "")
	if !awaitFor(p.liveness(), idle) {
		for _, c := range w.clients {
			c.mu.Lock()
			for name, what := range c.doing {
				w.rec.violatef("liveness: %s is still at %s", name, what)
			}
			c.mu.Unlock()
		}
		giveUp()
		<-idle
	}
	if !w.await(p.liveness(), func() bool { return len(w.rec.alive("")) == 0 }) {
		w.rec.violatef("ghosts at rest: %v", w.rec.alive(""))
	}
	// A create whose reply was lost is looked for until its session must be over.
	if !w.await(2*p.timeout+2*p.tick+p.roundTrips(20), w.quiet) {
		w.rec.violatef("work left at rest: %s", w.states())
	}
	time.Sleep(p.roundTrips(1)) // followers learn of the last deletions
	// The library's Close may take a second more in one run than in another.
	const slot = 10 * time.Second
	time.Sleep(slot - w.rec.now()%slot)
	for i, s := range w.ens.Servers() {
		if n := s.Watches(); n > 0 {
			w.rec.violatef("%d watches left on server %d: %v", n, i, s.WatchedPaths())
		}
	}
	w.rec.event("at rest", "")
}

// end closes the clients and looks for what they leave behind.
func (w *simWorld) end() {
	for _, c := range w.clients {
		if cl := c.get(); cl != nil {
			if err := cl.Close(); err != nil {
				w.rec.violatef("%s: close at rest: %v", c.name, err)
			}
		}
	}
	time.Sleep(w.plan.roundTrips(2))
	leader := w.ens.Leader()
	for _, s := range leader.Sessions() {
		if s.Connected > 0 {
			w.rec.violatef("session %s of %s is connected after Close", hexID(s.ID), s.Client)
		}
	}
	if !w.await(w.plan.timeout+2*w.plan.tick, func() bool { return len(leader.Sessions()) == 0 }) {
		w.rec.violatef("%d sessions outlive their clients", len(leader.Sessions()))
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

func (w *simWorld) connected() bool {
	for _, c := range w.clients {
		cl := c.get()
		if cl == nil || cl.State() != Connected && cl.State() != Reconnected {
			return false
		}
	}
	return true
}

// quiet says that no client has anything under way: only the goroutine that keeps
// the session is left, with its proofs and syncs, and nobody stands in line. Where a
// beat is as short as a round trip through the leader, there is a sync under way always.
func (w *simWorld) quiet() bool {
	for _, c := range w.clients {
		if c.busy() {
			return false
		}
	}
	return true
}

func (c *simClient) busy() bool {
	cl := c.get()
	if cl == nil {
		return true
	}
	s := cl.session()
	s.mu.Lock()
	beats := len(s.beats)
	s.mu.Unlock()
	cl.tasks.mu.Lock()
	n := cl.tasks.n
	cl.tasks.mu.Unlock()
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return n != 1+beats || len(cl.queues) > 0
}

func (w *simWorld) states() (text string) {
	for _, c := range w.clients {
		cl := c.get()
		if cl == nil {
			text += c.name + " is closed; "
			continue
		}
		cl.tasks.mu.Lock()
		text += fmt.Sprintf("%s is %v with %d goroutines; ", c.name, cl.State(), cl.tasks.n)
		cl.tasks.mu.Unlock()
	}
	return text
}

// sleep waits for d, or less if the traffic ends; it says whether it has not.
func (w *simWorld) sleep(d time.Duration) bool { return !awaitFor(d, w.draining) }

// simClient is one process: a Client, opened again when it was closed.
type simClient struct {
	w     *simWorld
	index int
	name  string

	mu      sync.Mutex
	client  *Client
	doing   map[string]string // what each worker is at
	holds   map[*simHold]*Lease
	stopped time.Time     // since when; zero while the process runs
	goes    chan struct{} // closed while the process runs
}

func newSimClient(w *simWorld, i int) *simClient {
	c := &simClient{w: w, index: i, name: fmt.Sprintf("c%d", i), doing: map[string]string{}, holds: map[*simHold]*Lease{}, goes: make(chan struct{})}
	close(c.goes)
	return c
}

// Now is the process's clock. It stands still while the process is stopped, so that
// nothing in it learns of the time that passes, and is right again afterwards.
func (c *simClient) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped.IsZero() {
		return c.stopped
	}
	return time.Now()
}

// running waits while the process is stopped, and says whether it was.
func (c *simClient) running() (stopped bool) {
	for {
		c.mu.Lock()
		goes := c.goes
		c.mu.Unlock()
		select {
		case <-goes:
			return stopped
		default:
		}
		<-goes
		stopped = true
	}
}

func (c *simClient) get() *Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.client
}

func (c *simClient) set(cl *Client) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.client = cl
}

// does notes what a worker is at; "" for nothing.
func (c *simClient) does(who, what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if what == "" {
		delete(c.doing, who)
		return
	}
	c.doing[who] = what
}

// active says whether a worker waits for a lock or holds one.
func (c *simClient) active() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.doing) > 0
}

// live opens the client and closes it when the plan says so.
func (c *simClient) live() {
	c.open()
	for _, cl := range c.w.plan.closes {
		if cl.client != c.index {
			continue
		}
		if !c.w.sleep(cl.at - c.w.rec.now()) {
			return
		}
		c.running()
		old := c.get()
		c.set(nil)
		began := time.Now()
		err := old.Close()
		took := time.Since(began)
		// Close waits for functions of Do and for the answer to closeSession.
		limit := min(c.w.plan.timeout, maxCloseWait) + time.Second + c.w.plan.roundTrips(2)
		if took > limit {
			c.w.rec.violatef("%s: Close took %v", c.name, took)
		}
		// What comes next does not depend on how long it took: without a connection the
		// library waits for a second or for nothing, as it happens.
		c.w.sleep(limit - took)
		c.w.rec.event(fmt.Sprintf("closed %s, confirmed=%v", c.name, err == nil), fmt.Sprint(err))
		c.w.sleep(cl.pause)
		c.open()
	}
}

func (c *simClient) open() {
	p := c.w.plan
	logger := slog.New(slog.DiscardHandler)
	var sent func(frame []byte)
	if c.w.verbose {
		logger = slog.New(simLog{c})
		sent = func(frame []byte) {
			if op := frameOp(frame); op != zktest.OpPing {
				c.w.rec.event("", fmt.Sprintf("%s sends %v %s", c.name, op, framePath(frame)))
			}
		}
	}
	for c.w.ctx.Err() == nil {
		c.running()
		ctx, cancel := context.WithTimeout(c.w.ctx, 2*p.timeout)
		cl, err := Connect(ctx, Config{
			Servers: c.w.ens.Addrs(), Dial: sortedDialer(c.w.ens.Dialer(c.name), sent), Clock: c, Seed: p.seed<<8 + uint64(c.index) + 1,
			SessionTimeout: p.timeout, TickTime: p.tick, Trust: p.opts.trust, Logger: logger, MaxBuffer: 64 << 10,
		})
		cancel()
		if err == nil {
			cl.OnStateChange(func(ch StateChange) { c.w.rec.event("state "+c.name+" "+ch.State.String(), fmt.Sprint(ch.Err)) })
			c.w.rec.event("opened "+c.name, hexID(cl.SessionID()))
			c.set(cl)
			return
		}
		c.w.rec.event("not opened "+c.name, err.Error())
	}
}

// simLog puts a client's log into the trace.
type simLog struct{ c *simClient }

func (simLog) Enabled(context.Context, slog.Level) bool { return true }
func (l simLog) WithAttrs([]slog.Attr) slog.Handler     { return l }
func (l simLog) WithGroup(string) slog.Handler          { return l }

func (l simLog) Handle(_ context.Context, r slog.Record) error {
	text := l.c.name + " says " + r.Message
	r.Attrs(func(a slog.Attr) bool {
		text += " " + a.String()
		return true
	})
	l.c.w.rec.event("", short(text))
	return nil
}

// stop stops the process as SIGSTOP does.
//
// What a stopped process would not do is kept from having an effect: its workers do
// nothing, nothing that it sends or is sent arrives, and its clock stands still. What
// differs from a real one: the timers of the client library go on, so it may find its
// connection dead, and dial, before the process goes on and not after. That
// cannot make a lease live longer.
func (c *simClient) stop(f simFault) (hit bool) {
	c.mu.Lock()
	if !c.stopped.IsZero() {
		c.mu.Unlock()
		return false
	}
	hit = len(c.doing) > 0
	c.stopped = time.Now()
	c.goes = make(chan struct{})
	c.mu.Unlock()
	hole := c.w.ens.Inject(zktest.Blackhole(zktest.BothWays).Client(c.name))
	from := c.w.rec.now()
	c.w.lasts(f)
	c.w.rec.window(simWindow{"stop", c, from, c.w.rec.now()})
	hole.Heal()

	c.mu.Lock()
	c.stopped = time.Time{}
	close(c.goes)
	c.mu.Unlock()
	c.w.checkGates(c)
	return hit
}

// forever is the end of what has not ended.
const forever = time.Duration(math.MaxInt64)
