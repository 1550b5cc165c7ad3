package deduptest_test

import (
	"context"
	"fmt"
	"log"

	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/dedup/deduptest"
)

// A unit test of what uses a guard needs no ensemble.
func ExampleNewMemory() {
	ctx := context.Background()
	guard, err := dedup.NewWithStore(deduptest.NewMemory(), dedup.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer guard.Close(ctx)
	for range 2 {
		res, err := dedup.Do(ctx, guard, dedup.Key{ID: "1041"}, dedup.NoFingerprint, func(context.Context, *dedup.Claim) (string, error) {
			return "receipt 1", nil
		})
		fmt.Println(res.Value, res.Replayed, err)
	}
	// Output:
	// receipt 1 false <nil>
	// receipt 1 true <nil>
}
