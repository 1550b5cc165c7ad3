package zklock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/go-zklock/zklock/internal/boottime"
	"github.com/go-zklock/zklock/internal/hosts"
	"github.com/go-zklock/zklock/internal/wire"
)

// Config says how a Client connects and what it trusts. The zero value of every
// field but Servers is the documented default.
type Config struct {
	// Servers are the ensemble's client addresses: "zk1:2181", "zk2:2181", …, or
	// one connect string as Java's clients take it, "zk1:2181,zk2:2181/chroot".
	// A missing port is 2181. Names are resolved at each dial. With a chroot, the
	// paths given to this package are below it and the paths that it returns
	// include it, as Conn needs them. A missing chroot is created with the first lock.
	Servers []string

	// SessionTimeout is asked for; the server grants what its limits allow
	// (2 to 20 ticks by default), and everything here uses what was granted. At
	// least 1 ms. Default 12 s.
	SessionTimeout time.Duration

	// TickTime is the ensemble's tickTime. A follower reports to the leader which
	// sessions it has heard from every half tick, so the trust deadline needs it
	// (see the package comment). A set value is used as it is; set twice the tick behind
	// observer masters. A value that is smaller than the ensemble's makes the lock
	// unsafe. Default: the smaller of 3 s and half the granted session timeout,
	// which is safe for every ensemble whose tick is at most 3 s.
	TickTime time.Duration

	// Clock is what trust deadlines are measured on. It must go on while the
	// system is suspended and never go back. Default: CLOCK_BOOTTIME on Linux, the
	// monotonic clock elsewhere. That clock is real also in a bubble of
	// testing/synctest, where a lease would be lost far too late in virtual time: give
	// one there whose Now is time.Now.
	Clock Clock

	// Root is the prefix that metrics carry as a label and that tools start from.
	// It does not change any path. Default /dedup.
	Root string

	// Trust says what keeps a lease alive. Default TrustQuorum.
	Trust TrustMode

	// Auth is sent on every connection before anything else. Refused credentials
	// make Connect fail with ErrAuthFailed.
	Auth []Auth

	// ACL is set on every node that is made. It has to give this client read,
	// create and delete permission. Default: world:anyone has all.
	ACL []zk.ACL

	// TLS makes connections use TLS. Unless it names a ServerName, the host name of
	// the server being dialled is verified. Default: plain TCP.
	TLS *tls.Config

	// Dial opens connections, below TLS. It must honour ctx, which ends when the
	// dial has taken too long. Default: net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// DialTimeout bounds a dial, and then again the connect exchange with a server
	// that accepted. Default: the session timeout over twice the number of servers,
	// but at least 500 ms and at most 5 s.
	DialTimeout time.Duration

	// MaxBuffer is the servers' jute.maxbuffer in bytes. Larger requests are refused
	// before they are sent, since a server drops the whole connection, and with it
	// every lock of the process. Default 1048575, as ZooKeeper's.
	MaxBuffer int

	// Identifier is stored in every lock node for people and tools to read, at
	// most 1 KiB. Default: host name and process id, "worker7-4711".
	Identifier string

	// Seed makes the order in which servers are tried repeatable, for instance to repeat
	// an incident with a chosen server first, or a test in virtual time. Processes that
	// share one would all crowd the same server. Default: random, for every client.
	Seed uint64

	// Logger gets every lock transition at level Info or Warn and every request
	// that failed at Debug. Default: nothing is logged.
	Logger *slog.Logger

	// Registerer gets the metrics, which the README lists. Clients that share one share
	// the collectors. With a Registerer the ensemble's size is polled every 5 s.
	// Default: no metrics.
	Registerer prometheus.Registerer
}

// Auth is one credential. For scheme "digest" Credentials are "user:password".
type Auth struct {
	Scheme      string
	Credentials []byte
}

// TrustMode says what a Client takes for a proof that its session lives.
type TrustMode int

const (
	// TrustQuorum takes only committed writes for proofs, each dated back to what
	// the leader must have heard by then. It costs one small quorum transaction every
	// sixth of the session timeout while a lease is held, and a sync, which writes
	// nothing, while none is. It is safe also when the holder's server is cut off from
	// the quorum and still answers.
	TrustQuorum TrustMode = iota
	// TrustConnection takes every answered request for a proof. It costs nothing
	// and is safe when the client is cut off from its server. It is not safe when
	// the server is cut off from the quorum: the lock may be given away while the
	// holder still trusts it, for up to syncLimit ticks (10 s by default).
	TrustConnection
)

// String returns the constant's name.
func (m TrustMode) String() string {
	switch m {
	case TrustQuorum:
		return "TrustQuorum"
	case TrustConnection:
		return "TrustConnection"
	default:
		return fmt.Sprintf("TrustMode(%d)", int(m))
	}
}

// Clock tells the time that trust deadlines are measured on. Only differences
// between its readings are used.
type Clock interface {
	Now() time.Time
}

type bootClock struct{}

func (bootClock) Now() time.Time { return boottime.Now() }

// Defaults and limits of Config.
const (
	defaultSessionTimeout = 12 * time.Second
	defaultRoot           = "/dedup"
	defaultMaxBuffer      = 0xfffff
	maxDefaultTick        = 3 * time.Second
	maxIdentifier         = 1 << 10
)

