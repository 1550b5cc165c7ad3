package dedup_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/go-zklock/zklock/dedup"
)

// What fn wraps around a mark reaches its caller, and the text the duplicates.
func TestWhatIsAroundPermanentIsKept(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start()
		declined, cause := errors.New("declined"), errors.New("no funds")
		_, err := p.do(t.Context(), "k", func(context.Context, *dedup.Claim) (string, error) {
			return "", fmt.Errorf("%w: card 12: %w", declined, dedup.Permanent(cause))
		})
		if !errors.Is(err, declined) || !errors.Is(err, cause) || !errors.Is(err, dedup.ErrFailed) {
			t.Errorf("%v does not match all of it", err)
		}
		_, err = p.do(t.Context(), "k", mustNotRun(t))
		var failed *dedup.FailedError
		if !errors.As(err, &failed) || failed.Message != "declined: card 12: no funds" {
			t.Errorf("the duplicate: %v", err)
		}
	})
}

// A mark is about the key of its own call. Another call whose fn returns that error
// fails like any other.
func TestMarksStayWithTheirCall(t *testing.T) {
	cause := errors.New("no answer")
	for name, mark := range map[string]func(error) error{"Permanent": dedup.Permanent, "Indeterminate": dedup.Indeterminate} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bundle) {
				t := b.t
				p := b.start()
				_, err := p.do(t.Context(), "outer", func(ctx context.Context, _ *dedup.Claim) (string, error) {
					_, err := p.do(ctx, "inner", func(context.Context, *dedup.Claim) (string, error) { return "", mark(cause) })
					if !errors.Is(err, cause) {
						t.Errorf("the inner call: %v", err)
					}
					return "", fmt.Errorf("inner: %w", err)
				})
				if !errors.Is(err, cause) {
					t.Errorf("the outer call: %v", err)
				}
				if i, err := p.Lookup(t.Context(), dedup.Key{ID: "outer"}); err != nil || i.State != "open" {
					t.Errorf("the outer record is %q, %v; want open", i.State, err)
				}
			})
		})
	}
}
