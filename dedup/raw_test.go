package dedup_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/go-zklock/zklock/dedup"
)

func doRaw(ctx context.Context, p *process, id string, outcome dedup.Raw) (dedup.Result[dedup.Raw], error) {
	return dedup.Do(ctx, p.Guard, dedup.Key{ID: id}, dedup.NoFingerprint, func(context.Context, *dedup.Claim) (dedup.Raw, error) {
		return outcome, nil
	})
}

// A Raw outcome is stored without the codec, by Do and by Resolve, and each duplicate
// has bytes of its own.
func TestRawOutcomeIsStoredAsItIs(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start()
		want := "\x00 not JSON \xff"
		if _, err := doRaw(t.Context(), p, "k", dedup.Raw(want)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			r, err := doRaw(t.Context(), p, "k", dedup.Raw("other"))
			if err != nil || !r.Replayed || string(r.Value) != want {
				t.Fatalf("%+v, %v", r, err)
			}
			r.Value[0] = 'x'
		}
		if i, err := p.Lookup(t.Context(), dedup.Key{ID: "k"}); err != nil || string(i.Outcome) != want {
			t.Errorf("%+v, %v", i, err)
		}

		_, err := p.do(t.Context(), "unknown", func(context.Context, *dedup.Claim) (string, error) {
			return "", dedup.Indeterminate(errors.New("no answer"))
		})
		if !errors.Is(err, dedup.ErrIndeterminate) {
			t.Fatal(err)
		}
		if err := p.Resolve(t.Context(), dedup.Key{ID: "unknown"}, dedup.Completed(dedup.Raw(want))); err != nil {
			t.Fatal(err)
		}
		if i, err := p.Lookup(t.Context(), dedup.Key{ID: "unknown"}); err != nil || string(i.Outcome) != want {
			t.Errorf("%+v, %v", i, err)
		}
	})
}

// A function that says that it does not know leaves what a dead process leaves.
func TestFunctionThatDoesNotKnowLeavesTheOutcomeUnknown(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(), b.start()
		timeout := errors.New("the bank did not answer")
		_, err := p.do(t.Context(), "k", func(context.Context, *dedup.Claim) (string, error) {
			return "", fmt.Errorf("charge: %w", dedup.Indeterminate(timeout))
		})
		if !errors.Is(err, dedup.ErrIndeterminate) || !errors.Is(err, timeout) {
			t.Errorf("%v, want ErrIndeterminate and the reason", err)
		}
		for _, other := range []*process{p, q} {
			if _, err := other.do(t.Context(), "k", mustNotRun(t), dedup.NoWait()); !errors.Is(err, dedup.ErrIndeterminate) {
				t.Errorf("%s: %v, want ErrIndeterminate", other.name, err)
			}
		}
		r, err := q.do(t.Context(), "k", func(_ context.Context, c *dedup.Claim) (string, error) {
			if pr := c.Prior(); pr == nil || !pr.Unknown {
				t.Errorf("prior %+v", pr)
			}
			return "two", nil
		}, dedup.WithPolicy(dedup.Reexecute))
		if err != nil || r.Value != "two" || r.Attempt != 2 {
			t.Errorf("%+v, %v", r, err)
		}
		if dedup.Indeterminate(nil) != nil {
			t.Error("Indeterminate(nil) is not nil")
		}
	})
}
