package integration

import (
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/integration/zkproxy"
)

// handOver is what one release with waiters costs.
type handOver struct {
	requests map[zkproxy.Kind]int // pings and proofs left out
	proofs   int
	events   int // counted by the proxy
	notified int // counted by zk_watch_notifications_total
}

// counted leaves out of a proxy's counts what goes out from time to time whether or not there is a hand-over.
func counted(c zkproxy.Counts) map[zkproxy.Kind]int {
	requests := maps.Clone(c.Requests)
	delete(requests, zkproxy.Ping)
	delete(requests, zkproxy.Proof)
	return requests
}

// measureHandOver lets so many clients wait behind a holder, releases once, and counts
// until the next one holds and has put a watch on its node. With a registry it counts the
// events there too; then the clients also read the ensemble's configuration every few
// seconds, so the requests are not counted.
func measureHandOver(t *testing.T, waiters int, registry *prometheus.Registry) handOver {
	t.Helper()
	cluster := ensemble.Get(t)
	follower, leader := roles(t, cluster)
	observer := observe(t, leader)
	path := uniquePath(t)
	p := zkproxy.New(t, follower.Addr())
	// A waiter looks again after 3/4 T at the earliest: long after this is over.
	connect := func() *zklock.Client {
		return clientOf(t, []string{p.Addr()}, 40*time.Second, func(cfg *zklock.Config) {
			if registry != nil {
				cfg.Registerer = registry
			}
		})
	}
	clients := make([]*zklock.Client, waiters)
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() { clients[i] = connect() })
	}
	holder := connect()
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	lease := acquire(t, mutexOf(t, holder, path))
	first := acquireAsync(bounded(t), mutexOf(t, clients[0], path))
	awaitNodes(t, observer, path, 2)
	var others []<-chan result
	for _, c := range clients[1:] {
		others = append(others, acquireAsync(bounded(t), mutexOf(t, c, path)))
	}
	awaitNodes(t, observer, path, waiters+1)
	// Everybody has its watch: the holder on its own node, each waiter on the one before.
	eventually(t, "watches", func() bool { return watches(t, follower) == waiters+1 })

	p.Reset()
	before := notifications(t, registry)
	release(t, lease)
	next := granted(t, "first waiter", first)
	must(t, "own watch", p.Await(bounded(t), func(s zkproxy.Snapshot) bool {
		return s.Session(clients[0].SessionID()).Replies[zkproxy.GetData] >= 1
	}))
	// A herd would come now.
	time.Sleep(time.Second)
	counts := p.Snapshot().Total
	eventually(t, "metric", func() bool { return registry == nil || notifications(t, registry)-before >= counts.WatchEvents() })
	h := handOver{requests: counted(counts), proofs: counts.Proofs(), events: counts.WatchEvents(), notified: notifications(t, registry) - before}
	for _, w := range others {
		notYet(t, "a later waiter", w)
	}
	release(t, next)
	for _, w := range others { // in whatever order they stand
		wg.Go(func() {
			r := <-w
			if r.err == nil {
				r.err = r.lease.Release(t.Context())
			}
			if r.err != nil {
				t.Errorf("later waiter: %v", r.err)
			}
		})
	}
	wg.Wait()
	return h
}

// notifications reads zk_watch_notifications_total.
func notifications(t testing.TB, registry *prometheus.Registry) int {
	if registry == nil {
		return 0
	}
	return int(metric(t, registry, "zk_watch_notifications_total"))
}

// metric returns the value of a counter or gauge, summed over its labels, and -1 if it is absent.
func metric(t testing.TB, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	must(t, "gather", err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		sum := 0.0
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
		return sum
	}
	return -1
}

// One release wakes one waiter, however many there are.
func TestHandOverCostsTheSameWithFiveAndWithFiftyWaiters(t *testing.T) {
	var all, events []string
	for _, waiters := range []int{5, 50} {
		h := measureHandOver(t, waiters, nil)
		t.Logf("%2d waiters: %v, %d watch events; beside it %d proofs", waiters, h.requests, h.events, h.proofs)
		all = append(all, fmt.Sprint(h.requests, h.events))

		h = measureHandOver(t, waiters, prometheus.NewRegistry())
		t.Logf("%2d waiters: %d watch events by the proxy, %d by zk_watch_notifications_total", waiters, h.events, h.notified)
		if h.notified != h.events {
			t.Errorf("%d waiters: zk_watch_notifications_total grew by %d, the proxy counted %d", waiters, h.notified, h.events)
		}
		events = append(events, fmt.Sprint(h.events))
	}
	if all[0] != all[1] || events[0] != events[1] {
		t.Errorf("5 waiters cost %s, %s events; 50 waiters %s, %s events", all[0], events[0], all[1], events[1])
	}
	// The release, the next one's look at the queue and the watch on its own node; the events of the holder's own
	// watch and of the next one's.
	if want := fmt.Sprint(map[zkproxy.Kind]int{zkproxy.Delete: 1, zkproxy.GetChildren: 1, zkproxy.GetData: 1}, 2); all[0] != want {
		t.Errorf("a hand-over costs %s, want %s", all[0], want)
	}
}
