package deduptest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zklock/zklock/dedup/driver"
)

func queueNotFound(b *bench) {
	p := b.open()
	for _, wait := range []bool{true, false} {
		_, err := b.tryQueue(b.bounded(), p, "k", wait)
		b.want(fmt.Sprintf("Queue, wait %v", wait), err, driver.ErrNotFound)
		_, err = p.Store.Lookup(b.bounded(), "k", true)
		b.want("Lookup after it", err, driver.ErrNotFound)
	}
	b.begin(p, "k") // nothing is in its way
}

func queueNoWait(b *bench) {
	p, q := b.open(), b.open()
	c := b.begin(p, "k")
	b.taken(p, "k")
	b.taken(q, "k")
	waits := b.queueing(b.bounded(), q, "k")
	b.taken(p, "k")
	b.ended(c.GiveUp(nil))
	c = b.holds("the waiter", waits)
	b.taken(p, "k")
	b.ended(c.GiveUp(nil))
	b.free(p, "k")
}

func queueFIFO(b *bench) {
	p, q, r := b.open(), b.open(), b.open()
	c := b.begin(p, "k")
	order := []*Process{q, r, q, p, r}
	var waits []<-chan granted
	for _, w := range order {
		waits = append(waits, b.queueing(b.bounded(), w, "k"))
	}
	for i, w := range waits {
		b.notYet(fmt.Sprint("waiter ", i), w)
	}
	for i, w := range waits {
		b.ended(c.GiveUp(nil))
		next := b.holds(fmt.Sprintf("waiter %d, who is next", i), w)
		if next.Token() <= c.Token() {
			b.t.Errorf("token %d after %d", next.Token(), c.Token())
		}
		c = next
	}
	b.ended(c.GiveUp(nil))
	b.free(p, "k")
}

// A waiter that leaves disturbs nobody, and leaves nothing.
func queueLeaves(b *bench) {
	p, q := b.open(), b.open()
	c := b.begin(p, "k")
	reason := errors.New("because")
	ctx, leave := context.WithCancelCause(b.bounded())
	leaves := b.queueing(ctx, q, "k")
	stays := b.queueing(b.bounded(), q, "k")
	leave(reason)
	b.want("the waiter that leaves", b.result("the waiter that leaves", leaves).err, reason)
	err := b.soon("Queue", 2*b.h.Arrival, func(ctx context.Context) error {
		_, err := b.tryQueue(ctx, q, "k", true)
		return err
	})
	b.want("the waiter whose time is over", err, context.DeadlineExceeded)
	b.notYet("the waiter that stays", stays)
	b.ended(c.GiveUp(nil))
	b.ended(b.holds("the waiter that stays", stays).GiveUp(nil))
	b.must("nothing is left of the others", b.eventually(func() error {
		c, err := b.tryQueue(b.bounded(), p, "k", false)
		if err == nil {
			b.ended(c.GiveUp(nil))
		}
		return err
	}))
}

// Who gets the claim sees what the last one has stored.
func queueSeesWhatWasStored(b *bench) {
	p, q := b.open(), b.open()
	for i := range 10 {
		key := fmt.Sprint("k", i)
		c := b.begin(p, key)
		waits := b.queueing(b.bounded(), q, key)
		b.complete(c, "one")
		next := b.holds("the waiter", waits)
		if r := next.Record(); r.State != driver.Done || string(r.Outcome) != "one" || r.Claim != c.ID() || r.Token != c.Token() {
			b.t.Errorf("%s: %s", key, show(r))
		}
		b.ended(next.GiveUp(nil))
	}
}

