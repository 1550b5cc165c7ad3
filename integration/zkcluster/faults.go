package zkcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/moby/moby/client"
)

// EnvCuts is the environment variable that fixes how silent cuts are made: "host" enters the container's
// network from the host, which needs root; "container" runs iptables inside, which the official image
// does not have. Unset, the host is taken where it can.
const EnvCuts = "ZKLOCK_CUTS"

// cuts are the silent cuts that stand. A cut drops packets without an answer, so neither side is told.
type cuts struct {
	peers      bool
	fromPeers  bool // one way only
	toServer   bool
	fromServer bool
}

// rules returns the whole packet filter of the server, in the form that iptables-restore loads in one step:
// both directions of a cut begin at the same moment.
func (s *Server) rules() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("*filter")
	for _, chain := range []string{"INPUT", "FORWARD", "OUTPUT"} {
		line(":%s ACCEPT [0:0]", chain)
	}
	// By address and port, so that the other network stays as it is, and four-letter words can come over it.
	if s.cuts.peers || s.cuts.fromPeers {
		line("-A INPUT -d %s -p tcp -m multiport --ports %d,%d -j DROP", s.peerAddr, followerPort, electionPort)
	}
	if s.cuts.peers {
		line("-A OUTPUT -s %s -p tcp -m multiport --ports %d,%d -j DROP", s.peerAddr, followerPort, electionPort)
	}
	if s.cuts.toServer {
		line("-A INPUT -d %s -p tcp --dport %d -j DROP", s.clientAddr, clientPort)
	}
	if s.cuts.fromServer {
		line("-A OUTPUT -s %s -p tcp --sport %d -j DROP", s.clientAddr, clientPort)
	}
	line("COMMIT")
	return b.String()
}

// CutPeers silently drops everything between this server and the other servers, both ways, on connections
// that stand too. Its clients stay connected, and it goes on answering their pings and reads until it gives
// the ensemble up, after as long as SyncTimeout.
func (s *Server) CutPeers(ctx context.Context) error {
	return s.setCuts(ctx, func(c *cuts) { c.peers = true })
}

// DeafenPeers silently drops what the other servers send to this one, and lets through what it sends.
func (s *Server) DeafenPeers(ctx context.Context) error {
	return s.setCuts(ctx, func(c *cuts) { c.fromPeers = true })
}

// HealPeers ends CutPeers and DeafenPeers.
func (s *Server) HealPeers(ctx context.Context) error {
	return s.setCuts(ctx, func(c *cuts) { c.peers, c.fromPeers = false, false })
}

// CutClients silently drops everything between this server and its clients, both ways. The server stays in
// the quorum and finds out only by the silence.
func (s *Server) CutClients(ctx context.Context) error {
	return s.setCuts(ctx, func(c *cuts) { c.toServer, c.fromServer = true, true })
}

// HealClients ends CutClients and StallUplink.
func (s *Server) HealClients(ctx context.Context) error {
	return s.setCuts(ctx, func(c *cuts) { c.toServer, c.fromServer = false, false })
}

// StallUplink silently drops what clients send and lets through what the server sends. After HealClients the
// clients' kernels send the backlog again, at the latest after the time they had already waited.
//
// Acknowledgements are dropped with the rest, as on a real line. So if the server had something on its way
// when the stall began, its kernel holds back what comes after it, watch events too, from about 0.2 s on.
func (s *Server) StallUplink(ctx context.Context) error {
	return s.setCuts(ctx, func(c *cuts) { c.toServer, c.fromServer = true, false })
}

// DetachPeers takes the server off the peers' network. It works on any machine; unlike CutPeers the server's
// kernel knows that the network is gone, and new connections fail at once.
func (s *Server) DetachPeers(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.detached {
		return nil
	}
	if err := exclusively(ctx, func() error { return s.cluster.peers.disconnect(ctx, s.container) }); err != nil {
		return fmt.Errorf("detaching from the peers: %w", err)
	}
	s.detached = true
	return nil
}

// AttachPeers puts the server back on the peers' network, at its old address.
func (s *Server) AttachPeers(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attach(ctx)
}

