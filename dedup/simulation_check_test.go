package dedup_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/dedup/driver"
)

// simVerdict is what a run, or many, came to.
type simVerdict struct {
	counts     map[string]int
	faults     map[string]int
	violations []string
}

func (v *simVerdict) add(o simVerdict) {
	if v.counts == nil {
		v.counts, v.faults = map[string]int{}, map[string]int{}
	}
	for k, n := range o.counts {
		v.counts[k] += n
	}
	for k, n := range o.faults {
		v.faults[k] += n
	}
	v.violations = append(v.violations, o.violations...)
}

// hits is how many faults hit.
func (v simVerdict) hits() (n int) {
	for _, m := range v.faults {
		n += m
	}
	return n
}

func (v simVerdict) String() string {
	var b strings.Builder
	for _, m := range []map[string]int{v.counts, v.faults} {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			fmt.Fprintf(&b, "%s %d; ", k, m[k])
		}
		b.WriteString("\n\t")
	}
	return fmt.Sprintf("%d faults that hit; %s", v.hits(), b.String())
}

// judge checks the invariants on the history of a run.
func (r *simTruth) judge() simVerdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := simVerdict{counts: map[string]int{}, faults: r.faults, violations: slices.Clone(r.violations)}
	bad := func(format string, args ...any) { v.violations = append(v.violations, fmt.Sprintf(format, args...)) }
	v.counts["calls"], v.counts["runs"], v.counts["swept"] = len(r.calls), len(r.execs), r.swept
	for _, lives := range r.lives {
		v.counts["records"] += len(lives)
		for _, l := range lives {
			if l.last().rec.State.Final() {
				v.counts["outcomes"]++
			}
		}
	}
	for _, c := range r.calls {
		r.judgeCall(c, v.counts, bad)
	}
	r.judgeRuns(v.counts, bad)
	return v
}

// stored finds the final outcome that a token stands for.
func (r *simTruth) stored(key string, token zklock.Token) (*simLife, *simWrite) {
	for _, l := range r.lives[key] {
		if w := l.last(); w.rec.State.Final() && l.token(w) == token {
			return l, w
		}
	}
	return nil, nil
}

// judgeCall compares what a call returned with what is stored.
func (r *simTruth) judgeCall(c *simCall, counts map[string]int, bad func(string, ...any)) {
	what := fmt.Sprintf("%s: Do %s at %v to %v: %+v, %v", c.proc.name, c.key, c.began, c.ended, c.res, c.err)
	var failed *dedup.FailedError
	final := !c.panics && (c.err == nil || errors.As(c.err, &failed) || errors.Is(c.err, dedup.ErrOutcomeTooLarge))
	switch {
	case c.panics:
		counts["panics"]++
		if c.exec == nil {
			bad("%s: panicked without its function", what)
		}
		return
	case final:
	case errors.Is(c.err, dedup.ErrKeyReused):
		counts["key reused"]++
		if c.exec != nil {
			bad("%s: ran", what)
		}
		return
	default:
		r.judgeError(c, what, counts, bad)
		return
	}
	l, w := r.stored(c.key, c.res.Token)
	if l == nil {
		bad("%s: no such outcome is stored", what)
		return
	}
	var value string
	if w.rec.State == driver.Done && w.rec.Omitted == "" && json.Unmarshal(w.rec.Outcome, &value) != nil {
		bad("%s: the stored outcome is %q", what, w.rec.Outcome)
	}
	if c.res.Replayed {
		counts["replayed"]++
	} else {
		counts["executed"]++
	}
	if c.res.Attempt != w.rec.Attempt || w.at > c.ended {
		bad("%s: the stored outcome is of attempt %d at %v", what, w.rec.Attempt, w.at)
	}
	switch {
	case c.err == nil && (w.rec.State != driver.Done || w.rec.Omitted != "" || value != c.res.Value):
		bad("%s: %s %q %q is stored", what, w.rec.State, w.rec.Outcome, w.rec.Omitted)
	case failed != nil && (w.rec.State != driver.Failed || w.rec.Message != failed.Message):
		bad("%s: %s %q is stored", what, w.rec.State, w.rec.Message)
	case errors.Is(c.err, dedup.ErrOutcomeTooLarge) && w.rec.Omitted == "":
		bad("%s: the outcome is stored", what)
	}
	if string(l.writes[0].rec.Fingerprint) != string(printOf(c.print)) {
		bad("%s: the record has another fingerprint", what)
	}
	if !c.res.Replayed && (c.exec == nil || c.exec.token != c.res.Token || c.exec.attempt != c.res.Attempt) {
		bad("%s: it did not run", what)
	}
	if x := c.exec; x != nil && c.res.Replayed && x.token == c.res.Token {
		bad("%s: its own outcome came as a replay", what)
	}
}

