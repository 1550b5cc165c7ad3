package torture

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/integration/internal/figures"
	"github.com/go-zklock/zklock/integration/internal/mutexmodel"
	"github.com/go-zklock/zklock/integration/internal/report"
)

// grant is one hold, as its process told it.
type grant struct {
	process string
	report.Line
	// clipped says that the process was stopped, or killed, while it held: what it says of the end is of no use, and
	// End is the moment before.
	clipped bool
}

// span is a time in which something was the case.
type span struct {
	name       string
	begin, end int64
}

// story is the history put in order.
type story struct {
	byPath  map[string][]grant // in the order in which they began
	stops   map[string][]span  // of each process
	faults  []span
	recover map[string][]time.Duration // by kind of fault
	refused []entry
	kept    int // writes the store accepted
	failed  []entry
}

func tell(entries []entry) *story {
	s := &story{byPath: make(map[string][]grant), stops: make(map[string][]span), recover: make(map[string][]time.Duration)}
	open := make(map[string]grant) // by node
	kills := make(map[string]int64)
	ended := make(map[string]grant)
	for _, e := range entries {
		switch e.Event {
		case report.Acquired:
			open[e.Node] = grant{process: e.Process, Line: e.Line}
		case report.Grant:
			delete(open, e.Node)
			ended[e.Node] = grant{process: e.Process, Line: e.Line}
		case killed:
			kills[e.Process] = e.At
		case stopped:
			s.stops[e.Process] = append(s.stops[e.Process], span{e.Process, e.At, math.MaxInt64})
		case continued:
			s.stops[e.Process][len(s.stops[e.Process])-1].end = e.At
		case faultBegins:
			s.faults = append(s.faults, span{e.State, e.At, math.MaxInt64})
		case faultEnds:
			s.faults[len(s.faults)-1].end = e.At
		case recovered:
			f := s.faults[len(s.faults)-1]
			s.recover[f.name] = append(s.recover[f.name], time.Duration(e.At-f.end))
		case accepted:
			s.kept++
		case refused:
			s.refused = append(s.refused, e)
		case report.Failed:
			s.failed = append(s.failed, e)
		}
	}
	for node, g := range open {
		// Killed while it held: its session may live on for a while.
		g.End, g.Done, g.clipped = kills[g.process], 0, true
		if g.End == 0 {
			s.failed = append(s.failed, entry{g.process, report.Line{Event: report.Failed, Error: "did not say how its hold of " + node + " ended"}})
			g.End = g.Got
		}
		ended[node] = g
	}
	for _, g := range ended {
		if g.State == gateClosed {
			continue
		}
		for _, stop := range s.stops[g.process] {
			if g.Got < stop.end && stop.begin < g.End && (g.Lost || g.Fenced == http.StatusConflict) {
				g.End, g.Done, g.clipped = max(g.Got, stop.begin), 0, true
			}
		}
		s.byPath[g.Path] = append(s.byPath[g.Path], g)
	}
	for _, grants := range s.byPath {
		slices.SortFunc(grants, func(a, b grant) int { return cmp.Compare(a.Got, b.Got) })
	}
	return s
}

// holds turns grants into what the mutex model reads.
func holds(grants []grant) []mutexmodel.Hold {
	var all []mutexmodel.Hold
	for _, g := range grants {
		all = append(all, mutexmodel.Hold{Token: g.Token, Asked: g.Asked, Got: g.Got, End: g.End, Done: g.Done})
	}
	return all
}

// judge checks everything that can be checked afterwards.
func (s *story) judge(t *testing.T, o *observer) {
	t.Helper()
	for _, e := range s.failed {
		t.Errorf("%s: %s", e.Process, e.Error)
	}
	lost, clipped, all := 0, 0, 0
	for _, path := range slices.Sorted(maps.Keys(s.byPath)) {
		grants := s.byPath[path]
		all += len(grants)
		for i, g := range grants {
			if g.Lost {
				lost++
			}
			if g.clipped {
				clipped++
			}
			if i == 0 {
				continue
			}
			before := grants[i-1]
			if g.Token <= before.Token {
				t.Errorf("%s: token %v after %v", path, zklock.Token(g.Token), zklock.Token(before.Token))
			}
			if g.Got < before.End {
				t.Errorf("%s: %s was granted %v before %s let go", path, g.process, time.Duration(before.End-g.Got), before.process)
			}
		}
		if verdict := porcupine.CheckOperationsTimeout(mutexmodel.Model, mutexmodel.Operations(holds(grants)), 5*time.Minute); verdict != porcupine.Ok {
			t.Errorf("%s: the mutex model says %v of %d grants", path, verdict, len(grants))
		}
		s.compare(t, path, o)
	}
	unexplained := 0
	for _, e := range s.refused {
		if !s.lateOf(e) {
			unexplained++
		}
	}
	t.Logf("%d grants; %d lost while held, %d of processes that were stopped or killed; %d writes accepted, %d refused by token",
		all, lost, clipped, s.kept, len(s.refused))
	if unexplained > 0 {
		t.Errorf("%d writes with an old token came from processes that ran all the time", unexplained)
	}
}

