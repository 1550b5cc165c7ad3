// Package integration runs zklock against real ZooKeeper servers.
package integration

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/integration/internal/figures"
	"github.com/go-zklock/zklock/integration/zkcluster"
	"github.com/go-zklock/zklock/internal/testlog"
)

func TestMain(m *testing.M) {
	code := zkcluster.Main(m)
	if err := figures.WriteTables(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// ensemble has ZooKeeper's sample settings: a tick of two seconds, and five of them
// until a server that is cut off gives up.
var ensemble = zkcluster.NewShared(zkcluster.Options{Servers: 3})

// older runs the version before.
var older = zkcluster.NewShared(zkcluster.Options{Servers: 3, Version: "3.8"})

// onBothVersions runs what the contract stands on with two versions of ZooKeeper at the same time.
func onBothVersions(t *testing.T, test func(t *testing.T, on *zkcluster.Shared)) {
	t.Helper()
	for name, on := range map[string]*zkcluster.Shared{"3.9": ensemble, "3.8": older} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, on)
		})
	}
}

// versionOf is the version that a cluster runs.
func versionOf(t testing.TB, cluster *zkcluster.Cluster) string {
	t.Helper()
	version, err := cluster.Server(0).Version(bounded(t))
	must(t, "version", err)
	return version
}

// patience bounds each wait for an event. How long things take is printed, not
// asserted.
const patience = 2 * time.Minute

func must(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// clientOf connects to servers, and keeps its log for a failure.
func clientOf(t testing.TB, servers []string, timeout time.Duration, opts ...func(*zklock.Config)) *zklock.Client {
	t.Helper()
	log := &logBuffer{}
	cfg := zklock.Config{
		Servers: servers, SessionTimeout: timeout, TickTime: 2 * time.Second,
		Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, o := range opts {
		o(&cfg)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := zklock.Connect(ctx, cfg)
	must(t, "connect", err)
	t.Cleanup(func() {
		_ = c.Close()
		if t.Failed() {
			t.Logf("client with T = %v:\n%s", timeout, log)
		}
	})
	return c
}

func mutexOf(t testing.TB, c *zklock.Client, path string) *zklock.InterProcessMutex {
	t.Helper()
	m, err := zklock.NewInterProcessMutex(c, path)
	must(t, "mutex", err)
	return m
}

func acquire(t testing.TB, m *zklock.InterProcessMutex) *zklock.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	l, err := m.Acquire(ctx)
	must(t, "acquire "+m.Path(), err)
	return l
}

// observe opens a plain session on one server, for looking from outside.
func observe(t testing.TB, server *zkcluster.Server) *zk.Conn {
	t.Helper()
	conn, events, err := zk.Connect([]string{server.Addr()}, 20*time.Second, zk.WithLogger(silent{}))
	must(t, "observer", err)
	t.Cleanup(conn.Close)
	deadline := time.After(patience)
	for {
		select {
		case ev := <-events:
			if ev.State == zk.StateHasSession {
				return conn
			}
		case <-deadline:
			t.Fatalf("no session for the observer on %s", server.Addr())
		}
	}
}

type silent struct{}

func (silent) Printf(string, ...any) {}

type logBuffer = testlog.Buffer

// uniquePath is a lock path that no other test uses.
func uniquePath(_ testing.TB) string {
	pathCount.Lock()
	defer pathCount.Unlock()
	pathCount.n++
	return fmt.Sprintf("/dedup/it-%d-%d", os.Getpid(), pathCount.n)
}

var pathCount struct {
	sync.Mutex
	n int
}

// await waits for a channel and fails the test when nothing happens.
func await(t testing.TB, what string, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(patience):
		t.Fatalf("%s: nothing within %v", what, patience)
	}
}
