package zklock

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/go-zklock/zklock/zktest"
)

// list is Participants, which must not fail.
func (b *bundle) list(m *InterProcessMutex) []Participant {
	b.t.Helper()
	ps, err := m.Participants(b.t.Context())
	if err != nil {
		b.t.Fatalf("Participants: %v", err)
	}
	return ps
}

func TestParticipants(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect(func(cfg *Config) { cfg.Identifier = "worker-1" })
		m := b.mutex(c, "/dedup/a")
		if ps := b.list(m); len(ps) != 0 {
			t.Errorf("a path that does not exist has %+v", ps)
		}
		begun := time.Now().Truncate(time.Millisecond)
		l := b.acquire(m)
		time.Sleep(3 * time.Second)
		c2 := b.connect()
		w2 := acquireAsync(b.within(10*time.Minute), b.mutex(c2, "/dedup/a", WithIdentifier("worker-2")))
		time.Sleep(3 * time.Second)
		c3 := b.connect()
		w3 := make(chan result, 1)
		go func() {
			l, err := b.mutex(c3, "/dedup/a", WithIdentifier("mutex")).Acquire(t.Context(), AcquireIdentifier(`call "3"`))
			w3 <- result{l, err}
		}()
		time.Sleep(3 * time.Second)

		ps := b.list(m)
		if len(ps) != 3 {
			t.Fatalf("%d participants: %+v", len(ps), ps)
		}
		for i, want := range []struct {
			id      string
			session int64
			since   time.Duration
		}{
			{"worker-1", c.SessionID(), 0}, {"worker-2", c2.SessionID(), 3 * time.Second}, {`call "3"`, c3.SessionID(), 6 * time.Second},
		} {
			p := ps[i]
			if p.Identifier != want.id || p.SessionID != want.session || p.Holder != (i == 0) || int(p.Sequence) != i {
				t.Errorf("participant %d is %+v; want %+v", i, p, want)
			}
			if d := p.Since.Sub(begun) - want.since; d < 0 || d > 100*time.Millisecond {
				t.Errorf("participant %d since %v, %v off", i, p.Since, d)
			}
			stat, err := b.srv.Stat(p.Path)
			if err != nil || Token(stat.Czxid) != p.Token || stat.EphemeralOwner != p.SessionID {
				t.Errorf("participant %d says token %v; its node has %+v, %v", i, p.Token, stat, err)
			}
			if i > 0 && p.Token <= ps[i-1].Token {
				t.Errorf("tokens %v and %v in a row", ps[i-1].Token, p.Token)
			}
		}
		if ps[0].Path != l.Path() || ps[0].Token != l.Token() {
			t.Errorf("the holder is %+v; its lease says %s, %v", ps[0], l.Path(), l.Token())
		}
		b.release(l)
		r := <-w2
		must(t, r.err)
		if ps := b.list(m); len(ps) != 2 || ps[0].Identifier != "worker-2" || !ps[0].Holder || ps[1].Holder || ps[0].Token != r.l.Token() {
			t.Errorf("after a hand-over: %+v", ps)
		}
		b.release(r.l)
		r = <-w3
		must(t, r.err)
		b.release(r.l)
	})
}

func TestParticipantsDefaultIdentifier(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect()
		m := b.mutex(c, "/dedup/a")
		l := b.acquire(m)
		if host, _ := os.Hostname(); b.list(m)[0].Identifier != c.cfg.Identifier || host == "" {
			t.Errorf("identifier %q, want %q", b.list(m)[0].Identifier, c.cfg.Identifier)
		}
		b.release(l)
	})
}

