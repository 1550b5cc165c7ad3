package dedup_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
)

// simKind is what a function does.
type simKind string

const (
	simQuick     simKind = "quick"     // returns a value
	simSlow      simKind = "slow"      // takes its time, and returns an error when its ctx ends
	simHangs     simKind = "hangs"     // waits for the end of its ctx, and returns a value
	simOutlives  simKind = "outlives"  // does not look at its ctx
	simFails     simKind = "fails"     // returns an error
	simPermanent simKind = "permanent" // returns an error for good
	simPanics    simKind = "panics"
	simGoexits   simKind = "goexits"
	simHuge      simKind = "huge"   // returns more than fits
	simUnsure    simKind = "unsure" // returns that it does not know
)

const simMaxOutcome = 200

var simKindsOfWork = []simKind{
	simQuick, simQuick, simQuick, simQuick, simSlow, simSlow, simSlow, simSlow, simHangs, simOutlives, simOutlives,
	simFails, simFails, simFails, simFails, simPermanent, simPanics, simGoexits, simHuge, simUnsure,
}

var errSim = errors.New("the work failed")

// simExec is one run of a function.
type simExec struct {
	call    *simCall
	proc    *simProcess
	key     string
	print   string
	token   zklock.Token
	attempt int
	prior   *dedup.Prior
	value   string
	kind    simKind
	start   time.Duration
	over    time.Duration // the first of: it returned, its ctx ended; 0 before
	done    time.Duration // when it returned or panicked; 0 before
	err     error         // what it returned
	life    *simLife      // the record's when it began
	was     simWrite      // the record when it began
}

// simCall is one call of Do.
type simCall struct {
	proc   *simProcess
	key    string
	print  string
	policy dedup.Policy
	began  time.Duration
	ended  time.Duration
	exec   *simExec // nil: its function did not run
	res    dedup.Result[string]
	err    error
	panics bool // it did not return
	noWait bool
	quits  bool // its ctx ended
}

// simWorker is one goroutine that has work done.
type simWorker struct {
	slot   *simSlot
	stream uint64
	rand   simRand // of the call under way
}

func (sw *simWorker) world() *simWorld { return sw.slot.w }

func (sw *simWorker) run() {
	p := sw.world().plan
	for n := uint64(0); ; n++ {
		sw.rand = newSimRand(p.seed, sw.stream<<32+n)
		if !sw.world().sleep(sw.rand.between(0, p.timeout/6)) {
			return
		}
		pr := sw.slot.get()
		if pr == nil {
			continue
		}
		pr.running()
		payload := "payload"
		if sw.rand.chance(7) {
			payload = "other"
		}
		var opts []dedup.Option
		if sw.rand.chance(15) {
			opts = append(opts, dedup.NoWait())
		}
		sw.call(pr, pr.getGuard(), sw.world().key(sw.rand), pick(sw.rand, simKindsOfWork...), payload, opts...)
	}
}

// key is one of those that are used all the time, or one of those of the moment.
func (w *simWorld) key(r simRand) dedup.Key {
	if r.chance(40) {
		return pick(r, w.plan.keys...)
	}
	return dedup.Key{Scope: "sim", ID: fmt.Sprintf("m%d-%d", w.truth.now()/(w.plan.timeout/3), r.IntN(3))}
}

// call makes one call of Do, in a goroutine of its own since it may not return.
func (sw *simWorker) call(pr *simProcess, g *dedup.Guard, k dedup.Key, kind simKind, payload string, opts ...dedup.Option) *simCall {
	w := sw.world()
	c := &simCall{proc: pr, key: simRoot + "/" + k.String(), print: payload, policy: pr.policy, began: w.truth.now(), noWait: len(opts) > 0 && sw.slot.index < w.plan.slots}
	if sw.slot.index >= w.plan.slots {
		c.policy = dedup.Reexecute
	}
	w.truth.mu.Lock()
	w.truth.calls = append(w.truth.calls, c)
	w.truth.mu.Unlock()
	ctx, cancel := context.WithCancel(pr.ctx)
	defer cancel()
	if sw.slot.index < w.plan.slots && sw.rand.chance(30) {
		d := pick(sw.rand, sw.rand.between(time.Millisecond, 50*time.Millisecond), sw.rand.between(0, w.plan.timeout))
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		returned := false
		defer func() {
			if !returned {
				_ = recover()
				c.panics = true
			}
		}()
		c.res, c.err = dedup.Do(ctx, g, k, dedup.Payload([]byte(payload)), func(ctx context.Context, cl *dedup.Claim) (string, error) {
			return sw.work(ctx, c, cl, kind)
		}, opts...)
		returned = true
	}()
	<-over
	w.truth.mu.Lock()
	defer w.truth.mu.Unlock()
	c.ended, c.quits = w.truth.now(), ctx.Err() != nil
	w.truth.eventLockedf("%s: Do %s (%s): %+v, %v, panics %v, ran %v", pr.name, c.key, payload, c.res, c.err, c.panics, c.exec != nil)
	return c
}

