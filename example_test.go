package zklock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/zktest"
)

// start runs a server in this process and connects to it. A program would call
// Connect with the addresses of its ensemble.
func start() (srv *zktest.Server, client *zklock.Client, stop func()) {
	srv, err := zktest.Start(zktest.Config{})
	if err != nil {
		log.Fatal(err)
	}
	client, err = zklock.Connect(context.Background(), zklock.Config{
		Servers: []string{srv.Addr()},
		Dial:    srv.Dial, // the server does not listen on a port
	})
	if err != nil {
		log.Fatal(err)
	}
	return srv, client, func() {
		if err := client.Close(); err != nil {
			log.Print(err)
		}
		srv.Close()
	}
}

// mutexFor makes the lock of one idempotency key.
func mutexFor(client *zklock.Client, key string) *zklock.InterProcessMutex {
	element, err := zklock.EscapeKey(key)
	if err != nil {
		log.Fatal(err)
	}
	mutex, err := zklock.NewInterProcessMutex(client, "/dedup/"+element)
	if err != nil {
		log.Fatal(err)
	}
	return mutex
}

// A client is one per process. Everything in Config but Servers has a default.
func ExampleConnect() {
	srv, err := zktest.Start(zktest.Config{Listen: "127.0.0.1:0"})
	if err != nil {
		log.Fatal(err)
	}
	defer srv.Close()

	client, err := zklock.Connect(context.Background(), zklock.Config{
		Servers:        []string{srv.Addr()}, // or "zk1:2181,zk2:2181,zk3:2181/chroot"
		SessionTimeout: 12 * time.Second,
		TickTime:       2 * time.Second, // the ensemble's
	})
	if err != nil {
		fmt.Println(err) // names each server and what it said
		return
	}
	fmt.Println(client.State(), client.SessionTimeout())
	fmt.Println(client.Close())
	// Output:
	// Connected 12s
	// <nil>
}

// One mutex stands for one path; nothing is sent until it is used.
func ExampleNewInterProcessMutex() {
	_, client, stop := start()
	defer stop()

	mutex, err := zklock.NewInterProcessMutex(client, "/dedup/order-17", zklock.WithIdentifier("worker-1"))
	fmt.Println(mutex.Path(), err)
	_, err = zklock.NewInterProcessMutex(client, "dedup/order-17")
	fmt.Println(errors.Is(err, zklock.ErrInvalidPath))
	// Output:
	// /dedup/order-17 <nil>
	// true
}

// The ctx bounds the wait, not the hold.
func ExampleInterProcessMutex_Acquire() {
	_, client, stop := start()
	defer stop()
	mutex := mutexFor(client, "order-17")

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	lease, err := mutex.Acquire(ctx)
	if err != nil {
		fmt.Println(err) // ErrNotAcquired, joined with the reason
		return
	}
	fmt.Println(lease.State())

	// Another one waits, here for a moment only.
	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err = mutex.Acquire(short)
	fmt.Println(errors.Is(err, zklock.ErrNotAcquired), errors.Is(err, context.DeadlineExceeded))

	fmt.Println(lease.Release(ctx))
	// Output:
	// Held
	// true true
	// <nil>
}

// TryAcquire is for work that somebody else may be doing already.
func ExampleInterProcessMutex_TryAcquire() {
	_, client, stop := start()
	defer stop()
	mutex := mutexFor(client, "order-17")
	ctx := context.Background()

	lease, err := mutex.TryAcquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = mutex.TryAcquire(ctx)
	fmt.Println(errors.Is(err, zklock.ErrHeld))
	_ = lease.Release(ctx)
	// Output: true
}

// Do releases whatever happens in the function, and reports a lease that was lost
// while it ran.
func ExampleInterProcessMutex_Do() {
	_, client, stop := start()
	defer stop()
	mutex := mutexFor(client, "order-17")

	err := mutex.Do(context.Background(), func(ctx context.Context, lease *zklock.Lease) error {
		fmt.Println("charging", lease.State())
		return ctx.Err()
	})
	fmt.Println(err, errors.Is(err, zklock.ErrLost))
	// Output:
	// charging Held
	// <nil> false
}

// A function that was given a held lease's context may lock again: it shares the
// hold.
func ExampleInterProcessMutex_Acquire_reentrant() {
	_, client, stop := start()
	defer stop()
	mutex := mutexFor(client, "order-17")
	ctx := context.Background()

	outer, err := mutex.Acquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	inner, err := mutex.Acquire(outer.Context())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(inner.Token() == outer.Token())
	_ = inner.Release(ctx)
	fmt.Println(outer.State())
	_ = outer.Release(ctx)
	// Output:
	// true
	// Held
}

