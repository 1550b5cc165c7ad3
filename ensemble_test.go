package zklock

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/go-zklock/zklock/zktest"
)

const (
	sizeMetric   = "zk_ensemble_size"
	quorumMetric = "zk_quorum_size"
)

// wantSizes checks both gauges; a negative size has to be absent.
func wantSizes(t *testing.T, reg *prometheus.Registry, when string, size, quorum float64) {
	t.Helper()
	got := samples(t, reg)
	for _, tc := range []struct {
		name string
		want float64
	}{{sizeMetric, size}, {quorumMetric, quorum}} {
		v, ok := got[tc.name]
		if ok != (tc.want >= 0) || ok && v != tc.want {
			t.Errorf("%s: %s is %v (there: %v), want %v", when, tc.name, v, ok, tc.want)
		}
	}
}

func TestSizeOfASingleServer(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		reg := prometheus.NewRegistry()
		b.connect(metered(reg))
		time.Sleep(time.Second)
		wantSizes(t, reg, "single server", 1, 1)
	})
}

func TestEnsembleSizes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := zktest.NewEnsemble(t, 3, func(c *zktest.Config) { c.Latency = time.Millisecond })
		reg := prometheus.NewRegistry()
		connect := func(servers []string, reg *prometheus.Registry) *Client {
			c, err := Connect(t.Context(), Config{Servers: servers, Dial: e.Dial, Clock: zktest.Clock{}, Seed: 1, Registerer: reg})
			must(t, err)
			t.Cleanup(func() { _ = c.Close() })
			return c
		}
		connect(e.Addrs(), reg)
		time.Sleep(6 * time.Second)
		wantSizes(t, reg, "three servers", 3, 3)
		e.Followers()[0].Stop()
		time.Sleep(11 * time.Second)
		wantSizes(t, reg, "one stopped", 3, 2)
		if i := slices.IndexFunc(e.Servers(), func(s *zktest.Server) bool { return s.Role() == "looking" }); i >= 0 {
			e.Servers()[i].Restart()
		}
		time.Sleep(11 * time.Second)
		wantSizes(t, reg, "back again", 3, 3)

		// A client that knows one server of three cannot count the quorum.
		part := prometheus.NewRegistry()
		connect(e.Addrs()[:1], part)
		time.Sleep(6 * time.Second)
		wantSizes(t, part, "one address of three", 3, -1)
	})
}

// Without a quorum nobody can read the configuration, and that is when the sizes are
// looked at.
func TestSizesWithoutAQuorum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := zktest.NewEnsemble(t, 3, func(c *zktest.Config) { c.Latency = time.Millisecond })
		reg := prometheus.NewRegistry()
		c, err := Connect(t.Context(), Config{Servers: e.Addrs(), Dial: e.Dial, Clock: zktest.Clock{}, Seed: 1, Registerer: reg})
		must(t, err)
		defer func() { must(t, c.Close()) }()
		time.Sleep(6 * time.Second)
		wantSizes(t, reg, "three servers", 3, 3)
		for i, s := range e.Servers() {
			s.Stop()
			if i > 0 { // one of three is no quorum
				time.Sleep(30 * time.Second)
				wantSizes(t, reg, fmt.Sprintf("%d stopped", i+1), 3, 0)
			}
		}
		for _, s := range e.Servers() {
			s.Restart()
		}
		time.Sleep(30 * time.Second)
		wantSizes(t, reg, "back again", 3, 3)
	})
}

// What may not be read is absent, not wrong: no zero, and no number from before. (A
// configuration stays what it was: TestSizesWithoutAQuorum.)
func TestSizesWhereNothingMayBeRead(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		reg := prometheus.NewRegistry()
		c := b.connect(metered(reg))
		time.Sleep(time.Second)
		wantSizes(t, reg, "connected", 1, 1)
		b.srv.Refuse(true)
		b.srv.CutConnections()
		time.Sleep(20 * time.Second)
		wantSizes(t, reg, "away", -1, -1)
		b.srv.Refuse(false)
		time.Sleep(20 * time.Second)
		wantSizes(t, reg, "back again", 1, 1)
		must(t, c.Close())
		wantSizes(t, reg, "closed", -1, -1)
	})
}

// noWords is a connection to a server that allows no four-letter word.
type noWords struct {
	net.Conn
	asked bool
	said  *strings.Reader
}

func (c *noWords) Write(p []byte) (int, error) {
	if string(p) == "srvr" {
		c.asked = true
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *noWords) Read(p []byte) (int, error) {
	if c.asked {
		return c.said.Read(p)
	}
	return c.Conn.Read(p)
}

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

func withoutWords(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &noWords{Conn: conn, said: strings.NewReader("srvr is not executed because it is not in the whitelist.\n")}, nil
	}
}

// Without four-letter words the configuration tells how many servers there are, and
// nothing tells how many of them work.
func TestSizesWithoutFourLetterWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := zktest.NewEnsemble(t, 3)
		reg := prometheus.NewRegistry()
		c, err := Connect(t.Context(), Config{
			Servers: e.Addrs(), Dial: withoutWords(e.Dial), Clock: zktest.Clock{}, Seed: 1, Registerer: reg,
		})
		must(t, err)
		defer func() { must(t, c.Close()) }()
		time.Sleep(6 * time.Second)
		wantSizes(t, reg, "three servers that do not say", 3, -1)
	})
	inBubble(t, func(b *bundle) {
		reg := prometheus.NewRegistry()
		b.connect(metered(reg), func(cfg *Config) { cfg.Dial = withoutWords(b.srv.Dial) })
		time.Sleep(6 * time.Second)
		wantSizes(b.t, reg, "one server, without a configuration, that does not say", -1, -1)
	})
}

// Without a Registerer nobody asks.
func TestNoPollWithoutRegisterer(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		b.connect()
		b.srv.Ops().Reset()
		time.Sleep(time.Minute)
		if n := b.srv.Ops().Reads(); n != 0 {
			t.Errorf("an idle client without metrics sent %d reads in a minute", n)
		}
	})
}
