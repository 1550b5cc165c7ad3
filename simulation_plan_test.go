package zklock

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-zklock/zklock/zktest"
)

// simOptions change what a seed decides. The zero value is the ordinary simulation.
type simOptions struct {
	trust    TrustMode
	noFence  bool     // the store takes every write
	only     []string // kinds of faults; all if empty
	sequence *int32   // start of every path's sequence counter
	setup    func(p *simPlan)
	each     func(p *simPlan, f *simFault) // changes a fault that was drawn
}

// simPlan is everything that a seed decides before its run begins. What happens
// while it runs is drawn from generators of the goroutines' own.
type simPlan struct {
	seed    uint64
	opts    simOptions
	servers int
	tick    time.Duration
	timeout time.Duration // T, asked for and granted
	latency time.Duration // of every message, one way
	jitter  time.Duration // most that is added to it
	peer    time.Duration // between servers
	lag     []time.Duration
	clients int
	workers int // of each client
	keys    []simKey
	length  time.Duration // of the traffic
	hold    time.Duration // longest
	think   time.Duration // longest pause of a worker between two attempts
	faults  []simFault
	closes  []simClose
}

// simKey is a lock path.
type simKey struct {
	path     string
	made     bool  // before the traffic, as a persistent node
	sequence int32 // start of its counter, if made
}

// simClose is a client that is closed and opened again.
type simClose struct {
	client int
	at     time.Duration
	pause  time.Duration
}

// simFault is one fault, not yet injected.
type simFault struct {
	index  int // in the plan
	kind   string
	at     time.Duration
	d      time.Duration // how long it lasts, at most
	client int
	server int
	key    int
	op     zktest.Op
	dir    zktest.Direction
	nth    int
	times  int
	silent bool
	short  time.Duration // delay of a message, or a session timeout
}

func (f simFault) String() string {
	return fmt.Sprintf("%s client=c%d server=%d key=k%d op=%v dir=%d nth=%d times=%d silent=%v d=%v short=%v",
		f.kind, f.client, f.server, f.key, f.op, f.dir, f.nth, f.times, f.silent, f.d, f.short)
}

// simKinds are the kinds of faults, each as often as it stands here. Those of the
// second list need an ensemble.
var (
	simKinds = []string{
		"cut", "drop request", "drop request", "drop reply", "drop reply", "half reply", "cut after",
		"delay request", "delay reply", "black hole", "black hole", "expire", "lose watch", "lose watch",
		"reap", "reap", "operator", "pause", "forget", "shorter", "stop", "stop", "refuse", "restart",
	}
	simEnsembleKinds = []string{"cut off", "cut off", "cut off", "elect", "elect", "pause", "restart"}
)

// simOps are the requests that faults on messages choose from.
var simOps = []zktest.Op{
	zktest.OpCreate, zktest.OpCreate, zktest.OpCreate, zktest.OpDelete, zktest.OpDelete, zktest.OpGetChildren2, zktest.OpGetChildren2,
	zktest.OpGetData, zktest.OpSync, zktest.OpExists, zktest.OpMulti, zktest.OpMulti, zktest.OpPing,
	zktest.OpCreateContainer, zktest.OpConnect, zktest.OpSetWatches, zktest.OpCloseSession,
}

// simRand draws from one generator.
type simRand struct{ *rand.Rand }

func newSimRand(seed, stream uint64) simRand { return simRand{rand.New(rand.NewPCG(seed, stream))} }

// between draws a duration from lo to hi, to the nanosecond, so that two goroutines
// hardly ever act at one instant.
func (r simRand) between(lo, hi time.Duration) time.Duration {
	if hi <= lo {
		return lo
	}
	return lo + time.Duration(r.Int64N(int64(hi-lo)))
}

func (r simRand) chance(percent int) bool { return r.IntN(100) < percent }

func pick[T any](r simRand, list ...T) T { return list[r.IntN(len(list))] }

func newSimPlan(seed uint64, opts simOptions) *simPlan {
	r := newSimRand(seed, 0)
	p := &simPlan{
		seed: seed, opts: opts,
		servers: pick(r, 1, 1, 3, 3, 3),
		tick:    pick(r, 500*time.Millisecond, time.Second, 2*time.Second),
		latency: r.between(200*time.Microsecond, 5*time.Millisecond),
		jitter:  pick(r, time.Microsecond, time.Millisecond, 20*time.Millisecond),
		clients: 2 + r.IntN(2),
		workers: 1 + r.IntN(3),
	}
	p.timeout = r.between(2*p.tick, 5*p.tick).Round(time.Millisecond)
	if p.servers > 1 {
		p.peer = r.between(100*time.Microsecond, 3*time.Millisecond)
		for range p.servers {
			p.lag = append(p.lag, pick(r, 0, 0, r.between(0, 100*time.Millisecond)))
		}
	}
	for i := range 1 + r.IntN(2) {
		k := simKey{path: fmt.Sprintf("/sim/k%d", i), made: r.chance(40)}
		k.sequence = pick(r, 0, 2147483600, 2147483640, -1000000005, -3, int32(r.Uint32()))
		if opts.sequence != nil {
			k.made, k.sequence = true, *opts.sequence
		}
		p.keys = append(p.keys, k)
	}
	p.length = 4 * p.timeout
	if raceDetector {
		p.length = 3 * p.timeout // so that 300 seeds take half a minute at the most
	}
	p.hold = p.timeout
	p.think = p.timeout / 4
	if opts.setup != nil {
		opts.setup(p)
	}
	p.drawFaults(r)
	for range r.IntN(3) {
		p.closes = append(p.closes, simClose{
			client: r.IntN(p.clients), at: r.between(p.length/10, p.length), pause: r.between(0, p.timeout/2),
		})
	}
	slices.SortFunc(p.closes, func(a, b simClose) int { return int(a.at - b.at) })
	return p
}

func (p *simPlan) drawFaults(r simRand) {
	kinds := simKinds
	if p.servers > 1 {
		kinds = append(slices.Clone(kinds), simEnsembleKinds...)
	}
	if len(p.opts.only) > 0 {
		kinds = p.opts.only
	}
	for range 5 + r.IntN(5) {
		f := simFault{
			kind: pick(r, kinds...), at: r.between(p.length/20, p.length*9/10),
			client: r.IntN(p.clients), server: r.IntN(p.servers), key: r.IntN(len(p.keys)),
			op: pick(r, simOps...), dir: pick(r, zktest.ClientToServer, zktest.ServerToClient, zktest.BothWays),
			nth: 1 + r.IntN(2), times: pick(r, 1, 1, 1, 2, 3), silent: r.chance(20),
		}
		switch r.IntN(3) {
		case 0:
			f.d = r.between(time.Millisecond, p.timeout/4)
		case 1:
			f.d = r.between(p.timeout/4, p.timeout)
		default:
			f.d = r.between(p.timeout, 2*p.timeout)
		}
		switch f.kind {
		case "delay request", "delay reply":
			f.short = r.between(time.Millisecond, p.timeout*3/4)
		case "shorter":
			f.short = max(2*p.tick, r.between(p.timeout/2, p.timeout).Round(time.Millisecond))
		}
		if p.opts.each != nil {
			p.opts.each(p, &f)
		}
		p.faults = append(p.faults, f)
	}
}
