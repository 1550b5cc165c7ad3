package zklock

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// simVerdict is what a run, or many, came to.
type simVerdict struct {
	grants, calls int
	faults        int // that hit
	byKind        map[string]int
	losses        map[string]int
	lead          time.Duration // smallest, between a holder's end and the loss of its node; forever if there was none
	leads         int
	stale         int // writes that the store refused
	staleTaken    int // writes of a stopped process that a store without a fence took
	overlaps      int
	violations    []string
}

func (v *simVerdict) add(o simVerdict) {
	v.grants += o.grants
	v.calls += o.calls
	v.faults += o.faults
	v.leads += o.leads
	v.stale += o.stale
	v.staleTaken += o.staleTaken
	v.overlaps += o.overlaps
	if v.byKind == nil {
		v.byKind, v.losses, v.lead = map[string]int{}, map[string]int{}, forever
	}
	v.lead = min(v.lead, o.lead)
	for k, n := range o.byKind {
		v.byKind[k] += n
	}
	for k, n := range o.losses {
		v.losses[k] += n
	}
	v.violations = append(v.violations, o.violations...)
}

// judge checks the invariants on the history of a run.
func (r *simRecord) judge(p *simPlan) simVerdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := simVerdict{
		grants: len(r.holds), calls: r.calls, byKind: r.faults, losses: map[string]int{},
		lead: forever, violations: slices.Clone(r.violations),
	}
	for _, n := range r.faults {
		v.faults += n
	}
	bad := func(format string, args ...any) { v.violations = append(v.violations, fmt.Sprintf(format, args...)) }
	slices.SortStableFunc(r.holds, func(a, b *simHold) int { return cmp.Compare(a.start, b.start) })
	for _, h := range r.holds {
		if !h.ended {
			bad("%s never ended", h)
			h.end = forever
		}
		if h.why != "released" {
			v.losses[h.why]++
		}
		r.judgeNode(p, h, &v, bad)
	}
	r.judgeOverlaps(p, &v, bad)
	r.judgeWrites(&v, bad)
	r.judgeModel(p, bad)
	return v
}

func (h *simHold) String() string {
	return fmt.Sprintf("hold of %s by %s [%v, %v] token %s, %s, %s", h.key, h.who, h.start, h.end, h.token, h.why, short(h.node))
}

// judgeNode compares a hold with what the ensemble did with its node.
func (r *simRecord) judgeNode(p *simPlan, h *simHold, v *simVerdict, bad func(string, ...any)) {
	n := r.nodes[h.node]
	if n == nil {
		bad("%s has no node", h)
		return
	}
	if n.token != h.token {
		bad("%s: its node has the czxid %s", h, n.token)
	}
	if n.how == "" {
		return // reported as a ghost
	}
	lead := n.gone - h.end
	stop, stopped := r.stopped(h)
	switch {
	case n.how == "operator" || n.how == "killed":
		// Seen as fast as a watch travels; if something is wrong with the connection,
		// with the next proof, and by the deadline at the latest.
		limit := r.watchSpeed(p, n.gone)
		if stopped {
			limit = max(limit, stop.to-n.gone) + p.timeout/6 + p.roundTrips(2)
		}
		if -lead > limit {
			bad("%s: its node was %s at %v, %v before its end; %v is allowed", h, n.how, n.gone, -lead, limit)
		}
	case stopped:
		// Nothing that a stopped process could have done. Its gates are checked below,
		// and its end once it goes on.
		if lead < 0 && h.end > stop.to+p.timeout/6+p.roundTrips(2) {
			bad("%s: its process went on at %v", h, stop.to)
		}
	case lead < 0:
		bad("%s: its node was %s at %v, %v before its end", h, n.how, n.gone, -lead)
	case n.how == "expired":
		v.leads++
		v.lead = min(v.lead, lead)
	}
	if n.how != "operator" && n.how != "killed" {
		for _, at := range h.gates {
			if at >= n.gone {
				bad("%s: a gate was open at %v and its node was %s at %v", h, at, n.how, n.gone)
			}
		}
	}
}

// stopped returns the last stop of its process that a hold went through, if there was
// one.
func (r *simRecord) stopped(h *simHold) (stop simWindow, ok bool) {
	for _, s := range r.stops {
		if s.client == h.client && s.from <= h.end && s.to >= h.start {
			stop, ok = s, true
		}
	}
	return stop, ok
}

