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

// F30: fn returns after its claim was lost. Its outcome is not stored, the caller is
// told, and the successor's stands.
func TestFunctionThatOutlivesItsClaimStoresNothing(t *testing.T) {
	for name, result := range map[string]func() (string, error){
		"value":     func() (string, error) { return "late", nil },
		"error":     func() (string, error) { return "", errors.New("broken") },
		"permanent": func() (string, error) { return "", dedup.Permanent(errors.New("for good")) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bundle) {
				t := b.t
				p, q := b.start(), b.start()
				started, goOn := make(chan struct{}), make(chan struct{})
				first := p.goDo(t.Context(), "k", func(context.Context, *dedup.Claim) (string, error) {
					close(started)
					<-goOn // it does not look at its ctx
					return result()
				})
				<-started
				hole := b.srv.Inject(zktest.Blackhole(zktest.BothWays).Client(p.name))
				second, err := q.do(t.Context(), "k", func(_ context.Context, c *dedup.Claim) (string, error) {
					if pr := c.Prior(); pr == nil || !pr.Unknown || pr.Token >= c.Token() {
						t.Errorf("prior %+v", pr)
					}
					return "two", nil
				}, dedup.WithPolicy(dedup.Reexecute))
				if err != nil || second.Value != "two" || second.Attempt != 2 {
					t.Fatalf("%+v, %v", second, err)
				}
				hole.Heal()
				close(goOn)
				o := <-first
				if !errors.Is(o.err, zklock.ErrLost) || o.r.Value != "" {
					t.Errorf("%+v, want the loss", o)
				}
				if want := name != "error"; errors.Is(o.err, dedup.ErrIndeterminate) != want {
					t.Errorf("%v, ErrIndeterminate wanted: %v", o.err, want)
				}
				time.Sleep(time.Minute)
				for _, pr := range []*process{p, q} {
					if r, err := pr.do(t.Context(), "k", mustNotRun(t)); err != nil || r.Value != "two" || r.Token != second.Token {
						t.Errorf("%+v, %v", r, err)
					}
				}
				b.atRest()
			})
		})
	}
}

// The claim is lost with its node still there, and fn fails: that is known, so the
// record is opened.
func TestFunctionThatFailsAfterALossOpensTheRecord(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(), b.start()
		broken := errors.New("broken")
		started := make(chan struct{})
		first := p.goDo(t.Context(), "k", func(ctx context.Context, _ *dedup.Claim) (string, error) {
			close(started)
			<-ctx.Done()
			return "", broken
		})
		<-started
		// The session lives and no proof comes through: lost by the clock alone.
		hole := b.srv.Inject(zktest.Blackhole(zktest.ServerToClient).Client(p.name))
		o := <-first
		if !errors.Is(o.err, broken) || !errors.Is(o.err, zklock.ErrLost) {
			t.Errorf("%+v", o)
		}
		hole.Heal()
		r, err := q.do(t.Context(), "k", says("two"), dedup.WithPolicy(dedup.Reexecute))
		if err != nil || r.Attempt != 2 {
			t.Errorf("%+v, %v", r, err)
		}
		b.atRest()
	})
}

// An operator deletes the claim, or the record, while fn runs.
func TestClaimOrRecordThatIsDeletedByHand(t *testing.T) {
	for _, record := range []bool{false, true} {
		inBubble(t, func(b *bundle) {
			t := b.t
			p, q := b.start(), b.start()
			started := make(chan struct{})
			first := p.goDo(t.Context(), "k", func(ctx context.Context, _ *dedup.Claim) (string, error) {
				close(started)
				<-ctx.Done()
				return "one", nil
			})
			<-started
			time.Sleep(time.Second) // the claim is watched by then
			for _, name := range b.srv.Children("/dedup/k") {
				if err := b.srv.Delete("/dedup/k/" + name); err != nil {
					t.Fatal(err)
				}
			}
			if record {
				if err := b.srv.Delete("/dedup/k"); err != nil {
					t.Fatal(err)
				}
			}
			if o := <-first; !errors.Is(o.err, dedup.ErrIndeterminate) || !errors.Is(o.err, zklock.ErrLost) {
				t.Errorf("%+v", o)
			}
			r, err := q.do(t.Context(), "k", says("two"), dedup.WithPolicy(dedup.Reexecute))
			if err != nil || r.Value != "two" {
				t.Errorf("%+v, %v", r, err)
			}
			b.atRest()
		})
	}
}

// The claim is deleted by hand just before the commit arrives: the commit is refused.
func TestCommitWithoutItsClaimIsRefused(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(), b.start()
		b.warm(p)
		b.srv.Inject(zktest.Before(func() {
			for _, name := range b.srv.Children("/dedup/k") {
				if err := b.srv.Delete("/dedup/k/" + name); err != nil {
					t.Error(err)
				}
			}
		}, zktest.OpMulti).Client(p.name).Path("/dedup/k").Nth(2))
		if _, err := p.do(t.Context(), "k", says("one")); !errors.Is(err, dedup.ErrIndeterminate) {
			t.Errorf("%v, want ErrIndeterminate", err)
		}
		if s := b.state("k"); s != "running 1" {
			t.Errorf("the record is %s", s)
		}
		if _, err := q.do(t.Context(), "k", mustNotRun(t)); !errors.Is(err, dedup.ErrIndeterminate) {
			t.Errorf("%v, want ErrIndeterminate", err)
		}
		b.atRest()
	})
}

