package dedup_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/zktest"
)

func TestResolveSettlesWhatIsUnknown(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(), b.start()
		for _, id := range []string{"completed", "bytes", "failed", "not done"} {
			id = strings.ReplaceAll(id, " ", "-")
			b.unknown(p, id)
		}
		for id, to := range map[string]dedup.Resolution{
			"completed": dedup.Completed("by hand"), "bytes": dedup.CompletedBytes([]byte(`"by hand"`)),
			"failed": dedup.FailedWith("no use"), "not-done": dedup.NotDone(),
		} {
			k := dedup.Key{ID: id}
			if err := q.Resolve(t.Context(), k, to); err != nil {
				t.Errorf("%s: %v", id, err)
			}
			if err := q.Resolve(t.Context(), k, to); !errors.Is(err, dedup.ErrDetermined) {
				t.Errorf("%s again: %v, want ErrDetermined", id, err)
			}
		}
		for _, id := range []string{"completed", "bytes"} {
			if r, err := p.do(t.Context(), id, mustNotRun(t)); err != nil || r.Value != "by hand" || r.Attempt != 1 {
				t.Errorf("%s: %+v, %v", id, r, err)
			}
		}
		var failed *dedup.FailedError
		if _, err := p.do(t.Context(), "failed", mustNotRun(t)); !errors.As(err, &failed) || failed.Message != "no use" {
			t.Errorf("%v", err)
		}
		if r, err := p.do(t.Context(), "not-done", says("now")); err != nil || r.Attempt != 2 {
			t.Errorf("%+v, %v", r, err)
		}
		if err := q.Resolve(t.Context(), dedup.Key{ID: "none"}, dedup.NotDone()); !errors.Is(err, dedup.ErrNotFound) {
			t.Errorf("%v, want ErrNotFound", err)
		}
		if b.srv.Exists("/dedup/none") {
			t.Error("Resolve has made a record")
		}
		b.atRest()
	})
}

// The sweeper moves a record's entry to a bucket that is made after the index was
// listed, and before the record's own bucket is. It is shown, once.
func TestUnresolvedShowsWhatTheSweeperMovesMeanwhile(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(hour), b.start(hour)
		b.unknown(q, "u")
		time.Sleep(2 * time.Hour)
		between := b.srv.Inject(zktest.Before(func() {
			if r := q.sweep(t, 0); r.Unknown != 1 {
				t.Errorf("%+v: nothing was moved", r)
			}
		}, zktest.OpGetChildren, zktest.OpGetChildren2).Client(p.name).Path("/dedup-expiry/"))
		var got []string
		for i, err := range p.Unresolved(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, i.Key.ID)
		}
		if !slices.Equal(got, []string{"u"}) || between.Hits() != 1 {
			t.Errorf("shown %v, want u; %d sweeps", got, between.Hits())
		}
	})
}

// Resolve waits for whoever works on the key, and settles nothing that he has.
func TestResolveQueuesForTheClaim(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(), b.start()
		fn, started, goOn := blocks("one")
		holder := p.goDo(t.Context(), "k", fn)
		<-started
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := q.Resolve(ctx, dedup.Key{ID: "k"}, dedup.NotDone()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want the end of ctx", err)
		}
		time.AfterFunc(time.Second, func() { close(goOn) })
		if err := q.Resolve(t.Context(), dedup.Key{ID: "k"}, dedup.NotDone()); !errors.Is(err, dedup.ErrDetermined) {
			t.Errorf("%v, want ErrDetermined", err)
		}
		if o := <-holder; o.err != nil || o.r.Value != "one" {
			t.Errorf("%+v", o)
		}
		b.atRest()
	})
}

func TestResolveWhoseReplyIsLost(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(), b.start()
		b.unknown(p, "k")
		b.srv.Inject(zktest.DropReply(zktest.OpMulti, zktest.OpCreate).Client(q.name).Path("/dedup/k").Times(2))
		if err := q.Resolve(t.Context(), dedup.Key{ID: "k"}, dedup.Completed("by hand")); err != nil {
			t.Error(err)
		}
		if r, err := p.do(t.Context(), "k", mustNotRun(t)); err != nil || r.Value != "by hand" {
			t.Errorf("%+v, %v", r, err)
		}
		b.atRest()
	})
}

func TestUnresolvedListsWhatIsUnknownAndNothingElse(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start(func(_ *zklock.Config, c *dedup.Config) { c.Owner = "the owner" })
		b.unknown(p, "unknown")
		for id, fn := range map[string]func(context.Context, *dedup.Claim) (string, error){
			"done": says("x"), "open": fails(errors.New("broken")), "failed": fails(dedup.Permanent(errors.New("for good"))),
		} {
			_, _ = p.do(t.Context(), id, fn)
		}
		fn, started, goOn := blocks("one")
		holder := p.goDo(t.Context(), "running", fn)
		<-started
		found := map[string]dedup.Info{}
		for i, err := range p.Records(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			found[i.Key.ID] = i
		}
		for id, want := range map[string]string{"unknown": "running", "done": "done", "open": "open", "failed": "failed", "running": "running"} {
			i := found[id]
			if i.State != want || i.Unknown != (id == "unknown") || i.Claimed != (id == "running") || i.Attempt != 1 || i.Token == 0 ||
				i.Owner != "the owner" || i.Retention != dedup.DefaultRetention || len(i.Fingerprint) != 32 || i.Created.IsZero() || i.Updated.IsZero() {
				t.Errorf("%s: %+v", id, i)
			}
		}
		n := 0
		for i, err := range p.Unresolved(t.Context()) {
			if err != nil || i.Key.ID != "unknown" {
				t.Errorf("%+v, %v", i, err)
			}
			n++
		}
		if n != 1 || len(found) != 5 {
			t.Errorf("%d unresolved of %d", n, len(found))
		}
		for _, err := range p.Records(t.Context()) {
			if err != nil {
				t.Error(err)
			}
			break // a range that ends early is no error
		}
		close(goOn)
		<-holder
	})
}