// watchSpeed is how long a deletion by hand may take to be seen.
func (r *simRecord) watchSpeed(p *simPlan, gone time.Duration) time.Duration {
	quick := ownWatchDelay + p.roundTrips(6) + 200*time.Millisecond
	for _, w := range r.windows {
		if w.from < gone+quick && w.to+p.timeout > gone && w.to-w.from > 0 {
			return p.timeout
		}
	}
	return quick
}

// excused says that a hold may overlap with the next: somebody deleted its node by
// hand, or its process was stopped.
func (r *simRecord) excused(h *simHold) bool {
	if n := r.nodes[h.node]; n != nil && (n.how == "operator" || n.how == "killed") {
		return true
	}
	_, stopped := r.stopped(h)
	return stopped
}

// byKey returns the holds of each path, in the order of their grants.
func (r *simRecord) byKey(p *simPlan) [][]*simHold {
	var keys [][]*simHold
	for _, k := range p.keys {
		var holds []*simHold
		for _, h := range r.holds {
			if h.key == k.path {
				holds = append(holds, h)
			}
		}
		keys = append(keys, holds)
	}
	return keys
}

// judgeOverlaps checks that the holds of a path do not overlap, and that their tokens
// grow in the order of the grants.
func (r *simRecord) judgeOverlaps(p *simPlan, v *simVerdict, bad func(string, ...any)) {
	for _, holds := range r.byKey(p) {
		for i, h := range holds {
			for _, next := range holds[i+1:] {
				// A lease that is given out in the moment in which its node is deleted by hand
				// may come after its successor's.
				byHand := r.excused(next) && r.nodes[next.node].gone <= next.start
				if next.start < h.end && !r.excused(h) && !byHand {
					v.overlaps++
					bad("overlap: %s; %s", h, next)
				}
				if next.token <= h.token && !byHand {
					bad("tokens do not grow: %s; %s", h, next)
				}
			}
		}
	}
}

// judgeWrites checks what the store took.
func (r *simRecord) judgeWrites(v *simVerdict, bad func(string, ...any)) {
	for _, w := range r.writes {
		if w.stale {
			v.stale++
		}
		if _, stopped := r.stopped(w.hold); w.stale && w.accepted && stopped {
			v.staleTaken++
		}
		if w.stale && w.accepted && r.fence {
			bad("the store took a stale write at %v: %s", w.at, w.hold)
		}
		// A gate is wrong only about a node that was deleted by hand a moment ago.
		n := r.nodes[w.hold.node]
		if w.stale && w.gated && (n == nil || n.how != "operator" && n.how != "killed") {
			bad("a write that had passed a gate at %v was stale: %s", w.at, w.hold)
		}
	}
}

// simMutexOp is an operation of the mutex model.
type simMutexOp struct {
	take bool
	hold int
}

// judgeModel checks the holds of each path against a mutex: taking happens between the
// call of Acquire and its return, giving up between the end of the hold and Release's
// return. An end that nobody confirmed stays open.
func (r *simRecord) judgeModel(p *simPlan, bad func(string, ...any)) {
	const free = -1
	model := porcupine.Model{
		Init: func() any { return free },
		Step: func(state, input, _ any) (bool, any) {
			op := input.(simMutexOp)
			if op.take {
				return state == free, op.hold
			}
			return state == op.hold, free
		},
	}
	for i, holds := range r.byKey(p) {
		var ops []porcupine.Operation
		for j, h := range holds {
			if r.excused(h) {
				continue
			}
			end := int64(forever)
			if h.after > 0 {
				end = int64(h.after)
			}
			ops = append(ops,
				porcupine.Operation{ClientId: j, Input: simMutexOp{true, j}, Call: int64(h.called), Return: int64(h.start)},
				porcupine.Operation{ClientId: j, Input: simMutexOp{false, j}, Call: int64(h.end), Return: end})
		}
		if porcupine.CheckOperationsTimeout(model, ops, 10*time.Second) != porcupine.Ok {
			bad("the holds of %s are not those of a mutex", p.keys[i].path)
		}
	}
}
