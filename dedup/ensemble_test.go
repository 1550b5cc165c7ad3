package dedup_test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/zktest"
)

// group is an ensemble with a leader and a follower that is looked at.
type group struct {
	*bundle
	ens      *zktest.Ensemble
	leader   *zktest.Server
	follower *zktest.Server
	opts     []func(*zklock.Config, *dedup.Config)
}

// inEnsemble runs f in virtual time against three servers.
func inEnsemble(t *testing.T, f func(g *group), opts ...func(*zklock.Config, *dedup.Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ens := zktest.NewEnsemble(t, 3, func(c *zktest.Config) { c.Latency, c.PeerLatency = time.Millisecond, time.Millisecond })
		g := &group{ens: ens, leader: ens.Leader(), follower: ens.Followers()[0], opts: opts}
		g.bundle = &bundle{t: t, srv: g.leader, log: &logBuffer{}}
		f(g)
	})
}

// at starts a process that is connected to the leader (0) or the follower (1).
func (g *group) at(i int) *process {
	s := []*zktest.Server{g.leader, g.follower}[i]
	return g.start(append(g.opts, func(c *zklock.Config, _ *dedup.Config) {
		c.Servers = []string{s.Addr()}
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			return s.Dialer(c.Identifier)(ctx, network, addr)
		}
	})...)
}
