package deduptest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zklock/zklock/dedup/driver"
)

// attempt is a testing.TB that keeps what failed.
type attempt struct {
	testing.TB
	ctx    context.Context
	cancel context.CancelFunc

	mu       sync.Mutex
	failures []string
	cleanups []func()
}

func (a *attempt) Helper()                  {}
func (a *attempt) Logf(string, ...any)      {}
func (a *attempt) Context() context.Context { return a.ctx }

func (a *attempt) Cleanup(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cleanups = append(a.cleanups, f)
}

func (a *attempt) Errorf(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failures = append(a.failures, fmt.Sprintf(format, args...))
}

func (a *attempt) Fatalf(format string, args ...any) {
	a.Errorf(format, args...)
	runtime.Goexit()
}

// try runs one case, and returns what failed.
func try(t *testing.T, c namedCase, h *Harness) []string {
	a := &attempt{TB: t}
	a.ctx, a.cancel = context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := newBench(a, h)
		defer b.end()
		c.run(b)
	}()
	<-done
	a.cancel()
	for _, f := range slices.Backward(a.cleanups) {
		f()
	}
	return a.failures
}

// wrong is a Memory with one thing that is not right.
type wrong struct {
	*Memory
	begin  func(ctx context.Context, key string, r driver.Record) (driver.Claim, error)
	queue  func(ctx context.Context, key string, wait bool) (driver.Claim, error)
	lookup func(ctx context.Context, key string) (driver.Record, error)
	sweep  func(ctx context.Context, opts driver.SweepOptions) (driver.SweepReport, error)
	scan   func(f func(key string, r driver.Record, claimed bool, err error) error) func(string, driver.Record, bool, error) error
	claim  func(c *memoryClaim) driver.Claim
	nested func() bool
	most   int
	closes <-chan struct{}
}

func (w *wrong) claimed(c driver.Claim, err error) (driver.Claim, error) {
	if m, ok := c.(*memoryClaim); ok && err == nil && w.claim != nil {
		return w.claim(m), nil
	}
	return c, err
}

func (w *wrong) Begin(ctx context.Context, key string, r driver.Record, wait bool) (driver.Claim, error) {
	if w.begin != nil {
		return w.claimed(w.begin(ctx, key, r))
	}
	return w.claimed(w.Memory.Begin(ctx, key, r, wait))
}

func (w *wrong) Queue(ctx context.Context, key string, wait bool) (driver.Claim, error) {
	if w.queue != nil {
		return w.claimed(w.queue(ctx, key, wait))
	}
	return w.claimed(w.Memory.Queue(ctx, key, wait))
}

func (w *wrong) Lookup(ctx context.Context, key string, latest bool) (driver.Record, error) {
	if w.lookup != nil {
		return w.lookup(ctx, key)
	}
	return w.Memory.Lookup(ctx, key, latest)
}

func (w *wrong) Sweep(ctx context.Context, opts driver.SweepOptions) (driver.SweepReport, error) {
	if w.sweep != nil {
		return w.sweep(ctx, opts)
	}
	return w.Memory.Sweep(ctx, opts)
}

func (w *wrong) Scan(ctx context.Context, f func(string, driver.Record, bool, error) error) error {
	if w.scan != nil {
		f = w.scan(f)
	}
	return w.Memory.Scan(ctx, f)
}

func (w *wrong) Nested(ctx context.Context, key string) bool {
	if w.nested != nil {
		return w.nested()
	}
	return w.Memory.Nested(ctx, key)
}

func (w *wrong) MaxOutcome(key string) int {
	if w.most != 0 {
		return w.most
	}
	return w.Memory.MaxOutcome(key)
}

func (w *wrong) Closing() <-chan struct{} {
	if w.closes != nil {
		return w.closes
	}
	return w.Memory.Closing()
}

// wrongClaim is a claim with one thing that is not right.
type wrongClaim struct {
	*memoryClaim
	write func(r driver.Record) driver.Record // before every write
	pre   func()                              // before every write, without the lock
	keep  bool                                // Complete does not end the claim
	deaf  bool                                // the gates do not tell
	token int64
	loose bool // Bind does not end with the claim
	mute  bool // GiveUp writes nothing
}

func (c *wrongClaim) prepare(r driver.Record) driver.Record {
	if c.pre != nil {
		c.pre()
	}
	if c.write != nil {
		return c.write(r)
	}
	return r
}

func (c *wrongClaim) Token() int64 {
	if c.token != 0 {
		return c.token
	}
	return c.memoryClaim.Token()
}

