// Package zkcluster runs real ZooKeeper servers in containers for tests, and breaks them on request.
//
// Each server has an address on two Docker networks of its cluster: "peers" carries what the servers say to
// one another, "clients" what clients say to them. So either can be cut alone:
//
//	CutPeers, DetachPeers   the server loses the ensemble and keeps its clients
//	DeafenPeers             it hears nothing of the ensemble, which hears it
//	CutClients              the clients lose the server, which stays in the quorum
//	StallUplink             only what clients send is lost; TCP sends it again after the heal
//	Pause, Freeze           the server stops answering and keeps every connection
//	Kill, Stop, Start       the process goes and comes back, with its data and at the same address
//
// The networks are internal ones: nothing in a test leaves the machine. Tests run on the host and reach a
// server at its address on the clients' network, not at a published port, since Docker's port proxy would
// accept connections for a server that is cut off and so no cut would be silent.
//
// The servers do not wait for the disk (zookeeper.forceSync=no): the tests are about time-outs and
// partitions, not about power failures, and an fsync on a busy machine can take longer than a tick. A killed
// server still finds its data again, because the page cache outlives the process.
package zkcluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/go-zklock/zklock/integration/image"
)

// startPatience bounds the start of a cluster, with the build of an image in it.
const startPatience = 10 * time.Minute

// Options say what cluster to start. The zero value is one server of the default version with a tick of
// two seconds.
type Options struct {
	// Servers is the size of the ensemble. Default 1.
	Servers int
	// Version is the ZooKeeper version, "3.9" or "3.8". Default 3.9, or what $ZKLOCK_ZOOKEEPER_IMAGE holds.
	Version string
	// TickTime is the servers' tickTime. They grant session timeouts of 2 to 20 ticks. Default 2 s.
	TickTime time.Duration
	// InitLimit is how many ticks a follower may take to join. Default 10.
	InitLimit int
	// SyncLimit is how many ticks a follower may be out of touch before it and the leader give each other
	// up. Default 5, which is that of ZooKeeper's sample configuration.
	SyncLimit int
	// JVMFlags are put after the flags that make a server small and quick to start. Default none.
	JVMFlags []string
	// Files are put into each server's container before it starts, by their names there. They are asked for when the
	// server's address is known. Default none.
	Files func(s *Server) (map[string][]byte, error)
	// Env is added to the containers' environment and wins over what the fields above say. Lines for zoo.cfg
	// go into ZOO_CFG_EXTRA, separated by blanks. Default none.
	Env map[string]string
}

func (o Options) withDefaults() (Options, error) {
	if o.Servers == 0 {
		o.Servers = 1
	}
	if o.Servers < 1 || o.Servers > 9 {
		return o, fmt.Errorf("zkcluster: %d servers asked for; it must be 1 to 9", o.Servers)
	}
	if o.TickTime == 0 {
		o.TickTime = 2 * time.Second
	}
	if o.TickTime < time.Millisecond {
		return o, fmt.Errorf("zkcluster: tick time %s is under the millisecond that a server counts in", o.TickTime)
	}
	if o.InitLimit == 0 {
		o.InitLimit = 10
	}
	if o.SyncLimit == 0 {
		o.SyncLimit = 5
	}
	return o, nil
}

// environment is what the entrypoint of the image reads, for server id.
func (o Options) environment(id int, peers []netip.Addr) map[string]string {
	flags := append([]string{
		// Small and quick to start: three servers have to share two cores with the tests.
		"-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto",
		"-Dzookeeper.forceSync=no",
		// Containers that are empty go soon, so that tests can see it.
		"-Dznode.container.checkIntervalMs=2000",
	}, o.JVMFlags...)
	env := map[string]string{
		"ZOO_MY_ID":                  strconv.Itoa(id),
		"ZOO_TICK_TIME":              strconv.FormatInt(o.TickTime.Milliseconds(), 10),
		"ZOO_INIT_LIMIT":             strconv.Itoa(o.InitLimit),
		"ZOO_SYNC_LIMIT":             strconv.Itoa(o.SyncLimit),
		"ZOO_4LW_COMMANDS_WHITELIST": "*",
		"ZOO_ADMINSERVER_ENABLED":    "false",
		// Every client of a test comes from the one address of the host.
		"ZOO_MAX_CLIENT_CNXNS": "0",
		"JVMFLAGS":             strings.Join(flags, " "),
	}
	if o.Servers > 1 {
		env["ZOO_STANDALONE_ENABLED"] = "false"
		var list []string
		for i, addr := range peers {
			list = append(list, fmt.Sprintf("server.%d=%s:%d:%d;%d", i+1, addr, followerPort, electionPort, clientPort))
		}
		env["ZOO_SERVERS"] = strings.Join(list, " ")
	}
	maps.Copy(env, o.Env)
	return env
}

// Cluster is a running ensemble. Its methods are safe for concurrent use; faults of several goroutines on one
// server take effect one after the other.
type Cluster struct {
	opts    Options
	name    string
	image   string
	docker  *client.Client
	clients *bridge
	peers   *bridge
	servers []*Server
}