// resolved is a Config with its defaults filled in and its rules checked.
type resolved struct {
	Config
	hosts hosts.List
	auth  []wire.Auth
	host  string // of this machine
}

func (cfg Config) resolve() (resolved, error) {
	r := resolved{Config: cfg}
	var errs []error
	bad := func(field string, value any, rule string) {
		errs = append(errs, fmt.Errorf("%w: %s = %v: %s", ErrInvalidConfig, field, value, rule))
	}

	var err error
	if r.hosts, err = hosts.Parse(cfg.Servers); err != nil {
		errs = append(errs, fmt.Errorf("%w: Servers: %w", ErrInvalidConfig, err))
	}
	if r.hosts.Chroot != "" {
		if err := validatePath(r.hosts.Chroot); err != nil {
			errs = append(errs, fmt.Errorf("%w: Servers: chroot: %w", ErrInvalidConfig, err))
		}
	}
	switch {
	case cfg.SessionTimeout == 0:
		r.SessionTimeout = defaultSessionTimeout
	case cfg.SessionTimeout < time.Millisecond || cfg.SessionTimeout.Milliseconds() > 1<<31-1:
		bad("SessionTimeout", cfg.SessionTimeout, "it has to be from 1ms to 2147483647ms")
	}
	if cfg.TickTime < 0 {
		bad("TickTime", cfg.TickTime, "it is negative")
	}
	if cfg.Clock == nil {
		r.Clock = bootClock{}
	}
	if cfg.Root == "" {
		r.Root = defaultRoot
	} else if err := validatePath(cfg.Root); err != nil {
		errs = append(errs, fmt.Errorf("%w: Root: %w", ErrInvalidConfig, err))
	}
	if cfg.Trust != TrustQuorum && cfg.Trust != TrustConnection {
		bad("Trust", cfg.Trust, "it has to be TrustQuorum or TrustConnection")
	}
	for i, a := range cfg.Auth {
		if a.Scheme == "" {
			bad(fmt.Sprintf("Auth[%d].Scheme", i), `""`, "it is empty")
		}
		r.auth = append(r.auth, wire.Auth{Scheme: a.Scheme, Data: a.Credentials})
	}
	if len(cfg.ACL) == 0 {
		r.ACL = zk.WorldACL(zk.PermAll)
	}
	if cfg.DialTimeout < 0 {
		bad("DialTimeout", cfg.DialTimeout, "it is negative")
	} else if cfg.DialTimeout == 0 {
		n := max(len(r.hosts.Addrs), 1)
		r.DialTimeout = min(max(r.SessionTimeout/time.Duration(2*n), 500*time.Millisecond), 5*time.Second)
	}
	if cfg.Dial == nil {
		r.Dial = (&net.Dialer{}).DialContext
	}
	switch {
	case cfg.MaxBuffer == 0:
		r.MaxBuffer = defaultMaxBuffer
	case cfg.MaxBuffer < 4096 || cfg.MaxBuffer > 1<<30:
		bad("MaxBuffer", cfg.MaxBuffer, "it has to be from 4096 to 2^30 bytes")
	}
	r.host, _ = os.Hostname()
	if cfg.Identifier == "" {
		r.Identifier = fmt.Sprintf("%s-%d", r.host, os.Getpid())
	} else if len(cfg.Identifier) > maxIdentifier {
		bad("Identifier", shorten(cfg.Identifier), fmt.Sprintf("longer than %d bytes", maxIdentifier))
	}
	if cfg.Seed == 0 {
		r.Seed = rand.Uint64()
	}
	if cfg.Logger == nil {
		r.Logger = slog.New(slog.DiscardHandler)
	}
	return r, errors.Join(errs...)
}

// reportDelay is R of the trust rule for a granted timeout: how long a server may
// take to tell the leader that it heard from a session.
func (r *resolved) reportDelay(granted time.Duration) time.Duration {
	if r.TickTime > 0 {
		return r.TickTime
	}
	return min(maxDefaultTick, granted/2)
}

// dialRaw opens one connection, TLS included, within ctx.
func (r *resolved) dialRaw(ctx context.Context, network, address string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	// A Dial that does not honour its ctx must not hang the client.
	done := make(chan result, 1)
	go func() {
		conn, err := r.dialTLS(ctx, network, address)
		done <- result{conn, err}
	}()
	select {
	case res := <-done:
		return res.conn, res.err
	case <-ctx.Done():
		go func() {
			if res := <-done; res.conn != nil {
				_ = res.conn.Close()
			}
		}()
		return nil, fmt.Errorf("dial %s: %w", address, context.Cause(ctx))
	}
}

func (r *resolved) dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	raw, err := r.Dial(ctx, network, address)
	if err == nil && raw == nil {
		err = fmt.Errorf("%w: Dial returned neither a connection nor an error", ErrInvalidConfig)
	}
	if err != nil || r.TLS == nil {
		return raw, err
	}
	cfg := r.TLS
	if cfg.ServerName == "" && !cfg.InsecureSkipVerify {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			_ = raw.Close()
			return nil, err
		}
		cfg = cfg.Clone()
		cfg.ServerName = host
	}
	conn := tls.Client(raw, cfg)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("TLS with %s: %w", address, err)
	}
	return conn, nil
}
