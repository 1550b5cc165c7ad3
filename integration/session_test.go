package integration

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/integration/internal/expire"
	"github.com/go-zklock/zklock/integration/internal/figures"
	"github.com/go-zklock/zklock/integration/zkcluster"
)

// greeting is what a server answers to the request for a session.
type greeting struct {
	mu  sync.Mutex
	buf []byte
}

// greeted is a connection that keeps the first bytes it reads.
type greeted struct {
	net.Conn
	g *greeting
}

func (c greeted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	if missing := expire.GreetingSize - len(c.g.buf); missing > 0 {
		c.g.buf = append(c.g.buf, p[:min(n, missing)]...)
	}
	return n, err
}

// bytes are what was read so far.
func (g *greeting) bytes() []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.buf)
}

// F8: a session ends. Each of its leases is lost once, the lock can be taken again at
// once, and a late Release takes nothing from the next holder.
func TestExpiredSessionLosesItsLeasesOnce(t *testing.T) { //nolint:tparallel // other tests break the same servers
	onBothVersions(t, expiredSession)
}

func expiredSession(t *testing.T, on *zkcluster.Shared) {
	t.Helper()
	for _, tc := range []struct {
		name    string
		reasons []zklock.Reason
	}{
		// The watch on the own node may be quicker than the end of the session.
		{"ended by another connection", []zklock.Reason{zklock.SessionExpired, zklock.NodeDeleted}},
		{"silence for longer than T", []zklock.Reason{zklock.TrustExpired}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx := bounded(t)
			cluster := on.Get(t)
			version := versionOf(t, cluster)
			follower, leader := roles(t, cluster)
			observer := observe(t, leader)
			var g greeting
			c, p := viaProxy(t, follower, 6*time.Second, func(cfg *zklock.Config) {
				cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
					conn, err := new(net.Dialer).DialContext(ctx, network, address)
					return greeted{conn, &g}, err
				}
			})
			st := watchStates(t, c)
			session := c.SessionID()
			var paths []string
			var leases []*zklock.Lease
			var rivals []<-chan result
			rival := clientOf(t, []string{leader.Addr()}, 6*time.Second)
			for range 3 {
				path := uniquePath(t)
				paths = append(paths, path)
				leases = append(leases, acquire(t, mutexOf(t, c, path)))
				rivals = append(rivals, acquireAsync(ctx, mutexOf(t, rival, path)))
				awaitNodes(t, observer, path, 2)
			}
			begun := time.Now()
			back := func() {}
			if tc.reasons[0] == zklock.TrustExpired {
				back = silence(p)
			} else {
				must(t, "end the session", expire.Session(ctx, leader.Addr(), g.bytes()))
			}
			var ends []time.Duration
			for _, l := range leases {
				await(t, "loss", l.Lost())
				ends = append(ends, ms(time.Since(begun)))
				var lost *zklock.LostError
				if err := l.Err(); !errors.As(err, &lost) || !slices.Contains(tc.reasons, lost.Reason) {
					t.Errorf("Err: %v, want reason %v", err, tc.reasons)
				}
				isErr(t, "context", context.Cause(l.Context()), zklock.ErrLost)
				isErr(t, "Await", l.Await(ctx), zklock.ErrLost)
			}
			next := make([]*zklock.Lease, len(paths))
			for i, r := range rivals {
				next[i] = granted(t, "the next holder", r)
			}
			t.Logf("lost after %v, taken by another after %v", ends, ms(time.Since(begun)))
			figures.Record(t, "session "+tc.name, version, figures.HandOver, time.Since(begun))
			back()
			healed := time.Now()

			again := acquireAsync(ctx, mutexOf(t, c, paths[0]))
			awaitNodes(t, observer, paths[0], 2)
			other := acquire(t, mutexOf(t, c, uniquePath(t)))
			figures.Record(t, "session "+tc.name, version, figures.Recovery, time.Since(healed))
			if c.SessionID() == session {
				t.Errorf("the session is still %x", session)
			}
			for i, l := range leases {
				isErr(t, "Release", l.Release(ctx), zklock.ErrLost)
				must(t, "the next holder's lease", next[i].Verify(ctx))
				if next[i].Token() <= l.Token() {
					t.Errorf("token %v after %v", next[i].Token(), l.Token())
				}
				release(t, next[i])
			}
			release(t, granted(t, "the same mutex again", again))
			release(t, other)
			if n := st.count(zklock.Lost); n != 1 {
				t.Errorf("%d times Lost, want 1: %v", n, st)
			}
			t.Logf("states: %v", st)
		})
	}
}