func oneClaimAtATime(b *bench) {
	const each, turns = 4, 5
	procs := []*Process{b.open(), b.open(), b.open()}
	first := b.begin(procs[0], "k")
	tokens := []int64{first.Token()}
	var mu sync.Mutex
	var holders atomic.Int32
	var wg sync.WaitGroup
	for _, p := range procs {
		for range each {
			wg.Go(func() {
				for range turns {
					c, err := b.tryQueue(b.bounded(), p, "k", true)
					if err != nil {
						b.t.Errorf("Queue: %v", err)
						return
					}
					if n := holders.Add(1); n != 1 {
						b.t.Errorf("%d have the claim at once", n)
					}
					mu.Lock()
					tokens = append(tokens, c.Token())
					mu.Unlock()
					r := c.Record().Next(driver.Running)
					r.Attempt++
					if err := c.Renew(b.bounded(), r); err != nil {
						b.t.Errorf("Renew: %v", err)
					}
					holders.Add(-1)
					open := c.Record().Next(driver.Open)
					c.GiveUp(&open)
				}
			})
		}
	}
	b.ended(first.GiveUp(nil))
	wg.Wait()
	for i := range tokens[1:] {
		if tokens[i+1] <= tokens[i] {
			b.t.Errorf("token %d was followed by %d", tokens[i], tokens[i+1])
		}
	}
	last := b.queue(procs[0], "k")
	if r, want := last.Record(), 1+each*turns*len(procs); r.Attempt != want || r.State != driver.Open {
		b.t.Errorf("%s: want open with attempt %d: a write was lost", show(r), want)
	}
	b.ended(last.GiveUp(nil))
}

// Tokens grow for as long as the store lives, also when the record was removed and
// made again.
func tokensGrow(b *bench) {
	p, q := b.open(), b.open()
	var last int64
	grows := func(c driver.Claim) {
		b.t.Helper()
		if c.Token() <= last {
			b.t.Errorf("token %d after %d", c.Token(), last)
		}
		last = c.Token()
	}
	for range 2 {
		r := sample()
		r.Retention = b.h.Retention
		c, err := b.tryBegin(b.bounded(), q, "k", r, true)
		b.must("Begin", err)
		grows(c)
		b.ended(c.GiveUp(nil))
		for _, other := range []*Process{p, q, p} {
			c := b.queue(other, "k")
			grows(c)
			b.ended(c.GiveUp(nil))
		}
		c = b.queue(p, "k")
		grows(c)
		b.complete(c, "one")
		b.sweptInTime(p, "k", b.h.Retention)
	}
}

func gates(b *bench) {
	p := b.open()
	for what, end := range map[string]func(c driver.Claim){
		"GiveUp":   func(c driver.Claim) { b.ended(c.GiveUp(nil)) },
		"Complete": func(c driver.Claim) { b.complete(c, "one") },
	} {
		c := b.begin(p, what)
		b.must("Await", c.Await(b.bounded()))
		b.must("Err", c.Err())
		if !c.Deadline().After(time.Now()) {
			b.t.Errorf("the deadline %v of a claim that is held is over at %v", c.Deadline(), time.Now())
		}
		end(c)
		if c.Err() == nil || c.Await(b.bounded()) == nil {
			b.t.Errorf("after %s the gates are open: Err %v", what, c.Err())
		}
	}
	// A claim that is proved again and again outlives its first deadline.
	c := b.begin(p, "long")
	time.Sleep(time.Until(c.Deadline()) + b.h.Arrival)
	b.must("Await after the first deadline", c.Await(b.bounded()))
	b.complete(c, "one")
}

func bind(b *bench) {
	p := b.open()
	c := b.begin(p, "k")
	type key struct{}
	reason := errors.New("because")
	parent, cancelParent := context.WithCancelCause(context.WithValue(b.bounded(), key{}, "value"))
	bound, cancel := c.Bind(parent)
	defer cancel()
	if bound.Value(key{}) != "value" || bound.Err() != nil {
		b.t.Errorf("value %v, %v", bound.Value(key{}), bound.Err())
	}
	cancelParent(reason)
	b.over(bound, "the ctx whose parent has ended", reason)
	own, cancelOwn := c.Bind(b.t.Context())
	cancelOwn()
	b.over(own, "the ctx that was cancelled", nil)
	b.must("the claim after that", c.Err())
	last, cancelLast := c.Bind(b.t.Context())
	defer cancelLast()
	b.complete(c, "one")
	b.over(last, "the ctx of a claim that is over", nil)
}

// over waits for the end of a ctx, and checks its cause.
func (b *bench) over(ctx context.Context, what string, cause error) {
	b.t.Helper()
	select {
	case <-ctx.Done():
	case <-b.bounded().Done():
		b.t.Fatalf("%s does not end", what)
	}
	if cause != nil {
		b.want(what, context.Cause(ctx), cause)
	}
}

