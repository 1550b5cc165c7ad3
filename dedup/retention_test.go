package dedup_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/zktest"
)

// hour gives a guard a retention of an hour.
func hour(_ *zklock.Config, c *dedup.Config) { c.Retention = time.Hour }

// sweep makes one pass and checks what it removed.
func (p *process) sweep(t *testing.T, swept int) dedup.SweepReport {
	t.Helper()
	r, err := p.Sweep(t.Context())
	if err != nil || r.Swept != swept {
		t.Errorf("swept: %+v, %v; want %d", r, err, swept)
	}
	return r
}

// uuidv7 is a key that says that it was made at a time.
func uuidv7(at time.Time) string {
	u, _ := uuid.NewV7()
	ms := at.UnixMilli()
	for i := range 6 {
		u[i] = byte(ms >> (40 - 8*i))
	}
	return u.String()
}

func TestLateRetryIsRefused(t *testing.T) {
	for _, claimFirst := range []bool{false, true} {
		inBubble(t, func(b *bundle) {
			t := b.t
			p := b.start(hour, func(_ *zklock.Config, c *dedup.Config) { c.ClaimFirst = claimFirst })
			q := b.start(hour, func(_ *zklock.Config, c *dedup.Config) { c.ClaimFirst = claimFirst })
			id := uuidv7(time.Now())
			if _, err := p.do(t.Context(), id, says("one")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour + time.Minute)
			// It is old, and its record is still there: that counts.
			if r, err := q.do(t.Context(), id, mustNotRun(t)); err != nil || r.Value != "one" {
				t.Errorf("ClaimFirst %v: %+v, %v", claimFirst, r, err)
			}
			p.sweep(t, 1)
			for _, other := range []*process{p, q} {
				if _, err := other.do(t.Context(), id, mustNotRun(t)); !errors.Is(err, dedup.ErrKeyExpired) {
					t.Errorf("%v, want ErrKeyExpired", err)
				}
			}
			if _, err := p.do(t.Context(), uuidv7(time.Now().Add(-59*time.Minute)), says("young")); err != nil {
				t.Error(err)
			}
			if _, err := p.do(t.Context(), uuidv7(time.Now().Add(24*time.Hour)), says("from the future")); err != nil {
				t.Error(err)
			}
			if _, err := p.do(t.Context(), uuid.NewString(), says("no time")); err != nil {
				t.Error(err)
			}
		})
	}
}

// A server that lags does not know the record yet: that is no late retry.
func TestLateRetryIsNotRefusedByAServerThatLags(t *testing.T) {
	inEnsemble(t, func(g *group) {
		t := g.t
		p, q := g.at(0), g.at(1)
		id := uuidv7(time.Now().Add(-59*time.Minute - 59*time.Second))
		if _, err := p.do(t.Context(), "warm", says("")); err != nil {
			t.Fatal(err)
		}
		g.follower.SetLag(3 * time.Second)
		if _, err := p.do(t.Context(), id, says("one")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1100 * time.Millisecond) // now it is older than the retention
		if r, err := q.do(t.Context(), id, mustNotRun(t)); err != nil || r.Value != "one" {
			t.Errorf("%+v, %v", r, err)
		}
	}, hour)
}

func TestSweeperLeavesWhatIsUnknown(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		short := func(_ *zklock.Config, c *dedup.Config) { c.Retention = 5 * time.Minute }
		p := b.start(short)
		q := b.start(short, func(_ *zklock.Config, c *dedup.Config) { c.SweepUnknown = true })
		b.unknown(p, "k")
		for range 3 {
			time.Sleep(10 * time.Minute)
			if r := p.sweep(t, 0); r.Unknown != 1 {
				t.Errorf("%+v", r)
			}
		}
		if _, err := p.do(t.Context(), "k", mustNotRun(t)); !errors.Is(err, dedup.ErrIndeterminate) {
			t.Errorf("%v, want ErrIndeterminate", err)
		}
		time.Sleep(10 * time.Minute)
		q.sweep(t, 1)
		if r, err := p.do(t.Context(), "k", says("again")); err != nil || r.Attempt != 1 {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

func TestSweeperMovesOnWhatIsInUse(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(hour), b.start(hour)
		fn, started, goOn := blocks("one")
		running := p.goDo(t.Context(), "running", fn)
		<-started
		broken := errors.New("broken")
		if _, err := p.do(t.Context(), "changed", fails(broken)); !errors.Is(err, broken) {
			t.Fatal(err)
		}
		time.Sleep(40 * time.Minute)
		if _, err := p.do(t.Context(), "changed", says("later")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Minute)
		if r := q.sweep(t, 0); r.Moved != 2 {
			t.Errorf("%+v, want both moved on", r)
		}
		close(goOn)
		if o := <-running; o.err != nil {
			t.Error(o.err)
		}
		for _, id := range []string{"running", "changed"} {
			if _, err := q.do(t.Context(), id, mustNotRun(t)); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(3 * time.Hour)
		r := q.sweep(t, 2)
		if r.Records != 0 {
			t.Errorf("%+v", r)
		}
		// Nothing of them is left in the index either.
		if left := buckets(b.srv); len(left) != 0 {
			t.Errorf("buckets left: %v", left)
		}
	})
}

// buckets lists the index without the sweeper's own nodes.
func buckets(s *zktest.Server) (names []string) {
	for _, name := range s.Children("/dedup-expiry") {
		if name != "sweeper" && name != "clock" {
			names = append(names, name)
		}
	}
	return names
}

// A caller comes to the record in the moment in which it is removed.
func TestSweeperGivesWayToACaller(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(hour), b.start(hour)
		if _, err := p.do(t.Context(), "k", fails(errors.New("broken"))); err == nil {
			t.Fatal("no error")
		}
		if _, err := p.do(t.Context(), "k2", says("done")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		fn, started, goOn := blocks("two")
		var second <-chan outcome
		b.srv.Inject(zktest.DelayRequest(time.Second, zktest.OpMulti).Client(p.name).Path("/dedup/k"))
		hit := make(chan struct{})
		go func() {
			time.Sleep(500 * time.Millisecond)
			second = q.goDo(t.Context(), "k", fn)
			<-started
			close(hit)
		}()
		r := p.sweep(t, 1)
		<-hit
		if r.Moved != 1 {
			t.Errorf("%+v, want k moved on and k2 swept", r)
		}
		close(goOn)
		if o := <-second; o.err != nil || o.r.Attempt != 2 {
			t.Errorf("%+v", o)
		}
	})
}