func (c *wrongClaim) Err() error {
	if c.deaf {
		return nil
	}
	return c.memoryClaim.Err()
}

func (c *wrongClaim) Bind(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.loose {
		return context.WithCancel(context.WithValue(ctx, memoryNested{c.m, c.key}, c.memoryClaim))
	}
	return c.memoryClaim.Bind(ctx)
}

func (c *wrongClaim) Renew(ctx context.Context, r driver.Record) error {
	return c.memoryClaim.Renew(ctx, c.prepare(r))
}

func (c *wrongClaim) Complete(ctx context.Context, r driver.Record) error {
	if c.keep {
		return c.memoryClaim.Renew(ctx, r)
	}
	return c.memoryClaim.Complete(ctx, c.prepare(r))
}

func (c *wrongClaim) GiveUp(r *driver.Record) <-chan struct{} {
	if c.mute {
		r = nil
	}
	if r != nil {
		prepared := c.prepare(*r)
		r = &prepared
	}
	return c.memoryClaim.GiveUp(r)
}

// on makes wrong claims.
func on(f func(c *wrongClaim)) func(m *Memory) *wrong {
	return func(m *Memory) *wrong {
		return &wrong{Memory: m, claim: func(c *memoryClaim) driver.Claim {
			w := &wrongClaim{memoryClaim: c}
			f(w)
			return w
		}}
	}
}

// remove removes a record.
func (m *Memory) remove(key string) {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	delete(m.d.records, key)
}

// copied is a store of its own with a copy of one record: its claims keep nobody away.
func (m *Memory) copied(key string) *Memory {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	other := NewMemory()
	other.d.token = m.d.token
	if r := m.d.records[key]; r != nil {
		other.d.records[key] = &memoryRecord{data: r.data, version: r.version, created: r.created, updated: r.updated}
	}
	return other
}

