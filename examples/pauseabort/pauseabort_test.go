package pauseabort

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/zktest"
)

// TestLosesInTime is the one of the README.
func TestLosesInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := zktest.NewServer(t)
		client, err := zklock.Connect(t.Context(), zklock.Config{
			Servers: []string{srv.Addr()}, Dial: srv.Dial, Clock: zktest.Clock{},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		mutex, err := zklock.NewInterProcessMutex(client, "/dedup/order")
		if err != nil {
			t.Fatal(err)
		}
		lease, err := mutex.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}

		srv.Inject(zktest.Blackhole(zktest.BothWays)) // not a packet comes through
		<-lease.Lost()                                // 11.88 s in virtual time, no time at all in ours
		if !srv.Exists(lease.Path()) {
			t.Error("the node was gone before the lease was lost")
		}
	})
}

// bank authorises for a minute and keeps what it was asked to charge.
type bank struct {
	charges []zklock.Token
}

func (b *bank) Authorise(context.Context, string, int64) error { // it does not listen to ctx
	time.Sleep(time.Minute)
	return nil
}

func (b *bank) Charge(_ context.Context, _ string, _ int64, token zklock.Token) error {
	b.charges = append(b.charges, token)
	return nil
}

// pay runs Pay, with a fault from the 50th second on that heals after so long.
func pay(t *testing.T, outage time.Duration) (took time.Duration, charges int, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		srv := zktest.NewServer(t)
		client, cerr := zklock.Connect(t.Context(), zklock.Config{
			Servers: []string{srv.Addr()}, Dial: srv.Dial, Clock: zktest.Clock{}, Seed: 1,
			SessionTimeout: 30 * time.Second, TickTime: 2 * time.Second,
		})
		if cerr != nil {
			t.Fatal(cerr)
		}
		defer client.Close()
		mutex, cerr := zklock.NewInterProcessMutex(client, "/dedup/order")
		if cerr != nil {
			t.Fatal(cerr)
		}
		time.AfterFunc(50*time.Second, func() {
			fault := srv.Inject(zktest.Blackhole(zktest.BothWays))
			time.AfterFunc(outage, fault.Heal)
		})
		var b bank
		begun := time.Now()
		err = Pay(t.Context(), mutex, &b, "a", 5)
		took, charges = time.Since(begun), len(b.charges)
	})
	return took, charges, err
}

func TestPause(t *testing.T) {
	took, charges, err := pay(t, 15*time.Second)
	if err != nil || charges != 1 {
		t.Fatalf("%d charges, %v", charges, err)
	}
	if took < 65*time.Second { // at 60 s the charge was due, and the outage lasts until 65 s
		t.Errorf("charged after %v, when nothing said whether the lock was still ours", took)
	}
}

func TestAbort(t *testing.T) {
	_, charges, err := pay(t, time.Hour)
	if !errors.Is(err, zklock.ErrLost) || charges != 0 {
		t.Fatalf("%d charges, %v", charges, err)
	}
}
