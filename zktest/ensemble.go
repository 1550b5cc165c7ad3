package zktest

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"
)

// Ensemble is several servers with one history, as seen by their clients. All its methods are safe for concurrent use.
type Ensemble struct{ cl *cluster }

// StartEnsemble starts n servers that have a leader. Config.Listen, if set, must leave the port open (":0"). It ends
// with Close.
func StartEnsemble(cfg Config, n int) (*Ensemble, error) {
	if n < 1 {
		return nil, fmt.Errorf("zktest: an ensemble of %d servers", n)
	}
	cl, err := startCluster(cfg, n)
	if err != nil {
		return nil, err
	}
	return &Ensemble{cl}, nil
}

// NewEnsemble starts an ensemble of n servers for a test and closes it when the test ends.
func NewEnsemble(t TB, n int, opts ...Option) *Ensemble {
	t.Helper()
	e, err := StartEnsemble(testConfig(t, opts), n)
	if err != nil {
		t.Fatalf("zktest: %v", err)
	}
	t.Cleanup(e.Close)
	return e
}

// Close ends all servers. No goroutine is left when it returns.
func (e *Ensemble) Close() { e.cl.close() }

// Servers returns the servers, the one with the smallest id first.
func (e *Ensemble) Servers() []*Server { return append([]*Server(nil), e.cl.servers...) }

// Leader returns the server that leads, nil while there is none. A leader that is cut off or stopped is returned until
// the others have elected a new one.
func (e *Ensemble) Leader() *Server {
	e.cl.mu.Lock()
	defer e.cl.mu.Unlock()
	return e.cl.leader
}

// Followers returns the servers that follow the leader.
func (e *Ensemble) Followers() []*Server {
	e.cl.mu.Lock()
	defer e.cl.mu.Unlock()
	var list []*Server
	for _, s := range e.cl.servers {
		if s.follows(e.cl.leader) {
			list = append(list, s)
		}
	}
	return list
}

// Addrs returns the addresses for a client's server list.
func (e *Ensemble) Addrs() []string {
	var list []string
	for _, s := range e.cl.servers {
		list = append(list, s.Addr())
	}
	return list
}

// Ops returns the counters of all servers together.
func (e *Ensemble) Ops() *Ops { return &e.cl.ops }

// Dial opens an in-memory connection to the server with that address; see Server.Dial.
func (e *Ensemble) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return e.dial(ctx, "", network, address)
}

// Dialer is Dial under a client's name; see Server.Dialer.
func (e *Ensemble) Dialer(client string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return e.dial(ctx, client, network, address)
	}
}

func (e *Ensemble) dial(ctx context.Context, client, network, address string) (net.Conn, error) {
	for _, s := range e.cl.servers {
		if address == s.name || address == s.Addr() {
			return s.dial(ctx, client, network, address)
		}
	}
	err := fmt.Errorf("no such server, these are %s", strings.Join(e.Addrs(), ","))
	return nil, &net.OpError{Op: "dial", Net: network, Addr: memAddr(address), Err: err}
}

// Elect changes the leader: every server drops its clients, and after Config.ElectionTime they serve again, led by s if
// it can be reached, in a new epoch and with all session clocks started anew.
func (e *Ensemble) Elect(s *Server) {
	e.cl.mu.Lock()
	defer e.cl.mu.Unlock()
	e.cl.preferred = s
	if l := e.cl.leader; l != nil {
		l.leave("leader gives up")
	}
}

// Role says what the server is to the others: "leader", "follower", "standalone", or "looking" while it serves nobody.
func (s *Server) Role() string {
	s.cl.mu.Lock()
	defer s.cl.mu.Unlock()
	return s.role()
}

func (s *Server) role() string {
	switch {
	case s.peer.role == roleLooking:
		return "looking"
	case len(s.cl.servers) == 1:
		return "standalone"
	case s.peer.role == roleLeader:
		return "leader"
	}
	return "follower"
}