func TestSweeperLeavesWhatItCannotRead(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start(hour)
		for _, id := range []string{"newer", "corrupt", "fine"} {
			if _, err := p.do(t.Context(), id, says(id)); err != nil {
				t.Fatal(err)
			}
		}
		data, err := b.srv.Get("/dedup/newer")
		if err != nil {
			t.Fatal(err)
		}
		newer := strings.Replace(string(data), "zklock-dedup/1", "zklock-dedup/2", 1)
		for path, text := range map[string]string{"/dedup/newer": newer, "/dedup/corrupt": "rubbish"} {
			if err := b.srv.Set(path, []byte(text)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Hour)
		if r := p.sweep(t, 1); r.Unusable != 2 || r.Records != 2 {
			t.Errorf("%+v", r)
		}
		if data, _ := b.srv.Get("/dedup/newer"); string(data) != newer {
			t.Errorf("the newer record is now %q", data)
		}
		if data, _ := b.srv.Get("/dedup/corrupt"); string(data) != "rubbish" {
			t.Errorf("the corrupt record is now %q", data)
		}
		n := 0
		for i, err := range p.Records(t.Context()) {
			if err != nil || i.Err == nil || i.Key.ID != "newer" && i.Key.ID != "corrupt" {
				t.Errorf("%+v, %v", i, err)
			}
			n++
		}
		if n != 2 {
			t.Errorf("%d records, want 2", n)
		}
	})
}

// The sweeper's lock goes to another in the middle of a pass: what it would have
// removed stays.
func TestSweeperThatLosesItsLockRemovesNothing(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(hour), b.start(hour)
		for i := range 10 {
			if _, err := p.do(t.Context(), fmt.Sprint("k", i), says("")); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Hour)
		// Its lock node is deleted by hand just before its delete arrives.
		b.srv.Inject(zktest.Before(func() {
			for _, name := range b.srv.Children("/dedup-expiry/sweeper") {
				if err := b.srv.Delete("/dedup-expiry/sweeper/" + name); err != nil {
					t.Error(err)
				}
			}
		}, zktest.OpMulti).Client(p.name).Path("/dedup/"))
		r, err := p.Sweep(t.Context())
		if err == nil || r.Swept != 0 {
			t.Errorf("%+v, %v: want an error and nothing swept", r, err)
		}
		if n := len(b.srv.Children("/dedup")); n != 10 {
			t.Errorf("%d records, want 10", n)
		}
		q.sweep(t, 10)
	})
}

func TestTwoSweepersDoNotSweepAtOnce(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(hour), b.start(hour)
		if _, err := p.do(t.Context(), "k", says("")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		slow := b.srv.Inject(zktest.DelayReply(time.Second, zktest.OpMulti).Client(p.name).Path("/dedup/k"))
		over := make(chan struct{})
		go func() { defer close(over); p.sweep(t, 1) }()
		<-slow.Hit()
		if _, err := q.Sweep(t.Context()); !errors.Is(err, dedup.ErrInProgress) {
			t.Errorf("%v, want ErrInProgress", err)
		}
		<-over
	})
}

// Of the processes that share a root, one sweeps in each interval.
func TestOneProcessSweepsInEachInterval(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		often := func(_ *zklock.Config, c *dedup.Config) { c.SweepInterval = time.Minute }
		p := b.start(hour, often)
		for range 4 {
			b.start(hour, often)
		}
		if _, err := p.do(t.Context(), "k", says("")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		b.srv.Ops().Reset()
		before, _ := b.srv.Stat("/dedup-expiry/clock")
		time.Sleep(30 * time.Minute)
		after, _ := b.srv.Stat("/dedup-expiry/clock")
		if n := after.Version - before.Version; n < 20 || n > 40 {
			t.Errorf("%d passes in 30 intervals", n)
		}
		time.Sleep(time.Hour)
		if b.srv.Exists("/dedup/k") {
			t.Error("nobody has swept the record")
		}
	})
}