// work is the function.
func (sw *simWorker) work(ctx context.Context, c *simCall, cl *dedup.Claim, kind simKind) (v string, err error) {
	w, pr := sw.world(), c.proc
	x := &simExec{
		call: c, proc: pr, key: c.key, print: c.print, token: cl.Token(), attempt: cl.Attempt(), prior: cl.Prior(), kind: kind,
		start: w.truth.now(), value: fmt.Sprintf("%s of %s, attempt %d, token %v", kind, pr.name, cl.Attempt(), cl.Token()),
	}
	w.truth.mu.Lock()
	if c.exec != nil {
		w.truth.violateLockedf("%s: a call ran its function twice: %s; %s", pr.name, c.exec.value, x.value)
	}
	c.exec = x
	if x.life = w.truth.life(x.key); x.life != nil {
		x.was = *x.life.last()
	}
	w.truth.execs = append(w.truth.execs, x)
	w.truth.eventLockedf("%s: runs %s: %s", pr.name, c.key, x.value)
	w.truth.mu.Unlock()
	stop := context.AfterFunc(ctx, x.ends(w))
	defer func() {
		stop()
		w.truth.mu.Lock()
		x.done, x.err = max(w.truth.now(), 1), err
		w.truth.mu.Unlock()
		x.ends(w)()
	}()

	pr.running()
	defer pr.running()
	switch kind {
	case simQuick:
		w.sleep(sw.rand.between(0, 2*time.Millisecond))
	case simSlow:
		if !awaitFor(sw.rand.between(0, w.plan.timeout/3), either(ctx.Done(), w.draining)) {
			break
		}
		if ctx.Err() != nil {
			return "", fmt.Errorf("%w: %w", errSim, context.Cause(ctx))
		}
	case simHangs:
		awaitFor(w.plan.timeout, either(ctx.Done(), w.draining))
	case simOutlives:
		w.sleep(sw.rand.between(w.plan.timeout/2, 2*w.plan.timeout))
	case simFails:
		w.sleep(sw.rand.between(0, 20*time.Millisecond))
		return "", errSim
	case simPermanent:
		w.sleep(sw.rand.between(0, 20*time.Millisecond))
		return "", dedup.Permanent(errors.New(x.value))
	case simUnsure:
		return "", dedup.Indeterminate(errSim)
	case simPanics:
		panic(errSim)
	case simGoexits:
		runtime.Goexit()
	case simHuge:
		return x.value + strings.Repeat("!", simMaxOutcome), nil
	}
	return x.value, nil
}

// ends notes the first end of a run.
func (x *simExec) ends(w *simWorld) func() {
	return func() {
		w.truth.mu.Lock()
		defer w.truth.mu.Unlock()
		if x.over == 0 {
			x.over = max(w.truth.now(), 1)
		}
	}
}

// either is closed with the first of two channels.
func either(a, b <-chan struct{}) <-chan struct{} {
	c := make(chan struct{})
	go func() {
		defer close(c)
		select {
		case <-a:
		case <-b:
		}
	}()
	return c
}

// reconcile settles unknown outcomes, as a person would who looks downstream.
func (w *simWorld) reconcile() {
	rand := newSimRand(w.plan.seed, 3)
	for w.sleep(w.plan.timeout / 2) {
		pr := pick(rand, w.slots...).get()
		if pr == nil {
			continue
		}
		pr.running()
		ctx, cancel := context.WithTimeout(pr.ctx, w.plan.timeout)
		for i, err := range pr.getGuard().Unresolved(ctx) {
			if err != nil {
				break
			}
			to := pick(rand, dedup.Completed(simResolved), dedup.NotDone(), dedup.FailedWith(simResolved))
			err := pr.getGuard().Resolve(ctx, i.Key, to)
			w.truth.eventf("%s resolves %s: %v", pr.name, i.Key, err)
		}
		cancel()
	}
}

const simResolved = "resolved"

// takePlainLocks takes locks on the paths of records, as a program would that does not
// know of them.
func (w *simWorld) takePlainLocks() {
	rand := newSimRand(w.plan.seed, 4)
	for w.sleep(rand.between(0, w.plan.timeout)) {
		pr := pick(rand, w.slots...).get()
		if pr == nil {
			continue
		}
		pr.running()
		m, err := zklock.NewInterProcessMutex(pr.client, simRoot+"/"+w.key(rand).String())
		if err != nil {
			w.truth.violatef("plain lock: %v", err)
			return
		}
		ctx, cancel := context.WithTimeout(pr.ctx, w.plan.timeout/2)
		if l, err := m.Acquire(ctx); err == nil {
			w.sleep(rand.between(0, w.plan.timeout/10))
			_ = l.Release(ctx)
		}
		cancel()
	}
}