// Every case fails for a store that does what the case is about wrong.
func TestCasesBite(t *testing.T) {
	bitten := make(map[string]bool)
	for _, tc := range []struct {
		name string
		want []string // cases that have to fail
		open func(m *Memory) *wrong
	}{
		{"gives the claim twice", []string{"OneClaimAtATime", "QueueNoWait", "QueueFIFO"}, func(m *Memory) *wrong {
			return &wrong{Memory: m, queue: func(ctx context.Context, key string, wait bool) (driver.Claim, error) {
				return m.copied(key).Queue(ctx, key, wait)
			}}
		}},
		{"ignores the version", []string{"Conflict"}, on(func(c *wrongClaim) {
			c.pre = func() {
				c.m.d.mu.Lock()
				defer c.m.d.mu.Unlock()
				if c.queue != nil {
					c.rec.Version = c.queue.version
				}
			}
		})},
		{"loses the outcome", []string{"RoundTrip", "Complete", "LookupLatest"}, on(func(c *wrongClaim) {
			c.write = func(r driver.Record) driver.Record { r.Outcome = nil; return r }
		})},
		{"loses the message", []string{"RoundTrip", "GiveUp"}, on(func(c *wrongClaim) {
			c.write = func(r driver.Record) driver.Record { r.Message = ""; return r }
		})},
		{"rounds the retention", []string{"RoundTrip"}, on(func(c *wrongClaim) {
			c.write = func(r driver.Record) driver.Record { r.Retention = r.Retention.Round(time.Second); return r }
		})},
		{"keeps the first owner", []string{"Renew", "DeadProcess"}, on(func(c *wrongClaim) {
			c.write = func(r driver.Record) driver.Record { r.Owner = "host 1"; return r }
		})},
		{"drops fields of newer builds", []string{"UnknownFields"}, on(func(c *wrongClaim) {
			c.write = func(r driver.Record) driver.Record {
				return driver.Record{State: r.State, Attempt: r.Attempt, Fingerprint: r.Fingerprint, Retention: r.Retention, Owner: r.Owner, Outcome: r.Outcome, Omitted: r.Omitted, Message: r.Message}
			}
		})},
		{"cuts large outcomes", []string{"LargeOutcomes", "CompleteTooLarge"}, on(func(c *wrongClaim) {
			c.write = func(r driver.Record) driver.Record { r.Outcome = r.Outcome[:min(len(r.Outcome), 1000)]; return r }
		})},
		{"promises too large outcomes", []string{"LargeOutcomes"}, func(m *Memory) *wrong { return &wrong{Memory: m, most: 2 << 20} }},
		{"has one token", []string{"TokensGrow", "QueueFIFO", "OneClaimAtATime"}, on(func(c *wrongClaim) { c.token = 7 })},
		{"ends no claim with its outcome", []string{"Complete", "Gates"}, on(func(c *wrongClaim) { c.keep = true })},
		{"does not tell of a loss", []string{"ClaimLost", "SuspendedForLong", "Gates"}, on(func(c *wrongClaim) { c.deaf = true })},
		{"does not end the ctx", []string{"Bind", "ClaimLost", "SuspendedForLong"}, on(func(c *wrongClaim) { c.loose = true })},
		{"opens nothing", []string{"GiveUp", "OneClaimAtATime", "EndsInTheBackground"}, on(func(c *wrongClaim) { c.mute = true })},
		{"writes without a claim", []string{"ClaimLost", "SuspendedForLong"}, on(func(c *wrongClaim) {
			r := c.queue
			c.write = func(rec driver.Record) driver.Record {
				if data, err := rec.MarshalBinary(); err == nil {
					c.m.d.mu.Lock()
					defer c.m.d.mu.Unlock()
					if c.queue == nil {
						r.write(data)
					}
				}
				return rec
			}
		})},
		{"makes records anew", []string{"BeginExists", "BeginIsExclusive", "Unreadable"}, func(m *Memory) *wrong {
			return &wrong{Memory: m, begin: func(ctx context.Context, key string, r driver.Record) (driver.Claim, error) {
				m.remove(key)
				return m.Begin(ctx, key, r, true)
			}}
		}},
		{"forgets the fingerprint", []string{"BeginMakesRecordAndClaim"}, func(m *Memory) *wrong {
			return &wrong{Memory: m, begin: func(ctx context.Context, key string, r driver.Record) (driver.Claim, error) {
				r.Fingerprint = nil
				return m.Begin(ctx, key, r, true)
			}}
		}},
		{"cuts large records", []string{"BeginTooLarge"}, func(m *Memory) *wrong {
			return &wrong{Memory: m, begin: func(ctx context.Context, key string, r driver.Record) (driver.Claim, error) {
				r.Outcome = nil
				return m.Begin(ctx, key, r, true)
			}}
		}},
		{"leaves what was not answered", []string{"BeginUnknown", "EndedContext"}, func(m *Memory) *wrong {
			return &wrong{Memory: m, begin: func(ctx context.Context, key string, r driver.Record) (driver.Claim, error) {
				if m.Available() == nil && ctx.Err() == nil {
					return m.Begin(ctx, key, r, true)
				}
				if c, err := m.Another().Begin(context.WithoutCancel(ctx), key, r, true); err == nil {
					return nil, &driver.UnknownError{Claim: c.ID(), Err: errors.New("no answer")}
				}
				return nil, context.DeadlineExceeded
			}}
		}},
		{"mixes keys up", []string{"Keys"}, func(m *Memory) *wrong {
			return &wrong{Memory: m, begin: func(ctx context.Context, key string, r driver.Record) (driver.Claim, error) {
				return m.Begin(ctx, key[:min(len(key), 100)], r, true)
			}}
		}},
		{"queues for nothing", []string{"QueueNotFound"}, func(m *Memory) *wrong {
			return &wrong{Memory: m, queue: func(ctx context.Context, key string, wait bool) (driver.Claim, error) {
				if c, err := m.Begin(ctx, key, driver.Record{State: driver.Open}, true); err == nil {
					return c, nil
				}
				return m.Queue(ctx, key, wait)
			}}
		}},
		{"lets the last go first", []string{"QueueFIFO"}, func(m *Memory) *wrong {
			return &wrong{Memory: m, queue: func(ctx context.Context, key string, wait bool) (driver.Claim, error) {
				time.AfterFunc(time.Millisecond, func() {
					m.d.mu.Lock()
					defer m.d.mu.Unlock()
					if r := m.d.records[key]; r != nil && len(r.queue) > 2 {
						slices.Reverse(r.queue[1:])
					}
				})
				return m.Queue(ctx, key, wait)
			}}
		}},
		{"forgets who waits", []string{"QueueLeaves"}, func(m *Memory) *wrong {
			return &wrong{Memory: m, queue: func(ctx context.Context, key string, wait bool) (driver.Claim, error) {
				type result struct {
					c   driver.Claim
					err error
				}
				ch := make(chan result, 1)
				go func() {
					c, err := m.Queue(context.WithoutCancel(ctx), key, wait)
					ch <- result{c, err}
				}()
				select {
				case r := <-ch:
					return r.c, r.err
				case <-ctx.Done():
					return nil, context.Cause(ctx)
				}
			}}
		}},
		{"reads what was there before", []string{"QueueSeesWhatWasStored", "OneClaimAtATime"}, func(m *Memory) *wrong {
			return &wrong{Memory: m, queue: func(ctx context.Context, key string, wait bool) (driver.Claim, error) {
				was, _ := m.Lookup(ctx, key, true)
				c, err := m.Queue(ctx, key, wait)
				if mc, ok := c.(*memoryClaim); ok && err == nil {
					mc.rec = was
				}
				return c, err
			}}
		}},
		{"lags behind", []string{"LookupLatest"}, func(m *Memory) *wrong {
			old := make(map[string]driver.Record)
			return &wrong{Memory: m, lookup: func(ctx context.Context, key string) (driver.Record, error) {
				now, err := m.Lookup(ctx, key, true)
				was, ok := old[key]
				old[key] = now
				if ok {
					return was, nil
				}
				return now, err
			}}
		}},
		{"ignores ctx", []string{"EndedContext"}, func(m *Memory) *wrong {
			return &wrong{Memory: m, lookup: func(ctx context.Context, key string) (driver.Record, error) {
				return m.Lookup(context.WithoutCancel(ctx), key, true)
			}}
		}},
		{"finds what is not there", []string{"LookupNotFound"}, func(m *Memory) *wrong {
			return &wrong{Memory: m, lookup: func(ctx context.Context, key string) (driver.Record, error) {
				r, err := m.Lookup(ctx, key, true)
				if errors.Is(err, driver.ErrNotFound) {
					return driver.Record{State: driver.Open}, nil
				}
				return r, err
			}}
		}},
		{"knows of no nesting", []string{"Nested"}, func(m *Memory) *wrong {
			return &wrong{Memory: m, nested: func() bool { return false }}
		}},
		{"does not say that it closes", []string{"Closing"}, func(m *Memory) *wrong { return &wrong{Memory: m, closes: make(chan struct{})} }},
		{"sweeps unknown outcomes", []string{"SweepLeavesUnknown"}, func(m *Memory) *wrong {
			return &wrong{Memory: m, sweep: func(ctx context.Context, _ driver.SweepOptions) (driver.SweepReport, error) {
				return m.Sweep(ctx, driver.SweepOptions{Unknown: true})
			}}
		}},
		{"sweeps what is claimed", []string{"SweepLeavesClaimed"}, sweeping(func(*memoryRecord, driver.Record, time.Time) bool { return true })},
		{"sweeps by the time of creation", []string{"SweepCountsFromTheLastChange"}, sweeping(func(r *memoryRecord, rec driver.Record, now time.Time) bool {
			return len(r.queue) == 0 && rec.State.Final() && !now.Before(r.created.Add(rec.Retention))
		})},
		{"sweeps at once", []string{"SweepAfterRetention", "TokensGrow"}, sweeping(func(r *memoryRecord, rec driver.Record, _ time.Time) bool {
			return len(r.queue) == 0 && rec.State.Final()
		})},
		{"sweeps nothing", []string{"SweepAfterRetention", "SweepMany", "SweepCountsFromTheLastChange"}, func(m *Memory) *wrong {
			return &wrong{Memory: m, sweep: func(context.Context, driver.SweepOptions) (driver.SweepReport, error) {
				return driver.SweepReport{Records: -1, Time: time.Now()}, nil
			}}
		}},
		{"does not tell what it sweeps", []string{"SweepTellsOfEach"}, telling(func(func(string, driver.Record), string, driver.Record) {})},
		{"tells twice what it sweeps", []string{"SweepTellsOfEach"}, telling(func(tell func(string, driver.Record), key string, r driver.Record) {
			tell(key, r)
			tell(key, r)
		})},
		{"tells only the keys of what it sweeps", []string{"SweepTellsOfEach"}, telling(func(tell func(string, driver.Record), key string, _ driver.Record) {
			tell(key, driver.Record{})
		})},
		{"tells of what stays", []string{"SweepTellsOfEach"}, func(m *Memory) *wrong {
			return &wrong{Memory: m, sweep: func(ctx context.Context, opts driver.SweepOptions) (driver.SweepReport, error) {
				if opts.Evicted != nil {
					r, _ := m.Lookup(ctx, "long", true)
					opts.Evicted("long", r)
				}
				return m.Sweep(ctx, opts)
			}}
		}},
		{"sees no claims", []string{"Scan"}, func(m *Memory) *wrong {
			return &wrong{Memory: m, scan: func(f func(string, driver.Record, bool, error) error) func(string, driver.Record, bool, error) error {
				return func(key string, r driver.Record, _ bool, err error) error { return f(key, r, false, err) }
			}}
		}},
		{"goes on after an error", []string{"Scan"}, func(m *Memory) *wrong {
			return &wrong{Memory: m, scan: func(f func(string, driver.Record, bool, error) error) func(string, driver.Record, bool, error) error {
				return func(key string, r driver.Record, claimed bool, err error) error {
					_ = f(key, r, claimed, err)
					return nil
				}
			}}
		}},
		{"is not what the harness says", []string{"DeadProcess", "Available", "Suspended", "ClosedWhileQueueing", "Gates"}, nil}, // see harnessOf
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, name := range tc.want {
				bitten[name] = true
				i := slices.IndexFunc(cases(), func(c namedCase) bool { return c.name == name })
				if i < 0 {
					t.Fatalf("there is no case %s", name)
				}
				synctest.Test(t, func(t *testing.T) {
					failures := try(t, cases()[i], harnessOf(tc.open))
					if len(failures) == 0 {
						t.Errorf("%s passes", name)
					} else {
						t.Logf("%s: %s", name, failures[0])
					}
				})
			}
		})
	}
	for _, c := range cases() {
		if !bitten[c.name] {
			t.Errorf("no wrong store has failed %s", c.name)
		}
	}
}

