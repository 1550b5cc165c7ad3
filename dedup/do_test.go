package dedup_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/zktest"
)

func TestDuplicateGetsTheFirstAnswer(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(), b.start()
		first, err := p.do(t.Context(), "k", says("one"))
		if err != nil {
			t.Fatal(err)
		}
		if first.Value != "one" || first.Replayed || first.Attempt != 1 || first.Token == 0 {
			t.Errorf("first: %+v", first)
		}
		for _, other := range []*process{p, q} {
			again, err := other.do(t.Context(), "k", mustNotRun(t))
			if err != nil {
				t.Fatal(err)
			}
			if again.Value != "one" || !again.Replayed || again.Attempt != 1 || again.Token != first.Token {
				t.Errorf("%s: %+v, want a replay of %+v", other.name, again, first)
			}
		}
	})
}

func TestFreshKeyCostsTwoWritesAndOneReadAndAReplayOneRead(t *testing.T) {
	for _, claimFirst := range []bool{false, true} {
		inBubble(t, func(b *bundle) {
			t := b.t
			set := func(_ *zklock.Config, c *dedup.Config) { c.ClaimFirst = claimFirst }
			p, q := b.start(set), b.start(set)
			warm := func(id string) { // makes the paths and the buckets
				if _, err := p.do(t.Context(), id, says(id)); err != nil {
					t.Fatal(err)
				}
			}
			for i := range 100 {
				warm(fmt.Sprint("warm", i))
			}
			synctest.Wait()
			b.srv.Ops().Reset()
			if _, err := p.do(t.Context(), "k", says("one")); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			want := map[zktest.Op]int{zktest.OpMulti: 2, zktest.OpGetData: 1}
			if claimFirst {
				delete(want, zktest.OpGetData)
			}
			if got, want := requests(b.srv.Ops().Counts()), requests(zktest.Counts{ByOp: want}); got != want {
				t.Errorf("ClaimFirst %v: fresh: %s, want %s", claimFirst, got, want)
			}
			b.srv.Ops().Reset()
			if _, err := p.do(t.Context(), "k", mustNotRun(t)); err != nil {
				t.Fatal(err)
			}
			if !claimFirst {
				if _, err := q.do(t.Context(), "k", mustNotRun(t)); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			want = map[zktest.Op]int{zktest.OpGetData: 2}
			if claimFirst {
				want[zktest.OpGetData] = 1
			}
			if got, want := requests(b.srv.Ops().Counts()), requests(zktest.Counts{ByOp: want}); got != want {
				t.Errorf("ClaimFirst %v: replays: %s, want %s", claimFirst, got, want)
			}
		})
	}
}

func TestHundredDuplicatesInOneProcessCostWhatOneDoes(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start()
		for i := range 100 {
			if _, err := p.do(t.Context(), fmt.Sprint("warm", i), says("")); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		b.srv.Ops().Reset()
		results := make(chan dedup.Result[string], 100)
		for range 100 {
			go func() {
				r, err := p.do(t.Context(), "k", func(context.Context, *dedup.Claim) (string, error) {
					time.Sleep(10 * time.Millisecond)
					return "one", nil
				})
				if err != nil {
					t.Error(err)
				}
				results <- r
			}()
		}
		ran := 0
		for range 100 {
			r := <-results
			if r.Value != "one" {
				t.Errorf("%+v", r)
			}
			if !r.Replayed {
				ran++
			}
		}
		if ran != 1 {
			t.Errorf("%d ran, want 1", ran)
		}
		synctest.Wait()
		if got, want := requests(b.srv.Ops().Counts()), requests(zktest.Counts{ByOp: map[zktest.Op]int{zktest.OpMulti: 2, zktest.OpGetData: 1}}); got != want {
			t.Errorf("requests: %s, want %s", got, want)
		}
	})
}

func TestOtherPayloadIsRefused(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start()
		if _, err := p.do(t.Context(), "k", says("one")); err != nil {
			t.Fatal(err)
		}
		_, err := dedup.Do(t.Context(), p.Guard, dedup.Key{ID: "k"}, dedup.Payload([]byte("other")), mustNotRun(t))
		if !errors.Is(err, dedup.ErrKeyReused) {
			t.Errorf("%v, want ErrKeyReused", err)
		}
	})
}

func TestFailedAttemptIsRunAgainAndAPermanentFailureIsNot(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(), b.start()
		broken := errors.New("broken")
		if _, err := p.do(t.Context(), "k", func(context.Context, *dedup.Claim) (string, error) { return "", broken }); !errors.Is(err, broken) {
			t.Fatalf("%v, want %v", err, broken)
		}
		var token zklock.Token
		_, err := q.do(t.Context(), "k", func(_ context.Context, c *dedup.Claim) (string, error) {
			token = c.Token()
			if c.Attempt() != 2 {
				t.Errorf("attempt %d, want 2", c.Attempt())
			}
			if pr := c.Prior(); pr == nil || pr.Attempt != 1 || pr.Unknown || pr.Message != "broken" || pr.Token >= token || pr.Token == 0 {
				t.Errorf("prior %+v, our token %v", pr, token)
			}
			return "", dedup.Permanent(broken)
		})
		var failed *dedup.FailedError
		if !errors.As(err, &failed) || failed.Replayed || !errors.Is(err, broken) {
			t.Fatalf("%v", err)
		}
		r, err := p.do(t.Context(), "k", mustNotRun(t))
		if !errors.As(err, &failed) || !failed.Replayed || failed.Message != "broken" {
			t.Fatalf("%v", err)
		}
		if !r.Replayed || r.Attempt != 2 || r.Token != token {
			t.Errorf("%+v", r)
		}
	})
}

