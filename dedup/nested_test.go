package dedup_test

import (
	"context"
	"errors"
	"testing"

	"github.com/go-zklock/zklock/dedup"
)

func TestNestedDoOnTheSameKeyIsAnErrorAtOnce(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start()
		second, err := dedup.New(p.client, dedup.Config{SweepInterval: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = second.Close(t.Context()) }()
		var kept context.Context
		r, err := p.do(t.Context(), "k", func(ctx context.Context, _ *dedup.Claim) (string, error) {
			kept = ctx //nolint:fatcontext // looked at after the call
			if _, err := p.do(ctx, "k", mustNotRun(t)); !errors.Is(err, dedup.ErrNested) {
				t.Errorf("same guard: %v, want ErrNested", err)
			}
			if _, err := (&process{second, p.client, p.name}).do(ctx, "k", mustNotRun(t)); !errors.Is(err, dedup.ErrNested) {
				t.Errorf("another guard of the client: %v, want ErrNested", err)
			}
			if err := p.Resolve(ctx, dedup.Key{ID: "k"}, dedup.NotDone()); !errors.Is(err, dedup.ErrNested) {
				t.Errorf("Resolve: %v, want ErrNested", err)
			}
			inner, err := p.do(ctx, "other", says("inner"))
			return inner.Value, err
		})
		if err != nil || r.Value != "inner" {
			t.Fatalf("%+v, %v", r, err)
		}
		// The claim is over, and so is what the ctx stood for.
		if _, err := p.do(context.WithoutCancel(kept), "k", mustNotRun(t)); err != nil {
			t.Errorf("after the call: %v", err)
		}
		b.atRest()
	})
}

func TestDoUnderALockOnItsPathIsAnErrorAtOnce(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start()
		l := p.lock(t, "k")
		if _, err := p.do(l.Context(), "k", mustNotRun(t)); !errors.Is(err, dedup.ErrNested) {
			t.Errorf("%v, want ErrNested", err)
		}
		release(t, l)
		if _, err := p.do(context.WithoutCancel(l.Context()), "k", says("one")); err != nil {
			t.Errorf("after the release: %v", err)
		}
		b.atRest()
	})
}
