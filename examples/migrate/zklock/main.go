// The settlement with zklock: what the programs in curator, kazoo and gozk become.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/go-zklock/zklock"
)

func main() {
	if err := run(context.Background(), os.Args[1], os.Args[2:]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, servers string, invoices []string) error {
	client, err := zklock.Connect(ctx, zklock.Config{Servers: []string{servers}, SessionTimeout: 12 * time.Second})
	if err != nil {
		return err
	}
	defer client.Close() // takes what is left of us with it

	mutex, err := zklock.NewInterProcessMutex(client, "/locks/settlement")
	if err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	lease, err := mutex.Acquire(wait)
	if err != nil {
		return err // after a minute it matches context.DeadlineExceeded
	}
	defer lease.Release(ctx)

	for _, invoice := range invoices {
		// Waits while the connection is in doubt, and fails once the lock is lost.
		if err := lease.Await(ctx); err != nil {
			return err
		}
		settle(invoice, lease.Token())
	}
	return nil
}

// settle stands for the work. A real one hands the token to the ledger, which refuses a
// smaller one than the largest it has seen.
func settle(invoice string, token zklock.Token) {
	fmt.Println("begin", invoice, token)
	time.Sleep(20 * time.Millisecond)
	fmt.Println("end", invoice)
}