var clusterCount atomic.Int64

// Start starts a cluster for one test. It is removed when the test ends, and its logs are shown if the test
// failed.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	begun := time.Now()
	c, err := Run(ctx, o, t.Logf)
	if err != nil {
		t.Fatalf("no ZooKeeper to test with: %v", err)
	}
	t.Logf("%d ZooKeeper server(s) from %s serve after %s", len(c.servers), c.image, time.Since(begun).Round(time.Millisecond))
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.Dump())
		}
		if err := c.Close(); err != nil {
			t.Errorf("removing the ZooKeeper servers: %v", err)
		}
	})
	return c
}

// Run starts a cluster outside a test and returns when it serves. Close must be called. Long steps are told
// to logf, which may be nil.
func Run(ctx context.Context, o Options, logf func(format string, args ...any)) (*Cluster, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	docker, err := engine(ctx)
	if err != nil {
		return nil, err
	}
	name, err := image.Ensure(ctx, docker, o.Version, logf)
	if err != nil {
		return nil, err
	}
	c := &Cluster{
		opts:   o,
		name:   fmt.Sprintf("zklock-%s-%d", runID[:8], clusterCount.Add(1)),
		image:  name,
		docker: docker,
	}
	if err := c.start(ctx); err != nil {
		err = fmt.Errorf("zkcluster: starting %d server(s) from %s: %w", o.Servers, name, err)
		if len(c.servers) > 0 {
			err = fmt.Errorf("%w\n%s", err, c.Dump())
		}
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	var err error
	if c.clients, err = newBridge(ctx, c.docker, c.name+"-clients"); err != nil {
		return err
	}
	if c.peers, err = newBridge(ctx, c.docker, c.name+"-peers"); err != nil {
		return err
	}
	var peers []netip.Addr
	for i := range c.opts.Servers {
		peers = append(peers, c.peers.host(i))
	}
	for i, peer := range peers {
		c.servers = append(c.servers, &Server{
			id: i + 1, cluster: c, docker: c.docker, clientAddr: c.clients.host(i), peerAddr: peer,
		})
	}
	err = c.each(func(s *Server) error {
		if err := s.create(ctx, c.opts.environment(s.id, peers)); err != nil {
			return err
		}
		return s.Start(ctx)
	})
	if err != nil {
		return err
	}
	return c.WaitQuorum(ctx)
}

// Close removes the containers, their data and the networks. It may be called again.
func (c *Cluster) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := c.each(func(s *Server) error { return s.remove(ctx) })
	for _, b := range []*bridge{c.clients, c.peers} {
		if b != nil {
			err = errors.Join(err, b.remove(ctx))
		}
	}
	return err
}

// Size returns the number of servers.
func (c *Cluster) Size() int { return len(c.servers) }

// Server returns server i, counted from 0; its id in ZooKeeper is i+1.
func (c *Cluster) Server(i int) *Server { return c.servers[i] }

// Servers returns all servers in the order of their ids.
func (c *Cluster) Servers() []*Server { return append([]*Server(nil), c.servers...) }

// Addrs returns the servers' client addresses as host:port.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, s := range c.servers {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

// ConnectString returns the addresses in the form that ZooKeeper clients take: "a:2181,b:2181".
func (c *Cluster) ConnectString() string { return strings.Join(c.Addrs(), ",") }

// Image returns the name of the image that the servers run.
func (c *Cluster) Image() string { return c.image }

// TickTime returns the servers' tickTime.
func (c *Cluster) TickTime() time.Duration { return c.opts.TickTime }

// SyncTimeout returns tickTime × syncLimit: how long a follower without a leader, or a leader without a
// quorum, may go on answering its clients.
func (c *Cluster) SyncTimeout() time.Duration {
	return c.opts.TickTime * time.Duration(c.opts.SyncLimit)
}

// ClientsNetwork returns the name of the Docker network on which the servers take clients, for a container
// that is to be one.
func (c *Cluster) ClientsNetwork() string { return c.clients.name }

// Dump returns the state and the last log lines of every server, for the report of a failed test.
func (c *Cluster) Dump() string {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var b strings.Builder
	for _, s := range c.servers {
		fmt.Fprintf(&b, "---- server %d at %s: %s\n%s\n", s.id, s.Addr(), s.state(), s.logs(ctx, 400))
	}
	return b.String()
}

// each runs f for every server at once and joins the errors.
func (c *Cluster) each(f func(*Server) error) error {
	errs := make(chan error, len(c.servers))
	for _, s := range c.servers {
		go func() {
			if err := f(s); err != nil {
				errs <- fmt.Errorf("server %d: %w", s.id, err)
				return
			}
			errs <- nil
		}()
	}
	var all error
	for range c.servers {
		all = errors.Join(all, <-errs)
	}
	return all
}

// Repeat returns how often tests should repeat what they sample: $REPEAT, and 1 when that is unset.
func Repeat(t testing.TB) int {
	t.Helper()
	text := os.Getenv("REPEAT")
	if text == "" {
		return 1
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("REPEAT=%q: it must be a whole number from 1 up", text)
	}
	return n
}
