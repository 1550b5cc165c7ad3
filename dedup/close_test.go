package dedup_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/zktest"
)

func TestGuardCloseSendsTheWaitingAwayAndWaitsForTheRunning(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(), b.start()
		fn, started, goOn := blocks("one")
		running := p.goDo(t.Context(), "k", fn)
		<-started
		elsewhere, startedQ, goOnQ := blocks("q's")
		holder := q.goDo(t.Context(), "k2", elsewhere)
		<-startedQ
		waiting := []<-chan outcome{p.goDo(t.Context(), "k", mustNotRun(t)), p.goDo(t.Context(), "k2", mustNotRun(t))}
		resolving := make(chan error, 1)
		go func() { resolving <- p.Resolve(t.Context(), dedup.Key{ID: "k2"}, dedup.NotDone()) }()
		time.Sleep(time.Second)

		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if err := p.Close(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close: %v, want the end of ctx", err)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("Close took %v", took)
		}
		for _, c := range waiting {
			if o := <-c; !errors.Is(o.err, dedup.ErrClosed) {
				t.Errorf("%+v, want ErrClosed", o)
			}
		}
		if err := <-resolving; !errors.Is(err, dedup.ErrClosed) {
			t.Errorf("Resolve: %v, want ErrClosed", err)
		}
		closed := make(chan error, 1)
		go func() { closed <- p.Close(t.Context()) }()
		synctest.Wait()
		select {
		case err := <-closed:
			t.Errorf("Close returned %v while a function ran", err)
		default:
		}
		close(goOn)
		if err := <-closed; err != nil {
			t.Errorf("Close: %v", err)
		}
		if o := <-running; o.err != nil || o.r.Value != "one" {
			t.Errorf("%+v", o)
		}
		if _, err := p.do(t.Context(), "k", mustNotRun(t)); !errors.Is(err, dedup.ErrClosed) {
			t.Errorf("after Close: %v, want ErrClosed", err)
		}
		if err := p.Resolve(t.Context(), dedup.Key{ID: "k"}, dedup.NotDone()); !errors.Is(err, dedup.ErrClosed) {
			t.Errorf("Resolve after Close: %v, want ErrClosed", err)
		}
		if r, err := q.do(t.Context(), "k", mustNotRun(t)); err != nil || r.Value != "one" {
			t.Errorf("%+v, %v", r, err)
		}
		close(goOnQ)
		<-holder
		b.atRest()
	})
}

func TestClientCloseTakesTheClaimsOfRunningFunctions(t *testing.T) {
	for _, running := range []bool{false, true} {
		inBubble(t, func(b *bundle) {
			t := b.t
			p, q := b.start(), b.start()
			var first <-chan outcome
			if running {
				started := make(chan struct{})
				first = p.goDo(t.Context(), "k", func(ctx context.Context, _ *dedup.Claim) (string, error) {
					close(started)
					<-ctx.Done()
					return "one", nil
				})
				<-started
			}
			elsewhere, started, goOn := blocks("q's")
			holder := q.goDo(t.Context(), "k2", elsewhere)
			<-started
			waiting := p.goDo(t.Context(), "k2", mustNotRun(t))
			time.Sleep(time.Second)
			if err := p.client.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			if o := <-waiting; !errors.Is(o.err, dedup.ErrClosed) {
				t.Errorf("waiting: %+v, want ErrClosed", o)
			}
			if running {
				if o := <-first; !errors.Is(o.err, dedup.ErrIndeterminate) {
					t.Errorf("running: %+v, want ErrIndeterminate", o)
				}
				if _, err := q.do(t.Context(), "k", mustNotRun(t)); !errors.Is(err, dedup.ErrIndeterminate) {
					t.Errorf("%v, want ErrIndeterminate", err)
				}
			}
			if _, err := p.do(t.Context(), "k3", mustNotRun(t)); !errors.Is(err, dedup.ErrClosed) {
				t.Errorf("after Close: %v, want ErrClosed", err)
			}
			if err := p.Close(t.Context()); err != nil {
				t.Error(err)
			}
			close(goOn)
			<-holder
			b.atRest()
		})
	}
}

// The ensemble is away: new calls fail at once and run nothing; those that wait are
// told when their limit is over; all of it works again when it is back.
func TestEnsembleThatIsAway(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(), b.start()
		fn, started, goOn := blocks("one")
		holder := q.goDo(t.Context(), "k", fn)
		<-started
		waiting := p.goDo(t.Context(), "k", mustNotRun(t), dedup.WaitLimit(5*time.Second))
		patient := p.goDo(t.Context(), "k", mustNotRun(t), dedup.WaitLimit(20*time.Minute))
		time.Sleep(time.Second)
		b.srv.Stop()
		b.tick()
		began := time.Now()
		for _, id := range []string{"k", "new"} {
			if _, err := p.do(t.Context(), id, mustNotRun(t)); !errors.Is(err, dedup.ErrUnavailable) {
				t.Errorf("%v, want ErrUnavailable", err)
			}
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v", took)
		}
		if o := <-waiting; !errors.Is(o.err, dedup.ErrUnavailable) {
			t.Errorf("%+v, want ErrUnavailable", o)
		}
		b.srv.Restart()
		time.Sleep(3 * time.Second)
		close(goOn)
		if o := <-holder; o.err != nil {
			t.Errorf("%+v", o)
		}
		if o := <-patient; o.err != nil || o.r.Value != "one" {
			t.Errorf("%+v", o)
		}
		b.atRest()
	})
}

// A call that has begun when the ensemble goes away ends with its limit, and leaves
// nothing.
func TestCallThatHasBegunWhenTheEnsembleGoes(t *testing.T) {
	for _, op := range []zktest.Op{zktest.OpGetData, zktest.OpMulti} {
		inBubble(t, func(b *bundle) {
			t := b.t
			p := b.start()
			b.warm(p)
			z := b.srv.Inject(zktest.DropReply(op).Client(p.name).Path("/dedup/k"))
			go func() { <-z.Hit(); b.srv.Stop() }()
			began := time.Now()
			if _, err := p.do(t.Context(), "k", mustNotRun(t), dedup.WaitLimit(3*time.Second)); !errors.Is(err, dedup.ErrUnavailable) {
				t.Errorf("%v: %v, want ErrUnavailable", op, err)
			}
			if took := time.Since(began); took > 3100*time.Millisecond {
				t.Errorf("it took %v", took)
			}
			b.srv.Restart()
			time.Sleep(time.Minute)
			if r, err := p.do(t.Context(), "k", says("one")); err != nil || r.Attempt != 1 {
				t.Errorf("%+v, %v", r, err)
			}
			b.atRest()
		})
	}
}
