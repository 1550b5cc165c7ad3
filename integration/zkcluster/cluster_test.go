package zkcluster_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/moby/moby/client"

	"github.com/go-zklock/zklock/integration/zkcluster"
)

func TestMain(m *testing.M) { os.Exit(zkcluster.Main(m)) }

// ensemble is short of breath so that the tests are quick: sessions of 2 s and more, and a server that is cut
// off gives up after 5 s.
var ensemble = zkcluster.NewShared(zkcluster.Options{Servers: 3, TickTime: time.Second})

// patience bounds each test, from when its servers serve. It is no statement on how long a thing takes; those are printed.
const patience = 2 * time.Minute

func setup(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// must fails the test on an error that means that the harness does not work.
func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// connect opens a session of the plain client and waits until it stands.
func connect(t *testing.T, timeout time.Duration, addrs ...string) *zk.Conn {
	t.Helper()
	conn, events, err := zk.Connect(addrs, timeout, zk.WithLogger(silent{}))
	must(t, "connecting", err)
	t.Cleanup(conn.Close)
	deadline := time.After(patience)
	for {
		select {
		case event := <-events:
			if event.State == zk.StateHasSession {
				return conn
			}
		case <-deadline:
			t.Fatalf("no session with %v after %s", addrs, patience)
		}
	}
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// create makes a node with a name of this test's own and returns its path.
func create(t *testing.T, conn *zk.Conn, flags int32) string {
	t.Helper()
	name := strings.NewReplacer("/", "-", "#", "-").Replace(t.Name())
	path, err := conn.Create("/"+name+"-", []byte("kept"), flags|zk.FlagSequence, zk.WorldACL(zk.PermAll))
	must(t, "creating a node", err)
	return path
}

// gone waits until the node is deleted, as the connection sees it.
func gone(ctx context.Context, t *testing.T, conn *zk.Conn, path string) {
	t.Helper()
	for {
		there, _, event, err := conn.ExistsW(path)
		must(t, "looking for "+path, err)
		if !there {
			return
		}
		select {
		case <-event:
		case <-ctx.Done():
			t.Fatalf("%s is still there: %v", path, ctx.Err())
		}
	}
}

func since(begun time.Time) time.Duration { return time.Since(begun).Round(time.Millisecond) }

func TestSingleServer(t *testing.T) {
	c := zkcluster.Start(t, zkcluster.Options{TickTime: 500 * time.Millisecond})
	ctx := setup(t)
	s := c.Server(0)
	role, err := s.Role(ctx)
	must(t, "role", err)
	if role != zkcluster.Standalone {
		t.Errorf("a single server calls itself %s", role)
	}
	conn := connect(t, 10*time.Second, c.Addrs()...)
	path := create(t, conn, 0)

	before := s.Addr()
	begun := time.Now()
	must(t, "restart", s.Restart(ctx))
	t.Logf("restarted after %s", since(begun))
	data, _, err := connect(t, 10*time.Second, before).Get(path)
	must(t, "reading after the restart", err)
	if string(data) != "kept" {
		t.Errorf("after the restart %s holds %q", path, data)
	}
}

func TestEphemeralExpires(t *testing.T) {
	c := zkcluster.Start(t, zkcluster.Options{TickTime: 500 * time.Millisecond})
	ctx := setup(t)
	observer := connect(t, 10*time.Second, c.Addrs()...)
	// The first connection is broken off and the dialer makes no second one: nothing ends this session but the
	// server's clock.
	var only net.Conn
	dialed := make(chan net.Conn, 1)
	dial := func(kind, addr string, timeout time.Duration) (net.Conn, error) {
		if only != nil {
			return nil, errors.New("no second connection in this test")
		}
		var err error
		if only, err = net.DialTimeout(kind, addr, timeout); err == nil {
			dialed <- only
		}
		return only, err
	}
	owner, _, err := zk.Connect(c.Addrs(), time.Second, zk.WithLogger(silent{}), zk.WithDialer(dial))
	must(t, "connecting", err)
	t.Cleanup(owner.Close)
	path := create(t, owner, zk.FlagEphemeral)
	begun := time.Now()
	must(t, "breaking the connection", (<-dialed).Close())
	gone(ctx, t, observer, path)
	t.Logf("the node of a session of 1 s was deleted %s after its connection broke", since(begun))
}

func TestOlderVersion(t *testing.T) {
	c := zkcluster.Start(t, zkcluster.Options{Version: "3.8"})
	ctx := setup(t)
	text, err := c.Server(0).FourLetter(ctx, "srvr")
	must(t, "srvr", err)
	first, _, _ := strings.Cut(text, "\n")
	t.Log(first)
	if !strings.Contains(first, "version: 3.8.") {
		t.Errorf("the server of version 3.8 says %q", first)
	}
	create(t, connect(t, 10*time.Second, c.Addrs()...), 0)
}

func TestThreeServers(t *testing.T) {
	c := ensemble.Get(t)
	ctx := setup(t)
	leader, err := c.Leader(ctx)
	must(t, "leader", err)
	followers, err := c.Followers(ctx)
	must(t, "followers", err)
	if len(followers) != 2 {
		t.Errorf("%d servers follow", len(followers))
	}
	path := create(t, connect(t, 10*time.Second, followers[0].Addr()), 0)
	reader := connect(t, 10*time.Second, followers[1].Addr())
	_, err = reader.Sync(path)
	must(t, "sync", err)
	data, _, err := reader.Get(path)
	must(t, "reading at another server", err)
	if string(data) != "kept" {
		t.Errorf("%s holds %q at another server", path, data)
	}
	values, err := leader.Monitor(ctx)
	must(t, "mntr", err)
	t.Logf("%s leads, version %s, %s followers in step", leader.Addr(), values["zk_version"], values["zk_synced_followers"])
}

func TestRollingRestart(t *testing.T) {
	c := ensemble.Get(t)
	ctx := setup(t)
	conn := connect(t, 20*time.Second, c.Addrs()...)
	path := create(t, conn, zk.FlagEphemeral)
	session := conn.SessionID()
	begun := time.Now()
	must(t, "rolling restart", c.RollingRestart(ctx))
	t.Logf("three servers restarted in turn after %s", since(begun))
	there, _, err := connect(t, 20*time.Second, c.Addrs()...).Exists(path)
	must(t, "looking for the node", err)
	if !there || conn.SessionID() != session {
		t.Errorf("the session of 20 s did not live through a rolling restart: node there %t, session %#x before and %#x after", there, session, conn.SessionID())
	}
}

// envCrash makes this binary the program that TestKilledRunIsCleanedUp kills.
const envCrash = "ZKLOCK_TEST_CRASH"

func TestKilledRunIsCleanedUp(t *testing.T) {
	if os.Getenv(envCrash) != "" {
		c := zkcluster.Start(t, zkcluster.Options{})
		fmt.Printf("container %s network %s\n", c.Server(0).ContainerID(), c.ClientsNetwork())
		select {}
	}
	ctx := setup(t)
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestKilledRunIsCleanedUp$") //nolint:gosec // this binary
	cmd.Env = append(os.Environ(), envCrash+"=1")
	out, err := cmd.StdoutPipe()
	must(t, "pipe", err)
	must(t, "starting the program to kill", cmd.Start())
	var container, network string
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if n, _ := fmt.Sscanf(lines.Text(), "container %s network %s", &container, &network); n == 2 {
			break
		}
	}
	must(t, "reading what the program made", lines.Err())
	if network == "" {
		t.Fatal("the program to kill named no container")
	}
	must(t, "kill", cmd.Process.Kill())
	_ = cmd.Wait() // reports the kill

	docker, err := client.New(client.FromEnv)
	must(t, "Docker", err)
	begun := time.Now()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		_, containerErr := docker.ContainerInspect(ctx, container, client.ContainerInspectOptions{})
		_, networkErr := docker.NetworkInspect(ctx, network, client.NetworkInspectOptions{})
		if containerErr != nil && networkErr != nil {
			break
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatalf("left behind by a killed run: container error %v, network error %v", containerErr, networkErr)
		}
	}
	t.Logf("a killed run was cleaned up %s after its end", since(begun))
}
