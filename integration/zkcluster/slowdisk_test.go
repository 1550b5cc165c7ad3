package zkcluster_test

import (
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
)

// With two of three disks slow, every write waits for one of them.
func TestSlowDisk(t *testing.T) {
	c := ensemble.Get(t)
	ctx := setup(t)
	victim, leader := follower(ctx, t, c)
	conn := connect(t, 20*time.Second, leader.Addr())
	path := create(t, conn, 0)
	const writes = 10
	took := func() time.Duration {
		begun := time.Now()
		for range writes {
			_, err := conn.Set(path, nil, -1)
			must(t, "write", err)
		}
		return time.Since(begun) / writes
	}
	before := took()
	const delay = 200 * time.Millisecond
	var stops []func() error
	for _, s := range c.Servers() {
		if s != victim && s != leader {
			continue
		}
		stop, err := s.SlowDisk(ctx, delay)
		if errors.Is(err, errors.ErrUnsupported) {
			t.Logf("no slow disk here, so nothing to see: %v", err)
			return
		}
		must(t, "slow disk", err)
		stops = append(stops, stop)
	}
	during := took()
	for _, stop := range stops {
		must(t, "end of the slow disk", stop())
	}
	t.Logf("a write takes %v, with slow disks %v, and after that %v", before, during, took())
	if during < delay/4 {
		t.Errorf("a write takes %v while the log is held up by %v again and again", during, delay)
	}
	_, err := conn.Create(path+"/x", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
	must(t, "write afterwards", err)
}
