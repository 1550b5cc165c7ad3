package integration

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/integration/zkcluster"
	"github.com/go-zklock/zklock/integration/zkproxy"
)

// bounded is a context for one test's waits.
func bounded(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// roles returns a follower and the leader.
func roles(t testing.TB, cluster *zkcluster.Cluster) (follower, leader *zkcluster.Server) {
	t.Helper()
	ctx := bounded(t)
	followers, err := cluster.Followers(ctx)
	must(t, "followers", err)
	leader, err = cluster.Leader(ctx)
	must(t, "leader", err)
	return followers[0], leader
}

// result is what an Acquire in the background returned, and when.
type result struct {
	lease *zklock.Lease
	err   error
	at    time.Time
}

// acquireAsync starts an Acquire.
func acquireAsync(ctx context.Context, m *zklock.InterProcessMutex) <-chan result {
	ch := make(chan result, 1)
	go func() {
		l, err := m.Acquire(ctx)
		ch <- result{l, err, time.Now()}
	}()
	return ch
}

// returned waits for an Acquire to return.
func returned(t testing.TB, what string, ch <-chan result) result {
	t.Helper()
	select {
	case r := <-ch:
		return r
	case <-time.After(patience):
		t.Fatalf("%s: not back within %v", what, patience)
		return result{}
	}
}

// granted waits for an Acquire that has to succeed.
func granted(t testing.TB, what string, ch <-chan result) *zklock.Lease {
	t.Helper()
	r := returned(t, what, ch)
	must(t, what, r.err)
	return r.lease
}

// notYet fails if an Acquire has returned.
func notYet(t testing.TB, what string, ch <-chan result) {
	t.Helper()
	select {
	case r := <-ch:
		t.Fatalf("%s returned %v, %v; it was to wait", what, r.lease, r.err)
	default:
	}
}

func release(t testing.TB, l *zklock.Lease) {
	t.Helper()
	must(t, "release "+l.Path(), l.Release(bounded(t)))
}

// eventually looks until ok says so.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, patience)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// nodes lists the lock nodes at path in the order of their sequence, as of now.
func nodes(t testing.TB, conn *zk.Conn, path string) []string {
	t.Helper()
	_, err := conn.Sync(path)
	must(t, "sync", err)
	children, _, err := conn.Children(path)
	if errors.Is(err, zk.ErrNoNode) {
		return nil
	}
	must(t, "children of "+path, err)
	var locks []string
	for _, c := range children {
		if strings.Contains(c, "-lock-") {
			locks = append(locks, c)
		}
	}
	slices.SortFunc(locks, func(a, b string) int { return strings.Compare(a[len(a)-10:], b[len(b)-10:]) })
	return locks
}

// awaitNodes waits until there are n lock nodes at path, and returns them.
func awaitNodes(t testing.TB, conn *zk.Conn, path string, n int) []string {
	t.Helper()
	var last []string
	eventually(t, fmt.Sprintf("%d nodes at %s", n, path), func() bool {
		last = nodes(t, conn, path)
		return len(last) == n
	})
	return last
}

var totalWatches = regexp.MustCompile(`Total watches:(\d+)`)

// watches is how many watches a server keeps.
func watches(t testing.TB, s *zkcluster.Server) int {
	t.Helper()
	wchs, err := s.FourLetter(bounded(t), "wchs")
	must(t, "wchs", err)
	m := totalWatches.FindStringSubmatch(wchs)
	if m == nil {
		t.Fatalf("wchs of server %d says %q", s.ID(), wchs)
	}
	n, err := strconv.Atoi(m[1])
	must(t, "wchs", err)
	return n
}

// ensure makes a persistent node, and those above it.
func ensure(t testing.TB, conn *zk.Conn, path string) {
	t.Helper()
	for i := range path {
		if i > 0 && path[i] == '/' {
			if _, err := conn.Create(path[:i], nil, 0, zk.WorldACL(zk.PermAll)); err != nil && !errors.Is(err, zk.ErrNodeExists) {
				must(t, "make "+path[:i], err)
			}
		}
	}
	_, err := conn.Create(path, nil, 0, zk.WorldACL(zk.PermAll))
	if !errors.Is(err, zk.ErrNodeExists) {
		must(t, "make "+path, err)
	}
}

// states keeps what a client tells its listeners.
type states struct {
	mu   sync.Mutex
	seen []zklock.StateChange
	news chan struct{}
}

func watchStates(t testing.TB, c *zklock.Client) *states {
	t.Helper()
	s := &states{news: make(chan struct{})}
	t.Cleanup(c.OnStateChange(func(sc zklock.StateChange) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.seen = append(s.seen, sc)
		close(s.news)
		s.news = make(chan struct{})
	}))
	return s
}

func (s *states) count(state zklock.ConnectionState) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, sc := range s.seen {
		if sc.State == state {
			n++
		}
	}
	return n
}

func (s *states) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, sc := range s.seen {
		names = append(names, sc.State.String())
	}
	return strings.Join(names, " ")
}

// await waits until the client has been in state n times.
func (s *states) await(t testing.TB, state zklock.ConnectionState, n int) {
	t.Helper()
	deadline := time.After(patience)
	for {
		s.mu.Lock()
		news := s.news
		s.mu.Unlock()
		if s.count(state) >= n {
			return
		}
		select {
		case <-news:
		case <-deadline:
			t.Fatalf("%v was not seen %d times within %v; seen: %v", state, n, patience, s)
		}
	}
}

// viaProxy connects a client of its own through a proxy of its own to server.
func viaProxy(t testing.TB, server *zkcluster.Server, timeout time.Duration, opts ...func(*zklock.Config)) (*zklock.Client, *zkproxy.Proxy) {
	t.Helper()
	p := zkproxy.New(t, server.Addr())
	return clientOf(t, []string{p.Addr()}, timeout, opts...), p
}

// cutOff breaks a proxy's connections and lets no new ones through until the
// returned function is called.
func cutOff(p *zkproxy.Proxy) (back func()) {
	p.Refuse(true)
	p.Cut()
	return func() { p.Refuse(false) }
}

// silence stops all traffic of a proxy without a word, until the returned function
// is called.
func silence(p *zkproxy.Proxy) (back func()) {
	p.Hold(zkproxy.ToServer)
	p.Hold(zkproxy.ToClient)
	return func() {
		p.Pass(zkproxy.ToServer)
		p.Pass(zkproxy.ToClient)
	}
}

// awaitOwnWatch waits until a holder behind p has put a watch on its node.
func awaitOwnWatch(t testing.TB, p *zkproxy.Proxy) {
	t.Helper()
	must(t, "own watch", p.Await(bounded(t), func(s zkproxy.Snapshot) bool { return s.Total.Replies[zkproxy.GetData] > 0 }))
}

// held checks that a lease is what it was.
func held(t testing.TB, l *zklock.Lease, path string, token zklock.Token) {
	t.Helper()
	if l.State() != zklock.LeaseHeld || l.Err() != nil || l.Context().Err() != nil {
		t.Errorf("the lease is %v: %v; context: %v", l.State(), l.Err(), context.Cause(l.Context()))
	}
	if l.Path() != path || l.Token() != token {
		t.Errorf("the lease is on %s with token %v, was on %s with %v", l.Path(), l.Token(), path, token)
	}
	must(t, "verify "+path, l.Verify(bounded(t)))
}

// isErr checks that err matches every target.
func isErr(t testing.TB, what string, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Errorf("%s: %v; want one that matches %q", what, err, target)
		}
	}
}

func ms(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
