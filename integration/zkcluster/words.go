package zkcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Role is what a server says it is.
type Role string

// The roles. NotServing stands for a server that answers and has no ensemble.
const (
	Leader     Role = "leader"
	Follower   Role = "follower"
	Standalone Role = "standalone"
	NotServing Role = "not serving"
)

// pollInterval is how often a server is asked while something waits for it.
const pollInterval = 50 * time.Millisecond

// wordPatience bounds one four-letter word, so that a server that is stopped does not hold up a wait.
const wordPatience = 2 * time.Second

// errClosedWord says that a server's 4lw.commands.whitelist lacks a word. "srvr" is never closed.
var errClosedWord = errors.New("the server does not answer to this word")

// FourLetter sends one of ZooKeeper's four-letter words ("srvr", "mntr", "dump", …) and returns the answer.
// While the clients are cut off it goes over the peers' network, so a test sees what its clients cannot.
func (s *Server) FourLetter(ctx context.Context, word string) (string, error) {
	s.mu.Lock()
	addr := s.clientAddr
	if s.cuts.toServer || s.cuts.fromServer {
		addr = s.peerAddr
	}
	s.mu.Unlock()
	answer, err := fourLetter(ctx, netip.AddrPortFrom(addr, clientPort), word)
	if err != nil {
		return "", fmt.Errorf("%s to server %d: %w", word, s.id, err)
	}
	return answer, nil
}

func fourLetter(ctx context.Context, addr netip.AddrPort, word string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, wordPatience)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, word); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		return "", err
	}
	if len(answer) == 0 {
		return "", errors.New("no answer")
	}
	if strings.Contains(string(answer), "is not executed because it is not in the whitelist") {
		return "", errClosedWord
	}
	return string(answer), nil
}

// Role asks the server what it is. An error means that it did not answer.
func (s *Server) Role(ctx context.Context) (Role, error) {
	answer, err := s.FourLetter(ctx, "srvr")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(answer) {
		if mode, ok := strings.CutPrefix(strings.TrimSpace(line), "Mode: "); ok {
			return Role(mode), nil
		}
	}
	return NotServing, nil
}

// Version asks the server for its ZooKeeper version, such as "3.9.3".
func (s *Server) Version(ctx context.Context) (string, error) {
	answer, err := s.FourLetter(ctx, "srvr")
	if err != nil {
		return "", err
	}
	rest, ok := strings.CutPrefix(answer, "Zookeeper version: ")
	if !ok {
		return "", fmt.Errorf("server %d does not say its version: %q", s.id, answer)
	}
	version, _, _ := strings.Cut(rest, "-")
	return version, nil
}

// Monitor returns the server's counters, as "mntr" prints them, by name.
func (s *Server) Monitor(ctx context.Context) (map[string]string, error) {
	answer, err := s.FourLetter(ctx, "mntr")
	if err != nil {
		return nil, err
	}
	values := make(map[string]string)
	for line := range strings.Lines(answer) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok {
			values[name] = value
		}
	}
	return values, nil
}

// WaitServing returns when the server serves clients.
func (s *Server) WaitServing(ctx context.Context) error {
	return poll(ctx, func() error {
		role, err := s.Role(ctx)
		if err != nil {
			return err
		}
		if role == NotServing {
			return fmt.Errorf("server %d has no ensemble yet", s.id)
		}
		return nil
	})
}

// WaitRefusing returns when the server no longer serves clients: it says so, or does not answer at all.
func (s *Server) WaitRefusing(ctx context.Context) error {
	return poll(ctx, func() error {
		role, err := s.Role(ctx)
		if err != nil && ctx.Err() == nil || role == NotServing {
			return nil
		}
		return fmt.Errorf("server %d still serves as %s", s.id, role)
	})
}

// Leader returns the server that leads. A leader that was just cut off calls itself one until it notices; it
// is passed over when another server has been elected since.
func (c *Cluster) Leader(ctx context.Context) (*Server, error) {
	var leader *Server
	newest := int64(-1)
	for _, s := range c.servers {
		role, err := s.Role(ctx)
		if err != nil || role != Leader && role != Standalone {
			continue
		}
		epoch, err := s.epoch(ctx)
		if err != nil {
			continue
		}
		if epoch > newest {
			leader, newest = s, epoch
		}
	}
	if leader == nil {
		return nil, errors.New("no server leads")
	}
	return leader, nil
}

// Followers returns the servers that follow, in the order of their ids.
func (c *Cluster) Followers(ctx context.Context) ([]*Server, error) {
	var all []*Server
	for _, s := range c.servers {
		if role, err := s.Role(ctx); err == nil && role == Follower {
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		return nil, errors.New("no server follows")
	}
	return all, nil
}

// epoch is the upper half of the server's last zxid, which grows with every election.
func (s *Server) epoch(ctx context.Context) (int64, error) {
	answer, err := s.FourLetter(ctx, "srvr")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(answer) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "Zxid: 0x"); ok {
			zxid, err := strconv.ParseUint(text, 16, 64)
			return int64(zxid >> 32), err
		}
	}
	return 0, fmt.Errorf("server %d does not say its zxid", s.id)
}

// WaitQuorum returns when every server serves, under one leader that has all others in step.
func (c *Cluster) WaitQuorum(ctx context.Context) error {
	return poll(ctx, func() error { return c.complete(ctx) })
}

func (c *Cluster) complete(ctx context.Context) error {
	var leaders, followers int
	for _, s := range c.servers {
		role, err := s.Role(ctx)
		if err != nil {
			return err
		}
		switch role {
		case Leader, Standalone:
			leaders++
		case Follower:
			followers++
		default:
			return fmt.Errorf("server %d is %s", s.id, role)
		}
	}
	if leaders != 1 || leaders+followers != len(c.servers) {
		return fmt.Errorf("%d lead and %d follow, of %d", leaders, followers, len(c.servers))
	}
	if followers == 0 {
		return nil
	}
	// A follower that was cut off may still call itself one. The leader knows which of them it hears.
	leader, err := c.Leader(ctx)
	if err != nil {
		return err
	}
	values, err := leader.Monitor(ctx)
	if errors.Is(err, errClosedWord) {
		return nil // more cannot be asked
	}
	if err != nil {
		return err
	}
	if got := values["zk_synced_followers"]; got != strconv.Itoa(followers) {
		return fmt.Errorf("%q of %d followers are in step with server %d", got, followers, leader.id)
	}
	return nil
}

// Heal ends every fault and waits until the ensemble is complete.
func (c *Cluster) Heal(ctx context.Context) error {
	if err := c.each(func(s *Server) error { return s.Heal(ctx) }); err != nil {
		return err
	}
	return c.WaitQuorum(ctx)
}

// RollingRestart restarts one server after the other, the leader last, each when the one before serves again.
func (c *Cluster) RollingRestart(ctx context.Context) error {
	leader, err := c.Leader(ctx)
	if err != nil {
		return err
	}
	order := make([]*Server, 0, len(c.servers))
	for _, s := range c.servers {
		if s != leader {
			order = append(order, s)
		}
	}
	for _, s := range append(order, leader) {
		if err := s.Restart(ctx); err != nil {
			return fmt.Errorf("server %d: %w", s.id, err)
		}
		if err := c.WaitQuorum(ctx); err != nil {
			return err
		}
	}
	return nil
}

// poll calls check until it succeeds. When ctx ends first, the error says what was missing last.
func poll(ctx context.Context, check func() error) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-ticker.C:
		}
	}
}
