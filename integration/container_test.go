package integration

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/integration/zkcluster"
)

// fastReaper starts one server that looks for empty containers once every interval.
func fastReaper(t *testing.T, interval time.Duration) *zkcluster.Cluster {
	t.Helper()
	return zkcluster.Start(t, zkcluster.Options{JVMFlags: []string{
		"-Dznode.container.checkIntervalMs=" + strconv.FormatInt(interval.Milliseconds(), 10),
		"-Dznode.container.maxPerMinute=1000000",
	}})
}

// reaped is how many children of /reaped were removed so far. A node's cversion counts
// the children that came and those that went.
func reaped(t *testing.T, cluster *zkcluster.Cluster) int {
	t.Helper()
	_, stat, err := observe(t, cluster.Server(0)).Get("/reaped")
	if errors.Is(err, zk.ErrNoNode) {
		return 0
	}
	must(t, "stat of /reaped", err)
	return (int(stat.Cversion) - int(stat.NumChildren)) / 2
}

// F17: with the ensemble removing empty lock paths all the time, nobody ever sees an
// error. The pauses between two rounds are about as long as between two removals.
func TestReapedParentsAreMadeAgain(t *testing.T) {
	const (
		goroutines = 8
		rounds     = 1250 // of each: 10,000 in all
		interval   = 50 * time.Millisecond
	)
	ctx := bounded(t)
	cluster := fastReaper(t, interval)
	c := clientOf(t, cluster.Addrs(), 30*time.Second)
	before := reaped(t, cluster)
	var wg sync.WaitGroup
	var last atomic.Int64
	begun := time.Now()
	for g := range goroutines {
		// Two goroutines share a path, and two paths a parent.
		m := mutexOf(t, c, fmt.Sprintf("/reaped/%d", g/2))
		wg.Go(func() {
			for i := range rounds {
				err := m.Do(ctx, func(_ context.Context, l *zklock.Lease) error {
					last.Store(int64(l.Token()))
					return nil
				})
				if err != nil {
					t.Errorf("round %d: %v", i, err)
					return
				}
				if i%10 == 0 { // empty for as long as the reaper needs to look twice
					time.Sleep(interval * time.Duration(i/10%5) / 2)
				}
			}
		})
	}
	wg.Wait()
	n := reaped(t, cluster) - before
	t.Logf("%d rounds in %v; the ensemble removed an empty path %d times meanwhile", goroutines*rounds, ms(time.Since(begun)), n)
	if n == 0 {
		t.Error("no path was removed: nothing was tested")
	}
}