// Who holds the lock, and who waits for it.
func ExampleInterProcessMutex_Participants() {
	_, client, stop := start()
	defer stop()
	mutex := mutexFor(client, "order-17")
	ctx := context.Background()

	lease, err := mutex.Acquire(ctx, zklock.AcquireIdentifier("worker-1"))
	if err != nil {
		fmt.Println(err)
		return
	}
	participants, err := mutex.Participants(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range participants {
		fmt.Println(p.Identifier, p.Holder, p.Token == lease.Token())
	}
	_ = lease.Release(ctx)
	// Output: worker-1 true true
}

// Await before every step that must not be taken twice: it lets the step pass while
// the lease is held, waits while the connection is away, and stops the work when the
// lease is lost.
func ExampleLease_Await() {
	srv, client, stop := start()
	defer stop()
	mutex := mutexFor(client, "order-17")

	err := mutex.Do(context.Background(), func(ctx context.Context, lease *zklock.Lease) error {
		for _, step := range []string{"reserve", "charge", "confirm"} {
			if err := lease.Await(ctx); err != nil {
				return fmt.Errorf("before %s: %w", step, err)
			}
			fmt.Println(step)
			if step == "charge" {
				_ = srv.Delete(lease.Path()) // an operator steps in
				<-lease.Lost()
			}
		}
		return nil
	})
	var lost *zklock.LostError
	fmt.Println(errors.As(err, &lost) && lost.Reason == zklock.NodeDeleted)
	// Output:
	// reserve
	// charge
	// true
}

// A write to the same ensemble can be made to depend on the lock: both succeed, or
// neither does.
func ExampleLease_Guard() {
	srv, client, stop := start()
	defer stop()
	mutex := mutexFor(client, "order-17")
	ctx := context.Background()
	conn := client.Conn()
	if _, err := conn.Create("/status", nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		fmt.Println(err)
		return
	}

	lease, err := mutex.Acquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = conn.Multi(lease.Guard(), &zk.SetDataRequest{Path: "/status", Data: []byte("paid"), Version: -1})
	fmt.Println("while held:", err)

	_ = lease.Release(ctx)
	_, err = conn.Multi(lease.Guard(), &zk.SetDataRequest{Path: "/status", Data: []byte("late"), Version: -1})
	fmt.Println("after that:", err)
	data, _ := srv.Get("/status")
	fmt.Printf("%s\n", data)
	// Output:
	// while held: <nil>
	// after that: zk: node does not exist
	// paid
}

// store is an external store that keeps the largest token it has seen, and refuses
// smaller ones. In SQL that is `UPDATE … WHERE token <= $1`.
type store struct{ token zklock.Token }

func (s *store) write(token zklock.Token, what string) {
	if token < s.token {
		fmt.Println("refused:", what)
		return
	}
	s.token = token
	fmt.Println("written:", what)
}

// Every holder has a larger token than the one before. A store that compares them
// is safe from a worker that was stopped, and goes on without having noticed.
func ExampleToken() {
	_, client, stop := start()
	defer stop()
	mutex := mutexFor(client, "order-17")
	ctx := context.Background()
	var s store

	first, err := mutex.Acquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	s.write(first.Token(), "by the first")
	_ = first.Release(ctx)

	second, err := mutex.Acquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	s.write(second.Token(), "by the second")
	s.write(first.Token(), "by the first, late")
	_ = second.Release(ctx)
	// Output:
	// written: by the first
	// written: by the second
	// refused: by the first, late
}

// Changes of the connection, for a log or a health check. Leases follow by
// themselves.
func ExampleClient_OnStateChange() {
	srv, client, end := start()
	defer end()

	back := make(chan struct{})
	stop := client.OnStateChange(func(change zklock.StateChange) {
		fmt.Println(change.Previous, "to", change.State)
		if change.State == zklock.Reconnected {
			close(back)
		}
	})
	defer stop()
	srv.CutConnections()
	<-back
	// Output:
	// Connected to Suspended
	// Suspended to Reconnected
}

// Keys of any shape become one path element, and no two keys the same one.
func ExampleEscapeKey() {
	for _, key := range []string{"order-17", "2024/05/17", "50%", ".."} {
		element, err := zklock.EscapeKey(key)
		fmt.Println(element, err)
	}
	_, err := zklock.EscapeKey("")
	fmt.Println(errors.Is(err, zklock.ErrInvalidPath))
	// Output:
	// order-17 <nil>
	// 2024%2F05%2F17 <nil>
	// 50%25 <nil>
	// %2E%2E <nil>
	// true
}

// Deep inside, the lease is found in the context; its token goes along with the
// write.
func ExampleLeaseFromContext() {
	_, client, stop := start()
	defer stop()

	charge := func(ctx context.Context) error {
		lease, ok := zklock.LeaseFromContext(ctx)
		fmt.Println(ok, lease.Token() > 0)
		return nil
	}
	_ = mutexFor(client, "order-17").Do(context.Background(), func(ctx context.Context, _ *zklock.Lease) error {
		return charge(ctx)
	})
	// Output: true true
}