func renew(b *bench) {
	p, q := b.open(), b.open()
	c := b.begin(p, "k")
	b.ended(c.GiveUp(nil))
	c = b.queue(q, "k")
	was := c.Record()
	for i := range 3 {
		r := c.Record().Next(driver.Running)
		r.Attempt += 1 + i
		r.Owner = fmt.Sprint("owner ", i)
		r.Claim, r.Token = "not set by the caller", 1
		b.must("Renew", c.Renew(b.bounded(), r))
		r.Claim, r.Token = c.ID(), c.Token()
		got := b.lookup(p, "k")
		b.same("Lookup", got, r, false)
		b.same("Claim.Record", c.Record(), r, false)
		if got.Claim != c.ID() || got.Token != c.Token() || c.Record().Claim != c.ID() {
			b.t.Errorf("claim %q, token %d, want %q, %d", got.Claim, got.Token, c.ID(), c.Token())
		}
		if got.Version <= was.Version || c.Record().Version != got.Version {
			b.t.Errorf("version %d after %d; the claim has %d", got.Version, was.Version, c.Record().Version)
		}
		if !got.Created.Equal(was.Created) {
			b.t.Errorf("created %v, then %v", was.Created, got.Created)
		}
		was = got
	}
	b.must("Err", c.Err())
	b.taken(p, "k")
	b.complete(c, "one")
	b.same("after Complete", b.lookup(p, "k"), func() driver.Record { r := was.Next(driver.Done); r.Outcome = []byte("one"); return r }(), false)
}

// The record is written and the claim ended, both or none.
func complete(b *bench) {
	p, q := b.open(), b.open()
	c := b.begin(p, "k")
	r := c.Record().Next(driver.Done)
	r.Outcome = []byte("one")
	r.Claim, r.Token = "not set by the caller", 1
	b.must("Complete", c.Complete(b.bounded(), r))
	got := b.free(q, "k")
	b.same("the record", got, r, false)
	if got.Claim != c.ID() || got.Token != c.Token() {
		b.t.Errorf("claim %q, token %d, want %q, %d", got.Claim, got.Token, c.ID(), c.Token())
	}
	// There is no claim to change it with.
	r.Outcome = []byte("two")
	b.want("Renew after it", c.Renew(b.bounded(), r), driver.ErrClaimLost)
	if got := b.lookup(q, "k"); string(got.Outcome) != "one" {
		b.t.Errorf("the outcome is %q, want the first", got.Outcome)
	}
}

// A record that does not fit is not written, and the claim is given up.
func completeTooLarge(b *bench) {
	p, q := b.open(), b.open()
	c := b.begin(p, "k")
	was := b.lookup(q, "k")
	r := c.Record().Next(driver.Done)
	r.Outcome = make([]byte, 2*p.Store.MaxOutcome("k")+(1<<20))
	b.want("Complete", c.Complete(b.bounded(), r), driver.ErrTooLarge)
	next := b.queue(q, "k")
	b.same("after it", next.Record(), was, true)
	b.ended(next.GiveUp(nil))
}

func giveUp(b *bench) {
	p, q := b.open(), b.open()
	c := b.begin(p, "k")
	was := b.lookup(q, "k")
	b.ended(c.GiveUp(nil))
	b.same("GiveUp(nil)", b.free(q, "k"), was, true)

	c = b.queue(p, "k")
	open := c.Record().Next(driver.Open)
	open.Message = "it failed"
	b.ended(c.GiveUp(&open))
	got := b.free(q, "k")
	b.same("GiveUp with a record", got, open, false)
	if got.Claim != c.ID() || got.Token != c.Token() {
		b.t.Errorf("claim %q, token %d, want %q, %d", got.Claim, got.Token, c.ID(), c.Token())
	}

	// The next one sees it, also if nobody waits for the end.
	c = b.queue(p, "k")
	waits := b.queueing(b.bounded(), q, "k")
	open = c.Record().Next(driver.Open)
	open.Message = "it failed again"
	c.GiveUp(&open)
	next := b.holds("the waiter", waits)
	b.same("the waiter's record", next.Record(), open, false)
	b.ended(next.GiveUp(nil))
}

