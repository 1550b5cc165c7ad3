package zklock

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

var errFn = errors.New("fn's own")

func TestDoResults(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect()
		m := b.mutex(c, "/dedup/a")
		ran := false
		must(t, m.Do(t.Context(), func(ctx context.Context, l *Lease) error {
			ran = true
			if got, ok := LeaseFromContext(ctx); !ok || got != l || l.State() != LeaseHeld {
				t.Errorf("fn's ctx carries %v, want the lease", got)
			}
			if n := len(b.nodes("/dedup/a")); n != 1 {
				t.Errorf("%d nodes while fn runs", n)
			}
			return nil
		}))
		if n := len(b.nodes("/dedup/a")); !ran || n != 0 {
			t.Errorf("fn ran: %v; %d nodes after Do", ran, n)
		}
		if err := m.Do(t.Context(), func(context.Context, *Lease) error { return errFn }); err != errFn { //nolint:errorlint // exactly fn's
			t.Errorf("fn's error comes back as %v", err)
		}
		// No lock, no fn.
		holder := b.acquire(b.mutex(b.connect(), "/dedup/a"))
		err := m.Do(b.within(time.Second), func(context.Context, *Lease) error { t.Error("fn ran"); return nil })
		wantErr(t, err, ErrNotAcquired)
		wantErr(t, err, context.DeadlineExceeded)
		b.release(holder)
	})
}

// expire ends the session while its client is away, so that it learns of it from the
// answer to its reconnect. (A connected one may see its node go before.)
func expire(b *bundle, c *Client, _ *Lease) {
	b.srv.CutConnections()
	b.srv.Expire(c.SessionID())
}

// Lost while fn runs: Do waits for fn, keeps the node of a live session until then,
// and tells.
func TestDoLost(t *testing.T) {
	for _, tc := range []struct {
		name   string
		err    error // of fn
		strike func(b *bundle, c *Client, l *Lease)
		reason Reason
	}{
		{"node deleted, fn nil", nil, func(b *bundle, _ *Client, l *Lease) { must(b.t, b.srv.Delete(l.Path())) }, NodeDeleted},
		{"node deleted, fn error", errFn, func(b *bundle, _ *Client, l *Lease) { must(b.t, b.srv.Delete(l.Path())) }, NodeDeleted},
		{"expired, fn nil", nil, expire, SessionExpired},
		{"expired, fn error", errFn, expire, SessionExpired},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, func(b *bundle) {
				t := b.t
				c := b.connect()
				m := b.mutex(c, "/dedup/a")
				returned := false
				var lease *Lease
				err := m.Do(t.Context(), func(ctx context.Context, l *Lease) error {
					lease = l
					time.Sleep(time.Second)
					tc.strike(b, c, l)
					<-ctx.Done()
					wantErr(t, context.Cause(ctx), ErrLost, string(tc.reason))
					wantErr(t, l.Await(t.Context()), ErrLost)
					time.Sleep(10 * time.Second)
					returned = true
					return tc.err
				})
				if !returned {
					t.Error("Do returned before fn")
				}
				var lost *LostError
				if !errors.As(err, &lost) || lost.Reason != tc.reason || lost.Path != lease.Path() || lost.Token != lease.Token() {
					t.Errorf("Do returned %v", err)
				}
				if tc.err != nil && !errors.Is(err, errFn) {
					t.Errorf("fn's error is missing in %v", err)
				}
				b.release(b.acquire(m))
			})
		})
	}
}

// A lease may be lost though its session lives, here because somebody asks for it.
// The node stays for as long as fn runs: nobody else may run meanwhile.
func TestDoKeepsTheNodeUntilFnReturns(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		m := b.mutex(b.connect(), "/dedup/a", WithRevocable())
		other := b.mutex(b.connect(), "/dedup/a")
		var end time.Time
		var waiter <-chan result
		err := m.Do(t.Context(), func(ctx context.Context, l *Lease) error {
			time.Sleep(time.Second)
			waiter = acquireAsync(b.within(10*time.Minute), other)
			ps, err := other.Participants(t.Context())
			must(t, err)
			must(t, other.Revoke(t.Context(), ps[0]))
			<-ctx.Done()
			wantErr(t, context.Cause(ctx), ErrLost, string(Revoked))
			time.Sleep(20 * time.Second)
			select {
			case <-waiter:
				t.Error("somebody else holds the lock while fn runs")
			default:
			}
			if !b.srv.Exists(l.Path()) {
				t.Error("the node went before fn returned")
			}
			end = time.Now()
			return nil
		})
		wantErr(t, err, ErrLost, string(Revoked))
		r := <-waiter
		must(t, r.err)
		if d := time.Since(end); d > 10*time.Millisecond {
			t.Errorf("the next held %v after fn returned", d)
		}
		b.release(r.l)
	})
}

