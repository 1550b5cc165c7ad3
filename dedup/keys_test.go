package dedup_test

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/zktest"
)

var manyKeys = flag.Int("keys", 1000, "how many keys TestManyKeys goes to, in steps of a factor of ten")

// Keys that come evenly over one retention and are swept in the next: what one costs,
// and what grows with their number. Time is virtual; cost is measured as processor time,
// which a busy machine does not change much.
func TestManyKeys(t *testing.T) {
	largest := make(map[int]int)
	for n := *manyKeys; n >= 1000; n /= 10 {
		t.Run(fmt.Sprint(n), func(t *testing.T) { largest[n] = keysOverADay(t, n) })
	}
	// A reply with a listing has a share of the keys, and never all of them.
	for n, size := range largest {
		if limit := 64<<10 + n*80/100; size > limit {
			t.Errorf("%d keys: a reply of %d bytes, want at most %d", n, size, limit)
		}
	}
}

func keysOverADay(t *testing.T, n int) (largestReply int) {
	inBubble(t, func(b *bundle) {
		t := b.t
		retention := 24 * time.Hour
		if n < 10_000 {
			retention /= 24 // the ordinary run has no time for a day of heartbeats
		}
		base := memory()
		replies := new(replySizes)
		p := b.start(func(c *zklock.Config, g *dedup.Config) {
			dial := c.Dial
			c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := dial(ctx, network, address)
				return replies.watch(conn), err
			}
			c.Logger = nil
			g.ClaimFirst, g.Retention = true, retention
		})
		listings := b.listings("/dedup")
		outcome := says("an outcome of the usual size, more or less")
		start := time.Now()
		cpu := cpuTime()
		b.srv.Ops().Reset()
		for i := range n {
			if _, err := p.do(t.Context(), fmt.Sprintf("key-%09d", i), outcome); err != nil {
				t.Fatal(err)
			}
			time.Sleep(retention / time.Duration(n))
		}
		made := cpuTime() - cpu
		writes := b.srv.Ops().Writes()
		if most := 2*n + 2*16*110; writes > most { // each bucket costs two writes more
			t.Errorf("%d writes for %d keys, want at most %d", writes, n, most)
		}
		full := memory()
		found := 0
		for i, err := range p.Records(t.Context()) {
			if err != nil || i.Err != nil {
				t.Fatal(err, i.Err)
			}
			found++
		}
		if found != n {
			t.Errorf("Records shows %d keys of %d", found, n)
		}

		time.Sleep(retention / 2) // half of them are due, and as many sweeps
		cpu = cpuTime()
		b.srv.Ops().Reset()
		swept := 0
		for swept < n && time.Since(start) < 3*retention {
			r, err := p.Sweep(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			swept += r.Swept
			time.Sleep(retention / (24 * 60))
		}
		if swept != n {
			t.Fatalf("swept %d of %d", swept, n)
		}
		counts := b.srv.Ops().Counts()
		sweeping := cpuTime() - cpu
		empty := memory()
		// The package comment says 1.2 KB. Counted by what the sweep has freed, since client
		// and server take some MB however few keys there are.
		if perKey := (full - empty) / int64(n); perKey < 600 || perKey > 2400 {
			t.Errorf("%d bytes a key, want about 1200", perKey)
		}
		if len(b.srv.Children("/dedup")) != 0 {
			t.Errorf("%d records are left", len(b.srv.Children("/dedup")))
		}
		if got := listings(); got != 0 {
			t.Errorf("the root was listed %d times", got)
		}
		// That the counting counts: this lists it.
		if m, err := zklock.NewInterProcessMutex(p.client, "/dedup"); err != nil {
			t.Error(err)
		} else if _, err := m.Participants(t.Context()); err != nil || listings() != 1 {
			t.Errorf("%v: %d listings counted of one", err, listings())
		}
		largestReply = replies.largest()
		t.Logf("%7d keys: %v a key to make (client and server), %.3f writes a key; %d bytes a key in the server; sweeping: %v, %.2f reads and %.3f transactions a key; largest reply %d bytes; afterwards %d KiB more than before",
			n, (made / time.Duration(n)).Round(100*time.Nanosecond), float64(writes)/float64(n), (full-empty)/int64(n),
			(sweeping / time.Duration(n)).Round(100*time.Nanosecond), float64(counts.ByOp[zktest.OpGetData])/float64(n),
			float64(counts.ByOp[zktest.OpMulti])/float64(n), largestReply, (empty-base)>>10)
	})
	return largestReply
}

// listings counts the requests for the children of a path, and of no other.
func (b *bundle) listings(path string) (count func() int) {
	under := func(prefix string) *zktest.Fault {
		return b.srv.Inject(zktest.Before(func() {}, zktest.OpGetChildren, zktest.OpGetChildren2).Path(prefix).Always())
	}
	// A fault is about all paths that begin alike.
	all, below, index := under(path), under(path+"/"), under(path+"-")
	return func() int { return all.Hits() - below.Hits() - index.Hits() }
}

func memory() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// replySizes reads the frames that a client receives.
type replySizes struct {
	mu  sync.Mutex
	max int
}

func (r *replySizes) watch(conn net.Conn) net.Conn {
	if conn == nil {
		return nil
	}
	return &sizedConn{Conn: conn, sizes: r}
}

func (r *replySizes) largest() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.max
}

type sizedConn struct {
	net.Conn
	sizes *replySizes
	left  int // of the frame
	head  []byte
}

func (c *sizedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	for b := p[:n]; len(b) > 0; {
		if c.left > 0 {
			k := min(c.left, len(b))
			c.left -= k
			b = b[k:]
			continue
		}
		k := min(4-len(c.head), len(b))
		c.head = append(c.head, b[:k]...)
		b = b[k:]
		if len(c.head) == 4 {
			c.left = int(binary.BigEndian.Uint32(c.head))
			c.head = c.head[:0]
			c.sizes.mu.Lock()
			c.sizes.max = max(c.sizes.max, c.left)
			c.sizes.mu.Unlock()
		}
	}
	return n, err
}

var _ io.Reader = (*sizedConn)(nil)
