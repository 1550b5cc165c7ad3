package integration

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/integration/internal/figures"
	"github.com/go-zklock/zklock/integration/zkcluster"
	"github.com/go-zklock/zklock/integration/zkproxy"
)

// line is a holder and two waiters of one path, each a client through the same proxy.
type line struct {
	clients []*zklock.Client
	states  []*states
	lease   *zklock.Lease
	waiters []<-chan result
}

func newLine(t *testing.T, addr, path string, timeout time.Duration, joined func(n int)) *line {
	t.Helper()
	l := &line{}
	for i := range 3 {
		c := clientOf(t, []string{addr}, timeout)
		l.clients = append(l.clients, c)
		l.states = append(l.states, watchStates(t, c))
		if i == 0 {
			l.lease = acquire(t, mutexOf(t, c, path))
		} else {
			l.waiters = append(l.waiters, acquireAsync(bounded(t), mutexOf(t, c, path)))
		}
		joined(i + 1)
	}
	return l
}

// F1 and F2: everybody is away for less than the trust window. Then everything is
// as before.
func TestShortDisconnectChangesNothing(t *testing.T) { //nolint:tparallel // other tests break the same servers
	onBothVersions(t, shortDisconnect)
}

func shortDisconnect(t *testing.T, on *zkcluster.Shared) {
	t.Helper()
	const timeout = 30 * time.Second
	for _, tc := range []struct {
		name string
		cut  func(ctx context.Context, s *zkcluster.Server, p *zkproxy.Proxy) (heal func() error, err error)
	}{
		{"connections cut", func(_ context.Context, _ *zkcluster.Server, p *zkproxy.Proxy) (func() error, error) {
			back := cutOff(p)
			return func() error { time.Sleep(2 * time.Second); back(); return nil }, nil
		}},
		{"server killed and started again", func(ctx context.Context, s *zkcluster.Server, _ *zkproxy.Proxy) (func() error, error) {
			return func() error { return s.Start(ctx) }, s.Kill(ctx)
		}},
		{"silence", func(_ context.Context, _ *zkcluster.Server, p *zkproxy.Proxy) (func() error, error) {
			back := silence(p)
			// Long enough for a proof to be overdue, so that the lease is suspended
			// though the connection stands.
			return func() error { time.Sleep(time.Second); back(); return nil }, nil
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cluster := on.Get(t)
			version := versionOf(t, cluster)
			ctx := bounded(t)
			server, leader := roles(t, cluster)
			observer := observe(t, leader)
			path := uniquePath(t)
			p := zkproxy.New(t, server.Addr())
			l := newLine(t, p.Addr(), path, timeout, func(n int) { awaitNodes(t, observer, path, n) })
			before := nodes(t, observer, path)
			node, token := l.lease.Path(), l.lease.Token()
			var sessions []int64
			for _, c := range l.clients {
				sessions = append(sessions, c.SessionID())
			}

			begun := time.Now()
			heal, err := tc.cut(ctx, server, p)
			must(t, tc.name, err)
			l.states[0].await(t, zklock.Suspended, 1)
			if got := l.lease.State(); got != zklock.LeaseSuspended {
				t.Errorf("the lease is %v while its client is suspended", got)
			}
			passed := make(chan error, 1)
			go func() { passed <- l.lease.Await(ctx) }()
			short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			if err := l.lease.Await(short); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Await with a ctx that ends during the disconnect: %v", err)
			}
			cancel()
			select {
			case err := <-passed:
				t.Errorf("Await returned %v during the disconnect", err)
			default:
			}

			must(t, "heal", heal())
			healed := time.Now()
			must(t, "Await", <-passed)
			figures.Record(t, tc.name+" for less than T", version, figures.Recovery, time.Since(healed))
			t.Logf("held again %v after the cut; trust window %v", ms(time.Since(begun)), timeout-timeout/100)
			held(t, l.lease, node, token)
			for i, s := range l.states {
				s.await(t, zklock.Reconnected, s.count(zklock.Suspended))
				if s.count(zklock.Lost) > 0 || l.clients[i].SessionID() != sessions[i] {
					t.Errorf("client %d: states %v, session %x, was %x", i, s, l.clients[i].SessionID(), sessions[i])
				}
			}
			if after := nodes(t, observer, path); !slices.Equal(after, before) {
				t.Errorf("nodes %v, before the disconnect %v", after, before)
			}

			last := l.lease
			for i, w := range l.waiters {
				notYet(t, "a waiter", w)
				release(t, last)
				last = granted(t, "the next waiter", w)
				if got, want := last.Path(), path+"/"+before[i+1]; got != want {
					t.Errorf("waiter %d holds %s, queued with %s", i, got, want)
				}
			}
			release(t, last)
		})
	}
}

// F14: every server is restarted, the leader last. Each client is away for less than
// its trust window, so nothing is lost and nobody queues anew.
func TestRollingRestartLosesNothing(t *testing.T) {
	cluster := ensemble.Get(t)
	version := versionOf(t, cluster)
	ctx := bounded(t)
	path := uniquePath(t)
	clients := []*zklock.Client{clientOf(t, cluster.Addrs(), 40*time.Second), clientOf(t, cluster.Addrs(), 40*time.Second)}
	st := []*states{watchStates(t, clients[0]), watchStates(t, clients[1])}
	lease := acquire(t, mutexOf(t, clients[0], path))
	node, token := lease.Path(), lease.Token()
	waiter := acquireAsync(ctx, mutexOf(t, clients[1], path))
	before := participants(t, mutexOf(t, clients[0], path), 2)

	begun := time.Now()
	must(t, "rolling restart", cluster.RollingRestart(ctx))
	restarted := time.Now()
	must(t, "Await", lease.Await(ctx))
	figures.Record(t, "rolling restart", version, figures.Recovery, time.Since(restarted))
	t.Logf("three restarts took %v; holder: %v; waiter: %v", ms(time.Since(begun)), st[0], st[1])
	held(t, lease, node, token)
	if n := st[0].count(zklock.Lost) + st[1].count(zklock.Lost); n > 0 {
		t.Errorf("%d losses", n)
	}
	if after := participants(t, mutexOf(t, clients[0], path), 2); !slices.Equal(after, before) {
		t.Errorf("queue %v, before the restarts %v", after, before)
	}
	notYet(t, "the waiter", waiter)
	release(t, lease)
	next := granted(t, "the waiter", waiter)
	if next.Path() != before[1] {
		t.Errorf("the waiter holds %s, queued with %s", next.Path(), before[1])
	}
	release(t, next)
}

// participants returns the nodes of the n contenders of a path, once there are as many.
func participants(t testing.TB, m *zklock.InterProcessMutex, n int) []string {
	t.Helper()
	var paths []string
	eventually(t, "participants", func() bool {
		ps, err := m.Participants(bounded(t))
		must(t, "participants", err)
		paths = nil
		for _, p := range ps {
			paths = append(paths, p.Path)
		}
		return len(paths) == n
	})
	return paths
}
