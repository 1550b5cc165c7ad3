package zktest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// Server is one ZooKeeper server in this process. All its methods are safe for concurrent use.
type Server struct {
	cl   *cluster
	cfg  Config
	id   int
	name string
	net  *network
	ln   net.Listener

	// Guarded by cl.mu.
	tree        *tree
	watches     watchTable
	conns       map[*conn]struct{} // open for the client
	bySession   map[int64]map[*conn]struct{}
	writes      map[int64][]*request // under way, by session
	sockets     map[*conn]struct{}   // conns, and those whose end a fault keeps from the client
	lastConn    int64
	nextSession int64
	maxTimeout  time.Duration
	forgetful   bool // resumes no session
	refusing    bool
	paused      bool
	changed     chan struct{} // closed and replaced when a dial that waits should look again
	peer        peer
	stats       serverStats
}

// Start starts a single server. It ends with Close.
func Start(cfg Config) (*Server, error) {
	cl, err := startCluster(cfg, 1)
	if err != nil {
		return nil, err
	}
	return cl.servers[0], nil
}

// NewServer starts a single server for a test and closes it when the test ends. In a bubble of testing/synctest, call
// it inside the bubble.
func NewServer(t TB, opts ...Option) *Server {
	t.Helper()
	s, err := Start(testConfig(t, opts))
	if err != nil {
		t.Fatalf("zktest: %v", err)
	}
	t.Cleanup(s.Close)
	return s
}

// newServer makes server number i (from 0) of a cluster; mu is held or nobody else knows cl yet.
func newServer(cl *cluster, i int) *Server {
	cfg := cl.cfg
	id := cfg.ServerID + i
	name := cfg.Name
	if name == "" {
		name = fmt.Sprintf("192.0.2.%d:2181", i+1)
	} else if i > 0 {
		name = strconv.Itoa(i+1) + "." + name
	}
	s := &Server{
		cl: cl, cfg: cfg, id: id, name: name,
		net:        newNetwork(cfg.Latency, cfg.Jitter, cfg.Seed+uint64(i)*0x9e3779b97f4a7c15),
		tree:       newTree(),
		watches:    newWatchTable(),
		conns:      map[*conn]struct{}{},
		sockets:    map[*conn]struct{}{},
		bySession:  map[int64]map[*conn]struct{}{},
		writes:     map[int64][]*request{},
		maxTimeout: cfg.MaxSessionTimeout,
		changed:    make(chan struct{}),
	}
	s.nextSession = int64(id)<<56 | int64(uint64(time.Now().UnixMilli())<<24>>8)
	s.peer.touched = map[int64]time.Duration{}
	s.peer.lag = cfg.Lag
	return s
}

func (s *Server) logf(format string, args ...any) {
	s.cfg.Logf("zktest %s: "+format, append([]any{s.name}, args...)...)
}

// Addr is the address to put into a client's server list: the TCP address if the server listens on one, otherwise
// the name that Dial knows.
func (s *Server) Addr() string {
	if s.ln != nil {
		return s.ln.Addr().String()
	}
	return s.name
}

// Close ends the server, or the whole ensemble it is part of, with all connections. No goroutine is left when it
// returns. Closing twice is allowed.
func (s *Server) Close() { s.cl.close() }

// Dial opens an in-memory connection to the server. It has the shape that dialers have, so that a client can take it
// as it is; address must be Addr or the server's name. It waits one round trip of the latency. An error is a
// *net.OpError: refused, unknown address, or ctx's.
func (s *Server) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return s.dial(ctx, "", network, address)
}

// Dialer is Dial under a client's name, by which faults and black holes can choose the client's connections.
func (s *Server) Dialer(client string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return s.dial(ctx, client, network, address)
	}
}