// A record that somebody has changed past the claim is not written over.
func conflict(b *bench) {
	if !b.can(AbilityPut, b.h.Put != nil) {
		return
	}
	p, q := b.open(), b.open()
	settled := sample().Next(driver.Done)
	settled.Outcome, settled.Claim = []byte("by hand"), "somebody"
	data, err := settled.MarshalBinary()
	b.must("MarshalBinary", err)
	for what, write := range map[string]func(c driver.Claim, r driver.Record) error{
		"Renew":    func(c driver.Claim, r driver.Record) error { return c.Renew(b.bounded(), r) },
		"Complete": func(c driver.Claim, r driver.Record) error { return c.Complete(b.bounded(), r) },
		"GiveUp": func(c driver.Claim, r driver.Record) error {
			b.ended(c.GiveUp(&r))
			return driver.ErrConflict
		},
	} {
		c := b.begin(p, what)
		r := c.Record().Next(driver.Done)
		r.Outcome = []byte("late")
		b.must("Put", b.h.Put(what, data))
		b.want(what, write(c, r), driver.ErrConflict)
		if got := b.lookup(q, what); string(got.Outcome) != "by hand" {
			b.t.Errorf("after %s the outcome is %q", what, got.Outcome)
		}
		if what == "Renew" {
			b.taken(q, what)
			b.ended(c.GiveUp(nil))
		}
		// Complete and GiveUp have given the claim up.
		b.ended(b.queue(q, what).GiveUp(nil))
	}
}

// A claim that was lost writes nothing.
func claimLost(b *bench) {
	p, q := b.open(), b.open()
	if !b.can(AbilityLose, p.Lose != nil) {
		return
	}
	names := []string{"Renew", "Complete", "GiveUp"}
	claims := make(map[string]driver.Claim)
	bounds := make(map[string]<-chan struct{})
	for _, name := range names {
		claims[name] = b.begin(p, name)
		ctx, cancel := claims[name].Bind(b.t.Context())
		defer cancel()
		bounds[name] = ctx.Done()
	}
	p.Lose()
	for _, name := range names {
		c := claims[name]
		b.ended(bounds[name])
		if c.Err() == nil || c.Await(b.bounded()) == nil {
			b.t.Errorf("the gates of a claim that was lost are open")
		}
		was := b.lookup(q, name)
		r := c.Record().Next(driver.Done)
		r.Outcome = []byte("late")
		switch name {
		case "Renew":
			b.want(name, c.Renew(b.bounded(), r), driver.ErrClaimLost)
			b.ended(c.GiveUp(nil))
		case "Complete":
			b.want(name, c.Complete(b.bounded(), r), driver.ErrClaimLost)
		case "GiveUp":
			// Another has it by now, so what this one says of it is late.
			next := b.queue(q, name)
			b.must("Renew", next.Renew(b.bounded(), next.Record().Next(driver.Running)))
			was = b.lookup(q, name)
			b.ended(c.GiveUp(&r))
			b.must("the next one's claim", next.Err())
			b.same(name, b.lookup(q, name), was, true)
			b.complete(next, "next")
			continue
		}
		b.same(name, b.lookup(q, name), was, true)
		b.complete(b.queue(q, name), "next")
	}
	b.must("the process goes on", b.eventually(func() error {
		c, err := b.tryBegin(b.bounded(), p, "again", sample(), true)
		if err == nil {
			b.complete(c, "one")
		}
		return err
	}))
}

// What a dead process had is somebody else's, as it left it.
func deadProcess(b *bench) {
	p, q, r := b.open(), b.open(), b.open()
	held, renewed := b.begin(p, "held"), b.begin(p, "renewed")
	next := renewed.Record().Next(driver.Running)
	next.Attempt, next.Owner = 5, "the dead one"
	b.must("Renew", renewed.Renew(b.bounded(), next))
	waited := b.begin(q, "waited")
	ctx, stop := context.WithCancel(b.t.Context())
	b.queueing(ctx, p, "waited")
	waits := b.queueing(b.bounded(), q, "held")
	p.Kill()
	c := b.holds("the waiter of a key that a dead process had", waits)
	if got := c.Record(); got.State != driver.Running || got.Claim != held.ID() || c.Token() <= held.Token() {
		b.t.Errorf("%s, token %d after %d", show(got), c.Token(), held.Token())
	}
	b.complete(c, "one")
	c = b.queue(r, "renewed")
	if got := c.Record(); got.State != driver.Running || got.Attempt != 5 || got.Owner != "the dead one" || got.Claim != renewed.ID() {
		b.t.Errorf("%s", show(got))
	}
	b.complete(c, "two")
	// A dead process in the queue keeps nobody waiting.
	behind := b.queueing(b.bounded(), r, "waited")
	b.ended(waited.GiveUp(nil))
	b.complete(b.holds("the waiter behind a dead process", behind), "three")
	stop()
}

