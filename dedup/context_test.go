package dedup_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/dedup/driver"
	"github.com/go-zklock/zklock/dedup/internal/zkstore"
	"github.com/go-zklock/zklock/zktest"
)

func TestContextThatEndsWhileWaiting(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(), b.start()
		why := errors.New("enough")
		started, goOn := make(chan struct{}), make(chan struct{})
		go func() {
			if _, err := p.do(t.Context(), "k", func(context.Context, *dedup.Claim) (string, error) {
				close(started)
				<-goOn
				return "one", nil
			}); err != nil {
				t.Error(err)
			}
		}()
		<-started
		for _, other := range []*process{p, q} {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(3*time.Second, func() { cancel(why) })
			began := time.Now()
			if _, err := other.do(ctx, "k", mustNotRun(t)); !errors.Is(err, why) {
				t.Errorf("%v, want the cause of the end", err)
			}
			if took := time.Since(began); took != 3*time.Second {
				t.Errorf("it took %v", took)
			}
		}
		time.Sleep(time.Second)
		if nodes := b.srv.Children("/dedup/k"); len(nodes) != 1 {
			t.Errorf("%d claims, want the holder's", len(nodes))
		}
		close(goOn)
		if r, err := q.do(t.Context(), "k", mustNotRun(t)); err != nil || r.Value != "one" {
			t.Errorf("%+v, %v", r, err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := q.do(ended, "another", mustNotRun(t)); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want Canceled", err)
		}
		b.atRest()
	})
}

// What fn returns counts, also if ctx has ended meanwhile.
func TestContextThatEndsInTheFunction(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(), b.start()
		ctx, cancel := context.WithCancel(t.Context())
		r, err := p.do(ctx, "k", func(ctx context.Context, c *dedup.Claim) (string, error) {
			cancel()
			<-ctx.Done()
			if c.Err() != nil {
				t.Errorf("the claim went with ctx: %v", c.Err())
			}
			return "one", nil
		})
		if err != nil || r.Value != "one" || r.Replayed {
			t.Errorf("%+v, %v", r, err)
		}
		if r, err := q.do(t.Context(), "k", mustNotRun(t)); err != nil || r.Value != "one" {
			t.Errorf("%+v, %v", r, err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		_, err = p.do(ctx, "f", func(ctx context.Context, _ *dedup.Claim) (string, error) {
			cancel()
			return "", ctx.Err()
		})
		if !errors.Is(err, context.Canceled) || b.state("f") != "open 1" {
			t.Errorf("%v, the record is %s", err, b.state("f"))
		}
		b.atRest()
	})
}

// The commit has a second more than ctx, and goes on in the background after that.
func TestContextThatEndsDuringTheCommit(t *testing.T) {
	for _, d := range []time.Duration{900 * time.Millisecond, 3 * time.Second} {
		inBubble(t, func(b *bundle) {
			t := b.t
			p, q := b.start(), b.start()
			b.warm(p)
			slow := b.srv.Inject(zktest.DelayRequest(d, zktest.OpMulti).Client(p.name).Path("/dedup/k").Nth(2))
			ctx, cancel := context.WithCancel(t.Context())
			go func() { <-slow.Hit(); cancel() }()
			began := time.Now()
			r, err := p.do(ctx, "k", says("one"))
			if d < time.Second {
				if err != nil || r.Value != "one" {
					t.Errorf("%+v, %v", r, err)
				}
				return
			}
			if !errors.Is(err, dedup.ErrIndeterminate) || !errors.Is(err, context.Canceled) {
				t.Errorf("%v, want ErrIndeterminate and the end of ctx", err)
			}
			if took := time.Since(began); took > 1100*time.Millisecond {
				t.Errorf("it took %v", took)
			}
			if r, err := q.do(t.Context(), "k", mustNotRun(t)); err != nil || r.Value != "one" {
				t.Errorf("%+v, %v", r, err)
			}
			b.atRest()
		})
	}
}

