package zkcluster_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock/integration/zkcluster"
)

// sessionTime is long enough that a session outlives the gaps between the steps of a test.
const sessionTime = 4 * time.Second

// silence is how long a test listens before it says that nothing came.
const silence = 500 * time.Millisecond

// follower returns a server that follows, to be broken while the ensemble goes on, and the leader, to observe
// from.
func follower(ctx context.Context, t *testing.T, c *zkcluster.Cluster) (victim, leader *zkcluster.Server) {
	t.Helper()
	leader, err := c.Leader(ctx)
	must(t, "leader", err)
	followers, err := c.Followers(ctx)
	must(t, "followers", err)
	return followers[0], leader
}

// repeated runs the test as often as REPEAT says, on a healed ensemble each time.
func repeated(t *testing.T, test func(ctx context.Context, t *testing.T, c *zkcluster.Cluster)) {
	t.Helper()
	for i := range zkcluster.Repeat(t) {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			c := ensemble.Get(t)
			test(setup(t), t, c)
		})
	}
}

// probe is one plain connection that sends a single "ruok" when told to.
type probe struct {
	t    *testing.T
	conn net.Conn
}

func newProbe(t *testing.T, s *zkcluster.Server) *probe {
	t.Helper()
	conn, err := net.DialTimeout("tcp", s.Addr(), patience)
	must(t, "dialling", err)
	t.Cleanup(func() { conn.Close() })
	return &probe{t, conn}
}

func (p *probe) ask() {
	p.t.Helper()
	_, err := io.WriteString(p.conn, "ruok")
	must(p.t, "sending ruok", err)
}

// unanswered fails unless the connection stays open and silent.
func (p *probe) unanswered() {
	p.t.Helper()
	must(p.t, "deadline", p.conn.SetReadDeadline(time.Now().Add(silence)))
	n, err := p.conn.Read(make([]byte, 16))
	if n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		p.t.Errorf("a silent fault shows: read %d bytes, error %v", n, err)
	}
}

// answered waits for the answer on this very connection.
func (p *probe) answered() {
	p.t.Helper()
	must(p.t, "deadline", p.conn.SetReadDeadline(time.Now().Add(patience)))
	answer, err := io.ReadAll(p.conn)
	if string(answer) != "imok" || err != nil {
		p.t.Errorf("after the heal the connection answers %q, error %v", answer, err)
	}
}

func TestCutFromPeers(t *testing.T) {
	ways := []struct {
		name string
		cut  func(*zkcluster.Server, context.Context) error
	}{
		{"silent", (*zkcluster.Server).CutPeers},
		{"detached", (*zkcluster.Server).DetachPeers},
		{"one way", (*zkcluster.Server).DeafenPeers},
	}
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			repeated(t, func(ctx context.Context, t *testing.T, c *zkcluster.Cluster) {
				testCutFromPeers(ctx, t, c, way.cut)
			})
		})
	}
}

func testCutFromPeers(ctx context.Context, t *testing.T, c *zkcluster.Cluster, cut func(*zkcluster.Server, context.Context) error) {
	victim, leader := follower(ctx, t, c)
	observer := connect(t, 20*time.Second, leader.Addr())
	client := connect(t, sessionTime, victim.Addr())
	path := create(t, client, zk.FlagEphemeral)
	_, err := observer.Sync(path)
	must(t, "sync", err)

	begun := time.Now()
	must(t, "cut", cut(victim, ctx))
	took := since(begun)
	if _, _, err := client.Get(path); err != nil {
		t.Errorf("right after the cut a read of the cut-off server fails: %v", err)
	}
	write := make(chan error, 1)
	go func() { _, err := client.Set(path, nil, -1); write <- err }()

	refuses := make(chan time.Duration, 1)
	go func() {
		if victim.WaitRefusing(ctx) == nil {
			refuses <- since(begun)
		}
		close(refuses)
	}()
	gone(ctx, t, observer, path)
	expired := since(begun)
	gaveUp, ok := <-refuses
	if !ok {
		t.Fatalf("the server still serves %s after it was cut off", since(begun))
	}
	if err := <-write; err == nil {
		t.Error("a write through the cut-off server was acknowledged")
	}
	t.Logf("cut in %s; session of %s expired after %s; the server gave up after %s (sync time-out %s)",
		took, sessionTime, expired, gaveUp, c.SyncTimeout())

	begun = time.Now()
	must(t, "heal", c.Heal(ctx))
	t.Logf("the ensemble was complete again %s after the heal", since(begun))
}

func TestCutFromClients(t *testing.T) {
	repeated(t, testCutFromClients)
}

// The same through iptables inside the container, which is the way on a machine without root.
func TestCutFromClientsInside(t *testing.T) {
	t.Setenv(zkcluster.EnvCuts, "container")
	repeated(t, testCutFromClients)
}

