package dedup_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/zktest"
)

// Callers of one key in one process share one wait and one claim, and nothing else.

// outcome is what one caller got.
type outcome struct {
	r   dedup.Result[string]
	err error
}

// goDo calls Do in the background.
func (p *process) goDo(ctx context.Context, id string, fn func(context.Context, *dedup.Claim) (string, error), opts ...dedup.Option) <-chan outcome {
	c := make(chan outcome, 1)
	go func() {
		r, err := p.do(ctx, id, fn, opts...)
		c <- outcome{r, err}
	}()
	return c
}

// blocks is a function that says when it has begun and returns s when it may.
func blocks(s string) (fn func(context.Context, *dedup.Claim) (string, error), started, goOn chan struct{}) {
	started, goOn = make(chan struct{}), make(chan struct{})
	return func(context.Context, *dedup.Claim) (string, error) {
		close(started)
		<-goOn
		return s, nil
	}, started, goOn
}

func TestCallersDecodeTheirOwnValues(t *testing.T) {
	type receipt struct{ Amount int }
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start()
		k := dedup.Key{ID: "k"}
		started, goOn := make(chan struct{}), make(chan struct{})
		first := make(chan dedup.Result[*receipt], 1)
		go func() {
			r, err := dedup.Do(t.Context(), p.Guard, k, dedup.NoFingerprint, func(context.Context, *dedup.Claim) (*receipt, error) {
				close(started)
				<-goOn
				return &receipt{7}, nil
			})
			if err != nil {
				t.Error(err)
			}
			first <- r
		}()
		<-started
		others := make(chan *receipt, 2)
		for range 2 {
			go func() {
				r, err := dedup.Do(t.Context(), p.Guard, k, dedup.NoFingerprint, func(context.Context, *dedup.Claim) (*receipt, error) { return nil, errors.New("ran") })
				if err != nil || !r.Replayed {
					t.Errorf("%+v, %v", r, err)
				}
				others <- r.Value
			}()
		}
		asText := make(chan error, 1)
		go func() {
			_, err := dedup.Do(t.Context(), p.Guard, k, dedup.NoFingerprint, says("ran"))
			asText <- err
		}()
		synctest.Wait()
		close(goOn)
		mine, a, c := (<-first).Value, <-others, <-others
		if *mine != *a || *a != *c || mine == a || a == c {
			t.Errorf("%p %p %p, want three of one value", mine, a, c)
		}
		if err := <-asText; err == nil {
			t.Error("a value of another type was decoded")
		}
	})
}

func TestFirstCallersContextEndsWhileTheRestWaits(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(), b.start()
		fn, started, goOn := blocks("one")
		holder := q.goDo(t.Context(), "k", fn)
		<-started
		ctx, cancel := context.WithCancel(t.Context())
		first := p.goDo(ctx, "k", mustNotRun(t))
		synctest.Wait()
		rest := []<-chan outcome{p.goDo(t.Context(), "k", mustNotRun(t)), p.goDo(t.Context(), "k", mustNotRun(t))}
		synctest.Wait()
		cancel()
		if o := <-first; !errors.Is(o.err, context.Canceled) {
			t.Errorf("%v, want Canceled", o.err)
		}
		time.Sleep(time.Second)
		if n := len(b.srv.Children("/dedup/k")); n != 2 {
			t.Errorf("%d in the queue, want the holder and one for the process", n)
		}
		close(goOn)
		for _, c := range append(rest, holder) {
			if o := <-c; o.err != nil || o.r.Value != "one" {
				t.Errorf("%+v", o)
			}
		}
		b.atRest()
	})
}