func (s *Server) attach(ctx context.Context) error {
	if !s.detached {
		return nil
	}
	if err := exclusively(ctx, func() error { return s.cluster.peers.connect(ctx, s.container, s.peerAddr) }); err != nil {
		return fmt.Errorf("attaching to the peers: %w", err)
	}
	s.detached = false
	return nil
}

// Heal ends every fault of this server: it is thawed, resumed, attached and started, and no cut stands. It
// does not wait until the server serves.
func (s *Server) Heal(ctx context.Context) error {
	s.mu.Lock()
	err := errors.Join(s.thaw(ctx), s.resume(ctx), s.attach(ctx))
	if s.cuts != (cuts{}) {
		s.cuts = cuts{}
		if s.running {
			err = errors.Join(err, s.applyCuts(ctx))
		}
	}
	s.mu.Unlock()
	return errors.Join(err, s.Start(ctx))
}

// setCuts changes which cuts stand. On a server that does not run they begin with its start.
func (s *Server) setCuts(ctx context.Context, change func(*cuts)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.cuts
	change(&s.cuts)
	if s.cuts == before || !s.running {
		return nil
	}
	if err := s.applyCuts(ctx); err != nil {
		s.cuts = before
		return err
	}
	return nil
}

func (s *Server) applyCuts(ctx context.Context) error {
	way, err := s.cutsWay()
	if err != nil {
		return err
	}
	if err := way(ctx, s.rules()); err != nil {
		return fmt.Errorf("setting the packet filter: %w", err)
	}
	return nil
}

// cutsWay chooses how the packet filter is reached. Entering from the host takes a few milliseconds, works
// with an image that has no iptables, and with a frozen container.
func (s *Server) cutsWay() (func(ctx context.Context, rules string) error, error) {
	wanted := os.Getenv(EnvCuts)
	nsenter, enterErr := lookSystem("nsenter")
	restore, restoreErr := lookSystem("iptables-restore")
	possible := s.pid != 0 && os.Geteuid() == 0 && enterErr == nil && restoreErr == nil
	switch {
	case wanted != "" && wanted != "host" && wanted != "container":
		return nil, fmt.Errorf("%s=%q: it must be host or container", EnvCuts, wanted)
	case wanted == "host" && !possible:
		return nil, fmt.Errorf("%s=host needs root, an engine on this machine, nsenter and iptables", EnvCuts)
	case possible && wanted != "container":
		return func(ctx context.Context, rules string) error {
			return s.restoreFromHost(ctx, nsenter, restore, rules)
		}, nil
	default:
		return s.restoreInside, nil
	}
}

func (s *Server) restoreFromHost(ctx context.Context, nsenter, restore, rules string) error {
	cmd := exec.CommandContext(ctx, nsenter, fmt.Sprintf("--net=/proc/%d/ns/net", s.pid), restore)
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", restore, err, out)
	}
	return nil
}

func (s *Server) restoreInside(ctx context.Context, rules string) error {
	made, err := s.docker.ExecCreate(ctx, s.container, client.ExecCreateOptions{
		User:         "root",
		Cmd:          []string{"sh", "-c", `printf %s "$1" | iptables-restore`, "sh", rules},
		AttachStdout: true,
		AttachStderr: true,
	})
	if err != nil {
		return err
	}
	attached, err := s.docker.ExecAttach(ctx, made.ID, client.ExecAttachOptions{})
	if err != nil {
		return err
	}
	defer attached.Close()
	out, err := io.ReadAll(attached.Reader) // ends with the command
	if err != nil {
		return err
	}
	ended, err := s.docker.ExecInspect(ctx, made.ID, client.ExecInspectOptions{})
	if err != nil {
		return err
	}
	if ended.ExitCode != 0 {
		return fmt.Errorf("iptables-restore in the container ended with %d (does the image have iptables?): %s", ended.ExitCode, out)
	}
	return nil
}

// lookSystem finds a program of the system administrator, whose folder is not in everybody's PATH.
func lookSystem(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	return exec.LookPath("/usr/sbin/" + name)
}
