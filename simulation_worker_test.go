package zklock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// simWorker is one goroutine of a client that takes locks.
type simWorker struct {
	c      *simClient
	name   string
	stream uint64  // of its random numbers
	rand   simRand // of the attempt under way
}

func (w *simWorker) world() *simWorld { return w.c.w }
func (w *simWorker) rec() *simRecord  { return w.c.w.rec }

// run takes locks until the traffic ends.
func (w *simWorker) run() {
	p := w.world().plan
	for n := uint64(0); ; n++ {
		// How many numbers an attempt draws may depend on what happens in one instant.
		w.rand = newSimRand(p.seed, w.stream<<32+n)
		if !w.world().sleep(w.rand.between(0, p.think)) {
			return
		}
		w.running()
		if cl := w.c.get(); cl != nil {
			w.once(cl)
			w.c.does(w.name, "")
		}
	}
}

// running waits while the process is stopped. When it goes on, its goroutines do so
// one after the other.
func (w *simWorker) running() {
	if w.c.running() {
		time.Sleep(w.rand.between(time.Microsecond, time.Millisecond))
	}
}

// once makes one attempt to take one lock.
func (w *simWorker) once(cl *Client) {
	p := w.world().plan
	key := pick(w.rand, p.keys...).path
	m, err := NewInterProcessMutex(cl, key, WithIdentifier(w.name))
	if err != nil {
		w.rec().violatef("%s: %v", w.name, err)
		return
	}
	timeout := pick(w.rand, w.rand.between(time.Millisecond, 100*time.Millisecond),
		w.rand.between(p.timeout/10, p.timeout), w.rand.between(p.timeout, 3*p.timeout), w.rand.between(p.timeout, 3*p.timeout))
	call := newSimCall(w, key, timeout)
	defer call.cancel()
	switch n := w.rand.IntN(100); {
	case n < 15:
		call.begin("TryAcquire " + key)
		l, err := m.TryAcquire(call.ctx)
		if call.returned(err, true) {
			w.hold(m, l, w.rec().granted(w.c, w.name, key, l, call.began))
		}
	case n < 35:
		w.do(m, call)
	default:
		call.begin("Acquire " + key)
		l, err := m.Acquire(call.ctx)
		if call.returned(err, false) {
			w.hold(m, l, w.rec().granted(w.c, w.name, key, l, call.began))
		}
	}
}

// simCall is one call of Acquire, TryAcquire or Do.
type simCall struct {
	w      *simWorker
	key    string
	ctx    context.Context
	cancel context.CancelFunc
	end    time.Duration // of ctx
	began  time.Duration
}

func newSimCall(w *simWorker, key string, timeout time.Duration) *simCall {
	call := &simCall{w: w, key: key, began: w.rec().now(), end: w.rec().now() + timeout}
	if w.rand.chance(25) { // the caller changes its mind
		ctx, cancel := context.WithCancel(w.world().ctx)
		time.AfterFunc(timeout, cancel)
		call.ctx, call.cancel = ctx, cancel
	} else {
		call.ctx, call.cancel = context.WithTimeout(w.world().ctx, timeout)
	}
	return call
}

func (call *simCall) begin(what string) {
	call.w.c.does(call.w.name, what)
	rec := call.w.rec()
	rec.mu.Lock()
	rec.calls++
	rec.mu.Unlock()
}

// returned judges what a call returned without a lease. It says whether there is one.
func (call *simCall) returned(err error, try bool) bool {
	w, rec := call.w, call.w.rec()
	if late := rec.now() - call.end; late > time.Millisecond && w.world().ctx.Err() == nil {
		rec.violatef("%s: the call on %s returned %v after its ctx had ended: %v", w.name, call.key, late, err)
	}
	switch {
	case err == nil:
		return true
	case try && errors.Is(err, ErrHeld):
		rec.event("held "+w.name+" "+call.key, "")
	case !errors.Is(err, ErrNotAcquired):
		rec.violatef("%s: the call on %s failed without ErrNotAcquired: %v", w.name, call.key, err)
	case errors.Is(err, ErrClosed):
		if w.c.get() != nil && w.rec().now() == call.began {
			rec.violatef("%s: ErrClosed from an open client", w.name)
		}
		rec.event("closed out "+w.name+" "+call.key, "")
	case call.ctx.Err() != nil:
		rec.event("gave up "+w.name+" "+call.key, err.Error())
	default:
		rec.violatef("%s: the call on %s failed though its ctx goes on: %v", w.name, call.key, err)
	}
	return false
}

// do runs Do.
func (w *simWorker) do(m *InterProcessMutex, call *simCall) {
	call.begin("Do " + call.key)
	var h *simHold
	returned := false
	err := m.Do(call.ctx, func(ctx context.Context, l *Lease) error {
		h = w.rec().granted(w.c, w.name, call.key, l, call.began)
		w.c.does(w.name, "fn of Do "+call.key)
		w.work(l, h, ctx.Done())
		if w.rand.chance(10) && !h.isOver() { // slow to notice
			w.world().sleep(w.rand.between(0, w.world().plan.timeout/2))
		}
		w.running()
		h.release(l)
		w.c.does(w.name, "end of Do "+call.key)
		returned = true
		return nil
	})
	switch {
	case h == nil:
		call.returned(err, false)
	case !returned:
		w.rec().violatef("%s: Do returned before its function", w.name)
	case err != nil && !errors.Is(err, ErrLost):
		w.rec().violatef("%s: Do: %v", w.name, err)
	}
}

