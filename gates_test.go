package zklock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zklock/zklock/zktest"
)

// A gate stands before every step of the work, so it must cost next to nothing.
func TestGatesOfAHeldLeaseAllocateNothing(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		l := b.acquire(b.mutex(b.connect(), "/dedup/a"))
		ctx := context.Background()
		for name, gate := range map[string]func(){
			"Await":    func() { _ = l.Await(ctx) },
			"Err":      func() { _ = l.Err() },
			"State":    func() { _ = l.State() },
			"Deadline": func() { _ = l.Deadline() },
		} {
			if n := testing.AllocsPerRun(100, gate); n != 0 {
				t.Errorf("%s: %v allocations", name, n)
			}
		}
		b.release(l)
	})
}

// All that a client holds is proved together: one transaction a beat.
func TestThousandLeasesAreProvedInOneTransaction(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect()
		leases := make([]*Lease, 1000)
		for i := range leases {
			leases[i] = b.acquire(b.mutex(c, "/dedup/"+string(rune('a'+i%26))+"-"+time.Duration(i).String()))
		}
		h := heartbeat(c.SessionTimeout())
		time.Sleep(2 * h) // also for the watches on the own nodes
		synctest.Wait()
		b.srv.Ops().Reset()
		time.Sleep(10 * h)
		synctest.Wait()
		if n := b.srv.Ops().Counts().ByOp[zktest.OpMulti]; n < 9 || n > 11 {
			t.Errorf("%d proofs in 10 beats, want one a beat", n)
		}
		for _, l := range leases {
			b.release(l)
		}
	})
}

func BenchmarkAwait(b *testing.B) {
	srv := zktest.NewServer(b)
	c, err := Connect(b.Context(), Config{Servers: []string{srv.Addr()}, Dial: srv.Dial})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	m, err := NewInterProcessMutex(c, "/dedup/a")
	if err != nil {
		b.Fatal(err)
	}
	l, err := m.Acquire(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		if err := l.Await(ctx); err != nil {
			b.Fatal(err)
		}
	}
	if err := l.Release(context.Background()); err != nil {
		b.Fatal(err)
	}
}