// A process that was stopped between the claim and the function does not run it when
// it goes on: somebody else may have finished the key.
func TestClaimLostBeforeTheFunctionRunsNothing(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(), b.start()
		store, err := zkstore.New(p.client, "/dedup", time.Now)
		if err != nil {
			t.Fatal(err)
		}
		stopped := false
		g, err := dedup.NewWithStore(&hookedStore{Store: store, begun: func(c driver.Claim) {
			if stopped {
				return
			}
			stopped = true
			b.srv.Expire(p.client.SessionID())
			for c.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			if r, err := q.do(t.Context(), "k", says("two"), dedup.WithPolicy(dedup.Reexecute)); err != nil || r.Value != "two" {
				t.Errorf("%+v, %v", r, err)
			}
		}}, dedup.Config{SweepInterval: -1})
		if err != nil {
			t.Fatal(err)
		}
		r, err := (&process{g, p.client, p.name}).do(t.Context(), "k", mustNotRun(t))
		if err != nil || r.Value != "two" || !r.Replayed {
			t.Errorf("%+v, %v", r, err)
		}
		if err := g.Close(t.Context()); err != nil {
			t.Error(err)
		}
		b.atRest()
	})
}

// hookedStore tells of every claim that it gives out before it does.
type hookedStore struct {
	driver.Store
	begun  func(driver.Claim)
	queued func(driver.Claim)
}

func (s *hookedStore) Queue(ctx context.Context, key string, wait bool) (driver.Claim, error) {
	c, err := s.Store.Queue(ctx, key, wait)
	if err == nil && s.queued != nil {
		return renewHook{c, s.queued}, nil
	}
	return c, err
}

// renewHook tells of a claim once its record says running.
type renewHook struct {
	driver.Claim
	renewed func(driver.Claim)
}

func (c renewHook) Renew(ctx context.Context, r driver.Record) error {
	err := c.Claim.Renew(ctx, r)
	c.renewed(c)
	return err
}

func (s *hookedStore) Begin(ctx context.Context, key string, r driver.Record, wait bool) (driver.Claim, error) {
	c, err := s.Store.Begin(ctx, key, r, wait)
	if err == nil {
		s.begun(c)
	}
	return c, err
}

// A caller whose ctx ends in the moment in which it is given the claim runs nothing,
// and the record says so.
func TestContextThatEndsAtTheGrantRunsNothing(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(), b.start()
		store, err := zkstore.New(p.client, "/dedup", time.Now)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		g, err := dedup.NewWithStore(&hookedStore{Store: store, begun: func(driver.Claim) { cancel() }}, dedup.Config{SweepInterval: -1})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := (&process{g, p.client, p.name}).do(ctx, "k", mustNotRun(t)); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want Canceled", err)
		}
		if err := g.Close(t.Context()); err != nil {
			t.Error(err)
		}
		_ = p.client.Close() // at once: Close of the guard has waited for what is given back
		if r, err := q.do(t.Context(), "k", says("one")); err != nil || r.Attempt != 1 {
			t.Errorf("%+v, %v", r, err)
		}
		b.atRest()
	})
}

// The same after an unknown outcome: it is as unknown as it was.
func TestContextThatEndsAtTheGrantLeavesAnUnknownOutcomeUnknown(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(), b.start()
		b.unknown(q, "k")
		store, err := zkstore.New(p.client, "/dedup", time.Now)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		g, err := dedup.NewWithStore(&hookedStore{Store: store, queued: func(driver.Claim) { cancel() }}, dedup.Config{SweepInterval: -1, Policy: dedup.Reexecute})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := (&process{g, p.client, p.name}).do(ctx, "k", mustNotRun(t)); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want Canceled", err)
		}
		if err := g.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := q.do(t.Context(), "k", mustNotRun(t)); !errors.Is(err, dedup.ErrIndeterminate) {
			t.Errorf("%v, want ErrIndeterminate", err)
		}
		b.atRest()
	})
}
