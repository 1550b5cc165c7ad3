// Quickstart runs one function under a lock:
//
//	go run ./examples/quickstart zk1:2181,zk2:2181,zk3:2181
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
	if len(os.Args) != 2 {
		log.Fatal("usage: quickstart zk1:2181,zk2:2181,zk3:2181")
	}
	if err := run(context.Background(), os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, servers string) error {
	client, err := zklock.Connect(ctx, zklock.Config{Servers: []string{servers}})
	if err != nil {
		return err
	}
	defer client.Close()

	key, err := zklock.EscapeKey("order/1041") // any key, as one path element
	if err != nil {
		return err
	}
	mutex, err := zklock.NewInterProcessMutex(client, "/dedup/"+key)
	if err != nil {
		return err
	}

	wait, cancel := context.WithTimeout(ctx, time.Minute) // for Acquire
	defer cancel()
	lease, err := mutex.Acquire(wait)
	if err != nil {
		return err // errors.Is: zklock.ErrNotAcquired, context.DeadlineExceeded
	}
	defer lease.Release(ctx)

	work := lease.Context()                   // ends when the lease is lost
	if err := lease.Await(work); err != nil { // the gate, before each step
		return err
	}
	fmt.Println("ours, with token", lease.Token())
	return nil
}
