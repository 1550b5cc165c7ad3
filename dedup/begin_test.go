package dedup_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/zktest"
)

// A plain lock and a record may meet on one path.

// lock takes a plain lock on the path of a key's record.
func (p *process) lock(t *testing.T, id string) *zklock.Lease {
	t.Helper()
	m, err := zklock.NewInterProcessMutex(p.client, "/dedup/"+id)
	if err != nil {
		t.Fatal(err)
	}
	l, err := m.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func release(t *testing.T, l *zklock.Lease) {
	t.Helper()
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestRecordTakesThePlaceOfAPlainLocksEmptyNode(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(), b.start()
		release(t, p.lock(t, "k"))
		if r, err := q.do(t.Context(), "k", says("one")); err != nil || r.Value != "one" || r.Replayed {
			t.Fatalf("%+v, %v", r, err)
		}
		// The ensemble would have removed the container that the lock had made.
		if st, err := b.srv.Stat("/dedup/k"); err != nil || st.EphemeralOwner != 0 {
			t.Errorf("%+v, %v", st, err)
		}
		if err := b.srv.Reap("/dedup/k"); err == nil {
			t.Error("the record was reaped")
		}
		if r, err := p.do(t.Context(), "k", mustNotRun(t)); err != nil || r.Value != "one" {
			t.Errorf("%+v, %v", r, err)
		}
		release(t, p.lock(t, "k")) // a plain lock on the path of a record
		if r, err := p.do(t.Context(), "k", mustNotRun(t)); err != nil || r.Value != "one" {
			t.Errorf("%+v, %v", r, err)
		}
		b.atRest()
	})
}

func TestDoWaitsForThePlainLockOnItsPath(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(), b.start()
		for _, id := range []string{"k", "with a record"} {
			if id != "k" {
				id = "recorded"
				if _, err := q.do(t.Context(), id, fails(errors.New("broken"))); err == nil {
					t.Fatal("no error")
				}
			}
			l := p.lock(t, id)
			if _, err := q.do(t.Context(), id, mustNotRun(t), dedup.NoWait()); !errors.Is(err, dedup.ErrInProgress) {
				t.Errorf("%s: NoWait: %v, want ErrInProgress", id, err)
			}
			if _, err := q.do(t.Context(), id, mustNotRun(t), dedup.WaitLimit(time.Second)); !errors.Is(err, dedup.ErrInProgress) {
				t.Errorf("%s: WaitLimit: %v, want ErrInProgress", id, err)
			}
			time.AfterFunc(5*time.Second, func() { release(t, l) })
			if r, err := q.do(t.Context(), id, says("one")); err != nil || r.Value != "one" {
				t.Errorf("%s: %+v, %v", id, r, err)
			}
		}
		b.atRest()
	})
}

func TestPlainLockWaitsForARunningFunction(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(), b.start()
		var ended time.Time
		started := make(chan struct{})
		go func() {
			_, err := p.do(t.Context(), "k", func(context.Context, *dedup.Claim) (string, error) {
				close(started)
				time.Sleep(5 * time.Second)
				ended = time.Now()
				return "one", nil
			})
			if err != nil {
				t.Error(err)
			}
		}()
		<-started
		l := q.lock(t, "k")
		if ended.IsZero() {
			t.Error("the lock was granted while the function ran")
		}
		release(t, l)
		b.atRest()
	})
}

// Two find the empty node of a plain lock. The first puts its record there and is
// done; what the second has read is no longer so.
func TestRecordIsNotReplacedByOneWhoSawThePlainLock(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(), b.start()
		release(t, p.lock(t, "k"))
		late := b.srv.Inject(zktest.DelayRequest(2*time.Second, zktest.OpMulti).Client(p.name).Path("/dedup/k").Nth(2))
		got := make(chan dedup.Result[string], 1)
		go func() {
			r, err := p.do(t.Context(), "k", says("p"))
			if err != nil {
				t.Error(err)
			}
			got <- r
		}()
		<-late.Hit()
		second, err := q.do(t.Context(), "k", says("q"))
		if err != nil {
			t.Error(err)
		}
		if first := <-got; first.Value != second.Value || first.Token != second.Token || first.Replayed == second.Replayed {
			t.Errorf("two outcomes: %+v, %+v", first, second)
		}
		b.atRest()
	})
}

// A Begin whose caller has gone leaves nothing that looks like a run.
func TestCallerThatLeavesWhileTheRecordIsMadeLeavesItOpen(t *testing.T) {
	for _, reply := range []bool{false, true} {
		inBubble(t, func(b *bundle) {
			t := b.t
			p, q := b.start(), b.start()
			b.warm(p)
			fault := zktest.DelayRequest(time.Second, zktest.OpMulti)
			if reply {
				fault = zktest.DelayReply(time.Second, zktest.OpMulti)
			}
			late := b.srv.Inject(fault.Client(p.name).Path("/dedup/k"))
			ctx, cancel := context.WithCancel(t.Context())
			got := make(chan error, 1)
			go func() {
				_, err := p.do(ctx, "k", mustNotRun(t))
				got <- err
			}()
			<-late.Hit()
			cancel()
			if err := <-got; !errors.Is(err, context.Canceled) {
				t.Errorf("%v, want the end of ctx", err)
			}
			// An orderly end does not leave an unknown outcome either.
			if err := p.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if err := p.client.Close(); err != nil {
				t.Error(err)
			}
			if r, err := q.do(t.Context(), "k", says("one")); err != nil || r.Value != "one" || r.Attempt != 1 {
				t.Errorf("%+v, %v", r, err)
			}
			b.atRest()
		})
	}
}
