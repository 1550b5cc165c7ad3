package deduptest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zklock/zklock/dedup/driver"
)

// Ability is something that not every storage, or not every test of one, can do.
type Ability string

// Abilities.
const (
	AbilityLose    Ability = "Process.Lose"
	AbilitySuspend Ability = "Process.Suspend"
	AbilityPut     Ability = "Harness.Put"
)

// Harness is a storage under test, without data.
type Harness struct {
	// Open opens a store on the harness's data, as another process would, and closes it
	// with the test. It fails the test if it cannot.
	Open func(t testing.TB) *Process

	// Put writes the bytes of a record past the driver, as driver.Record.MarshalBinary
	// makes them or not. nil: see Cannot.
	Put func(key string, data []byte) error

	// Cannot has the reason for each ability that is not there. One that is neither there
	// nor here fails the test.
	Cannot map[Ability]string

	// Patience bounds each wait for something that has to happen, such as the end of a
	// dead process's claims. Default 1 min.
	Patience time.Duration

	// Arrival is how long a call that was made may take to reach the storage, so that the
	// next one comes behind it. It is waited for where the order of calls counts.
	// Default 100 ms.
	Arrival time.Duration

	// Lag is how long a process may go on being shown a claim that another one has
	// ended. Default 1 s.
	Lag time.Duration

	// Retention is the shortest one that the storage keeps to within Margin. Defaults
	// 4 s, 2 s.
	Retention, Margin time.Duration
}

// Process is one store with what can be done to its process.
type Process struct {
	Store driver.Store

	// Kill ends the process without a word: its claims go when the storage notices. The
	// store is not used any more, but may be closed by the test's end.
	Kill func()

	// Close closes the store in good order.
	Close func()

	// Lose takes the process's claims away while it lives. It may take until the storage
	// has noticed. nil: see Harness.Cannot.
	Lose func()

	// Suspend cuts the process's connection, and resume mends it. nil: see
	// Harness.Cannot.
	Suspend func() (resume func())
}

// can says whether an ability is there. If it is not, it is said why.
func (b *bench) can(a Ability, there bool) bool {
	b.t.Helper()
	why := b.h.Cannot[a]
	switch {
	case there && why != "":
		b.t.Fatalf("the harness has %s, and says that it cannot: %s", a, why)
	case there:
		return true
	case why == "":
		b.t.Fatalf("the harness has no %s, and does not say why (Cannot)", a)
	}
	b.t.Logf("without %s: %s", a, why)
	return false
}

// bench is what a case works with.
type bench struct {
	t testing.TB
	h *Harness

	mu     sync.Mutex
	claims []*tracked
}

// Run runs all cases. each is called for every one, in a subtest of its own, and has to
// call test with a new harness before it returns.
func Run(t *testing.T, each func(t *testing.T, test func(t *testing.T, h *Harness))) {
	t.Helper()
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) {
			called := false
			each(t, func(t *testing.T, h *Harness) {
				t.Helper()
				called = true
				b := newBench(t, h)
				defer b.end()
				c.run(b)
			})
			if !called {
				t.Error("the case was not run")
			}
		})
	}
}

func newBench(t testing.TB, h *Harness) *bench {
	h.Patience = orDefault(h.Patience, time.Minute)
	h.Arrival = orDefault(h.Arrival, 100*time.Millisecond)
	h.Lag = orDefault(h.Lag, time.Second)
	h.Retention = orDefault(h.Retention, 4*time.Second)
	h.Margin = orDefault(h.Margin, 2*time.Second)
	return &bench{t: t, h: h}
}

func orDefault(d, def time.Duration) time.Duration {
	if d == 0 {
		return def
	}
	return d
}

type namedCase struct {
	name string
	run  func(b *bench)
}

// bounded is a ctx for a wait.
func (b *bench) bounded() context.Context {
	ctx, cancel := context.WithTimeout(b.t.Context(), b.h.Patience)
	b.t.Cleanup(cancel)
	return ctx
}

func (b *bench) open() *Process {
	b.t.Helper()
	return b.h.Open(b.t)
}

// sample is a record for Begin.
func sample() driver.Record {
	return driver.Record{State: driver.Running, Attempt: 1, Fingerprint: []byte{1, 0, 2}, Retention: time.Hour, Owner: "host 1"}
}

func (b *bench) must(what string, err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
}

func (b *bench) want(what string, err, target error) {
	b.t.Helper()
	if !errors.Is(err, target) {
		b.t.Errorf("%s: %v, want %v", what, err, target)
	}
}

// begin makes a record and its claim.
func (b *bench) begin(p *Process, key string) driver.Claim {
	b.t.Helper()
	c, err := b.tryBegin(b.bounded(), p, key, sample(), false)
	b.must("Begin "+key, err)
	return c
}

// tracked is a claim that the case's end gives up if nothing else has: a store may
// keep its process until then.
type tracked struct {
	driver.Claim
	ended atomic.Bool
}

func (c *tracked) Complete(ctx context.Context, r driver.Record) error {
	c.ended.Store(true)
	return c.Claim.Complete(ctx, r)
}

func (c *tracked) GiveUp(r *driver.Record) <-chan struct{} {
	c.ended.Store(true)
	return c.Claim.GiveUp(r)
}

func (b *bench) track(c driver.Claim) driver.Claim {
	if c == nil {
		return nil
	}
	t := &tracked{Claim: c}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.claims = append(b.claims, t)
	return t
}

