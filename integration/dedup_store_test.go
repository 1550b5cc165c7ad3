package integration

import (
	"context"
	"net"
	"path"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/dedup/deduptest"
	"github.com/go-zklock/zklock/integration/internal/expire"
	"github.com/go-zklock/zklock/integration/zkcluster"
)

// dedupStores is processes with a store each, on one root of the ensemble.
type dedupStores struct {
	cluster *zkcluster.Cluster
	root    string
	started int
}

// open connects a process by a proxy of its own, to one server after the other.
func (d *dedupStores) open(t testing.TB) *deduptest.Process {
	t.Helper()
	const servers = 3
	server, other := d.cluster.Server(d.started%servers), d.cluster.Server((d.started+1)%servers)
	d.started++
	var g greeting
	c, p := viaProxy(t, server, 6*time.Second, func(cfg *zklock.Config) {
		cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			return greeted{conn, &g}, err
		}
	})
	store, err := dedup.Store(c, dedup.Config{Root: d.root})
	must(t, "store", err)
	heal := func() {}
	t.Cleanup(func() { heal() })
	return &deduptest.Process{
		Store:   store,
		Kill:    func() { heal = silence(p) },
		Close:   func() { _ = c.Close() },
		Lose:    func() { must(t, "end the session", expire.Session(bounded(t), other.Addr(), g.bytes())) },
		Suspend: func() (resume func()) { return silence(p) },
	}
}

// The store of package dedup passes its suite on real servers too, with processes that
// talk to different ones.
func TestDedupStoreConformance(t *testing.T) {
	cluster := ensemble.Get(t)
	deduptest.Run(t, func(t *testing.T, test func(*testing.T, *deduptest.Harness)) {
		t.Parallel()
		d := &dedupStores{cluster: cluster, root: uniquePath(t)}
		var observer *zk.Conn
		test(t, &deduptest.Harness{
			Open: d.open,
			Put: func(key string, data []byte) error {
				if observer == nil {
					observer = observe(t, cluster.Server(0))
				}
				_, err := observer.Set(path.Join(d.root, key), data, -1)
				return err
			},
			Patience: patience,
			Arrival:  200 * time.Millisecond,
		})
	})
}