func TestFirstFailsAndTheNextRuns(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start()
		broken := errors.New("broken")
		var calls []<-chan outcome
		ran := 0
		for i := range 5 {
			calls = append(calls, p.goDo(t.Context(), "k", func(_ context.Context, c *dedup.Claim) (string, error) {
				ran++
				if c.Attempt() != ran {
					t.Errorf("attempt %d in run %d", c.Attempt(), ran)
				}
				if ran > 1 && (c.Prior() == nil || c.Prior().Attempt != ran-1 || c.Prior().Unknown || c.Prior().Message != "broken") {
					t.Errorf("prior %+v", c.Prior())
				}
				if ran < 3 {
					return "", broken
				}
				return "value", nil
			}))
			if i == 0 {
				synctest.Wait()
			}
		}
		failed := 0
		for _, c := range calls {
			o := <-c
			if errors.Is(o.err, broken) {
				failed++
			} else if o.err != nil || o.r.Value != "value" || o.r.Attempt != 3 {
				t.Errorf("%+v", o)
			}
		}
		if failed != 2 || ran != 3 {
			t.Errorf("%d got the error of %d runs, want each its own: 2 of 3", failed, ran)
		}
		b.atRest()
	})
}

func TestWaitLimitAndNoWaitInOneProcess(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start()
		fn, started, goOn := blocks("one")
		holder := p.goDo(t.Context(), "k", fn)
		<-started
		began := time.Now()
		if o := <-p.goDo(t.Context(), "k", mustNotRun(t), dedup.NoWait()); !errors.Is(o.err, dedup.ErrInProgress) {
			t.Errorf("NoWait: %v, want ErrInProgress", o.err)
		}
		if took := time.Since(began); took > 20*time.Millisecond {
			t.Errorf("NoWait took %v", took)
		}
		began = time.Now()
		if o := <-p.goDo(t.Context(), "k", mustNotRun(t), dedup.WaitLimit(2*time.Second)); !errors.Is(o.err, dedup.ErrInProgress) {
			t.Errorf("WaitLimit: %v, want ErrInProgress", o.err)
		}
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("WaitLimit took %v", took)
		}
		// Two that do not want to wait, at one instant, for a key that nobody works on.
		fn, started, goOn2 := blocks("two")
		a, c := p.goDo(t.Context(), "k2", fn, dedup.NoWait()), p.goDo(t.Context(), "k2", fn, dedup.NoWait())
		<-started
		synctest.Wait()
		if o := <-p.goDo(t.Context(), "k2", mustNotRun(t), dedup.NoWait()); !errors.Is(o.err, dedup.ErrInProgress) {
			t.Errorf("a third: %v, want ErrInProgress", o.err)
		}
		close(goOn2)
		one, other := <-a, <-c
		if one.err != nil {
			one, other = other, one
		}
		if one.err != nil || one.r.Value != "two" || !errors.Is(other.err, dedup.ErrInProgress) {
			t.Errorf("%+v, %+v", one, other)
		}
		close(goOn)
		if o := <-holder; o.err != nil {
			t.Error(o.err)
		}
		b.atRest()
	})
}

// The policy is each call's own: the same unknown record is refused to one and run by
// the other, at one instant.
func TestPolicyIsEachCallersOwn(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start()
		b.unknown(p, "k")
		refuse := p.goDo(t.Context(), "k", mustNotRun(t))
		if o := <-refuse; !errors.Is(o.err, dedup.ErrIndeterminate) {
			t.Errorf("%v, want ErrIndeterminate", o.err)
		}
		again := p.goDo(t.Context(), "k", says("again"), dedup.WithPolicy(dedup.Reexecute))
		refuse = p.goDo(t.Context(), "k", mustNotRun(t))
		if o := <-again; o.err != nil || o.r.Attempt != 2 {
			t.Errorf("%+v", o)
		}
		if o := <-refuse; o.err != nil && !errors.Is(o.err, dedup.ErrIndeterminate) {
			t.Errorf("%+v", o)
		}
		b.atRest()
	})
}

