package deduptest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-zklock/zklock/dedup/driver"
)

func available(b *bench) {
	p := b.open()
	b.must("Available", p.Store.Available())
	if !b.can(AbilitySuspend, p.Suspend != nil) {
		return
	}
	resume := p.Suspend()
	// It takes an unanswered request to notice.
	err := b.eventually(func() error {
		if p.Store.Available() == nil {
			return errors.New("Available is nil while the process is cut off")
		}
		return nil
	})
	resume()
	b.must("suspended", err)
	b.must("Available again", b.eventually(p.Store.Available))
	b.begin(p, "k")
}

// eventually calls f until it succeeds.
func (b *bench) eventually(f func() error) error {
	ctx := b.bounded()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(b.h.Arrival):
		case <-ctx.Done():
			return fmt.Errorf("after %v: %w", b.h.Patience, err)
		}
	}
}

func closing(b *bench) {
	p, q := b.open(), b.open()
	c := b.begin(p, "k")
	select {
	case <-p.Store.Closing():
		b.t.Errorf("Closing is closed from the beginning")
	default:
	}
	p.Close()
	select {
	case <-p.Store.Closing():
	case <-b.bounded().Done():
		b.t.Fatalf("Closing is not closed by Close")
	}
	ctx := b.bounded()
	b.want("Available", p.Store.Available(), driver.ErrClosed)
	_, err := p.Store.Lookup(ctx, "k", false)
	b.want("Lookup", err, driver.ErrClosed)
	_, err = p.Store.Lookup(ctx, "k", true)
	b.want("Lookup latest", err, driver.ErrClosed)
	_, err = b.tryBegin(ctx, p, "other", sample(), true)
	b.want("Begin", err, driver.ErrClosed)
	_, err = b.tryQueue(ctx, p, "k", true)
	b.want("Queue", err, driver.ErrClosed)
	_, err = p.Store.Sweep(ctx, driver.SweepOptions{})
	b.want("Sweep", err, driver.ErrClosed)
	b.want("Scan", p.Store.Scan(ctx, func(string, driver.Record, bool, error) error { return nil }), driver.ErrClosed)
	if c.Err() == nil {
		b.t.Errorf("the claim of a closed store is held")
	}
	if err := c.Complete(ctx, c.Record().Next(driver.Done)); err == nil {
		b.t.Errorf("a closed store has stored an outcome")
	}
	select {
	case <-c.GiveUp(nil):
	case <-ctx.Done():
		b.t.Errorf("GiveUp does not end on a closed store")
	}
	// What it had is there for others.
	if r := b.queue(q, "k").Record(); r.State != driver.Running {
		b.t.Errorf("the record says %s, want running", r.State)
	}
}

func closedWhileQueueing(b *bench) {
	p, q := b.open(), b.open()
	b.begin(p, "k")
	waits := b.queueing(b.bounded(), q, "k")
	q.Close()
	b.want("Queue", b.result("Queue in a store that is closed", waits).err, driver.ErrClosed)
}

func nested(b *bench) {
	p, q := b.open(), b.open()
	c, d := b.begin(p, "k"), b.begin(p, "other")
	ctx, cancel := c.Bind(b.bounded())
	defer cancel()
	both, cancelBoth := d.Bind(ctx)
	defer cancelBoth()
	for _, tc := range []struct {
		what string
		p    *Process
		ctx  context.Context
		key  string
		want bool
	}{
		{"a plain ctx", p, b.bounded(), "k", false},
		{"the claim's ctx", p, ctx, "k", true},
		{"a ctx from the claim's", p, context.WithoutCancel(ctx), "k", true},
		{"another key", p, ctx, "other", false},
		{"two claims, the outer one", p, both, "k", true},
		{"two claims, the inner one", p, both, "other", true},
		{"another process", q, ctx, "k", false},
	} {
		if got := tc.p.Store.Nested(tc.ctx, tc.key); got != tc.want {
			b.t.Errorf("%s: Nested is %v", tc.what, got)
		}
	}
	_, err := b.tryQueue(ctx, p, "k", true)
	b.want("Queue in the claim's ctx", err, driver.ErrNested)
	_, err = b.tryQueue(ctx, p, "k", false)
	b.want("Queue without a wait in the claim's ctx", err, driver.ErrNested)
	b.ended(c.GiveUp(nil))
	if p.Store.Nested(context.WithoutCancel(ctx), "k") {
		b.t.Errorf("Nested is true though the claim is over")
	}
	again, err := b.tryQueue(context.WithoutCancel(ctx), p, "k", false)
	b.must("Queue after the claim is over", err)
	b.ended(again.GiveUp(nil))
}