// judgeError checks that an error is one of those that Do has.
func (r *simTruth) judgeError(c *simCall, what string, counts map[string]int, bad func(string, ...any)) {
	if c.exec != nil {
		if _, w := r.stored(c.key, c.exec.token); w != nil && !errors.Is(c.err, dedup.ErrIndeterminate) {
			bad("%s: its outcome is stored", what)
		}
	}
	switch {
	case errors.Is(c.err, dedup.ErrIndeterminate):
		counts["indeterminate"]++
	case errors.Is(c.err, errSim):
		counts["failed"]++
		if c.exec == nil {
			bad("%s: the error of a function that did not run", what)
		}
	case c.exec != nil && c.exec.done != 0 && c.exec.err == nil:
		bad("%s: the function had returned a value", what)
	case errors.Is(c.err, dedup.ErrInProgress):
		counts["in progress"]++
	case errors.Is(c.err, dedup.ErrUnavailable):
		counts["unavailable"]++
	case errors.Is(c.err, dedup.ErrClosed):
		counts["closed"]++
	case c.quits:
		counts["quit"]++
	default:
		bad("%s: an error that Do does not have", what)
	}
	limit := c.began + c.proc.w.plan.waitLimit + time.Millisecond
	if c.exec == nil && c.ended > limit {
		bad("%s: it waited longer than %v", what, c.proc.w.plan.waitLimit)
	}
}

// excused says that a run may have begun, or gone on, though its claim was gone:
// somebody had taken the claim away by hand, or the process was stopped meanwhile.
func (r *simTruth) excused(x *simExec) bool {
	if n := r.byToken[x.token]; n != nil {
		if n.how == "by hand" {
			return true
		}
		for _, s := range r.stops {
			if s.proc == x.proc && s.from <= max(x.over, x.start) && s.to >= n.made {
				return true
			}
		}
	}
	return false
}

// judgeRuns checks the runs of every key.
func (r *simTruth) judgeRuns(counts map[string]int, bad func(string, ...any)) {
	byKey := map[string][]*simExec{}
	for _, x := range r.execs {
		byKey[x.key] = append(byKey[x.key], x)
	}
	for _, runs := range byKey {
		attempts := map[*simLife]map[int]*simExec{}
		r.judgeOrder(runs, bad)
		for _, x := range runs {
			r.judgeRun(x, counts, bad)
			if attempts[x.life] == nil {
				attempts[x.life] = map[int]*simExec{}
			}
			if other := attempts[x.life][x.attempt]; other != nil && x.life != nil {
				bad("%s: two runs are attempt %d: %s; %s", x.key, x.attempt, x, other)
			}
			attempts[x.life][x.attempt] = x
		}
		for l, of := range attempts {
			if l == nil {
				continue
			}
			most := 0
			for _, w := range l.writes {
				most = max(most, w.rec.Attempt)
			}
			if len(of) > most {
				bad("%s: %d runs of %d attempts", l.key, len(of), most)
			}
			for attempt := 1; attempt <= most; attempt++ {
				if of[attempt] != nil {
					continue
				}
				counts["attempts without a run"]++
				if !r.cameToNothing(l, attempt) {
					bad("%s: attempt %d of %d has no run, for no reason", l.key, attempt, most)
				}
			}
		}
	}
}