// Nodes of other makers are listed with what they say, and the server's time.
func TestParticipantsOfOtherMakers(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		for _, n := range []struct{ path, data string }{
			{"/dedup", ""}, {"/dedup/a", ""},
			{"/dedup/a/config", "not a contender"},
			{"/dedup/a/_c_5f2d0c1e-6a55-4c39-9f0d-0d9c2f6f1a11-lock-0000000007", "10.0.0.9"}, // Curator: its address
			{"/dedup/a/x__lock__0000000003", `{"id":"","n":1}`},                              // JSON, and not ours
			{"/dedup/a/_c_ab-lock-0000000005", "\xff\x00"},
			{"/dedup/a/_c_cd-lock-0000000009", `{"id":7}`},
		} {
			must(t, b.srv.Create(n.path, []byte(n.data)))
		}
		made := time.Now()
		ps := b.list(b.mutex(b.connect(), "/dedup/a"))
		if len(ps) != 4 {
			t.Fatalf("%d participants: %+v", len(ps), ps)
		}
		for i, want := range []struct {
			seq int32
			id  string
		}{{3, `{"id":"","n":1}`}, {5, "\xff\x00"}, {7, "10.0.0.9"}, {9, `{"id":7}`}} {
			p := ps[i]
			if p.Sequence != want.seq || p.Identifier != want.id || p.Holder != (i == 0) || p.SessionID != 0 {
				t.Errorf("participant %d: %+v; want %+v", i, p, want)
			}
			if d := made.Sub(p.Since); d < 0 || d > time.Second {
				t.Errorf("participant %d since %v", i, p.Since)
			}
		}
	})
}

// The order is that of the numbers, also across the wrap, and there it is the order
// in which the lock is given.
func TestOrderAcrossTheWrap(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		must(t, b.srv.Create("/dedup", nil))
		must(t, b.srv.Create("/dedup/a", nil))
		must(t, b.srv.SetSequence("/dedup/a", 2147483646))
		m := b.mutex(b.connect(), "/dedup/a")
		l := b.acquire(m)
		var waiters []<-chan result
		for range 3 {
			waiters = append(waiters, acquireAsync(b.within(10*time.Minute), b.mutex(b.connect(), "/dedup/a")))
			time.Sleep(time.Second)
		}
		ps := b.list(m)
		want := []int32{2147483646, 2147483647, -2147483648, -2147483647}
		if len(ps) != len(want) {
			t.Fatalf("%d participants: %+v", len(ps), ps)
		}
		for i, p := range ps {
			if p.Sequence != want[i] {
				t.Errorf("participant %d has number %d, want %d", i, p.Sequence, want[i])
			}
		}
		for i, w := range waiters {
			b.release(l)
			r := <-w
			must(t, r.err)
			if r.l.Path() != ps[i+1].Path || r.l.Token() <= l.Token() {
				t.Errorf("holder %d is %s with token %v after %v", i+1, r.l.Path(), r.l.Token(), l.Token())
			}
			l = r.l
		}
		b.release(l)
	})
}

func TestRevoke(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c, other := b.connect(), b.connect()
		m := b.mutex(c, "/dedup/a", WithRevocable())
		l := b.acquire(m)
		time.Sleep(time.Second)
		next := acquireAsync(b.within(10*time.Minute), b.mutex(other, "/dedup/a"))
		time.Sleep(time.Second)
		begun := time.Now()
		must(t, b.mutex(other, "/dedup/a").Revoke(t.Context(), b.list(m)[0]))
		b.awaitLost(l)
		r := <-next
		must(t, r.err)
		if d := time.Since(begun); d > 20*time.Millisecond {
			t.Errorf("the lock was free %v after it was asked for", d)
		}
		wantErr(t, l.Err(), ErrLost, string(Revoked))
		wantErr(t, l.Release(t.Context()), ErrLost)
		// A participant that is gone is no error.
		must(t, b.mutex(other, "/dedup/a").Revoke(t.Context(), Participant{Path: l.Path()}))
		b.release(r.l)
	})
}

// Without WithRevocable, and for any other data, nothing happens but a look.
func TestRevokeIgnored(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect()
		m := b.mutex(c, "/dedup/a")
		l := b.acquire(m)
		time.Sleep(time.Second)
		must(t, m.Revoke(t.Context(), b.list(m)[0]))
		time.Sleep(time.Minute)
		must(t, l.Verify(t.Context()))
		b.release(l)

		m = b.mutex(c, "/dedup/b", WithRevocable())
		l = b.acquire(m)
		time.Sleep(time.Second)
		must(t, b.srv.Set(l.Path(), []byte("something else")))
		time.Sleep(time.Second)
		must(t, l.Verify(t.Context()))
		// The watch was spent on that and set again.
		must(t, b.srv.Set(l.Path(), []byte("__REVOKE__")))
		time.Sleep(10 * time.Millisecond)
		wantErr(t, l.Err(), ErrLost, string(Revoked))
		_ = l.Release(t.Context())
	})
}

