package zklock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock/zktest"
)

// quietly keeps the library from printing.
type quietly struct{}

func (quietly) Printf(string, ...any) {}

// until waits for what another goroutine brings about, in real time.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// 20,000 lock nodes of another client and 10,000 callers here behind them: the listing
// is larger than jute.maxbuffer, which limits requests and not what a server sends;
// the callers cost memory and two nodes; other locks notice nothing.
func TestLongQueue(t *testing.T) {
	const nodes, callers = 20_000, 10_000
	srv, err := zktest.Start(zktest.Config{Name: "192.0.2.1:2181"})
	must(t, err)
	defer srv.Close()
	c, err := Connect(t.Context(), Config{Servers: []string{srv.Addr()}, Dial: srv.Dial, SessionTimeout: 30 * time.Second})
	must(t, err)
	defer func() { must(t, c.Close()) }()
	m, err := NewInterProcessMutex(c, "/dedup/long")
	must(t, err)
	o, err := NewInterProcessMutex(c, "/dedup/other")
	must(t, err)
	other, err := o.Acquire(t.Context())
	must(t, err)
	first, err := m.Acquire(t.Context()) // makes the path
	must(t, err)

	conn, _, err := zk.Connect([]string{srv.Addr()}, 30*time.Second, zk.WithLogger(quietly{}), zk.WithLogInfo(false),
		zk.WithDialer(func(network, address string, _ time.Duration) (net.Conn, error) {
			return srv.Dial(context.Background(), network, address)
		}))
	must(t, err)
	defer conn.Close()
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for i := range nodes / 16 {
				name := fmt.Sprintf("/dedup/long/_c_00000000-0000-0000-0000-%012d-lock-", i)
				if _, err := conn.Create(name, nil, zk.FlagEphemeralSequential, zk.WorldACL(zk.PermAll)); err != nil {
					t.Errorf("create: %v", err)
					return
				}
			}
		})
	}
	group.Wait()
	connections := srv.Connections()

	memory := func() uint64 {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc + stats.StackInuse
	}
	before := memory()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range callers {
		group.Go(func() {
			if _, err := m.Acquire(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("Acquire: %v", err)
			}
		})
	}
	until(t, "all callers in line", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.queues["/dedup/long"].line.Len() == callers+1
	})
	until(t, "the next in line has its node", func() bool { return len(srv.Children("/dedup/long")) == nodes+2 })
	each := (memory() - before) / callers
	t.Logf("%d bytes a caller that waits", each)
	if most := uint64(8 << 10); each > most && !raceDetector { // doc.go says about 5 KiB
		t.Errorf("a caller that waits takes %d bytes, more than %d", each, most)
	}

	// Its turn: now the next in line lists all and waits behind the last of the other
	// client's.
	must(t, first.Release(t.Context()))
	until(t, "a watch on the last of the others", func() bool { return srv.Watches() >= 2 })
	if err := other.Verify(t.Context()); err != nil {
		t.Errorf("another lock: %v", err)
	}
	if n := srv.Connections(); n != connections {
		t.Errorf("%d connections, %d before", n, connections)
	}
	cancel()
	group.Wait()
	until(t, "our nodes gone", func() bool { return len(srv.Children("/dedup/long")) == nodes })
	must(t, other.Release(t.Context()))
}
