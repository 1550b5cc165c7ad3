package deduptest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-zklock/zklock/dedup/driver"
)

// sweep makes passes until one goes to the end, and adds up what they did.
func (b *bench) sweep(p *Process, opts driver.SweepOptions) driver.SweepReport {
	b.t.Helper()
	var sum driver.SweepReport
	b.must("Sweep", b.eventually(func() error {
		r, err := p.Store.Sweep(b.bounded(), opts)
		swept := sum.Swept + r.Swept
		sum = r
		sum.Swept = swept
		if err == nil && r.Remaining {
			err = errors.New("the pass ended early")
		}
		return err
	}))
	if d := time.Since(sum.Time).Abs(); d > 10*time.Minute { // another machine's clock
		b.t.Errorf("the sweeper's time is %v; it is %v", sum.Time, time.Now())
	}
	return sum
}

// sweptInTime waits for a record to be swept, with its retention counted from now.
func (b *bench) sweptInTime(p *Process, key string, retention time.Duration) {
	b.t.Helper()
	last := b.lookup(p, key).Updated
	b.must("Sweep", b.eventually(func() error {
		r := b.sweep(p, driver.SweepOptions{})
		switch _, err := p.Store.Lookup(b.bounded(), key, true); {
		case errors.Is(err, driver.ErrNotFound):
			if r.Time.Before(last.Add(retention)) {
				b.t.Errorf("%s was swept at %v; it was changed at %v and kept for %v", key, r.Time, last, retention)
			}
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("%s is still there: %+v", key, r)
	}))
}

// store makes a record with a retention and ends its claim.
func (b *bench) store(p *Process, key string, retention time.Duration, end func(c driver.Claim)) {
	b.t.Helper()
	r := sample()
	r.Retention = retention
	c, err := b.tryBegin(b.bounded(), p, key, r, true)
	b.must("Begin", err)
	end(c)
}

func (b *bench) done(c driver.Claim) { b.complete(c, "one") }

func sweepAfterRetention(b *bench) {
	p, q := b.open(), b.open()
	b.store(p, "done", b.h.Retention, b.done)
	b.store(p, "failed", b.h.Retention, func(c driver.Claim) {
		r := c.Record().Next(driver.Failed)
		b.must("Complete", c.Complete(b.bounded(), r))
	})
	b.store(p, "open", b.h.Retention, func(c driver.Claim) {
		r := c.Record().Next(driver.Open)
		b.ended(c.GiveUp(&r))
	})
	b.store(p, "long", time.Hour, b.done)
	if r := b.sweep(q, driver.SweepOptions{}); r.Swept != 0 {
		b.t.Errorf("%+v: something was swept at once", r)
	}
	time.Sleep(b.h.Retention + b.h.Margin)
	swept := b.sweep(q, driver.SweepOptions{})
	if swept.Swept != 3 || swept.Missing != 0 || swept.Unusable != 0 || swept.Unknown != 0 {
		b.t.Errorf("%+v, want 3 swept", swept)
	}
	if swept.Records != 1 && swept.Records != -1 {
		b.t.Errorf("%d records, want 1, or -1 for not counted", swept.Records)
	}
	for _, key := range []string{"done", "failed", "open"} {
		_, err := p.Store.Lookup(b.bounded(), key, true)
		b.want("Lookup "+key, err, driver.ErrNotFound)
		_, err = b.tryQueue(b.bounded(), p, key, true)
		b.want("Queue "+key, err, driver.ErrNotFound)
		b.begin(p, key) // the key is free again
	}
	b.lookup(p, "long")
}

func sweepCountsFromTheLastChange(b *bench) {
	p := b.open()
	r := sample()
	r.Retention = b.h.Retention
	c, err := b.tryBegin(b.bounded(), p, "k", r, true)
	b.must("Begin", err)
	time.Sleep(b.h.Retention * 3 / 4)
	b.complete(c, "one")
	b.sweptInTime(p, "k", b.h.Retention)
}

// An unknown outcome is not swept unless that is asked for.
func sweepLeavesUnknown(b *bench) {
	p := b.open()
	b.store(p, "unknown", b.h.Retention, func(c driver.Claim) { b.ended(c.GiveUp(nil)) })
	time.Sleep(b.h.Retention + b.h.Margin)
	if r := b.sweep(p, driver.SweepOptions{}); r.Swept != 0 || r.Unknown != 1 {
		b.t.Errorf("%+v, want 1 unknown", r)
	}
	b.lookup(p, "unknown")
	b.must("Sweep with Unknown", b.eventually(func() error {
		r := b.sweep(p, driver.SweepOptions{Unknown: true})
		if _, err := p.Store.Lookup(b.bounded(), "unknown", true); !errors.Is(err, driver.ErrNotFound) {
			return fmt.Errorf("%w: %+v", err, r)
		}
		return nil
	}))
}

// A record with a claim, or with somebody who waits for it, stays.
func sweepLeavesClaimed(b *bench) {
	p, q := b.open(), b.open()
	var c driver.Claim
	b.store(p, "running", b.h.Retention, func(held driver.Claim) { c = held })
	b.store(p, "done", b.h.Retention, b.done)
	d := b.queue(q, "done")
	waits := b.queueing(b.bounded(), p, "done")
	time.Sleep(b.h.Retention + b.h.Margin)
	if r := b.sweep(q, driver.SweepOptions{Unknown: true}); r.Swept != 0 || r.Moved != 2 {
		b.t.Errorf("%+v, want 2 moved", r)
	}
	b.must("the claim on running", c.Err())
	b.complete(c, "one")
	b.ended(d.GiveUp(nil))
	d = b.holds("the waiter", waits)
	if r := d.Record(); r.State != driver.Done {
		b.t.Errorf("%s", show(r))
	}
	b.ended(d.GiveUp(nil))
}

func sweepMany(b *bench) {
	const many = 130
	p := b.open()
	for i := range many {
		b.store(p, fmt.Sprint("short", i), b.h.Retention, b.done)
		if i%10 == 0 {
			b.store(p, fmt.Sprint("long", i), time.Hour, b.done)
		}
	}
	time.Sleep(b.h.Retention + b.h.Margin)
	if r := b.sweep(p, driver.SweepOptions{}); r.Swept != many {
		b.t.Errorf("%+v, want %d swept", r, many)
	}
	left := 0
	b.must("Scan", p.Store.Scan(b.bounded(), func(string, driver.Record, bool, error) error { left++; return nil }))
	if left != many/10 {
		b.t.Errorf("%d records are left, want %d", left, many/10)
	}
}

// Evicted is called for what was removed, and for nothing else.
func sweepTellsOfEach(b *bench) {
	p := b.open()
	want := make(map[string]string)
	for i := range 3 {
		key := fmt.Sprint("short", i)
		b.store(p, key, b.h.Retention, b.done)
		want[key] = show(b.lookup(p, key))
	}
	b.store(p, "long", time.Hour, b.done)
	b.store(p, "unknown", b.h.Retention, func(c driver.Claim) { b.ended(c.GiveUp(nil)) })
	time.Sleep(b.h.Retention + b.h.Margin)
	got := make(map[string]string)
	calls := 0
	r := b.sweep(p, driver.SweepOptions{Evicted: func(key string, r driver.Record) {
		calls++
		got[key] = show(r)
		if _, err := p.Store.Lookup(b.bounded(), key, true); !errors.Is(err, driver.ErrNotFound) {
			b.t.Errorf("Lookup in Evicted of %s: %v, want %v", key, err, driver.ErrNotFound)
		}
	}})
	if !maps.Equal(got, want) {
		b.t.Errorf("Evicted was told of %v, want %v", got, want)
	}
	if calls != r.Swept {
		b.t.Errorf("%d calls of Evicted, %d swept", calls, r.Swept)
	}
}

func scan(b *bench) {
	p, q := b.open(), b.open()
	none := func(key string, _ driver.Record, _ bool, _ error) error { return errors.New(key) }
	b.must("Scan of an empty store", p.Store.Scan(b.bounded(), none))
	b.begin(p, "running")
	b.complete(b.begin(p, "done"), "one")
	b.ended(b.begin(p, "unknown").GiveUp(nil))
	var got []string
	b.must("Scan", q.Store.Scan(b.bounded(), func(key string, r driver.Record, claimed bool, err error) error {
		got = append(got, fmt.Sprintf("%s: %s, %v, %q, %v", key, r.State, claimed, r.Outcome, err))
		return nil
	}))
	slices.Sort(got)
	want := []string{`done: done, false, "one", <nil>`, `running: running, true, "", <nil>`, `unknown: running, false, "", <nil>`}
	if !slices.Equal(got, want) {
		b.t.Errorf("Scan: %q, want %q", got, want)
	}
	enough := errors.New("enough")
	calls := 0
	err := q.Store.Scan(b.bounded(), func(string, driver.Record, bool, error) error { calls++; return enough })
	if b.want("Scan that is ended", err, enough); calls != 1 {
		b.t.Errorf("%d calls after the first has failed", calls-1)
	}
}
