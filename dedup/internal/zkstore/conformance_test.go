package zkstore_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup/deduptest"
	"github.com/go-zklock/zklock/dedup/internal/zkstore"
	"github.com/go-zklock/zklock/zktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const root = "/dedup"

// harness is processes on one server after the other, in virtual time.
type harness struct {
	servers []*zktest.Server
	started int
}

func (h *harness) open(t testing.TB) *deduptest.Process {
	srv := h.servers[h.started%len(h.servers)]
	h.started++
	name := fmt.Sprint("p", h.started)
	c, err := zklock.Connect(t.Context(), zklock.Config{
		Servers: []string{srv.Addr()}, Dial: srv.Dialer(name), Clock: zktest.Clock{}, Seed: uint64(h.started),
		TickTime: 2 * time.Second, Identifier: name,
	})
	if err != nil {
		t.Fatalf("Connect: %v", err)
	}
	st, err := zkstore.New(c, root, time.Now)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	var dead *zktest.Fault
	t.Cleanup(func() {
		if dead != nil {
			dead.Heal()
		}
		_ = c.Close()
	})
	return &deduptest.Process{
		Store: st,
		Kill: func() {
			dead = srv.Inject(zktest.Blackhole(zktest.BothWays).Client(name))
			srv.Expire(c.SessionID())
		},
		Close: func() { _ = c.Close() },
		Lose:  func() { srv.Expire(c.SessionID()) },
		Suspend: func() func() {
			return srv.Inject(zktest.Blackhole(zktest.BothWays).Client(name)).Heal
		},
	}
}

func conforms(t *testing.T, start func(t *testing.T) []*zktest.Server) {
	deduptest.Run(t, func(t *testing.T, test func(*testing.T, *deduptest.Harness)) {
		synctest.Test(t, func(t *testing.T) {
			h := &harness{servers: start(t)}
			test(t, &deduptest.Harness{
				Open: h.open,
				Put:  func(key string, data []byte) error { return h.servers[0].Set(root+"/"+key, data) },
			})
		})
	})
}

func latency(c *zktest.Config) { c.Latency = time.Millisecond }

// The store of package dedup does what package driver asks for.
func TestConformance(t *testing.T) {
	conforms(t, func(t *testing.T) []*zktest.Server { return []*zktest.Server{zktest.NewServer(t, latency)} })
}

// It does so too where the processes' servers show them a past that is not the same
// for all.
func TestConformanceOnFollowersThatLag(t *testing.T) {
	conforms(t, func(t *testing.T) []*zktest.Server {
		e := zktest.NewEnsemble(t, 3, latency)
		for i, srv := range e.Followers() {
			srv.SetLag(time.Duration(i+1) * 130 * time.Millisecond)
		}
		// A process on the one that lags most comes second.
		f := e.Followers()
		return []*zktest.Server{f[0], f[1], e.Leader()}
	})
}
