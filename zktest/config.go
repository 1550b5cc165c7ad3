package zktest

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Config says how a server behaves. The zero value of every field is its default, and the zero Config a server
// with ZooKeeper's usual settings that is reached by Server.Dial only.
type Config struct {
	// Name is the address under which Dial knows the server, host:port. Default "192.0.2.1:2181" (an address
	// reserved for documentation, so that a client that resolves names has nothing to look up); the servers of an
	// ensemble count up from there.
	Name string

	// Listen is a TCP address such as "127.0.0.1:0" on which the server listens too. Default: no listening.
	Listen string

	// TickTime is the unit of session expiry. Default 2 s.
	TickTime time.Duration

	// MinSessionTimeout and MaxSessionTimeout bound what a client is granted. Default 2 and 20 ticks.
	MinSessionTimeout time.Duration
	MaxSessionTimeout time.Duration

	// Latency is the one-way delay of every message on a connection made by Dial; Jitter is the most that is added
	// to it, spread evenly and repeatable from Seed. Default none.
	Latency time.Duration
	Jitter  time.Duration
	Seed    uint64

	// JuteMaxBuffer is the largest request in bytes; a larger one ends its connection. Default 1048575.
	JuteMaxBuffer int

	// ContainerInterval is the time between two looks for empty containers and overdue TTL nodes. Default 1 min.
	// A container that never had a child is kept.
	ContainerInterval time.Duration

	// ExtendedTypes allows TTL nodes; otherwise their creation is unimplemented. Default off, as in ZooKeeper.
	ExtendedTypes bool

	// Version is the ZooKeeper version to imitate where 3.8 and 3.9 differ and to report. Default "3.9.3".
	Version string

	// ServerID is the high byte of the session ids, 1 to 255; ids from 128 on are negative. Default 1; the servers
	// of an ensemble count up from 1.
	ServerID int

	// FourLetterWords lists the commands that are answered; "*" stands for all. Default "srvr" only.
	FourLetterWords []string

	// OnTxn, unless nil, is called for every transaction in commit order, before any client learns of it. It runs
	// under the server's lock: it must be quick and must not call the server.
	OnTxn func(Txn)

	// Logf, unless nil, is told of every connection that ends for a reason worth knowing. Default: nothing for
	// Start, the test's log for NewServer.
	Logf func(format string, args ...any)

	// The rest matters in an ensemble only.

	// SyncLimit is how many ticks a follower and its leader do without each other. Default 5.
	SyncLimit int

	// PeerLatency is the one-way delay between two servers. Default 0.
	PeerLatency time.Duration

	// Lag is how much later than the leader a follower applies transactions. Default 0; see Server.SetLag.
	Lag time.Duration

	// ElectionTime is how long servers without a leader take to agree on one, and to serve again. Default 200 ms.
	ElectionTime time.Duration
}

// Clock is the clock of the bubble that testing/synctest makes, and the real one
// elsewhere. It is for zklock.Config.Clock in tests with virtual time: the default
// there, which counts the suspension of the system, is a real one.
type Clock struct{}

// Now is time.Now.
func (Clock) Now() time.Time { return time.Now() }

func (c Config) withDefaults() (Config, error) {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.TickTime, 2*time.Second)
	if c.TickTime < time.Millisecond {
		return c, fmt.Errorf("zktest: TickTime %v is shorter than 1ms", c.TickTime)
	}
	def(&c.MinSessionTimeout, 2*c.TickTime)
	def(&c.MaxSessionTimeout, 20*c.TickTime)
	if c.MinSessionTimeout > c.MaxSessionTimeout {
		return c, fmt.Errorf("zktest: MinSessionTimeout %v is longer than MaxSessionTimeout %v", c.MinSessionTimeout, c.MaxSessionTimeout)
	}
	def(&c.ContainerInterval, time.Minute)
	def(&c.ElectionTime, 200*time.Millisecond)
	if c.Latency < 0 || c.Jitter < 0 || c.PeerLatency < 0 || c.Lag < 0 {
		return c, fmt.Errorf("zktest: a latency is negative")
	}
	if c.JuteMaxBuffer == 0 {
		c.JuteMaxBuffer = 1<<20 - 1
	}
	if c.Version == "" {
		c.Version = "3.9.3"
	}
	if c.ServerID == 0 {
		c.ServerID = 1
	}
	if c.ServerID < 1 || c.ServerID > 255 {
		return c, fmt.Errorf("zktest: ServerID %d is not in 1..255", c.ServerID)
	}
	if c.FourLetterWords == nil {
		c.FourLetterWords = []string{"srvr"}
	}
	if c.SyncLimit == 0 {
		c.SyncLimit = 5
	}
	if c.Logf == nil {
		c.Logf = func(string, ...any) {}
	}
	return c, nil
}

// since39 reports whether the imitated version is 3.9 or newer.
func (c *Config) since39() bool {
	parts := strings.SplitN(c.Version, ".", 3)
	if len(parts) < 2 {
		return true
	}
	major, _ := strconv.Atoi(parts[0])
	minor, _ := strconv.Atoi(parts[1])
	return major > 3 || major == 3 && minor >= 9
}

// TB is the part of testing.TB that NewServer and NewEnsemble need.
type TB interface {
	Helper()
	Cleanup(func())
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Option changes one or more settings of a server made by NewServer or NewEnsemble. Any func(*Config) will do.
type Option = func(*Config)

// WithTickTime sets Config.TickTime.
func WithTickTime(d time.Duration) Option { return func(c *Config) { c.TickTime = d } }

// WithLatency sets Config.Latency, Config.Jitter and Config.Seed.
func WithLatency(latency, jitter time.Duration, seed uint64) Option {
	return func(c *Config) { c.Latency, c.Jitter, c.Seed = latency, jitter, seed }
}

// WithListen sets Config.Listen.
func WithListen(address string) Option { return func(c *Config) { c.Listen = address } }

// WithOnTxn sets Config.OnTxn.
func WithOnTxn(fn func(Txn)) Option { return func(c *Config) { c.OnTxn = fn } }

func testConfig(t TB, opts []Option) Config {
	cfg := Config{Logf: t.Logf}
	for _, o := range opts {
		o(&cfg)
	}
	return cfg
}