// Somebody changes the record under a live claim. Neither the commit nor another
// attempt's "running" goes over it.
func TestRecordThatWasChangedByHandIsNotWrittenOver(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(), b.start()
		b.warm(p)
		settle := func(id string) func() {
			return func() {
				r, err := driverRecord(b, id)
				if err != nil {
					t.Fatal(err)
				}
				r.State, r.Outcome, r.Token = "done", []byte(`"by hand"`), 1
				data, err := r.MarshalBinary()
				if err != nil {
					t.Fatal(err)
				}
				if err := b.srv.Set("/dedup/"+id, data); err != nil {
					t.Error(err)
				}
			}
		}
		b.srv.Inject(zktest.Before(settle("k"), zktest.OpMulti).Client(p.name).Path("/dedup/k").Nth(2))
		if r, err := p.do(t.Context(), "k", says("one")); err != nil || r.Value != "by hand" || !r.Replayed {
			t.Errorf("commit: %+v, %v", r, err)
		}
		if _, err := p.do(t.Context(), "open", fails(errors.New("broken"))); err == nil {
			t.Fatal("no error")
		}
		b.srv.Inject(zktest.Before(settle("open"), zktest.OpMulti).Client(q.name).Path("/dedup/open"))
		if r, err := q.do(t.Context(), "open", mustNotRun(t)); err != nil || r.Value != "by hand" || !r.Replayed {
			t.Errorf("another attempt: %+v, %v", r, err)
		}
		b.srv.Inject(zktest.Before(settle("failed"), zktest.OpMulti).Client(p.name).Path("/dedup/failed").Nth(2))
		if _, err := p.do(t.Context(), "failed", fails(errors.New("broken"))); err == nil {
			t.Fatal("no error")
		}
		if r, err := q.do(t.Context(), "failed", mustNotRun(t)); err != nil || r.Value != "by hand" || !r.Replayed {
			t.Errorf("after a failure: %+v, %v", r, err)
		}
		b.atRest()
	})
}

// A claim is lost between its grant and the read of its record, and another process works
// on the key by the time that the record can be read. That is no outcome that nobody
// knows: it is waited for.
func TestRecordReadAfterTheClaimWasLostSaysNothing(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q, other := b.start(), b.start(), b.start()
		end := make(chan struct{})
		first := p.goDo(t.Context(), "k", func(context.Context, *dedup.Claim) (string, error) {
			<-end
			return "", errors.New("broken")
		})
		b.tick()
		second := q.goDo(t.Context(), "k", mustNotRun(t), dedup.WaitLimit(time.Hour))
		time.Sleep(time.Second)
		var hole *zktest.Fault
		cut := b.srv.Inject(zktest.Before(func() {
			if n := len(b.srv.Children("/dedup/k")); n != 1 {
				t.Errorf("%d claims at the read, want that of the second", n)
			}
			hole = b.srv.Inject(zktest.Blackhole(zktest.BothWays).Client(q.name))
		}, zktest.OpGetData).Client(q.name).Path("/dedup/k"))
		close(end)
		<-cut.Hit()
		if o := <-first; o.err == nil {
			t.Errorf("%+v", o)
		}
		started, goOn := make(chan struct{}), make(chan struct{})
		third := other.goDo(t.Context(), "k", func(context.Context, *dedup.Claim) (string, error) {
			close(started)
			<-goOn
			return "three", nil
		})
		<-started
		hole.Heal()
		time.Sleep(time.Minute) // the second is back
		close(goOn)
		for i, c := range []<-chan outcome{second, third} {
			if o := <-c; o.err != nil || o.r.Value != "three" || o.r.Replayed != (i == 0) {
				t.Errorf("%+v, %v", o.r, o.err)
			}
		}
		b.atRest()
	})
}

// An ensemble that answers every try with what says nothing (somebody removes the index
// again and again) is asked more and more rarely.
func TestTriesThatSayNothingAreSpacedOut(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start()
		b.warm(p)
		again := b.srv.Inject(zktest.Before(func() {
			for _, bucket := range b.srv.Children("/dedup-expiry") {
				for _, entry := range b.srv.Children("/dedup-expiry/" + bucket) {
					_ = b.srv.Delete("/dedup-expiry/" + bucket + "/" + entry)
				}
				_ = b.srv.Delete("/dedup-expiry/" + bucket)
			}
		}, zktest.OpMulti).Client(p.name).Path("/dedup/k").Always())
		if r, err := p.do(t.Context(), "k", mustNotRun(t), dedup.WaitLimit(time.Minute)); !errors.Is(err, dedup.ErrUnavailable) {
			t.Errorf("%+v, %v", r, err)
		}
		// From 5 ms doubled up to 1 s: 8 tries in the first 2.5 s, and one a second then.
		if n := again.Hits(); n < 30 || n > 100 {
			t.Errorf("%d tries in a minute", n)
		}
		again.Heal()
		if r, err := p.do(t.Context(), "k", says("at last")); err != nil || r.Attempt != 1 {
			t.Errorf("%+v, %v", r, err)
		}
		b.atRest()
	})
}
