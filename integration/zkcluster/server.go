package zkcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
)

// The ports of every server; each has its own addresses, so they need not differ.
const (
	clientPort   = 2181
	followerPort = 2888
	electionPort = 3888
	securePort   = 2281
)

// Server is one ZooKeeper server in its container.
type Server struct {
	id         int
	cluster    *Cluster
	docker     *client.Client
	container  string // its id; empty until it is made
	clientAddr netip.Addr
	peerAddr   netip.Addr

	// mu orders the faults of this server and guards what follows.
	mu       sync.Mutex
	running  bool
	stopped  bool // SIGSTOP
	frozen   bool // docker pause
	detached bool // off the peers' network
	cuts     cuts
	pid      int // process 1 of the container as the host sees it; 0 if the host does not see it
}

// create makes the server's container and does not start it.
func (s *Server) create(ctx context.Context, env map[string]string) error {
	unlock, err := lockEngine(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	c := s.cluster
	var files []testcontainers.ContainerFile
	if c.opts.Files != nil {
		contents, err := c.opts.Files(s)
		if err != nil {
			return err
		}
		for name, content := range contents {
			files = append(files, testcontainers.ContainerFile{Reader: bytes.NewReader(content), ContainerFilePath: name, FileMode: 0o644})
		}
	}
	joinPeers := func(ctx context.Context, made testcontainers.Container) error {
		return c.peers.connect(ctx, made.GetContainerID(), s.peerAddr)
	}
	made, err := testcontainers.Run(ctx, c.image,
		testcontainers.WithNoStart(),
		testcontainers.WithName(fmt.Sprintf("%s-zk%d", c.name, s.id)),
		testcontainers.WithLabels(labels()),
		testcontainers.WithEnv(env),
		testcontainers.WithFiles(files...),
		testcontainers.WithHostConfigModifier(func(host *container.HostConfig) {
			// For iptables inside, on a machine where the host cannot enter the container's network.
			host.CapAdd = []string{"NET_ADMIN"}
			host.NetworkMode = container.NetworkMode(c.clients.name)
		}),
		testcontainers.WithEndpointSettingsModifier(func(settings map[string]*network.EndpointSettings) {
			settings[c.clients.name] = c.clients.endpoint(s.clientAddr)
		}),
		// Engines before API 1.44 take one network when a container is made, hence the second one later, and
		// before the start, since a server binds to its address among the peers.
		testcontainers.WithAdditionalLifecycleHooks(testcontainers.ContainerLifecycleHooks{
			PostCreates: []testcontainers.ContainerHook{joinPeers},
		}),
	)
	if made != nil { // also beside an error, when the container was made and a later step failed
		s.container = made.GetContainerID()
	}
	if err != nil {
		return fmt.Errorf("making the container: %w", err)
	}
	return nil
}

// ID returns the server's id in the ensemble, from 1 up.
func (s *Server) ID() int { return s.id }

// Addr returns the address for clients as host:port. It stays the same over restarts.
func (s *Server) Addr() string {
	return net.JoinHostPort(s.clientAddr.String(), strconv.Itoa(clientPort))
}

// SecureAddr returns the address for clients that use TLS, on a cluster whose Env sets secureClientPort=2281.
func (s *Server) SecureAddr() string {
	return net.JoinHostPort(s.clientAddr.String(), strconv.Itoa(securePort))
}

// ClientIP returns the address on the clients' network.
func (s *Server) ClientIP() net.IP { return s.clientAddr.AsSlice() }

// ContainerID returns the id of the server's container, for what this package does not do.
func (s *Server) ContainerID() string { return s.container }

// Start starts the process of a server that was killed or stopped, with its data and at its old address.
// It does not wait until the server serves: see WaitServing. A cut that was made before still stands.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running {
		return nil
	}
	err := exclusively(ctx, func() error {
		_, err := s.docker.ContainerStart(ctx, s.container, client.ContainerStartOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("starting: %w", err)
	}
	s.running = true
	if err := s.findProcess(ctx); err != nil {
		return err
	}
	// The network namespace is a new one and knows nothing of the cuts. The JVM needs longer to its first
	// packet than this.
	if s.cuts != (cuts{}) {
		return s.applyCuts(ctx)
	}
	return nil
}

// Kill ends the server with SIGKILL. Its clients see their connections closed.
func (s *Server) Kill(ctx context.Context) error {
	return s.end(ctx, func() error {
		_, err := s.docker.ContainerKill(ctx, s.container, client.ContainerKillOptions{Signal: "KILL"})
		return err
	})
}

// Stop ends the server with SIGTERM.
func (s *Server) Stop(ctx context.Context) error {
	return s.end(ctx, func() error {
		seconds := 10
		_, err := s.docker.ContainerStop(ctx, s.container, client.ContainerStopOptions{Timeout: &seconds})
		return err
	})
}

// Restart stops the server, starts it again and waits until it serves.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.Stop(ctx); err != nil {
		return err
	}
	if err := s.Start(ctx); err != nil {
		return err
	}
	return s.WaitServing(ctx)
}

