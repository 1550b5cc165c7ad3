package zkcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"
)

// envWatch carries the run id to the process that waits for our end.
const envWatch = "ZKLOCK_TEST_WATCH"

// lastRequest is how long the engine may need for a request whose sender is gone.
const lastRequest = 3 * time.Second

// Main runs a package's tests and removes their containers at the end, whatever the end is:
//
//	func TestMain(m *testing.M) { os.Exit(zkcluster.Main(m)) }
//
// A panic, a timeout of go test, and SIGKILL end a test binary without another line of it run. So the test
// binary is started a second time, to wait on a pipe until this process is gone and then to remove what
// carries its label.
func Main(m *testing.M) int {
	if run := os.Getenv(envWatch); run != "" {
		return watch(run)
	}
	hold, err := startWatch()
	if err != nil {
		fmt.Fprintf(os.Stderr, "zkcluster: no watch over the containers: %v\n", err)
		return 1
	}
	defer hold.Close()
	code := m.Run()
	if err := closeShared(); err != nil {
		fmt.Fprintf(os.Stderr, "zkcluster: removing the shared servers: %v\n", err)
		code = max(code, 1)
	}
	return code
}

// startWatch starts the second process. It removes the containers once the returned pipe is closed, which the
// kernel does when this process ends.
func startWatch() (io.Closer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self) //nolint:noctx // it is to outlive everything here
	cmd.Env = append(os.Environ(), envWatch+"="+runID)
	// A session of its own, so that an interrupt at the terminal reaches the tests and not this one. Its
	// output goes nowhere: go test waits until nobody holds its pipes any more.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return pipe, nil
}

func watch(run string) int {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	_, _ = io.Copy(io.Discard, os.Stdin) // returns when the tests' process is gone
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	docker, err := client.New(client.FromEnv)
	if err != nil {
		return 1
	}
	// Twice, because the engine may still be at work on the last request of a process that was killed.
	first := removeRun(ctx, docker, run)
	time.Sleep(lastRequest)
	if err := errors.Join(first, removeRun(ctx, docker, run)); err != nil {
		return 1
	}
	return 0
}

// Shared is a cluster that the tests of one package share. It starts when the first test asks for it and goes
// at the end of Main.
type Shared struct {
	opts Options

	mu      sync.Mutex
	cluster *Cluster
	err     error
}

var shared struct {
	sync.Mutex
	all []*Shared
}

// NewShared describes a shared cluster, for a variable of the test package. It starts nothing.
func NewShared(o Options) *Shared {
	s := &Shared{opts: o}
	shared.Lock()
	defer shared.Unlock()
	shared.all = append(shared.all, s)
	return s
}

// Get returns the cluster with all servers in the quorum. What the test breaks is healed when it ends. Tests
// that break something must not run in parallel with others of the same cluster. Tests that only use it may,
// under paths of their own.
func (s *Shared) Get(t testing.TB) *Cluster {
	t.Helper()
	c := s.start(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.Dump())
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := c.Heal(ctx); err != nil {
			t.Errorf("the shared servers do not come back after this test: %v\n%s", err, c.Dump())
		}
	})
	return c
}

func (s *Shared) start(t testing.TB) *Cluster {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cluster == nil && s.err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), startPatience)
		defer cancel()
		begun := time.Now()
		if s.cluster, s.err = Run(ctx, s.opts, t.Logf); s.err == nil {
			t.Logf("%d ZooKeeper server(s) from %s serve after %s", s.cluster.Size(), s.cluster.image, time.Since(begun).Round(time.Millisecond))
		}
	}
	if s.err != nil {
		t.Fatalf("no ZooKeeper to test with: %v", s.err)
	}
	return s.cluster
}

func closeShared() error {
	shared.Lock()
	defer shared.Unlock()
	for _, s := range shared.all {
		s.mu.Lock()
		cluster := s.cluster
		s.cluster = nil
		s.mu.Unlock()
		if cluster == nil {
			continue
		}
		if err := cluster.Close(); err != nil {
			return err
		}
	}
	return nil
}