// cameToNothing says whether there is a reason that an attempt, which the record tells
// of, has no run: its claim was lost, or a caller who waited for it left, before
// anything ran under it.
func (r *simTruth) cameToNothing(l *simLife, attempt int) bool {
	for _, w := range slices.Backward(l.writes) {
		if w.rec.State != driver.Running || w.rec.Attempt != attempt {
			continue
		}
		n := r.byToken[l.token(&w)]
		if n == nil || n.how != "deleted" {
			return true
		}
		return slices.ContainsFunc(r.calls, func(c *simCall) bool {
			return c.key == l.key && c.proc.name == w.rec.Owner && c.exec == nil && c.err != nil && c.began <= n.gone && n.made <= c.ended
		})
	}
	return false // the number was left out
}

func (x *simExec) String() string {
	return fmt.Sprintf("%s for %s at %v to %v (%v)", x.value, x.call.print, x.start, x.over, x.done)
}

// judgeRun checks one run against the record that it began under.
func (r *simTruth) judgeRun(x *simExec, counts map[string]int, bad func(string, ...any)) {
	if x.life != nil && string(x.life.writes[0].rec.Fingerprint) != string(printOf(x.print)) {
		bad("%s: %s ran under the record of another payload", x.key, x)
	}
	_, stored := r.stored(x.key, x.token)
	if stored != nil && !strings.Contains(string(stored.rec.Outcome)+stored.rec.Message+stored.rec.Omitted, x.value) && stored.rec.Omitted == "" {
		bad("%s: %s stored %q %q", x.key, x, stored.rec.Outcome, stored.rec.Message)
	}
	if stored != nil && (x.kind == simPanics || x.kind == simGoexits || x.kind == simFails || errors.Is(x.err, errSim)) {
		bad("%s: %s has a stored outcome", x.key, x)
	}
	if r.excused(x) {
		counts["runs excused"]++
		return
	}
	switch {
	case x.life == nil:
		bad("%s: %s ran without a record", x.key, x)
		return
	case x.was.rec.State.Final():
		bad("%s: %s began after the outcome %q was stored", x.key, x, x.was.rec.Outcome)
	case x.was.rec.State != driver.Running, x.life.token(&x.was) != x.token, x.was.rec.Attempt != x.attempt:
		bad("%s: %s began, and the record was %s, attempt %d, token %v", x.key, x, x.was.rec.State, x.was.rec.Attempt, x.life.token(&x.was))
	}
	r.judgePolicy(x, counts, bad)
}

// judgePolicy checks that nothing runs under Refuse after a run whose outcome is
// unknown.
func (r *simTruth) judgePolicy(x *simExec, counts map[string]int, bad func(string, ...any)) {
	i := slices.IndexFunc(x.life.writes, func(w simWrite) bool { return w.rec.State == driver.Running && x.life.token(&w) == x.token })
	if i <= 0 {
		return
	}
	before := x.life.writes[i-1]
	ran := slices.ContainsFunc(r.execs, func(o *simExec) bool {
		return o != x && o.life == x.life && o.token == x.life.token(&before)
	})
	if before.rec.State != driver.Running || !ran {
		return
	}
	counts["run again after an unknown outcome"]++
	if x.call.policy == dedup.Refuse {
		bad("%s: %s ran under Refuse after an unknown outcome", x.key, x)
	}
	if x.prior == nil || !x.prior.Unknown {
		bad("%s: %s was not told of the unknown outcome: %+v", x.key, x, x.prior)
	}
}

// judgeOrder checks that the runs of a key, in the order in which they began, have
// growing tokens and do not overlap. One that is excused says nothing about the others.
func (r *simTruth) judgeOrder(runs []*simExec, bad func(string, ...any)) {
	var last, longest *simExec // the one that began last, and the one that was over last
	for _, x := range runs {
		if r.excused(x) {
			continue
		}
		if last != nil && x.token <= last.token {
			bad("%s: tokens do not grow: %s; %s", x.key, last, x)
		}
		if longest != nil && (longest.over == 0 || x.start < longest.over) {
			bad("%s: two runs overlap: %s; %s", x.key, longest, x)
		}
		last = x
		if longest == nil || longest.over != 0 && (x.over == 0 || x.over > longest.over) {
			longest = x
		}
	}
}
