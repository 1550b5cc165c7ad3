package result

import (
	"fmt"
	"time"

	"github.com/go-zklock/zklock/bench/internal/cases"
	"github.com/go-zklock/zklock/bench/internal/rig"
	"github.com/go-zklock/zklock/bench/internal/stat"
	"github.com/go-zklock/zklock/integration/peers"
)

// Verdict is what was asked for and what was found.
type Verdict struct {
	Asked, Found string
	Met          bool
}

// Budget is what a case may cost.
type Budget struct {
	Case                  string
	Requests, Peer, Limit Verdict
}

func atMost(what string, limit, found float64) Verdict {
	return Verdict{Asked: fmt.Sprintf("%s ≤ %.1f ×", what, limit), Found: fmt.Sprintf("%.2f ×", found), Met: found > 0 && found <= limit}
}

func atLeast(what string, limit, found float64) Verdict {
	return Verdict{Asked: fmt.Sprintf("%s ≥ %.1f ×", what, limit), Found: fmt.Sprintf("%.2f ×", found), Met: found >= limit}
}

// fixed is for requests that a test holds to their number.
func fixed(asked string) Verdict { return Verdict{Asked: asked, Found: "exact, see below", Met: true} }

// Budgets compares a run with what was set out to be reached.
func Budgets(r *Report) []Budget {
	of := make(map[string]cases.Result)
	for _, res := range r.Results {
		of[res.ID] = res
	}
	limit := func(id string, most float64, name string) Verdict {
		found := of[id].AgainstLimit(peers.Zklock)
		return Verdict{Asked: fmt.Sprintf("≤ %.2f × (%s)", most, name), Found: fmt.Sprintf("%.2f ×", found), Met: found > 0 && found <= most}
	}
	peer := func(id string) float64 { return of[id].AgainstBest(peers.Zklock) }
	own := fmt.Sprintf("workers-%d", r.Size.Workers)
	many := fmt.Sprintf("workers-%d", r.Size.ManyKeys)
	return []Budget{
		{"warm acquire + release", fixed("2 writes, 1 read"), atMost("p50", 1, peer("warm")), limit("warm", 1.3, "2 writes + 1 read")},
		{"fresh key acquire + release", fixed("≤ 3 writes, 2 if nothing is left after a crash"), atMost("p50", 0.9, peer("fresh")), Verdict{}},
		{"TryAcquire on held", fixed("1 read"), atMost("p50", 0.2, peer("try")), limit("try", 1.3, "1 read")},
		{"waiters in one process", r.handOver("handover-1", 2, 2), atLeast("hand-overs a second", 1.6, peer("handover-1")), limit("handover-1", 1.25, "1 write")},
		{"waiters in many processes", r.handOver("handover-many", 2, 3), atLeast("hand-overs a second", 1.2, peer("handover-many")), limit("handover-many", 1.5, "1 write + 1 read")},
		{"workers, own keys", Verdict{}, atLeast("cycles a second", 1, peer(own)), Verdict{}},
		{"workers, many keys", Verdict{}, atLeast("cycles a second", 1, peer(many)), Verdict{}},
		{"dedup, fresh", fixed("2 writes, ≤ 1 read"), atLeast("keys a second", 3, peer("dedup-fresh-together")), limit("dedup-fresh", 1.3, "2 writes")},
		{"dedup, replay", fixed("1 read"), atLeast("keys a second", 10, peer("dedup-replay-together")), limit("dedup-replay", 1.3, "1 read")},
		{"one waiter more, of many in one process", fixed("no request"), r.memory(), Verdict{}},
		{"leases held", r.proofs(), r.idleCPU(), Verdict{}},
	}
}

// handOver looks at the requests of a hand-over as the proxy counted them. What is under way at the ends of the window
// makes a difference of a few in a hundred.
func (r *Report) handOver(id string, writes, reads float64) Verdict {
	const edge = 1.05
	v := Verdict{Asked: fmt.Sprintf("≤ %.0f writes, ≤ %.0f reads", writes, reads)}
	nodes := 0
	for _, c := range r.Counted[id] {
		if c.Library == peers.Zklock {
			v.Found = fmt.Sprintf("%.2f and %.2f, %d nodes", c.Writes, c.Reads, c.Nodes)
			v.Met = c.Writes <= writes*edge && c.Reads <= reads*edge
			nodes = c.Nodes
		}
	}
	if id == "handover-1" {
		v.Asked += ", ≤ 2 nodes"
		v.Met = v.Met && nodes <= 2
	}
	return v
}

func (r *Report) memory() Verdict {
	const most = 8 << 10
	var last cases.Crowd
	for _, c := range r.Crowds {
		if c.Library == peers.Zklock {
			last = c
		}
	}
	return Verdict{
		Asked: "≤ 8 KiB", Found: fmt.Sprintf("%.1f KiB with %d", float64(last.Memory)/1024, last.Waiters),
		Met: last.Waiters > 0 && last.Memory <= most,
	}
}

func (r *Report) proofs() Verdict {
	last := r.Idle[len(r.Idle)-1]
	beat := (rig.Timeout / 6).Seconds()
	each := last.Proofs * beat
	// The window does not begin with a beat, so it may hold one more or less.
	edge := beat / (time.Duration(r.Size.IdleFor) * time.Second).Seconds()
	return Verdict{Asked: "1 proof transaction per H for all", Found: fmt.Sprintf("%.2f with %d", each, last.Leases), Met: each <= 1+edge}
}

func (r *Report) idleCPU() Verdict {
	last := r.Idle[len(r.Idle)-1]
	return Verdict{Asked: "< 2 % of a core", Found: fmt.Sprintf("%.2f %%", 100*last.CPU), Met: last.CPU < 0.02}
}

// Complete fails if a case has no figures.
func (r *Report) Complete() error {
	for _, res := range r.Results {
		for _, who := range res.Participants() {
			f := res.Of[who]
			if f.N == 0 || f.P50 <= 0 || res.ByRate && who != cases.Limit && who != cases.Bare && f.Rate <= 0 {
				return fmt.Errorf("%s: no figures of %s", res.ID, who)
			}
			if stat.Ratio(f.P50, res.Of[cases.Limit].P50) == 0 {
				return fmt.Errorf("%s: no figures of the limit", res.ID)
			}
		}
	}
	for _, list := range append([][]cases.Crowd{r.Crowds}, r.Counted["handover-1"], r.Counted["handover-many"]) {
		if len(list) < len(peers.Libraries) {
			return fmt.Errorf("waiters were counted of %d libraries, want %d", len(list), len(peers.Libraries))
		}
		for _, c := range list {
			if c.Writes <= 0 || c.Reads <= 0 || c.Nodes <= 0 {
				return fmt.Errorf("%d waiters of %s: no figures: %+v", c.Waiters, c.Library, c)
			}
		}
	}
	for _, c := range r.Crowds {
		if c.P50 <= 0 {
			return fmt.Errorf("%d waiters of %s: no times", c.Waiters, c.Library)
		}
	}
	for _, i := range r.Idle {
		if i.Others+i.Proofs <= 0 {
			return fmt.Errorf("an idle process with %d leases sent nothing", i.Leases)
		}
	}
	if len(r.Idle) != len(r.Size.Leases) || len(r.Keys) == 0 || r.Requests == "" {
		return fmt.Errorf("idle processes: %d, numbers of keys: %d, table of requests: %d bytes", len(r.Idle), len(r.Keys), len(r.Requests))
	}
	return nil
}
