// Package pauseabort shows business logic that pauses while its lock is in doubt and aborts when it is lost.
package pauseabort

import (
	"context"

	"github.com/go-zklock/zklock"
)

// Bank is somebody outside.
type Bank interface {
	Authorise(ctx context.Context, account string, amount int64) error
	// Charge refuses a token that is smaller than one it has seen for the same payment.
	Charge(ctx context.Context, account string, amount int64, token zklock.Token) error
}

// Pay charges the account under the lock.
func Pay(ctx context.Context, mutex *zklock.InterProcessMutex, bank Bank, account string, amount int64) error {
	return mutex.Do(ctx, func(ctx context.Context, lease *zklock.Lease) error {
		// ctx ends when the lease is lost. Hand it to everything that can be cut short.
		if err := bank.Authorise(ctx, account, amount); err != nil {
			return err
		}
		// The gate before a step that two must not take: nil while the lock is ours. It
		// waits while the connection is in doubt, and fails once the lease is lost.
		if err := lease.Await(ctx); err != nil {
			return err
		}
		// A process that is stopped here comes too late without noticing. The token tells.
		return bank.Charge(ctx, account, amount, lease.Token())
	})
}
