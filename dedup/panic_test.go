package dedup_test

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
)

// panicky panics when it is encoded.
type panicky struct{}

func (panicky) MarshalJSON() ([]byte, error) { panic("no JSON") }

// panickyError panics when its text is asked for.
type panickyError struct{}

func (panickyError) Error() string { panic("no text") }

// A function that does not return leaves an unknown outcome and no claim, and what it
// did instead goes on.
func TestFunctionThatDoesNotReturnLeavesTheOutcomeUnknown(t *testing.T) {
	for name, call := range map[string]func(ctx context.Context, p *process){
		"panic": func(ctx context.Context, p *process) {
			_, _ = p.do(ctx, "k", func(context.Context, *dedup.Claim) (string, error) { panic("boom") })
		},
		"Goexit": func(ctx context.Context, p *process) {
			_, _ = p.do(ctx, "k", func(context.Context, *dedup.Claim) (string, error) { runtime.Goexit(); return "", nil })
		},
		"panic of the codec": func(ctx context.Context, p *process) {
			_, _ = dedup.Do(ctx, p.Guard, dedup.Key{ID: "k"}, dedup.NoFingerprint, func(context.Context, *dedup.Claim) (panicky, error) { return panicky{}, nil })
		},
		"panic of the error": func(ctx context.Context, p *process) {
			_, _ = p.do(ctx, "k", fails(panickyError{}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bundle) {
				t := b.t
				p, q := b.start(), b.start()
				over := make(chan any)
				returned := true
				go func() {
					defer close(over)
					defer func() {
						if v := recover(); v != nil {
							over <- v
						}
					}()
					call(t.Context(), p)
					returned = false
				}()
				v, panicked := <-over
				if panicked == (name == "Goexit") {
					t.Errorf("recovered %v", v)
				}
				<-over
				if !returned {
					t.Error("Do returned")
				}
				for _, other := range []*process{p, q} {
					if _, err := other.do(t.Context(), "k", mustNotRun(t)); !errors.Is(err, dedup.ErrIndeterminate) {
						t.Errorf("%v, want ErrIndeterminate", err)
					}
				}
				if s := b.state("k"); s != "running 1" {
					t.Errorf("the record is %s", s)
				}
				if err := p.Close(t.Context()); err != nil {
					t.Error(err)
				}
				r, err := q.do(t.Context(), "k", says("two"), dedup.WithPolicy(dedup.Reexecute))
				if err != nil || r.Value != "two" || r.Attempt != 2 {
					t.Errorf("%+v, %v", r, err)
				}
				b.atRest()
			})
		})
	}
}

// Those who wait in the same process see the unknown outcome, not a second run.
func TestPanicIsNotRunAgainByThoseWhoWait(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start()
		started, release := make(chan struct{}), make(chan struct{})
		go func() {
			defer func() { _ = recover() }()
			_, _ = p.do(t.Context(), "k", func(context.Context, *dedup.Claim) (string, error) {
				close(started)
				<-release
				panic("boom")
			})
		}()
		<-started
		got := make(chan error, 3)
		for range 3 {
			go func() {
				_, err := p.do(t.Context(), "k", mustNotRun(t))
				got <- err
			}()
		}
		time.Sleep(time.Second)
		close(release)
		for range 3 {
			if err := <-got; !errors.Is(err, dedup.ErrIndeterminate) {
				t.Errorf("%v, want ErrIndeterminate", err)
			}
		}
		b.atRest()
	})
}

// fn's ctx ends with the claim, so that a function that never returns by itself does.
func TestFunctionThatNeverReturnsEndsWithItsClaim(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(), b.start()
		started, got := make(chan struct{}), make(chan error, 1)
		go func() {
			_, err := p.do(t.Context(), "k", func(ctx context.Context, c *dedup.Claim) (string, error) {
				close(started)
				<-ctx.Done()
				var lost *zklock.LostError
				if !errors.As(context.Cause(ctx), &lost) || !errors.Is(c.Err(), zklock.ErrLost) || !errors.Is(c.Await(context.Background()), zklock.ErrLost) {
					t.Errorf("cause %v, Err %v", context.Cause(ctx), c.Err())
				}
				if c.Context() != ctx {
					t.Error("Context is not fn's ctx")
				}
				return "", context.Cause(ctx)
			})
			got <- err
		}()
		<-started
		b.srv.Pause() // no proof arrives any more
		err := <-got
		if !errors.Is(err, zklock.ErrLost) {
			t.Errorf("%v, want the loss", err)
		}
		b.srv.Resume()
		time.Sleep(q.client.SessionTimeout()) // q is connected again by then
		if r, err := q.do(t.Context(), "k", says("two"), dedup.WithPolicy(dedup.Reexecute)); err != nil || r.Value != "two" {
			t.Errorf("%+v, %v", r, err)
		}
		b.atRest()
	})
}

func TestClaimTellsWhatItIs(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start()
		k := dedup.Key{Scope: "s", ID: "k"}
		r, err := dedup.Do(t.Context(), p.Guard, k, dedup.NoFingerprint, func(ctx context.Context, c *dedup.Claim) (json.RawMessage, error) {
			if c.Key() != k || c.Attempt() != 1 || c.Prior() != nil || c.Err() != nil || c.Await(ctx) != nil {
				t.Errorf("%+v", c)
			}
			if left := time.Until(c.Deadline()); left <= 0 || left > p.client.SessionTimeout() {
				t.Errorf("the deadline is in %v", left)
			}
			if l, ok := zklock.LeaseFromContext(ctx); !ok || l.Token() != c.Token() {
				t.Error("the ctx does not carry the lease")
			}
			return json.RawMessage(`{"a":1}`), nil
		})
		if err != nil || string(r.Value) != `{"a":1}` {
			t.Errorf("%+v, %v", r, err)
		}
	})
}