// lateOf tells whether a refused write came from a process that had been stopped while it held.
func (s *story) lateOf(e entry) bool {
	for _, g := range s.byPath[e.Path] {
		if g.Token == e.Token {
			return g.clipped
		}
	}
	return false
}

// compare holds the grants of a path against what the observer saw: nobody holds while another is first in the queue,
// and no node is gone before its holder has stepped down.
func (s *story) compare(t *testing.T, path string, o *observer) {
	t.Helper()
	for _, g := range s.byPath[path] {
		for _, h := range o.heads[path] {
			if h.node != g.Node && g.Got < h.until && h.from < g.End {
				t.Errorf("%s: %s held %s from %d to %d while %s was first from %d to %d", path, g.process, g.Node, g.Got, g.End, h.node, h.from, h.until)
			}
		}
		if gone, ok := o.gone[g.Node]; ok && gone < g.End {
			t.Errorf("%s: %s was gone %v before %s stepped down", path, g.Node, time.Duration(g.End-gone), g.process)
		}
	}
}

// during are the grants that began while a fault lasted.
func (s *story) during(f span) (n int) {
	for _, grants := range s.byPath {
		for _, g := range grants {
			if f.begin <= g.Got && g.Got <= f.end {
				n++
			}
		}
	}
	return n
}

// duringAll are the grants during all faults of a kind.
func (s *story) duringAll(name string) (n int) {
	for _, f := range s.faults {
		if f.name == name {
			n += s.during(f)
		}
	}
	return n
}

// count prints what happened during each kind of fault, notes the figures, and wants enough of it.
func (s *story) count(t *testing.T, o *observer, version string, left []kind) {
	t.Helper()
	type tally struct {
		times, grants int
		lost          int
		leads, hand   []time.Duration
	}
	tallies := make(map[string]*tally)
	for _, k := range left {
		tallies[k.name] = &tally{}
	}
	for _, f := range s.faults {
		tl := tallies[f.name]
		tl.times++
		tl.grants += s.during(f)
		for _, grants := range s.byPath {
			for i, g := range grants {
				// What a fault breaks may end after it, but not much.
				if g.End < f.begin || g.End > f.end+int64(2*time.Second) {
					continue
				}
				if g.Lost && !g.clipped {
					tl.lost++
					// While there is no quorum nothing is seen, and how long the node stayed is not known.
					if seen := o.seen[g.Node]; seen > g.End {
						tl.leads = append(tl.leads, time.Duration(seen-g.End))
					}
				}
				if i+1 < len(grants) {
					tl.hand = append(tl.hand, time.Duration(grants[i+1].Got-g.End))
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(tallies)) {
		tl := tallies[name]
		worst := time.Duration(0)
		if len(s.recover[name]) > 0 {
			worst = slices.Max(s.recover[name])
		}
		least := "-"
		if len(tl.leads) > 0 {
			least = fmt.Sprint(slices.Min(tl.leads).Round(time.Millisecond))
		}
		t.Logf("%-36s %3d times, %5d grants meanwhile, %4d leases lost, least lead %7s, longest recovery %v", name, tl.times, tl.grants,
			tl.lost, least, worst.Round(time.Millisecond))
		figures.Record(t, name, version, figures.Lead, tl.leads...)
		figures.Record(t, name, version, figures.HandOver, tl.hand...)
		figures.Record(t, name, version, figures.Recovery, s.recover[name]...)
		if tl.grants < grantsPerFault {
			t.Errorf("only %d grants during the fault %q, want %d: it shows too little", tl.grants, name, grantsPerFault)
		}
	}
}