func lookupNotFound(b *bench) {
	p := b.open()
	for _, latest := range []bool{false, true} {
		_, err := p.Store.Lookup(b.bounded(), "k", latest)
		b.want(fmt.Sprintf("Lookup, latest %v", latest), err, driver.ErrNotFound)
	}
}

// What one process has written another sees at once, if it asks for that.
func lookupLatest(b *bench) {
	p, q := b.open(), b.open()
	for i := range 20 {
		key := fmt.Sprint("k", i)
		c := b.begin(p, key)
		if r := b.lookup(q, key); r.State != driver.Running || r.Claim != c.ID() {
			b.t.Fatalf("%s: %s", key, show(r))
		}
		b.complete(c, "one")
		if r := b.lookup(q, key); r.State != driver.Done || string(r.Outcome) != "one" {
			b.t.Fatalf("%s: %s", key, show(r))
		}
		b.must("Lookup, not the latest", b.eventually(func() error {
			r, err := q.Store.Lookup(b.bounded(), key, false)
			if err == nil && r.State != driver.Done {
				err = errors.New(show(r))
			}
			return err
		}))
	}
}

// A record that cannot be read is an error of every call, and stays as it is.
func unreadable(b *bench) {
	if !b.can(AbilityPut, b.h.Put != nil) {
		return
	}
	p := b.open()
	newer := []byte("zklock-dedup/2 {\"state\":\"done\"}\n")
	for key, tc := range map[string]struct {
		data []byte
		want error
	}{
		"newer":   {newer, driver.ErrNewerFormat},
		"corrupt": {[]byte("garbage"), driver.ErrCorrupt},
		"cut":     {[]byte("zklock-dedup/1 {\"state\":\"done\",\"size\":9}\nshort"), driver.ErrCorrupt},
	} {
		r := sample()
		r.Retention = time.Millisecond // it would be swept
		c, err := b.tryBegin(b.bounded(), p, key, r, false)
		b.must("Begin", err)
		b.complete(c, "")
		b.must("Put", b.h.Put(key, tc.data))
		for _, latest := range []bool{false, true} {
			err := b.eventually(func() error {
				if _, err := p.Store.Lookup(b.bounded(), key, latest); err != nil {
					b.want(key+": Lookup", err, tc.want)
					return nil
				}
				return errors.New("Lookup finds a record")
			})
			b.must(key, err)
		}
		_, err = b.tryBegin(b.bounded(), p, key, sample(), true)
		b.want(key+": Begin", err, tc.want)
		_, err = b.tryQueue(b.bounded(), p, key, true)
		b.want(key+": Queue", err, tc.want)
	}
	time.Sleep(b.h.Retention + b.h.Margin)
	swept := b.sweep(p, driver.SweepOptions{Unknown: true})
	if swept.Swept != 0 || swept.Unusable != 3 {
		b.t.Errorf("Sweep: %+v, want 3 unusable", swept)
	}
	failed := 0
	b.must("Scan", p.Store.Scan(b.bounded(), func(key string, _ driver.Record, _ bool, err error) error {
		if !driver.Unusable(err) {
			b.t.Errorf("Scan: %s: %v", key, err)
		}
		failed++
		return nil
	}))
	if failed != 3 {
		b.t.Errorf("Scan comes to %d records, want 3", failed)
	}
}

