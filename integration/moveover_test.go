package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/integration/zkcluster"
)

// mover is a client that knows all servers and is connected to a certain one.
type mover struct {
	timeout time.Duration
	client  *zklock.Client
	states  *states
	lease   *zklock.Lease
	node    string
	token   zklock.Token
	session int64

	suspended time.Time // when the gate first held it back
	passed    time.Time // when the gate let it go on
	gate      error     // what Await returned at last
}

// newMover connects to all servers. While pin holds an address, only that one can be dialled.
func newMover(t *testing.T, cluster *zkcluster.Cluster, timeout time.Duration, pin *atomic.Pointer[string]) *mover {
	t.Helper()
	m := &mover{timeout: timeout}
	m.client = clientOf(t, cluster.Addrs(), timeout, func(cfg *zklock.Config) {
		cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			if only := pin.Load(); only != nil && *only != address {
				return nil, fmt.Errorf("pinned to %s", *only)
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		}
	})
	m.states = watchStates(t, m.client)
	m.lease = acquire(t, mutexOf(t, m.client, uniquePath(t)))
	m.node, m.token, m.session = m.lease.Path(), m.lease.Token(), m.client.SessionID()
	return m
}

// pass goes through the gate over and over, until it was held back once.
func (m *mover) pass(ctx context.Context) {
	for ctx.Err() == nil {
		if m.lease.State() == zklock.LeaseSuspended {
			m.suspended = time.Now()
		}
		if m.gate = m.lease.Await(ctx); m.gate != nil || !m.suspended.IsZero() {
			m.passed = time.Now()
			return
		}
		time.Sleep(time.Millisecond)
	}
	m.gate = context.Cause(ctx)
}

// F7: the holders' server is cut off from the quorum. With T = 12 s there is time to
// prove the leases on another server; with T = 6 s often, but a lease that was
// proved two beats ago may run out first. Then it has to be lost.
func TestHolderMovesOffAServerThatIsCutOff(t *testing.T) {
	const (
		each  = 4
		dial  = 2 * time.Second // the time-out of one, which comes before the next with three servers
		slack = 5 * time.Second // of a busy machine
	)
	for round := range zkcluster.Repeat(t) {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			cluster := ensemble.Get(t)
			ctx := bounded(t)
			server, leader := roles(t, cluster)
			observer := observe(t, leader)
			var pin atomic.Pointer[string]
			addr := server.Addr()
			pin.Store(&addr)
			var movers []*mover
			for range each {
				movers = append(movers, newMover(t, cluster, 12*time.Second, &pin), newMover(t, cluster, 6*time.Second, &pin))
				time.Sleep(rand.N(500 * time.Millisecond)) // another phase between two proofs
			}
			time.Sleep(4 * time.Second) // the proofs have found their rhythm
			pin.Store(nil)

			begun := time.Now()
			must(t, "cut", server.CutPeers(ctx))
			var wg sync.WaitGroup
			for _, m := range movers {
				wg.Go(func() { m.pass(ctx) })
			}
			wg.Wait()
			kept := map[time.Duration]int{}
			for _, m := range movers {
				h := m.timeout / 6
				t.Logf("T = %-3v 2H = %v: held back %v after the cut, went on %v after that: %v", m.timeout, 2*h,
					ms(m.suspended.Sub(begun)), ms(m.passed.Sub(m.suspended)), m.gate)
				if took := m.suspended.Sub(begun); took > 2*h+slack {
					t.Errorf("T = %v: suspended %v after the cut, want 2H = %v", m.timeout, took, 2*h)
				}
				if m.gate != nil {
					if !errors.Is(m.gate, zklock.ErrLost) {
						t.Errorf("T = %v: Await returned %v", m.timeout, m.gate)
					}
					if m.timeout == 12*time.Second {
						t.Errorf("T = %v: the lease did not survive: %v", m.timeout, m.gate)
					}
					continue
				}
				kept[m.timeout]++
				// It was held back when a proof was overdue by H, and moves at 2H.
				if took := m.passed.Sub(m.suspended); took > h+dial+slack {
					t.Errorf("T = %v: moving over took %v, want H + a dial = %v", m.timeout, took, h+dial)
				}
				held(t, m.lease, m.node, m.token)
				if m.client.SessionID() != m.session {
					t.Errorf("T = %v: session %x became %x", m.timeout, m.session, m.client.SessionID())
				}
				if there, _, err := observer.Exists(m.node); err != nil || !there {
					t.Errorf("T = %v: the node is there: %v, %v", m.timeout, there, err)
				}
				m.states.await(t, zklock.Reconnected, 1)
				if m.states.count(zklock.Suspended) == 0 || m.states.count(zklock.Lost) > 0 {
					t.Errorf("T = %v: states %v", m.timeout, m.states)
				}
				release(t, m.lease)
			}
			t.Logf("kept with T = 12 s: %d of %d, with T = 6 s: %d of %d", kept[12*time.Second], each, kept[6*time.Second], each)
		})
	}
}