// hold works under a lease and releases it in one way or another.
func (w *simWorker) hold(m *InterProcessMutex, l *Lease, h *simHold) {
	w.c.does(w.name, "hold "+h.key)
	if w.rand.chance(20) {
		w.again(m, l, h)
		return
	}
	w.work(l, h, l.Context().Done())
	w.late(h)
	w.release(l, h, true)
}

// again enters the same hold a second time.
func (w *simWorker) again(m *InterProcessMutex, outer *Lease, h *simHold) {
	ctx, cancel := context.WithTimeout(outer.Context(), 3*w.world().plan.timeout)
	defer cancel()
	before := w.rec().now()
	suspended := outer.State() == LeaseSuspended
	inner, err := m.Acquire(ctx)
	if err != nil {
		if !errors.Is(err, ErrLost) && outer.Err() == nil && ctx.Err() == nil {
			w.rec().violatef("%s: entering again: %v", w.name, err)
		}
		w.late(h)
		w.release(outer, h, true)
		return
	}
	h.follow(inner)
	if inner.Token() != outer.Token() || inner.Path() != outer.Path() {
		w.rec().violatef("%s: entering again gave another node: %s, %s", w.name, inner.Path(), outer.Path())
	}
	if took := w.rec().now() - before; took > 0 && !suspended {
		w.rec().violatef("%s: entering again took %v", w.name, took)
	}
	first, last := inner, outer
	if w.rand.chance(50) {
		first, last = outer, inner
	}
	w.work(inner, h, inner.Context().Done())
	w.release(first, h, false)
	w.work(last, h, last.Context().Done())
	w.late(h)
	w.release(last, h, true)
}

// work passes gates and writes to the store until it has done enough, the lease is
// lost, or the traffic ends.
func (w *simWorker) work(l *Lease, h *simHold, done <-chan struct{}) {
	p := w.world().plan
	length := pick(w.rand, w.rand.between(0, 40*time.Millisecond), w.rand.between(0, 40*time.Millisecond), w.rand.between(0, p.hold/3), w.rand.between(p.hold/3, p.hold))
	steps := 1 + w.rand.IntN(4)
	for range steps {
		w.running()
		if !w.gate(l, h) {
			return
		}
		step := time.NewTimer(length / time.Duration(steps))
		select {
		case <-step.C:
		case <-done:
			// Half of the workers look at the context; the others find out at the next gate.
			if w.rand.chance(50) {
				step.Stop()
				return
			}
			select {
			case <-step.C:
			case <-w.world().draining:
			}
		case <-w.world().draining:
		}
		step.Stop()
		w.running()
		h.write(false) // what the step came to, without another gate
		select {
		case <-w.world().draining:
			return
		default:
		}
	}
}

// gate passes the gate before a step, and writes at once.
func (w *simWorker) gate(l *Lease, h *simHold) bool {
	ctx, cancel := context.WithTimeout(w.world().ctx, 3*w.world().plan.timeout)
	defer cancel()
	err := l.Await(ctx)
	if err != nil {
		var lost *LostError
		switch {
		case errors.As(err, &lost):
			h.over("lost: " + string(lost.Reason))
		case errors.Is(err, ErrReleased):
		case ctx.Err() == nil:
			w.rec().violatef("%s: Await: %v", w.name, err)
		}
		return false
	}
	w.c.mu.Lock()
	stopped := !w.c.stopped.IsZero()
	w.c.mu.Unlock()
	if stopped {
		return true // stopped at this very gate; a stopped process does nothing
	}
	h.passed()
	h.write(true)
	return true
}

// late makes some holders slow to release what they have lost.
func (w *simWorker) late(h *simHold) {
	if h.isOver() && w.rand.chance(30) {
		w.world().sleep(w.rand.between(0, w.world().plan.timeout))
	}
}

func (h *simHold) isOver() bool {
	h.rec.mu.Lock()
	defer h.rec.mu.Unlock()
	return h.ended
}

// release releases a lease: with time, with hardly any, twice, or again later.
func (w *simWorker) release(l *Lease, h *simHold, last bool) {
	w.running()
	w.c.does(w.name, fmt.Sprintf("release %s (%v)", h.key, h.isOver()))
	if last {
		h.release(l)
	}
	once := func(timeout time.Duration) bool {
		ctx, cancel := context.WithTimeout(w.world().ctx, timeout)
		defer cancel()
		began := w.rec().now()
		err := l.Release(ctx)
		if late := w.rec().now() - began - timeout; late > time.Millisecond && w.world().ctx.Err() == nil {
			w.rec().violatef("%s: Release returned %v after its ctx had ended: %v", w.name, late, err)
		}
		switch {
		case err == nil && last:
			h.released()
		case err == nil, errors.Is(err, ErrLost):
		case errors.Is(err, ErrPending) && (ctx.Err() != nil || errors.Is(err, ErrClosed)):
			return false
		default:
			w.rec().violatef("%s: Release: %v", w.name, err)
		}
		return true
	}
	long := w.world().plan.timeout * 2
	switch w.rand.IntN(5) {
	case 0:
		once(w.rand.between(0, 3*time.Millisecond))
	case 1:
		if !once(w.rand.between(0, 10*time.Millisecond)) {
			w.world().sleep(w.rand.between(0, long/4))
			once(long)
		}
	case 2:
		once(long)
		once(long)
	default:
		once(long)
	}
}
