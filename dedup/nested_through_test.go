package dedup_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
)

// A call that would wait for itself is refused at once, also when there are other
// calls and locks in between.
func TestNestedCallIsRefusedThroughOthers(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start()
		m, err := zklock.NewInterProcessMutex(p.client, "/dedup/lock")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		refused := func(ctx context.Context, id string) {
			if _, err := p.do(ctx, id, mustNotRun(t)); !errors.Is(err, dedup.ErrNested) {
				t.Errorf("%s inside itself: %v, want ErrNested", id, err)
			}
		}
		err = m.Do(t.Context(), func(ctx context.Context, _ *zklock.Lease) error {
			_, err := p.do(ctx, "outer", func(ctx context.Context, _ *dedup.Claim) (string, error) {
				_, err := p.do(ctx, "inner", func(ctx context.Context, _ *dedup.Claim) (string, error) {
					refused(ctx, "inner")
					refused(ctx, "outer")
					refused(ctx, "lock")
					return "one", nil
				})
				return "one", err
			})
			return err
		})
		if err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v: something waited", took)
		}
	})
}