// end gives up what the case has left. It does not wait: the process may be dead.
func (b *bench) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.claims {
		if !c.ended.Load() {
			c.GiveUp(nil)
		}
	}
}

// tryBegin is Store.Begin.
func (b *bench) tryBegin(ctx context.Context, p *Process, key string, r driver.Record, wait bool) (driver.Claim, error) {
	c, err := p.Store.Begin(ctx, key, r, wait)
	return b.track(c), err
}

// tryQueue is Store.Queue.
func (b *bench) tryQueue(ctx context.Context, p *Process, key string, wait bool) (driver.Claim, error) {
	c, err := p.Store.Queue(ctx, key, wait)
	return b.track(c), err
}

// queue waits for the claim on a record.
func (b *bench) queue(p *Process, key string) driver.Claim {
	b.t.Helper()
	c, err := b.tryQueue(b.bounded(), p, key, true)
	b.must("Queue "+key, err)
	return c
}

// complete stores an outcome.
func (b *bench) complete(c driver.Claim, outcome string) {
	b.t.Helper()
	r := c.Record().Next(driver.Done)
	r.Outcome = []byte(outcome)
	b.must("Complete", c.Complete(b.bounded(), r))
}

// lookup reads the newest record.
func (b *bench) lookup(p *Process, key string) driver.Record {
	b.t.Helper()
	r, err := p.Store.Lookup(b.bounded(), key, true)
	b.must("Lookup "+key, err)
	return r
}

// ended waits for the end of a claim that was given up, or of its ctx.
func (b *bench) ended(ch <-chan struct{}) {
	b.t.Helper()
	select {
	case <-ch:
	case <-b.bounded().Done():
		b.t.Fatalf("the claim does not end")
	}
}

// free fails if somebody has the claim or waits for it.
func (b *bench) free(p *Process, key string) driver.Record {
	b.t.Helper()
	c, err := b.tryQueue(b.bounded(), p, key, false)
	for shown := time.Now().Add(b.h.Lag); errors.Is(err, driver.ErrClaimed) && time.Now().Before(shown); {
		time.Sleep(b.h.Lag / 100) // a driver has nothing that tells a process what it will be shown
		c, err = b.tryQueue(b.bounded(), p, key, false)
	}
	b.must("the claim should be free: Queue without a wait", err)
	r := c.Record()
	b.ended(c.GiveUp(nil))
	return r
}

// taken fails if nobody has the claim.
func (b *bench) taken(p *Process, key string) {
	b.t.Helper()
	c, err := b.tryQueue(b.bounded(), p, key, false)
	if err == nil {
		b.ended(c.GiveUp(nil))
	}
	b.want("the claim should be taken: Queue without a wait", err, driver.ErrClaimed)
}

// granted is what a Queue in the background came to.
type granted struct {
	c   driver.Claim
	err error
}

// queueing starts a Queue and waits until it has arrived.
func (b *bench) queueing(ctx context.Context, p *Process, key string) <-chan granted {
	ch := make(chan granted, 1)
	go func() {
		c, err := b.tryQueue(ctx, p, key, true)
		ch <- granted{c, err}
	}()
	time.Sleep(b.h.Arrival)
	return ch
}

// result waits for a Queue in the background.
func (b *bench) result(what string, ch <-chan granted) granted {
	b.t.Helper()
	select {
	case g := <-ch:
		return g
	case <-b.bounded().Done():
		b.t.Fatalf("%s: nothing within %v", what, b.h.Patience)
		return granted{}
	}
}

// holds waits for a Queue in the background that has to get the claim.
func (b *bench) holds(what string, ch <-chan granted) driver.Claim {
	b.t.Helper()
	g := b.result(what, ch)
	b.must(what, g.err)
	return g.c
}

// notYet fails if a Queue in the background has returned.
func (b *bench) notYet(what string, ch <-chan granted) {
	b.t.Helper()
	select {
	case g := <-ch:
		b.t.Fatalf("%s: Queue returned %v, %v; it was to wait", what, g.c, g.err)
	case <-time.After(b.h.Arrival):
	}
}

// soon fails if a call with a ctx that is over in d takes much longer.
func (b *bench) soon(what string, d time.Duration, f func(ctx context.Context) error) error {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), d)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	select {
	case err := <-done:
		return err
	case <-time.After(d + b.h.Margin):
		b.t.Fatalf("%s: it takes more than %v longer than its ctx", what, b.h.Margin)
		return nil
	}
}

// same compares records, without what the store sets if stored is false.
func (b *bench) same(what string, got, want driver.Record, stored bool) {
	b.t.Helper()
	if !stored {
		got.Version, got.Created, got.Updated = want.Version, want.Created, want.Updated
		got.Claim, got.Token = want.Claim, want.Token
	}
	g, w := show(got), show(want)
	if g != w {
		b.t.Errorf("%s: the record is\n%s, want\n%s", what, g, w)
	}
}

func show(r driver.Record) string {
	data, err := r.MarshalBinary()
	if len(data) > 1000 {
		data = append(data[:1000:1000], fmt.Sprintf("… %d bytes", len(data))...)
	}
	return fmt.Sprintf("%q (%v) version %d, created %d, updated %d", data, err, r.Version, r.Created.UnixMilli(), r.Updated.UnixMilli())
}
