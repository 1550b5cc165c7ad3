package zklock

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zklock/zklock/zktest"
)

// oneWay is the latency of every message between a client and a server in these
// tests, and roundTrip what a request takes.
const (
	oneWay    = time.Millisecond
	roundTrip = 2 * oneWay
)

// group is what a test against several servers works with: a bundle whose srv is
// the first server.
type group struct {
	bundle
	ens  *zktest.Ensemble
	hist *zktest.History
}

// inEnsemble runs f in virtual time against n servers that have a leader.
func inEnsemble(t *testing.T, n int, f func(g *group), opts ...zktest.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		hist := new(zktest.History)
		opts := append([]zktest.Option{zktest.WithLatency(oneWay, 0, 1), zktest.WithOnTxn(hist.Add)}, opts...)
		ens := zktest.NewEnsemble(t, n, opts...)
		f(&group{bundle{t: t, srv: ens.Servers()[0], log: &logBuffer{}}, ens, hist})
	})
}

// follower is a server that does not lead, and others are all but it.
func (g *group) follower() (f *zktest.Server, others []*zktest.Server) {
	f = g.ens.Followers()[0]
	for _, s := range g.ens.Servers() {
		if s != f {
			others = append(others, s)
		}
	}
	return f, others
}

// withHistory keeps the transactions of a single server.
func withHistory(h *zktest.History) zktest.Option { return zktest.WithOnTxn(h.Add) }

// withTimeout asks for a session timeout.
func withTimeout(d time.Duration) func(*Config) {
	return func(c *Config) { c.SessionTimeout = d }
}

// withTick says what the ensemble's tick is.
func withTick(d time.Duration) func(*Config) {
	return func(c *Config) { c.TickTime = d }
}

// withTrust sets the trust mode.
func withTrust(m TrustMode) func(*Config) {
	return func(c *Config) { c.Trust = m }
}

// pinned makes a client know one server only, and gives it a name there.
func pinned(s *zktest.Server, name string) func(*Config) {
	return func(c *Config) {
		c.Servers = []string{s.Addr()}
		c.Dial = s.Dialer(name)
	}
}

// startingAt makes a client know every server and reach no other than first until
// roam is set.
func (g *group) startingAt(first *zktest.Server, name string, roam *atomic.Bool) func(*Config) {
	dial := g.ens.Dialer(name)
	return func(c *Config) {
		c.Servers = g.ens.Addrs()
		c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			if !roam.Load() && address != first.Addr() {
				return nil, net.ErrClosed
			}
			return dial(ctx, network, address)
		}
	}
}

// within receives from ch and fails the test if nothing comes for d.
func within[T any](t *testing.T, d time.Duration, ch <-chan T, what string) T {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case v := <-ch:
		return v
	case <-timer.C:
		t.Fatalf("%s: nothing within %v", what, d)
		panic("unreachable")
	}
}

// granted receives the lease of acquireAsync.
func granted(t *testing.T, d time.Duration, ch <-chan result, who string) *Lease {
	t.Helper()
	r := within(t, d, ch, who)
	if r.err != nil {
		t.Fatalf("%s: %v", who, r.err)
	}
	return r.l
}

// notYet fails the test if there is something in ch.
func notYet(t *testing.T, ch <-chan result, who string) {
	t.Helper()
	synctest.Wait()
	select {
	case r := <-ch:
		t.Fatalf("%s returned too early: %+v", who, r)
	default:
	}
}

// endOf tells when a lease's context was cancelled.
func endOf(l *Lease) <-chan time.Time {
	ch := make(chan time.Time, 1)
	context.AfterFunc(l.Context(), func() { ch <- time.Now() })
	return ch
}

// deletedAt is when the node was deleted at the ensemble; it waits up to d.
func deletedAt(t *testing.T, h *zktest.History, d time.Duration, node string) time.Time {
	t.Helper()
	txn, ok := h.Await(d, zktest.Deletes(node))
	if !ok {
		t.Fatalf("%s was not deleted within %v", node, d)
	}
	return txn.Time
}

// awaitNodes waits until a path has n children.
func (b *bundle) awaitNodes(path string, n int) []string {
	b.t.Helper()
	for range 2000 {
		synctest.Wait()
		if names := b.srv.Children(path); len(names) == n {
			return names
		}
		time.Sleep(oneWay)
	}
	b.t.Fatalf("%s has the children %v, want %d", path, b.srv.Children(path), n)
	return nil
}

// lockCreates counts the lock nodes ever made below a path.
func lockCreates(h *zktest.History, path string) (n int) {
	for _, txn := range h.Txns() {
		for _, c := range txn.Changes {
			if c.Op == zktest.OpCreate && strings.HasPrefix(c.Path, path+"/_c_") {
				n++
			}
		}
	}
	return n
}

// stateLog keeps the state changes of a client with their times.
type stateLog struct {
	mu      sync.Mutex
	changes []StateChange
}

func logStates(c *Client) *stateLog {
	l := new(stateLog)
	c.OnStateChange(func(ch StateChange) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.changes = append(l.changes, ch)
	})
	return l
}

// first is when a state was first entered after start; zero if it was not.
func (l *stateLog) first(s ConnectionState, start time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ch := range l.changes {
		if ch.State == s && !ch.At.Before(start) {
			return ch.At
		}
	}
	return time.Time{}
}

// String lists the states that were entered.
func (l *stateLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	for _, ch := range l.changes {
		fmt.Fprintf(&b, "%v ", ch.State)
	}
	return b.String()
}

func (l *stateLog) count(s ConnectionState) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ch := range l.changes {
		if ch.State == s {
			n++
		}
	}
	return n
}

// tap reads the frames of a client's connections on its own account: when each
// write was sent that was acknowledged later, and when pings were. It is how tests
// know what another trust rule would have said.
type tap struct {
	mu        sync.Mutex
	lastProof time.Time // when the newest acknowledged write was sent
	connected time.Time // when the newest connect request was sent
}

func (p *tap) into(c *Config) {
	dial := c.Dial
	c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &tapped{Conn: conn, tap: p, sent: map[int32]time.Time{}}, nil
	}
}

func (p *tap) proof() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lastProof
}

func (p *tap) connect() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.connected
}

type tapped struct {
	net.Conn
	tap   *tap
	begun bool
	sent  map[int32]time.Time // writes in flight, by xid
	in    []byte
	first bool // the connect response has been read
}

func (c *tapped) Write(b []byte) (int, error) {
	c.tap.mu.Lock()
	if !c.begun {
		c.begun = true
		c.tap.connected = time.Now()
	} else {
		for rest := b; len(rest) >= 12; rest = rest[4+binary.BigEndian.Uint32(rest):] {
			switch zktest.Op(int32(binary.BigEndian.Uint32(rest[8:]))) {
			case zktest.OpCreate, zktest.OpMulti, zktest.OpDelete:
				c.sent[int32(binary.BigEndian.Uint32(rest[4:]))] = time.Now()
			}
		}
	}
	c.tap.mu.Unlock()
	return c.Conn.Write(b)
}

func (c *tapped) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.tap.mu.Lock()
	defer c.tap.mu.Unlock()
	c.in = append(c.in, b[:n]...)
	for len(c.in) >= 4 {
		size := 4 + int(binary.BigEndian.Uint32(c.in))
		if len(c.in) < size {
			break
		}
		if xid := int32(binary.BigEndian.Uint32(c.in[4:])); c.first {
			if at, ok := c.sent[xid]; ok && at.After(c.tap.lastProof) {
				c.tap.lastProof = at
			}
		}
		c.first = true
		c.in = c.in[size:]
	}
	return n, err
}