func testCutFromClients(ctx context.Context, t *testing.T, c *zkcluster.Cluster) {
	victim, leader := follower(ctx, t, c)
	observer := connect(t, 20*time.Second, leader.Addr())
	path := create(t, connect(t, sessionTime, victim.Addr()), zk.FlagEphemeral)
	_, err := observer.Sync(path)
	must(t, "sync", err)
	established := newProbe(t, victim)

	begun := time.Now()
	must(t, "cut", victim.CutClients(ctx))
	took := since(begun)
	established.ask()
	established.unanswered()
	var timeout net.Error
	if conn, err := net.DialTimeout("tcp", victim.Addr(), silence); err == nil {
		conn.Close()
		t.Error("a new connection passes the cut")
	} else if !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("a new connection is told of the cut: %v", err)
	}

	gone(ctx, t, observer, path)
	t.Logf("cut in %s; session of %s expired after %s", took, sessionTime, since(begun))
	must(t, "the whole ensemble stays in step", c.WaitQuorum(ctx))

	must(t, "heal", victim.HealClients(ctx))
	begun = time.Now()
	established.answered()
	t.Logf("the established connection went on %s after the heal", since(begun))
}

func TestStallUplink(t *testing.T) {
	repeated(t, func(ctx context.Context, t *testing.T, c *zkcluster.Cluster) {
		victim, _ := follower(ctx, t, c)
		established, other := newProbe(t, victim), newProbe(t, victim)

		must(t, "stall", victim.StallUplink(ctx))
		established.ask()
		established.unanswered()
		must(t, "heal", victim.HealClients(ctx))
		begun := time.Now()
		established.answered()
		t.Logf("the backlog was answered %s after the heal", since(begun))

		// The other direction is open: the client hears the end of the server. A watch event would show it as
		// well, but not if an acknowledgement of something before it was lost in the stall.
		must(t, "stall", victim.StallUplink(ctx))
		must(t, "kill", victim.Kill(ctx))
		must(t, "deadline", other.conn.SetReadDeadline(time.Now().Add(patience)))
		if _, err := other.conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a client behind a stalled uplink does not hear that the server ended: %v", err)
		}
	})
}

func TestStopped(t *testing.T) {
	ways := []struct {
		name         string
		stop, resume func(*zkcluster.Server, context.Context) error
	}{
		{"SIGSTOP", (*zkcluster.Server).Pause, (*zkcluster.Server).Resume},
		{"frozen", (*zkcluster.Server).Freeze, (*zkcluster.Server).Thaw},
	}
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			repeated(t, func(ctx context.Context, t *testing.T, c *zkcluster.Cluster) {
				victim, leader := follower(ctx, t, c)
				observer := connect(t, 20*time.Second, leader.Addr())
				path := create(t, connect(t, sessionTime, victim.Addr()), zk.FlagEphemeral)
				_, err := observer.Sync(path)
				must(t, "sync", err)
				established := newProbe(t, victim)

				begun := time.Now()
				must(t, "stop", way.stop(victim, ctx))
				took := since(begun)
				established.ask()
				established.unanswered()
				newProbe(t, victim) // the kernel of a stopped server still takes connections
				gone(ctx, t, observer, path)
				t.Logf("stopped in %s; session of %s expired after %s", took, sessionTime, since(begun))

				must(t, "go on", way.resume(victim, ctx))
				established.answered()
			})
		})
	}
}

func TestKilledLeader(t *testing.T) {
	repeated(t, func(ctx context.Context, t *testing.T, c *zkcluster.Cluster) {
		_, leader := follower(ctx, t, c)
		path := create(t, connect(t, 20*time.Second, leader.Addr()), 0)
		address := leader.Addr()

		begun := time.Now()
		must(t, "kill", leader.Kill(ctx))
		took := since(begun)
		if conn, err := net.DialTimeout("tcp", address, silence); err == nil {
			conn.Close()
			t.Error("a killed server takes connections")
		}
		for {
			next, err := c.Leader(ctx)
			if err == nil && next != leader {
				break
			}
			if ctx.Err() != nil {
				t.Fatalf("no new leader: %v", ctx.Err())
			}
		}
		t.Logf("killed in %s; another server led after %s", took, since(begun))

		begun = time.Now()
		must(t, "start", leader.Start(ctx))
		must(t, "serving", leader.WaitServing(ctx))
		t.Logf("started again, serving after %s", since(begun))
		data, _, err := connect(t, 20*time.Second, address).Get(path)
		must(t, "reading at the old address", err)
		if string(data) != "kept" {
			t.Errorf("after the kill %s holds %q", path, data)
		}
	})
}

// A cut outlives the process: a server that starts again is cut off as before.
func TestCutOutlivesRestart(t *testing.T) {
	c := ensemble.Get(t)
	ctx := setup(t)
	victim, _ := follower(ctx, t, c)
	must(t, "cut", victim.CutClients(ctx))
	must(t, "kill", victim.Kill(ctx))
	must(t, "start", victim.Start(ctx))
	must(t, "the ensemble is complete, seen over the other network", c.WaitQuorum(ctx))
	if conn, err := net.DialTimeout("tcp", victim.Addr(), silence); err == nil {
		conn.Close()
		t.Error("the server started without its cut")
	}
	if dump := c.Dump(); !strings.Contains(dump, "cut from its clients") {
		t.Error("the dump does not name the cut that stands")
	}
}
