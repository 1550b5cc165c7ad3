package dedup_test

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/dedup/driver"
	"github.com/go-zklock/zklock/zktest"
)

// simPlan is everything that a seed decides before its run begins. What happens while
// it runs is drawn from generators of the goroutines' own.
type simPlan struct {
	seed    uint64
	servers int
	tick    time.Duration
	timeout time.Duration // T, asked for and granted
	latency time.Duration
	jitter  time.Duration
	peer    time.Duration
	lag     []time.Duration
	slots   int // processes at a time
	workers int // of each process
	keys    []dedup.Key
	length  time.Duration // of the traffic

	policies     []dedup.Policy // of each slot
	claimFirst   []bool         // of each slot
	retention    time.Duration
	waitLimit    time.Duration
	sweepEvery   time.Duration
	sweepUnknown bool
	reconciler   bool // somebody settles unknown outcomes
	plainLocks   bool // somebody takes plain locks on the paths of records
	faults       []simFault

	// breakStore changes the store under every guard: a control.
	breakStore func(driver.Store) driver.Store
}

// simFault is one fault, not yet injected.
type simFault struct {
	kind   string
	at     time.Duration
	d      time.Duration // how long it lasts, at most
	slot   int
	server int
	key    int
	op     zktest.Op
	nth    int
	times  int
	silent bool
	dir    zktest.Direction
	short  time.Duration // delay of a message
}

func (f simFault) String() string {
	return fmt.Sprintf("%s slot=%d server=%d key=%d op=%v nth=%d times=%d silent=%v d=%v short=%v", f.kind, f.slot, f.server, f.key, f.op, f.nth, f.times, f.silent, f.d, f.short)
}

// simKinds are the kinds of faults, each as often as it stands here. Those of the
// second list need an ensemble.
var (
	simKinds = []string{
		"drop request", "drop reply", "drop reply", "drop reply", "half reply", "cut after", "delay request", "delay request", "delay reply",
		"black hole", "cut", "expire", "operator", "kill", "kill", "stop", "stop", "close", "close", "close guard", "pause", "restart",
	}
	simEnsembleKinds = []string{"cut off", "cut off", "elect", "elect", "pause", "restart"}
	simOps           = []zktest.Op{
		zktest.OpMulti, zktest.OpMulti, zktest.OpMulti, zktest.OpMulti, zktest.OpMulti, zktest.OpGetData, zktest.OpSync,
		zktest.OpCreate, zktest.OpGetChildren2, zktest.OpDelete, zktest.OpConnect,
	}
)

// simRand draws from one generator.
type simRand struct{ *rand.Rand }

func newSimRand(seed, stream uint64) simRand { return simRand{rand.New(rand.NewPCG(seed, stream))} }

func (r simRand) between(lo, hi time.Duration) time.Duration {
	if hi <= lo {
		return lo
	}
	return lo + time.Duration(r.Int64N(int64(hi-lo)))
}

func (r simRand) chance(percent int) bool { return r.IntN(100) < percent }

func pick[T any](r simRand, list ...T) T { return list[r.IntN(len(list))] }

func newSimPlan(seed uint64) *simPlan {
	r := newSimRand(seed, 0)
	p := &simPlan{
		seed: seed, servers: pick(r, 1, 1, 3, 3),
		tick:    pick(r, 500*time.Millisecond, time.Second, 2*time.Second),
		latency: r.between(200*time.Microsecond, 5*time.Millisecond),
		jitter:  pick(r, time.Microsecond, time.Millisecond, 20*time.Millisecond),
		slots:   2 + r.IntN(2),
		workers: 1 + r.IntN(3),
	}
	p.timeout = r.between(2*p.tick, 5*p.tick).Round(time.Millisecond)
	if p.servers > 1 {
		p.peer = r.between(100*time.Microsecond, 3*time.Millisecond)
		for range p.servers {
			p.lag = append(p.lag, pick(r, 0, 0, r.between(0, 100*time.Millisecond)))
		}
	}
	for i := range 2 + r.IntN(3) {
		p.keys = append(p.keys, dedup.Key{Scope: "sim", ID: fmt.Sprint("k", i)})
	}
	p.length = 6 * p.timeout
	p.retention = max(time.Second, pick(r, p.timeout, 2*p.timeout, 24*time.Hour))
	// Long enough for a fresh key in a fresh bucket.
	p.waitLimit = max(min(pick(r, p.timeout/2, p.timeout, 2*p.timeout), p.retention), p.roundTrips(12))
	p.retention = max(p.retention, p.waitLimit)
	p.sweepEvery = p.timeout / 2
	p.sweepUnknown = r.chance(20)
	p.reconciler = r.chance(40)
	p.plainLocks = r.chance(30)
	mode := r.IntN(3)
	for range p.slots {
		p.policies = append(p.policies, [...]dedup.Policy{dedup.Refuse, dedup.Reexecute, dedup.Policy(r.IntN(2))}[mode])
		p.claimFirst = append(p.claimFirst, r.chance(40))
	}
	p.drawFaults(r)
	return p
}

func (p *simPlan) drawFaults(r simRand) {
	kinds := simKinds
	if p.servers > 1 {
		kinds = append(append([]string(nil), kinds...), simEnsembleKinds...)
	}
	for range 8 + r.IntN(8) {
		f := simFault{
			kind: pick(r, kinds...), at: r.between(p.length/20, p.length*9/10),
			slot: r.IntN(p.slots), server: r.IntN(p.servers), key: r.IntN(len(p.keys)),
			op: pick(r, simOps...), nth: 1 + r.IntN(2), times: pick(r, 1, 1, 1, 2, 3), silent: r.chance(20),
			dir:   pick(r, zktest.ClientToServer, zktest.ServerToClient, zktest.BothWays),
			short: r.between(time.Millisecond, p.timeout*3/4),
		}
		switch r.IntN(3) {
		case 0:
			f.d = r.between(time.Millisecond, p.timeout/4)
		case 1:
			f.d = r.between(p.timeout/4, p.timeout)
		default:
			f.d = r.between(p.timeout, 2*p.timeout)
		}
		p.faults = append(p.faults, f)
	}
}

// roundTrips is n round trips of a write that a follower passes on, at the most.
func (p *simPlan) roundTrips(n int) time.Duration {
	trip := 2*(p.latency+p.jitter) + 2*p.peer
	for _, lag := range p.lag {
		trip = max(trip, 2*(p.latency+p.jitter)+2*p.peer+lag)
	}
	return time.Duration(n) * trip
}
