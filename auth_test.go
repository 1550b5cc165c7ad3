package zklock

import (
	"bytes"
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock/zktest"
)

// open makes nodes as somebody else, with an ACL of their own.
func (b *bundle) open(acl []zk.ACL, paths ...string) {
	b.t.Helper()
	c := b.connect(func(cfg *Config) { cfg.Auth = []Auth{{"digest", []byte("owner:secret")}} })
	for i, p := range paths {
		a := acl
		if i < len(paths)-1 {
			a = zk.WorldACL(zk.PermAll)
		}
		_, err := c.Conn().Create(p, nil, 0, a)
		must(b.t, err)
	}
	must(b.t, c.Close())
}

// withOwner adds the owner of open, so that a test can clean up.
func withOwner(acl []zk.ACL) []zk.ACL {
	return append(acl, zk.DigestACL(zk.PermAll, "owner", "secret")...)
}

func TestForbiddenByACL(t *testing.T) {
	for _, tc := range []struct {
		name  string
		perms int32
	}{
		{"create", zk.PermAll &^ zk.PermCreate}, {"read", zk.PermAll &^ zk.PermRead}, {"everything", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, func(b *bundle) {
				t := b.t
				acl := withOwner(nil)
				if tc.perms != 0 {
					acl = withOwner(zk.WorldACL(tc.perms))
				}
				b.open(acl, "/dedup", "/dedup/a")
				c := b.connect()
				other := b.acquire(b.mutex(c, "/dedup/b"))
				m := b.mutex(c, "/dedup/a")
				start := time.Now()
				for range 2 {
					_, err := m.Acquire(t.Context())
					wantErr(t, err, ErrNotAcquired)
					wantErr(t, err, zk.ErrNoAuth)
					_, err = m.TryAcquire(t.Context())
					wantErr(t, err, ErrNotAcquired)
					wantErr(t, err, zk.ErrNoAuth)
				}
				if d := time.Since(start); d > time.Second {
					t.Errorf("refused calls took %v", d)
				}
				time.Sleep(time.Second)
				if left := b.nodes("/dedup/a"); len(left) != 0 {
					t.Errorf("refused calls left %q", left)
				}
				if other.State() != LeaseHeld {
					t.Errorf("another lock of the client is %v", other.State())
				}
				b.release(other)
			})
		})
	}
}

// Not to be allowed to delete is a definite answer: Release says so at once and
// does not wait for its ctx, and the node goes with the session.
func TestDeleteForbidden(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		b.open(withOwner(zk.WorldACL(zk.PermAll&^zk.PermDelete)), "/dedup", "/dedup/a")
		c := b.connect()
		m := b.mutex(c, "/dedup/a")
		l := b.acquire(m)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		err := l.Release(ctx)
		wantErr(t, err, ErrPending, l.Path())
		wantErr(t, err, zk.ErrNoAuth)
		if d := time.Since(start); d > time.Second {
			t.Errorf("Release returned after %v", d)
		}
		wantErr(t, l.Err(), ErrReleased)
		if log := b.logged(); !strings.Contains(log, "cannot be deleted") || !strings.Contains(log, l.Path()) {
			t.Errorf("nothing about it in the log:\n%s", log)
		}
		must(t, c.Close())
		if left := b.nodes("/dedup/a"); len(left) != 0 {
			t.Errorf("after Close: %q", left)
		}
	})
}

// Config.ACL has to let the client read its own nodes: they cannot be proved
// otherwise. The lease ends by the trust deadline, and the log says why.
func TestOwnNodeUnreadable(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		b.open(zk.WorldACL(zk.PermAll), "/dedup", "/dedup/a")
		c := b.connect(func(cfg *Config) { cfg.ACL = zk.WorldACL(zk.PermCreate | zk.PermDelete) })
		l, err := b.mutex(c, "/dedup/a").Acquire(t.Context())
		if err != nil {
			wantErr(t, err, ErrNotAcquired)
			wantErr(t, err, zk.ErrNoAuth)
			return
		}
		select {
		case <-l.Lost():
		case <-time.After(2 * c.SessionTimeout()):
			t.Error("an unprovable lease is held for ever")
		}
		wantErr(t, l.Err(), ErrLost, string(TrustExpired))
		if log := b.logged(); !strings.Contains(log, "cannot be proved") {
			t.Errorf("the log does not say why:\n%s", log)
		}
		_ = l.Release(t.Context())
	})
}

// A wrong password is not refused by ZooKeeper: it gives another identity, which the
// ACL does not know.
func TestWrongDigest(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		b.open(withOwner(nil), "/dedup", "/dedup/a")
		wrong := b.connect(func(cfg *Config) { cfg.Auth = []Auth{{"digest", []byte("owner:wrong")}} })
		_, err := b.mutex(wrong, "/dedup/a").Acquire(t.Context())
		wantErr(t, err, ErrNotAcquired)
		wantErr(t, err, zk.ErrNoAuth)
		right := b.connect(func(cfg *Config) {
			cfg.Auth = []Auth{{"digest", []byte("owner:secret")}}
			cfg.ACL = zk.DigestACL(zk.PermAll, "owner", "secret")
		})
		m := b.mutex(right, "/dedup/a")
		l := b.acquire(m)
		// The credentials go out again on every connection, before anything else: nothing
		// that waits for the connection may run without them.
		for range 5 {
			b.srv.CutConnections()
			time.Sleep(2 * time.Millisecond) // the client has noticed, and is not back
			if _, err := m.Participants(t.Context()); err != nil {
				t.Fatalf("after a reconnect: %v", err)
			}
			must(t, l.Verify(t.Context()))
		}
		b.release(l)
	})
}

func TestCredentialsRefused(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		start := time.Now()
		c, err := Connect(t.Context(), Config{
			Servers: []string{b.srv.Addr()}, Dial: b.srv.Dial, Clock: zktest.Clock{}, Auth: []Auth{{"sasl", []byte("x")}},
		})
		wantErr(t, err, ErrAuthFailed, `"sasl"`, "-115")
		if c != nil {
			t.Error("a client beside an error")
		}
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

// breakScheme spoils the scheme of the credentials that a connection sends while on
// is set, as if the server had lost its provider for it.
type breakScheme struct {
	net.Conn
	on *atomic.Bool
}

func (c breakScheme) Write(p []byte) (int, error) {
	if c.on.Load() {
		p = bytes.Replace(p, []byte("digest"), []byte("digesX"), 1)
	}
	return c.Conn.Write(p)
}

func TestCredentialsRefusedOnReconnect(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		var broken atomic.Bool
		c := b.connect(func(cfg *Config) {
			cfg.Auth = []Auth{{"digest", []byte("u:p")}}
			cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := b.srv.Dial(ctx, network, addr)
				if err != nil {
					return nil, err
				}
				return breakScheme{conn, &broken}, nil
			}
		})
		m := b.mutex(c, "/dedup/a")
		l := b.acquire(m)
		broken.Store(true)
		b.srv.CutConnections()
		b.awaitLost(l)
		wantErr(t, l.Err(), ErrLost, string(AuthFailed))
		wantErr(t, l.Err(), ErrAuthFailed)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		_, err := m.Acquire(ctx)
		wantErr(t, err, ErrNotAcquired)
		wantErr(t, err, ErrAuthFailed, `"digest"`)
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("refused credentials were reported after %v", d)
		}
		_ = l.Release(ctx)
		// The client goes on trying, and works again once it is let in.
		broken.Store(false)
		time.Sleep(time.Minute)
		b.release(b.acquire(m))
	})
}