func TestDoPanics(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		m := b.mutex(b.connect(), "/dedup/a")
		func() {
			defer func() {
				if p := recover(); p != "boom" {
					t.Errorf("the panic came out as %v", p)
				}
				if n := len(b.nodes("/dedup/a")); n != 0 {
					t.Errorf("%d nodes when the panic goes on", n)
				}
			}()
			_ = m.Do(t.Context(), func(context.Context, *Lease) error { panic("boom") })
			t.Error("Do returned from a panic")
		}()
		b.release(b.acquire(m))
	})
}

func TestDoGoexit(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		m := b.mutex(b.connect(), "/dedup/a")
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = m.Do(context.Background(), func(context.Context, *Lease) error { runtime.Goexit(); return nil })
			t.Error("Do returned from Goexit")
		}()
		<-ended
		if n := len(b.nodes("/dedup/a")); n != 0 {
			t.Errorf("%d nodes after the goroutine has ended", n)
		}
		b.release(b.acquire(m))
	})
}

// In Do, ctx bounds the run as well; the cause of fn's ctx says what ended it.
func TestDoContext(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		m := b.mutex(b.connect(), "/dedup/a")
		cause := errors.New("shift is over")
		ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), ctxKey{}, "v"))
		err := m.Do(ctx, func(ctx context.Context, l *Lease) error {
			if ctx.Value(ctxKey{}) != "v" {
				t.Error("fn's ctx lacks a value of Do's")
			}
			cancel(cause)
			<-ctx.Done()
			wantErr(t, context.Cause(ctx), cause)
			if l.Err() != nil || l.Context().Err() != nil {
				t.Errorf("the end of ctx ended the lease: %v", l.Err())
			}
			time.Sleep(time.Minute) // still held: fn winds down under the lock
			must(t, l.Verify(t.Context()))
			return context.Cause(ctx)
		})
		wantErr(t, err, cause)
		if errors.Is(err, ErrLost) || len(b.nodes("/dedup/a")) != 0 {
			t.Errorf("Do returned %v and left %q", err, b.nodes("/dedup/a"))
		}
		// A ctx that ended before: no request at all.
		b.srv.Ops().Reset()
		err = m.Do(ctx, func(context.Context, *Lease) error { t.Error("fn ran"); return nil })
		wantErr(t, err, ErrNotAcquired)
		wantErr(t, err, cause)
		if n := b.srv.Ops().Reads() + b.srv.Ops().Writes(); n != 0 {
			t.Errorf("%d requests for a ctx that had ended", n)
		}
		// A deadline is fn's too.
		_ = m.Do(b.within(time.Minute), func(ctx context.Context, _ *Lease) error {
			if _, ok := ctx.Deadline(); !ok {
				t.Error("fn's ctx lacks the deadline of Do's")
			}
			return nil
		})
	})
}

func TestReleaseInsideDo(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		m := b.mutex(b.connect(), "/dedup/a")
		err := m.Do(t.Context(), func(ctx context.Context, l *Lease) error {
			b.release(l)
			<-ctx.Done()
			wantErr(t, context.Cause(ctx), ErrReleased)
			wantErr(t, l.Await(t.Context()), ErrReleased)
			if n := len(b.nodes("/dedup/a")); n != 0 {
				t.Errorf("%d nodes after Release inside fn", n)
			}
			// Free for others, and for fn itself with a new lease.
			again, err := m.Acquire(t.Context())
			must(t, err)
			if again.Token() <= l.Token() {
				t.Errorf("token %v after %v", again.Token(), l.Token())
			}
			b.release(again)
			return nil
		})
		must(t, err)
	})
}

func TestDoInsideDo(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		m := b.mutex(b.connect(), "/dedup/a")
		must(t, m.Do(t.Context(), func(ctx context.Context, outer *Lease) error {
			must(t, m.Do(ctx, func(ctx context.Context, inner *Lease) error {
				if inner == outer || inner.Token() != outer.Token() {
					t.Errorf("inner token %v, outer %v", inner.Token(), outer.Token())
				}
				return inner.Await(ctx)
			}))
			must(t, outer.Verify(ctx)) // the inner Do gave up its handle only
			return nil
		}))
		if n := len(b.nodes("/dedup/a")); n != 0 {
			t.Errorf("%d nodes after both", n)
		}
	})
}

// A release that cannot be confirmed is no failure of fn. Do does not wait longer
// than the session lives.
func TestDoReleasesDuringAnOutage(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect()
		m := b.mutex(c, "/dedup/a")
		var end time.Time
		err := m.Do(t.Context(), func(context.Context, *Lease) error {
			b.srv.Refuse(true)
			b.srv.CutConnections()
			synctest.Wait()
			end = time.Now()
			return nil
		})
		if d := time.Since(end); d > c.SessionTimeout() {
			t.Errorf("Do returned %v after fn", d)
		}
		must(t, err)
		b.srv.Refuse(false)
		b.release(b.acquire(m))
		if n := len(b.nodes("/dedup/a")); n != 0 {
			t.Errorf("%d nodes at rest", n)
		}
	})
}