// F22: an operator deletes a node, or everything.
func TestNodeDeletedByHand(t *testing.T) {
	for name, strike := range map[string]func(b *bundle, l *Lease){
		"the node": func(b *bundle, l *Lease) { must(b.t, b.srv.Delete(l.Path())) },
		"the subtree": func(b *bundle, l *Lease) {
			must(b.t, b.srv.Delete(l.Path()))
			must(b.t, b.srv.Delete("/dedup/a"))
			must(b.t, b.srv.Delete("/dedup"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bundle) {
				t := b.t
				c := b.connect()
				m := b.mutex(c, "/dedup/a")
				l := b.acquire(m)
				other := b.acquire(b.mutex(c, "/other/b"))
				time.Sleep(time.Second)
				begun := time.Now()
				strike(b, l)
				b.awaitLost(l)
				if d := time.Since(begun); d > 2*time.Millisecond {
					t.Errorf("seen after %v, want the latency of 1ms", d)
				}
				var lost *LostError
				if err := l.Err(); !errors.As(err, &lost) || lost.Reason != NodeDeleted || !errors.Is(err, zk.ErrNoNode) || lost.Token != l.Token() {
					t.Errorf("the lease says %v", err)
				}
				if other.State() != LeaseHeld || c.State() != Connected {
					t.Errorf("another lease is %v, the client %v", other.State(), c.State())
				}
				next := b.acquire(m) // the lock is usable at once, and Release deletes nothing of it
				wantErr(t, l.Release(t.Context()), ErrLost, string(NodeDeleted))
				must(t, next.Verify(t.Context()))
				if next.Token() <= l.Token() {
					t.Errorf("token %v after %v", next.Token(), l.Token())
				}
				b.release(next)
				b.release(other)
			})
		})
	}
}

// A node that goes in the first moments of a lease, before there is a watch on it,
// and one whose watch is lost, are found by the next proof or by Release.
func TestNodeDeletedUnseen(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		reg := prometheus.NewRegistry()
		c := b.connect(metered(reg))
		m := b.mutex(c, "/dedup/a")
		l := b.acquire(m)
		must(t, b.srv.Delete(l.Path()))
		select {
		case <-l.Lost():
			t.Error("lost before anybody has looked")
		default:
		}
		wantErr(t, l.Release(t.Context()), ErrLost, string(NodeDeleted))
		wantErr(t, l.Release(t.Context()), ErrLost, string(NodeDeleted))
		wantErr(t, l.Err(), ErrLost, string(NodeDeleted))
		within(t, time.Second, l.Lost(), "Lost")
		for key, want := range map[string]float64{`zklock_lost_total{reason="node_deleted"}`: 1, "zklock_held": 0, "zklock_hold_seconds": 1} {
			if got := sample(t, reg, key); got != want {
				t.Errorf("%s is %v, want %v", key, got, want)
			}
		}
		// Found out by a release, and by nobody: that is no loss.
		l = b.acquire(m)
		b.release(l)
		select {
		case <-l.Lost():
			t.Error("a released lease is lost")
		default:
		}

		l = b.acquire(m)
		time.Sleep(time.Second)
		b.srv.Inject(zktest.LoseWatch().Path(l.Path()))
		begun := time.Now()
		must(t, b.srv.Delete(l.Path()))
		b.awaitLost(l)
		if d := time.Since(begun); d > heartbeat(c.SessionTimeout())+10*time.Millisecond {
			t.Errorf("found after %v, want at most a heartbeat", d)
		}
		wantErr(t, l.Err(), ErrLost, string(NodeDeleted))

		l = b.acquire(m)
		must(t, b.srv.Delete(l.Path()))
		wantErr(t, l.Verify(context.Background()), ErrLost, string(NodeDeleted))
	})
}