func beginMakesRecordAndClaim(b *bench) {
	p, q := b.open(), b.open()
	began := time.Now()
	want := sample()
	c, err := b.tryBegin(b.bounded(), p, "k", want, false)
	b.must("Begin", err)
	if c.ID() == "" || c.Token() == 0 || c.Err() != nil {
		b.t.Errorf("claim %q, token %d, %v", c.ID(), c.Token(), c.Err())
	}
	want.Claim, want.Token = c.ID(), c.Token()
	r := b.lookup(q, "k")
	want.Version, want.Created, want.Updated = r.Version, r.Created, r.Updated
	b.same("Lookup", r, want, true)
	// Clocks of two machines differ.
	if d := r.Updated.Sub(began).Abs(); d > 10*time.Minute || !r.Created.Equal(r.Updated) {
		b.t.Errorf("created %v, updated %v; it is %v", r.Created, r.Updated, began)
	}
	b.same("Claim.Record", c.Record(), want, false)
	if c.Record().Claim != c.ID() {
		b.t.Errorf("Claim.Record is of claim %q, want %q", c.Record().Claim, c.ID())
	}
	b.taken(q, "k")
	b.taken(p, "k")
}

func beginExists(b *bench) {
	p, q := b.open(), b.open()
	c := b.begin(p, "k")
	for _, state := range []driver.State{driver.Running, driver.Done} {
		was := b.lookup(p, "k")
		for _, other := range []*Process{p, q} {
			r := sample()
			r.Owner = "another"
			got, err := b.tryBegin(b.bounded(), other, "k", r, true)
			var exists *driver.ExistsError
			if !errors.As(err, &exists) || !errors.Is(err, driver.ErrExists) {
				b.t.Fatalf("%s: Begin: %v, %v, want an ExistsError", state, got, err)
			}
			b.same("ExistsError", exists.Record, was, true)
			b.same("after it", b.lookup(q, "k"), was, true)
		}
		if state == driver.Running {
			b.complete(c, "one")
		}
	}
	b.free(q, "k") // it has left no claim
}

func beginIsExclusive(b *bench) {
	procs := []*Process{b.open(), b.open(), b.open()}
	for i := range 5 {
		key := fmt.Sprint("k", i)
		type result struct {
			c   driver.Claim
			err error
		}
		const each = 4
		results := make(chan result)
		for _, p := range procs {
			for range each {
				go func() {
					c, err := b.tryBegin(b.bounded(), p, key, sample(), true)
					results <- result{c, err}
				}()
			}
		}
		var won []driver.Claim
		for range each * len(procs) {
			r := <-results
			if r.err == nil {
				won = append(won, r.c)
			} else if !errors.Is(r.err, driver.ErrExists) {
				b.t.Errorf("Begin: %v, want ErrExists", r.err)
			}
		}
		if len(won) != 1 {
			b.t.Fatalf("%d of %d Begins made the record", len(won), each*len(procs))
		}
		if r := b.lookup(procs[0], key); r.Claim != won[0].ID() {
			b.t.Errorf("the record is of claim %q, want %q", r.Claim, won[0].ID())
		}
		b.complete(won[0], "one")
	}
}

func beginTooLarge(b *bench) {
	p := b.open()
	r := sample()
	r.Outcome = make([]byte, 2*p.Store.MaxOutcome("k")+(1<<20))
	_, err := b.tryBegin(b.bounded(), p, "k", r, true)
	b.want("Begin", err, driver.ErrTooLarge)
	_, err = p.Store.Lookup(b.bounded(), "k", true)
	b.want("Lookup after it", err, driver.ErrNotFound)
	b.begin(p, "k")
}

// A Begin whose answer does not come is made good: there is no record, or it is open
// with attempt 0, and somebody else's turn.
func beginUnknown(b *bench) {
	p, q := b.open(), b.open()
	b.complete(b.begin(p, "first"), "") // whatever is made on first use is there
	if !b.can(AbilitySuspend, p.Suspend != nil) {
		return
	}
	resume := p.Suspend()
	var c driver.Claim
	err := b.soon("Begin while cut off", b.h.Margin, func(ctx context.Context) error {
		var err error
		c, err = b.tryBegin(ctx, p, "k", sample(), true)
		return err
	})
	resume()
	if err == nil {
		b.t.Fatalf("Begin made claim %q while it was cut off", c.ID())
	}
	var unknown *driver.UnknownError
	if errors.As(err, &unknown) && (unknown.Claim == "" || !errors.Is(err, driver.ErrUnknown)) {
		b.t.Errorf("%v of claim %q", err, unknown.Claim)
	}
	b.must("the record is made good", b.eventually(func() error {
		r, err := q.Store.Lookup(b.bounded(), "k", true)
		switch {
		case errors.Is(err, driver.ErrNotFound):
			return nil
		case err != nil:
			return err
		case unknown == nil:
			b.t.Fatalf("the record was made, and Begin said that it was not: %s", show(r))
		case r.Claim != unknown.Claim:
			b.t.Fatalf("the record is of claim %q, want %q", r.Claim, unknown.Claim)
		case r.State != driver.Open || r.Attempt != 0:
			return errors.New(show(r))
		}
		b.free(q, "k")
		return nil
	}))
}