func (s *Server) dial(ctx context.Context, client, network, address string) (net.Conn, error) {
	fail := func(err error) error {
		return &net.OpError{Op: "dial", Net: network, Addr: memAddr(address), Err: err}
	}
	if address != s.name && address != s.Addr() {
		return nil, fail(fmt.Errorf("no such server, this is %s", s.Addr()))
	}
	way := s.net.route(client, routeDial)
	if err := sleep(ctx, s.net.delay(way)); err != nil {
		return nil, fail(err)
	}
	for {
		s.cl.mu.Lock()
		if s.cl.closed || s.refusing || s.peer.stopped {
			s.cl.mu.Unlock()
			return nil, fail(syscall.ECONNREFUSED)
		}
		if !s.swallowsDial(client) {
			break
		}
		ch := s.changed
		s.cl.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			return nil, fail(ctx.Err())
		}
	}
	s.lastConn++
	local := memAddr("192.0.2.200:" + strconv.FormatInt(10000+s.lastConn%50000, 10))
	near, far := newPipe(s.net, client, local, memAddr(s.name))
	s.accept(far, client)
	s.cl.mu.Unlock()
	if err := sleep(ctx, s.net.delay(way)); err != nil {
		near.Close()
		return nil, fail(err)
	}
	return near, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// listen starts the TCP listener, if there is to be one.
func (s *Server) listen() error {
	if s.cfg.Listen == "" {
		return nil
	}
	ln, err := net.Listen("tcp", s.cfg.Listen)
	if err != nil {
		return fmt.Errorf("zktest: %w", err)
	}
	s.ln = ln
	s.cl.wg.Go(func() {
		for {
			nc, err := ln.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				s.logf("accept: %v", err)
				return
			}
			s.cl.mu.Lock()
			if s.cl.closed || s.refusing || s.peer.stopped {
				nc.Close()
			} else {
				s.lastConn++
				s.accept(nc, "")
			}
			s.cl.mu.Unlock()
		}
	})
	return nil
}

// SetLatency changes Config.Latency and Config.Jitter for messages sent from now on.
func (s *Server) SetLatency(latency, jitter time.Duration) { s.net.set(latency, jitter) }

// SetMaxSessionTimeout changes what this server grants from now on; in an ensemble the other servers keep theirs.
func (s *Server) SetMaxSessionTimeout(d time.Duration) {
	s.cl.mu.Lock()
	defer s.cl.mu.Unlock()
	s.maxTimeout = d
}

// ForgetSessions makes the server unable to resume sessions: a client that asks for its old one is silently given a
// new one, with a new id and no sign of expiry. The old session goes on until it expires.
func (s *Server) ForgetSessions(on bool) {
	s.cl.mu.Lock()
	defer s.cl.mu.Unlock()
	s.forgetful = on
}

// Refuse makes the server refuse new connections; those there are go on.
func (s *Server) Refuse(on bool) {
	s.cl.mu.Lock()
	defer s.cl.mu.Unlock()
	s.refusing = on
	s.notify()
}

// CutConnections ends all connections at once and returns how many there were. Sessions go on.
func (s *Server) CutConnections() int {
	s.cl.mu.Lock()
	defer s.cl.mu.Unlock()
	n := len(s.conns)
	for _, c := range byID(s.conns) {
		c.drop("cut")
	}
	return n
}

// notify wakes the waiting dials and connections after something that holds them has changed; mu is held.
func (s *Server) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
	for c := range s.sockets {
		c.notify()
	}
}

// byID lists connections, oldest first: whatever is done to several is done in the same order each time.
func byID(conns map[*conn]struct{}) []*conn {
	if len(conns) == 0 {
		return nil
	}
	return slices.SortedFunc(maps.Keys(conns), func(a, b *conn) int { return cmp.Compare(a.id, b.id) })
}

// sessionConns are the open connections of a session on this server, oldest first; mu is held.
func (s *Server) sessionConns(id int64) []*conn {
	var list []*conn
	for c := range s.bySession[id] {
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b *conn) int { return cmp.Compare(a.id, b.id) })
	return list
}

// setSession puts a connection into the index of sessions; mu is held.
func (c *conn) setSession(id int64) {
	c.session = id
	if c.s.bySession[id] == nil {
		c.s.bySession[id] = map[*conn]struct{}{}
	}
	c.s.bySession[id][c] = struct{}{}
}

// forgetSession takes it out again.
func (c *conn) forgetSession() {
	delete(c.s.bySession[c.session], c)
	if len(c.s.bySession[c.session]) == 0 {
		delete(c.s.bySession, c.session)
	}
}