// CutFromPeers separates the server from all other servers. Its clients notice nothing at first: pings and reads are
// answered, writes wait. After Config.SyncLimit ticks without its leader, or a leader without its followers, it drops
// its clients and refuses requests until HealPeers. A single server has no peers: nothing happens.
func (s *Server) CutFromPeers() {
	s.cl.mu.Lock()
	defer s.cl.mu.Unlock()
	s.peer.cut = len(s.cl.servers) > 1
}

// HealPeers ends CutFromPeers. What was on its way arrives now.
func (s *Server) HealPeers() {
	s.cl.mu.Lock()
	defer s.cl.mu.Unlock()
	s.peer.cut = false
	s.cl.revive(s)
}

// Pause stops the server as SIGSTOP does: connections are accepted, and nothing is read, answered, expired or passed
// on until Resume.
func (s *Server) Pause() {
	s.cl.mu.Lock()
	defer s.cl.mu.Unlock()
	s.paused = true
}

// Resume ends Pause. Sessions whose time is over by then are expired before anything that clients have sent meanwhile is
// read; in a real server the two race.
func (s *Server) Resume() {
	s.cl.mu.Lock()
	defer s.cl.mu.Unlock()
	if !s.paused {
		return
	}
	s.paused = false
	if s.leads() {
		var over []int64
		for _, id := range slices.Sorted(maps.Keys(s.cl.sessions)) {
			ss := s.cl.sessions[id]
			if time.Now().Before(ss.expires) {
				s.cl.arm(ss)
			} else {
				over = append(over, id)
			}
		}
		for _, id := range over {
			s.cl.expire(id)
		}
	}
	if s.peer.role == roleFollower {
		s.peer.heardFrom = time.Now()
		s.watchLeader(s.peer.down)
	}
	s.applyDue()
	s.cl.revive(s)
	if s.peer.role == roleLeader && len(s.cl.servers) > 1 {
		s.cl.pingFollowers(s) // overdue
	}
	s.notify()
}

// revive lets things go on after s can be reached again; mu is held.
func (cl *cluster) revive(s *Server) {
	s.noticeOrphan()
	for _, f := range cl.servers {
		if f == s || f.peer.leader == s {
			f.peer.up.release()
			f.peer.down.release()
			f.noticeOrphan()
		}
	}
	cl.unstall()
	cl.after(cl.cfg.ElectionTime, cl.elect)
}

// Stop ends the server's process: all connections close, dials are refused. What it has committed is kept.
func (s *Server) Stop() {
	s.cl.mu.Lock()
	defer s.cl.mu.Unlock()
	if s.peer.stopped {
		return
	}
	s.peer.stopped, s.paused = true, false
	if s.peer.role != roleLooking {
		s.leave("stopped")
	}
	for _, c := range byID(s.conns) {
		c.drop("stopped")
	}
	s.notify()
}

// Restart starts a stopped server again. It serves after Config.ElectionTime, if there is a quorum.
func (s *Server) Restart() {
	s.cl.mu.Lock()
	defer s.cl.mu.Unlock()
	if !s.peer.stopped {
		return
	}
	s.peer.stopped = false
	s.notify()
	s.cl.after(s.cl.cfg.ElectionTime, s.cl.elect)
}

// SetLag sets how much later than the leader this server applies transactions while it follows.
func (s *Server) SetLag(d time.Duration) {
	s.cl.mu.Lock()
	defer s.cl.mu.Unlock()
	s.peer.lag = d
}

// configText is the content of /zookeeper/config in an ensemble.
func (cl *cluster) configText() string {
	var b strings.Builder
	for _, s := range cl.servers {
		host, port, err := net.SplitHostPort(s.Addr())
		if err != nil {
			host, port = s.Addr(), "2181"
		}
		fmt.Fprintf(&b, "server.%d=%s:2888:3888:participant;0.0.0.0:%s\n", s.id, host, port)
	}
	b.WriteString("version=0")
	return b.String()
}