// unknown leaves a record whose outcome is unknown.
func (b *bundle) unknown(p *process, id string) {
	b.t.Helper()
	func() {
		defer func() { _ = recover() }()
		_, _ = p.do(b.t.Context(), id, func(context.Context, *dedup.Claim) (string, error) { panic("boom") })
	}()
	b.atRest()
	if s := b.state(id); s != "running 1" {
		b.t.Fatalf("the record is %s", s)
	}
}

// What calls cost, to the request.
func TestRequestsAreCounted(t *testing.T) {
	count := func(name string, want map[zktest.Op]int, f func(b *bundle, p, q *process)) {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bundle) {
				p, q := b.start(), b.start()
				b.warm(p)
				f(b, p, q)
				synctest.Wait()
				if got, want := requests(b.srv.Ops().Counts()), requests(zktest.Counts{ByOp: want}); got != want {
					b.t.Errorf("%s, want %s", got, want)
				}
			})
		})
	}
	// The one who waits: it looks, makes its claim, lists, watches the holder's, lists again,
	// reads the record under the claim, and gives the claim up.
	count("another process waits and replays", map[zktest.Op]int{
		zktest.OpGetData: 3, zktest.OpCreate: 1, zktest.OpGetChildren2: 2, zktest.OpDelete: 1, zktest.OpMulti: 1,
	}, func(b *bundle, p, q *process) {
		fn, started, goOn := blocks("one")
		holder := p.goDo(b.t.Context(), "k", fn)
		<-started
		synctest.Wait()
		b.srv.Ops().Reset()
		waiter := q.goDo(b.t.Context(), "k", mustNotRun(b.t))
		time.Sleep(20 * time.Millisecond)
		close(goOn)
		if o := <-waiter; o.err != nil || !o.r.Replayed {
			b.t.Errorf("%+v", o)
		}
		<-holder
		time.Sleep(10 * time.Millisecond)
	})
	// Look, claim, list, read, write "running", commit.
	count("a run after an unknown outcome", map[zktest.Op]int{
		zktest.OpGetData: 2, zktest.OpCreate: 1, zktest.OpGetChildren2: 1, zktest.OpMulti: 2,
	}, func(b *bundle, p, q *process) {
		b.unknown(p, "k")
		b.srv.Ops().Reset()
		if o := <-q.goDo(b.t.Context(), "k", says("two"), dedup.WithPolicy(dedup.Reexecute)); o.err != nil {
			b.t.Error(o.err)
		}
	})
	// Look, claim, list, read, give up.
	count("an unknown outcome that is refused", map[zktest.Op]int{
		zktest.OpGetData: 2, zktest.OpCreate: 1, zktest.OpGetChildren2: 1, zktest.OpDelete: 1,
	}, func(b *bundle, p, q *process) {
		b.unknown(p, "k")
		b.srv.Ops().Reset()
		if o := <-q.goDo(b.t.Context(), "k", mustNotRun(b.t)); !errors.Is(o.err, dedup.ErrIndeterminate) {
			b.t.Error(o.err)
		}
	})
	count("NoWait while another process works", map[zktest.Op]int{
		zktest.OpGetData: 1, zktest.OpGetChildren2: 1,
	}, func(b *bundle, p, q *process) {
		fn, started, goOn := blocks("one")
		holder := p.goDo(b.t.Context(), "k", fn)
		b.t.Cleanup(func() { close(goOn); <-holder })
		<-started
		synctest.Wait()
		b.srv.Ops().Reset()
		if o := <-q.goDo(b.t.Context(), "k", mustNotRun(b.t), dedup.NoWait()); !errors.Is(o.err, dedup.ErrInProgress) {
			b.t.Error(o.err)
		}
	})
	// A function that fails: looked, made, given up.
	count("a function that fails", map[zktest.Op]int{zktest.OpGetData: 1, zktest.OpMulti: 2}, func(b *bundle, p, _ *process) {
		b.srv.Ops().Reset()
		if o := <-p.goDo(b.t.Context(), "k", fails(errors.New("broken"))); o.err == nil {
			b.t.Error("no error")
		}
	})
}