// A connection that comes back in time loses nothing.
func suspended(b *bench) {
	p, q := b.open(), b.open()
	if !b.can(AbilitySuspend, p.Suspend != nil) {
		return
	}
	c := b.begin(p, "k")
	ctx, cancel := c.Bind(b.t.Context())
	defer cancel()
	resume := p.Suspend()
	waits := b.queueing(b.bounded(), q, "k")
	resume()
	b.must("Await", c.Await(b.bounded()))
	b.must("Err", c.Err())
	if ctx.Err() != nil {
		b.t.Errorf("the claim's ctx: %v", context.Cause(ctx))
	}
	b.notYet("the waiter", waits)
	b.must("Renew", c.Renew(b.bounded(), c.Record().Next(driver.Running)))
	b.complete(c, "one")
	next := b.holds("the waiter", waits)
	if r := next.Record(); r.State != driver.Done {
		b.t.Errorf("%s", show(r))
	}
	b.ended(next.GiveUp(nil))
}

// A connection that stays away costs the claim, and its holder is told before anybody
// else has it.
func suspendedForLong(b *bench) {
	p, q := b.open(), b.open()
	if !b.can(AbilitySuspend, p.Suspend != nil) {
		return
	}
	c := b.begin(p, "k")
	ctx, cancel := c.Bind(b.t.Context())
	defer cancel()
	type told struct {
		err   error
		bound error
	}
	grants := make(chan told, 1)
	waits := make(chan granted, 1)
	resume := p.Suspend()
	go func() {
		next, err := b.tryQueue(b.bounded(), q, "k", true)
		grants <- told{c.Err(), ctx.Err()}
		waits <- granted{next, err}
	}()
	next := b.holds("the waiter", waits)
	t := <-grants
	if t.err == nil {
		b.t.Errorf("somebody else had the claim, and its holder's gate was open")
	}
	b.over(ctx, "the ctx of the claim", nil)
	if c.Deadline().After(time.Now()) {
		b.t.Errorf("the deadline %v of the lost claim is not over at %v", c.Deadline(), time.Now())
	}
	b.complete(next, "next")
	r := c.Record().Next(driver.Done)
	r.Outcome = []byte("late")
	done := make(chan error, 1)
	go func() { done <- c.Complete(b.bounded(), r) }()
	resume()
	b.want("Complete", <-done, driver.ErrClaimLost)
	if got := b.lookup(q, "k"); string(got.Outcome) != "next" {
		b.t.Errorf("the outcome is %q", got.Outcome)
	}
	b.must("the process goes on", b.eventually(func() error { _, err := p.Store.Lookup(b.bounded(), "k", true); return err }))
}

// Complete and GiveUp without a connection go on in the background.
func endsInTheBackground(b *bench) {
	p, q := b.open(), b.open()
	completes, opens := b.begin(p, "complete"), b.begin(p, "giveup")
	if !b.can(AbilitySuspend, p.Suspend != nil) {
		return
	}
	resume := p.Suspend()
	done, open := completes.Record().Next(driver.Done), opens.Record().Next(driver.Open)
	done.Outcome = []byte("one")
	ended := opens.GiveUp(&open)
	err := b.soon("Complete while cut off", b.h.Arrival, func(ctx context.Context) error { return completes.Complete(ctx, done) })
	b.want("Complete while cut off", err, driver.ErrUnknown)
	resume()
	b.ended(ended)
	if r := b.free(q, "giveup"); r.State != driver.Open {
		b.t.Errorf("GiveUp: %s, want open", show(r))
	}
	next := b.queue(q, "complete")
	if r := next.Record(); r.State != driver.Done || string(r.Outcome) != "one" {
		b.t.Errorf("Complete: %s, want done", show(r))
	}
	b.ended(next.GiveUp(nil))
}