// Keys of all kinds, as dedup.Key.String gives them, are apart from each other.
func keys(b *bench) {
	p := b.open()
	long := strings.Repeat("k", driver.MaxKey)
	all := []string{
		"k", "K", "k ", " ", "k%2F", "k%2f", "%2E", "scope%3Aid", "scope:id", "sch\u00fcssel", "schu\u0308ssel", "\u20ac\u65e5\u672c",
		"_c_lock-", "0000000001", "record", "'\"\\`$", long, long[:len(long)-1] + "j", long[:len(long)-1],
	}
	for _, key := range all {
		b.complete(b.begin(p, key), key)
	}
	found := make(map[string]string)
	b.must("Scan", p.Store.Scan(b.bounded(), func(key string, r driver.Record, _ bool, err error) error {
		found[key] = string(r.Outcome)
		return err
	}))
	for _, key := range all {
		if r := b.lookup(p, key); string(r.Outcome) != key || found[key] != key {
			b.t.Errorf("%.40q: Lookup finds %.40q, Scan %.40q", key, r.Outcome, found[key])
		}
	}
	if len(found) != len(all) {
		b.t.Errorf("Scan finds %d keys, want %d", len(found), len(all))
	}
}

func roundTrip(b *bench) {
	p, q := b.open(), b.open()
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for i, want := range []driver.Record{
		{State: driver.Done, Attempt: 7, Fingerprint: all, Retention: 36*time.Hour + time.Nanosecond, Owner: "h\u00f6st \"1\"\n", Outcome: append([]byte("\n\n"), all...)},
		{State: driver.Done, Attempt: 1, Retention: time.Hour, Omitted: "it has 9 bytes, the limit is 8"},
		{State: driver.Done, Attempt: 1, Retention: time.Hour, Outcome: []byte{0}},
		{State: driver.Failed, Attempt: 2, Retention: time.Second, Message: strings.Repeat("m\u20ac", 1000)},
		{State: driver.Open, Attempt: 0, Retention: time.Hour, Message: "\x00\u2028"},
	} {
		key := fmt.Sprint("k", i)
		c := b.begin(p, key)
		b.must("Complete", c.Complete(b.bounded(), want))
		want.Claim, want.Token = c.ID(), c.Token()
		r := b.lookup(q, key)
		b.same(key, r, want, false)
		if r.Claim != want.Claim || r.Token != want.Token {
			b.t.Errorf("%s: claim %q, token %d, want %q, %d", key, r.Claim, r.Token, want.Claim, want.Token)
		}
		if r.Updated.Before(r.Created) {
			b.t.Errorf("%s: created %v, updated %v", key, r.Created, r.Updated)
		}
	}
}