func TestWaiterInAnotherProcessGetsTheOutcome(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(), b.start()
		started := make(chan struct{})
		release := make(chan struct{})
		go func() {
			if _, err := p.do(t.Context(), "k", func(context.Context, *dedup.Claim) (string, error) {
				close(started)
				<-release
				return "one", nil
			}); err != nil {
				t.Error(err)
			}
		}()
		<-started
		if _, err := q.do(t.Context(), "k", mustNotRun(t), dedup.NoWait()); !errors.Is(err, dedup.ErrInProgress) {
			t.Errorf("NoWait: %v, want ErrInProgress", err)
		}
		start := time.Now()
		if _, err := q.do(t.Context(), "k", mustNotRun(t), dedup.WaitLimit(5*time.Second)); !errors.Is(err, dedup.ErrInProgress) {
			t.Errorf("WaitLimit: %v, want ErrInProgress", err)
		}
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("it took %v, want the limit", took)
		}
		time.AfterFunc(7*time.Second, func() { close(release) })
		r, err := q.do(t.Context(), "k", mustNotRun(t))
		if err != nil || !r.Replayed || r.Value != "one" {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

func TestHolderThatDiesLeavesTheOutcomeUnknown(t *testing.T) {
	for _, policy := range []dedup.Policy{dedup.Refuse, dedup.Reexecute} {
		t.Run(policy.String(), func(t *testing.T) {
			inBubble(t, func(b *bundle) {
				t := b.t
				p := b.start()
				q := b.start(func(_ *zklock.Config, c *dedup.Config) { c.Policy = policy })
				started, ended := make(chan struct{}), make(chan error, 1)
				go func() {
					_, err := p.do(t.Context(), "k", func(ctx context.Context, _ *dedup.Claim) (string, error) {
						close(started)
						<-ctx.Done()
						return "late", nil
					})
					ended <- err
				}()
				<-started
				b.srv.Expire(p.client.SessionID())
				err := <-ended
				if !errors.Is(err, dedup.ErrIndeterminate) || !errors.Is(err, zklock.ErrLost) {
					t.Errorf("the one who lost it: %v, want ErrIndeterminate and ErrLost", err)
				}
				r, err := q.do(t.Context(), "k", func(_ context.Context, c *dedup.Claim) (string, error) {
					if pr := c.Prior(); pr == nil || !pr.Unknown || pr.Token >= c.Token() {
						t.Errorf("prior %+v", pr)
					}
					return "two", nil
				})
				if policy == dedup.Reexecute {
					if err != nil || r.Value != "two" || r.Attempt != 2 {
						t.Errorf("%+v, %v", r, err)
					}
					return
				}
				if !errors.Is(err, dedup.ErrIndeterminate) {
					t.Errorf("%v, want ErrIndeterminate", err)
				}
				n := 0
				for i, err := range q.Unresolved(t.Context()) {
					if err != nil {
						t.Fatal(err)
					}
					if i.Key.ID != "k" || !i.Unknown {
						t.Errorf("%+v", i)
					}
					n++
				}
				if n != 1 {
					t.Errorf("%d unresolved, want 1", n)
				}
				if err := q.Resolve(t.Context(), dedup.Key{ID: "k"}, dedup.Completed("by hand")); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second) // p has a new session by then
				r, err = p.do(t.Context(), "k", mustNotRun(t))
				if err != nil || r.Value != "by hand" || !r.Replayed {
					t.Errorf("%+v, %v", r, err)
				}
			})
		})
	}
}

func TestRetentionIsSwept(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start(func(_ *zklock.Config, c *dedup.Config) { c.Retention = time.Hour })
		first, err := p.do(t.Context(), "k", says("one"))
		if err != nil {
			t.Fatal(err)
		}
		if r, err := p.Sweep(t.Context()); err != nil || r.Swept != 0 {
			t.Fatalf("%+v, %v", r, err)
		}
		time.Sleep(time.Hour + 2*time.Minute)
		r, err := p.Sweep(t.Context())
		if err != nil || r.Swept != 1 || r.Records != 0 {
			t.Fatalf("%+v, %v", r, err)
		}
		second, err := p.do(t.Context(), "k", says("two"))
		if err != nil || second.Value != "two" || second.Token <= first.Token || second.Attempt != 1 {
			t.Errorf("%+v, %v", second, err)
		}
	})
}