// end ends the process and returns when it is gone.
func (s *Server) end(ctx context.Context, signal func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running {
		return nil
	}
	if err := s.thaw(ctx); err != nil { // a frozen container takes no signal
		return err
	}
	unlock, err := lockEngine(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	gone := s.docker.ContainerWait(ctx, s.container, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	if err := signal(); err != nil && !errdefs.IsConflict(err) { // a conflict says that it had ended by itself
		return fmt.Errorf("ending: %w", err)
	}
	select {
	case err := <-gone.Error:
		return fmt.Errorf("waiting for the end: %w", err)
	case <-gone.Result:
	}
	s.running, s.stopped, s.pid = false, false, 0
	return nil
}

// Pause stops the server's process with SIGSTOP: it keeps its connections, the kernel goes on acknowledging
// what arrives, and nothing is answered.
func (s *Server) Pause(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.signal(ctx, syscall.SIGSTOP); err != nil {
		return err
	}
	s.stopped = true
	return s.awaitStopped(ctx)
}

// awaitStopped returns once no thread of the server runs any more. The signal alone
// does not say so: on a busy machine the thread that has to stop the others may wait
// for its turn, and they go on answering meanwhile.
func (s *Server) awaitStopped(ctx context.Context) error {
	for s.pid != 0 && !allStopped(s.pid) {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("waiting for the stop: %w", context.Cause(ctx))
		}
	}
	return nil
}

// allStopped looks at every thread of a process: "T" behind the name in parentheses
// is one that is stopped, "Z" and "X" one that has ended.
func allStopped(pid int) bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(threads) == 0 {
		return true // it has ended
	}
	for _, name := range threads {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue // ended since the listing
		}
		_, state, _ := bytes.Cut(stat[max(bytes.LastIndexByte(stat, ')'), 0):], []byte(" "))
		if len(state) > 0 && strings.IndexByte("TtZX", state[0]) < 0 {
			return false
		}
	}
	return true
}

// Resume lets a paused server go on.
func (s *Server) Resume(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.resume(ctx)
}

func (s *Server) resume(ctx context.Context) error {
	if !s.stopped {
		return nil
	}
	if err := s.signal(ctx, syscall.SIGCONT); err != nil {
		return err
	}
	s.stopped = false
	return nil
}

// Freeze stops all processes of the container by Docker's own means (the cgroup freezer). To a client it looks
// like Pause; no signal is involved.
func (s *Server) Freeze(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen {
		return nil
	}
	if _, err := s.docker.ContainerPause(ctx, s.container, client.ContainerPauseOptions{}); err != nil {
		return fmt.Errorf("freezing: %w", err)
	}
	s.frozen = true
	return nil
}

// Thaw lets a frozen server go on.
func (s *Server) Thaw(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.thaw(ctx)
}

func (s *Server) thaw(ctx context.Context) error {
	if !s.frozen {
		return nil
	}
	if _, err := s.docker.ContainerUnpause(ctx, s.container, client.ContainerUnpauseOptions{}); err != nil {
		return fmt.Errorf("thawing: %w", err)
	}
	s.frozen = false
	return nil
}

// signal reaches the JVM directly where the host can, within microseconds, and through the engine elsewhere.
func (s *Server) signal(ctx context.Context, sig syscall.Signal) error {
	if !s.running {
		return errors.New("the server does not run")
	}
	if s.pid != 0 && os.Geteuid() == 0 {
		if err := syscall.Kill(s.pid, sig); err != nil {
			return fmt.Errorf("%s to process %d: %w", sig, s.pid, err)
		}
		return nil
	}
	_, err := s.docker.ContainerKill(ctx, s.container, client.ContainerKillOptions{Signal: strconv.Itoa(int(sig))})
	if err != nil {
		return fmt.Errorf("%s: %w", sig, err)
	}
	return nil
}

// findProcess looks up the server's process among those of this machine. An engine in a virtual machine
// reports numbers that mean something else here, so the process must name the container.
func (s *Server) findProcess(ctx context.Context) error {
	seen, err := s.docker.ContainerInspect(ctx, s.container, client.ContainerInspectOptions{})
	if err != nil {
		return err
	}
	s.pid = 0
	if seen.Container.State == nil || !seen.Container.State.Running {
		return errors.New("the server ended at once")
	}
	pid := seen.Container.State.Pid
	group, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err == nil && bytes.Contains(group, []byte(s.container)) {
		s.pid = pid
	}
	return nil
}

// state says in words what was done to the server.
func (s *Server) state() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.container == "" {
		return "not made"
	}
	words := []string{"running"}
	if !s.running {
		words[0] = "ended"
	}
	for _, part := range []struct {
		holds bool
		word  string
	}{
		{s.stopped, "paused"},
		{s.frozen, "frozen"},
		{s.detached, "detached from its peers"},
		{s.cuts.peers, "cut from its peers"},
		{s.cuts.fromPeers, "deaf to its peers"},
		{s.cuts.toServer && s.cuts.fromServer, "cut from its clients"},
		{s.cuts.toServer && !s.cuts.fromServer, "uplink stalled"},
	} {
		if part.holds {
			words = append(words, part.word)
		}
	}
	return strings.Join(words, ", ")
}

// logs returns the last lines that the server wrote, without those about the questions of this package.
func (s *Server) logs(ctx context.Context, lines int) string {
	if s.container == "" {
		return ""
	}
	out, err := s.docker.ContainerLogs(ctx, s.container, client.ContainerLogsOptions{
		ShowStdout: true, ShowStderr: true, Tail: strconv.Itoa(lines),
	})
	if err != nil {
		return fmt.Sprintf("(no logs: %v)", err)
	}
	defer out.Close()
	var text bytes.Buffer
	if _, err := stdcopy.StdCopy(&text, &text, out); err != nil {
		fmt.Fprintf(&text, "\n(the logs end here: %v)", err)
	}
	var kept strings.Builder
	for line := range strings.Lines(text.String()) {
		if !strings.Contains(line, "INFO NIOServerCnxn - Processing ") {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// remove ends the server whatever its state and removes its container and data.
func (s *Server) remove(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.container == "" {
		return nil
	}
	if err := s.thaw(ctx); err != nil {
		return err
	}
	err := exclusively(ctx, func() error {
		_, err := s.docker.ContainerRemove(ctx, s.container, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		return err
	})
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	s.running, s.stopped, s.pid = false, false, 0
	return nil
}