func largeOutcomes(b *bench) {
	p, q := b.open(), b.open()
	for _, key := range []string{"k", strings.Repeat("k", driver.MaxKey)} {
		most := p.Store.MaxOutcome(key)
		if most < 64<<10 {
			b.t.Errorf("MaxOutcome is %d, too little to be of use", most)
		}
		c := b.begin(p, key)
		r := c.Record().Next(driver.Done)
		r.Outcome = bytes.Repeat([]byte{0xff}, most)
		r.Fingerprint, r.Owner = bytes.Repeat([]byte{1}, 32), strings.Repeat("\x01", 1<<10) // which is long as JSON
		b.must("Complete with MaxOutcome", c.Complete(b.bounded(), r))
		if got := b.lookup(q, key); !bytes.Equal(got.Outcome, r.Outcome) {
			b.t.Errorf("%d bytes came back, want %d", len(got.Outcome), most)
		}
		if got := b.free(q, key); !bytes.Equal(got.Outcome, r.Outcome) {
			b.t.Errorf("Queue reads %d bytes, want %d", len(got.Outcome), most)
		}
	}
	// One more is stored whole, or refused.
	c := b.begin(p, "more")
	r := c.Record().Next(driver.Done)
	r.Outcome = make([]byte, p.Store.MaxOutcome("more")+1)
	switch err := c.Complete(b.bounded(), r); {
	case err == nil:
		if got := b.lookup(q, "more"); len(got.Outcome) != len(r.Outcome) {
			b.t.Errorf("%d bytes came back, want %d", len(got.Outcome), len(r.Outcome))
		}
	case !errors.Is(err, driver.ErrTooLarge):
		b.t.Errorf("one more than MaxOutcome: %v, want ErrTooLarge", err)
	}
}

// Fields of a newer build stay.
func unknownFields(b *bench) {
	if !b.can(AbilityPut, b.h.Put != nil) {
		return
	}
	p, q := b.open(), b.open()
	b.ended(b.begin(p, "k").GiveUp(nil))
	b.must("Put", b.h.Put("k", []byte("zklock-dedup/1 {\"state\":\"open\",\"attempt\":1,\"retention\":\"1h\",\"colour\":\"blue\",\"size\":0}\n")))
	c := b.queue(q, "k")
	b.must("Renew", c.Renew(b.bounded(), c.Record().Next(driver.Running)))
	b.complete(c, "one")
	data, err := b.lookup(p, "k").MarshalBinary()
	if err != nil || !bytes.Contains(data, []byte(`"colour":"blue"`)) {
		b.t.Errorf("%q, %v: the unknown field is gone", data, err)
	}
}

// ctx bounds every call.
func endedContext(b *bench) {
	p, q := b.open(), b.open()
	c := b.begin(p, "k")
	reason := errors.New("because")
	over, cancel := context.WithCancelCause(b.t.Context())
	cancel(reason)
	calls := map[string]func(ctx context.Context) error{
		"Lookup":        func(ctx context.Context) error { _, err := p.Store.Lookup(ctx, "k", false); return err },
		"Lookup latest": func(ctx context.Context) error { _, err := p.Store.Lookup(ctx, "k", true); return err },
		"Begin":         func(ctx context.Context) error { _, err := b.tryBegin(ctx, p, "new", sample(), true); return err },
		"Queue":         func(ctx context.Context) error { _, err := b.tryQueue(ctx, p, "k", true); return err },
		"Renew":         func(ctx context.Context) error { return c.Renew(ctx, c.Record().Next(driver.Running)) },
		"Sweep":         func(ctx context.Context) error { _, err := p.Store.Sweep(ctx, driver.SweepOptions{}); return err },
		"Scan": func(ctx context.Context) error {
			return p.Store.Scan(ctx, func(string, driver.Record, bool, error) error { return nil })
		},
	}
	for name, call := range calls {
		err := b.soon(name, b.h.Margin, func(context.Context) error { return call(over) })
		if err == nil {
			b.t.Errorf("%s succeeds with a ctx that is over", name)
		}
	}
	_, err := q.Store.Lookup(b.bounded(), "new", true)
	if err == nil {
		b.must("a Begin with a ctx that is over is opened again", b.eventually(func() error {
			r, err := q.Store.Lookup(b.bounded(), "new", true)
			if err == nil && r.State != driver.Open {
				err = errors.New(show(r))
			}
			return err
		}))
	}
	if !b.can(AbilitySuspend, p.Suspend != nil) {
		return
	}
	resume := p.Suspend()
	for name, call := range calls {
		if err := b.soon(name+" while cut off", 100*time.Millisecond, call); err == nil {
			b.t.Errorf("%s succeeds while the process is cut off", name)
		}
	}
	resume()
	b.must("Lookup afterwards", b.eventually(func() error { return calls["Lookup"](b.bounded()) }))
}