// sweeping sweeps what it likes.
func sweeping(over func(r *memoryRecord, rec driver.Record, now time.Time) bool) func(m *Memory) *wrong {
	return func(m *Memory) *wrong {
		return &wrong{Memory: m, sweep: func(context.Context, driver.SweepOptions) (driver.SweepReport, error) {
			m.d.mu.Lock()
			defer m.d.mu.Unlock()
			report := driver.SweepReport{Records: -1, Time: time.Now()}
			for key, r := range m.d.records {
				if rec, err := r.read(key); err == nil && over(r, rec, report.Time) {
					delete(m.d.records, key)
					report.Swept++
				}
			}
			return report, nil
		}}
	}
}

// telling tells in its own way what it sweeps.
func telling(how func(tell func(string, driver.Record), key string, r driver.Record)) func(m *Memory) *wrong {
	return func(m *Memory) *wrong {
		return &wrong{Memory: m, sweep: func(ctx context.Context, opts driver.SweepOptions) (driver.SweepReport, error) {
			if tell := opts.Evicted; tell != nil {
				opts.Evicted = func(key string, r driver.Record) { how(tell, key, r) }
			}
			return m.Sweep(ctx, opts)
		}}
	}
}

// harnessOf is a harness of wrong stores; nil: of right ones, to which what is done has
// the wrong effect.
func harnessOf(open func(m *Memory) *wrong) *Harness {
	first := NewMemory()
	return &Harness{
		Open: func(t testing.TB) *Process {
			m := first.Another()
			t.Cleanup(m.Close)
			if open == nil {
				nothing := func() {}
				return &Process{Store: &wrong{Memory: m, claim: func(c *memoryClaim) driver.Claim {
					// A proof that does not come: the claim goes by itself.
					time.AfterFunc(time.Millisecond, m.Lose)
					return c
				}}, Kill: nothing, Close: nothing, Lose: nothing, Suspend: func() func() { return nothing }}
			}
			return &Process{Store: open(m), Kill: m.Kill, Close: m.Close, Lose: m.Lose, Suspend: m.Suspend}
		},
		Put: func(key string, data []byte) error { first.Put(key, data); return nil },
	}
}

// A case that cannot be run fails, unless the harness says why.
func TestAbilitiesHaveToBeDeclared(t *testing.T) {
	for ability, name := range map[Ability]string{AbilityPut: "Unreadable", AbilityLose: "ClaimLost", AbilitySuspend: "Suspended"} {
		i := slices.IndexFunc(cases(), func(c namedCase) bool { return c.name == name })
		for why, pass := range map[string]bool{"": false, "it has no such thing": true} {
			synctest.Test(t, func(t *testing.T) {
				first := NewMemory()
				h := Harness{Cannot: map[Ability]string{ability: why}}
				h.Open = func(t testing.TB) *Process {
					m := first.Another()
					t.Cleanup(m.Close)
					return &Process{Store: m, Kill: m.Kill, Close: m.Close}
				}
				if failures := try(t, cases()[i], &h); (len(failures) == 0) != pass {
					t.Errorf("%s, %q: %v", ability, why, failures)
				}
			})
		}
	}
}