// What is closed while it sweeps does not wait for an ensemble that is away.
func TestCloseDoesNotWaitForASweepWithoutAnEnsemble(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start(hour, func(_ *zklock.Config, c *dedup.Config) { c.SweepInterval = time.Minute })
		if _, err := p.do(t.Context(), "k", says("")); err != nil {
			t.Fatal(err)
		}
		hole := b.srv.Inject(zktest.DropRequest(zktest.OpMulti, zktest.OpGetChildren2).Client(p.name).Path("/dedup-expiry").Silent().Always())
		<-hole.Hit()
		began := time.Now()
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("Close took %v", took)
		}
		hole.Heal()
		_, err := p.Sweep(t.Context())
		if !errors.Is(err, dedup.ErrClosed) {
			t.Errorf("Sweep: %v, want ErrClosed", err)
		}
	})
}

// A wall clock that is an hour wrong removes nothing early, and what is filed wrongly
// is found at last.
func TestClockThatIsAnHourWrong(t *testing.T) {
	for _, off := range []time.Duration{-time.Hour, time.Hour} {
		t.Run(off.String(), func(t *testing.T) {
			inBubble(t, func(b *bundle) {
				t := b.t
				wrong := false
				set := func(_ *zklock.Config, c *dedup.Config) {
					c.Retention = 3 * time.Hour
					c.Now = func() time.Time {
						if wrong {
							return time.Now().Add(off)
						}
						return time.Now()
					}
				}
				p := b.start(set)
				tokens := map[string]zklock.Token{}
				ids := []string{"made by the right clock", "made by the wrong clock", uuidv7(time.Now())}
				for _, id := range ids {
					r, err := p.do(t.Context(), id, says(id))
					if err != nil {
						t.Fatal(err)
					}
					tokens[id], wrong = r.Token, true
				}
				for range 2 { // at 1:20 and 2:40
					time.Sleep(80 * time.Minute)
					p.sweep(t, 0)
					for _, id := range ids {
						if r, err := p.do(t.Context(), id, mustNotRun(t)); err != nil || r.Value != id {
							t.Errorf("%+v, %v", r, err)
						}
					}
				}
				wrong = false // the clock jumps
				time.Sleep(100 * time.Minute)
				p.sweep(t, 3) // at 4:20
				for _, id := range ids[:2] {
					if r, err := p.do(t.Context(), id, says("two")); err != nil || r.Token <= tokens[id] || r.Replayed {
						t.Errorf("%+v, %v", r, err)
					}
				}
			})
		})
	}
}

func TestRecordThatWasRemovedByHandIsCounted(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start(hour)
		if _, err := p.do(t.Context(), "k", says("one")); err != nil {
			t.Fatal(err)
		}
		if err := b.srv.Delete("/dedup/k"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		if r := p.sweep(t, 0); r.Missing != 1 || len(buckets(b.srv)) != 0 {
			t.Errorf("%+v, buckets %v", r, buckets(b.srv))
		}
		if r, err := p.do(t.Context(), "k", says("two")); err != nil || r.Value != "two" {
			t.Errorf("%+v, %v", r, err)
		}
		// And one that is removed between the look and the claim.
		if _, err := p.do(t.Context(), "k2", fails(errors.New("broken"))); err == nil {
			t.Fatal("no error")
		}
		b.srv.Inject(zktest.Before(func() { _ = b.srv.Delete("/dedup/k2") }, zktest.OpCreate).Client(p.name).Path("/dedup/k2"))
		if r, err := p.do(t.Context(), "k2", says("two")); err != nil || r.Attempt != 1 {
			t.Errorf("%+v, %v", r, err)
		}
		if !strings.Contains(b.log.String(), "the record was removed before its retention was over") {
			t.Error("the log does not say so")
		}
		synctest.Wait()
	})
}

// A late index entry is of no concern to a caller that waits.
func TestRetentionOverWhileSomebodyWaits(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(hour), b.start(hour)
		started := make(chan struct{})
		holder := p.goDo(t.Context(), "k", func(context.Context, *dedup.Claim) (string, error) {
			close(started)
			time.Sleep(70 * time.Minute)
			return "one", nil
		})
		<-started
		waiter := q.goDo(t.Context(), "k", mustNotRun(t), dedup.WaitLimit(time.Hour))
		time.Sleep(65 * time.Minute)
		q.sweep(t, 0)
		if o := <-waiter; !errors.Is(o.err, dedup.ErrInProgress) {
			t.Errorf("%+v", o)
		}
		if o := <-holder; o.err != nil {
			t.Errorf("%+v", o)
		}
		if r, err := q.do(t.Context(), "k", mustNotRun(t)); err != nil || r.Value != "one" {
			t.Errorf("%+v, %v", r, err)
		}
	})
}
