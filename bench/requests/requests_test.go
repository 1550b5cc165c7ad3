package requests

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/zktest"
)

var update = flag.Bool("update", false, "write table.md anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	roundTrip = 2 * time.Millisecond
	// short is a hold that ends before the watch on the own node, long one that gets it.
	short = 20 * time.Millisecond
	long  = 80 * time.Millisecond
)

// bed is what an operation is counted on.
type bed struct {
	t   *testing.T
	srv *zktest.Server
}

func (b *bed) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// connect opens a client that the test closes.
func (b *bed) connect() *zklock.Client {
	b.t.Helper()
	c, err := zklock.Connect(b.t.Context(), zklock.Config{
		Servers: []string{b.srv.Addr()}, Dial: b.srv.Dial, Clock: zktest.Clock{}, Seed: 1, TickTime: 2 * time.Second,
	})
	b.must(err)
	b.t.Cleanup(func() { b.must(c.Close()) })
	return c
}

func (b *bed) mutex(c *zklock.Client, path string) *zklock.InterProcessMutex {
	b.t.Helper()
	m, err := zklock.NewInterProcessMutex(c, path)
	b.must(err)
	return m
}

func (b *bed) acquire(m *zklock.InterProcessMutex) *zklock.Lease {
	b.t.Helper()
	l, err := m.Acquire(b.t.Context())
	b.must(err)
	return l
}

// cycle acquires, holds and releases.
func (b *bed) cycle(m *zklock.InterProcessMutex, hold time.Duration) {
	b.t.Helper()
	l := b.acquire(m)
	time.Sleep(hold)
	b.must(l.Release(b.t.Context()))
}

// guard is a guard of package dedup whose buckets are there already.
func (b *bed) guard(claimFirst bool) *dedup.Guard {
	b.t.Helper()
	g, err := dedup.New(b.connect(), dedup.Config{SweepInterval: -1, ClaimFirst: claimFirst})
	b.must(err)
	b.t.Cleanup(func() { b.must(g.Close(context.Background())) })
	for i := range 100 {
		b.ask(g, fmt.Sprint("warm-", i))
	}
	return g
}

func (b *bed) ask(g *dedup.Guard, key string) {
	_, err := dedup.Do(b.t.Context(), g, dedup.Key{ID: key}, dedup.Payload(nil), func(context.Context, *dedup.Claim) (string, error) {
		time.Sleep(short)
		return "outcome", nil
	})
	if err != nil {
		b.t.Error(err)
	}
}

// count counts what f sends, when everything has come to rest.
func (b *bed) count(f func()) zktest.Counts {
	synctest.Wait()
	b.srv.Ops().Reset()
	f()
	time.Sleep(2 * roundTrip)
	synctest.Wait()
	return b.srv.Ops().Counts()
}

// handOvers counts 100 hand-overs of a lock for which waiters of some processes queue again and again. The processes
// take turns, so if there are many, the lock never goes from one waiter to another of the same.
func (b *bed) handOvers(processes, waiters int) (counts zktest.Counts) {
	const first, last = 100, 200
	ctx, stop := context.WithCancel(b.t.Context())
	defer stop()
	var group sync.WaitGroup
	grants := 0 // under the lock
	mutexes := make([]*zklock.InterProcessMutex, processes)
	for i := range mutexes {
		mutexes[i] = b.mutex(b.connect(), "/dedup/key")
	}
	// Nobody gets it before all are in line.
	begin := b.acquire(b.mutex(b.connect(), "/dedup/key"))
	for range waiters {
		for _, m := range mutexes {
			time.Sleep(3 * roundTrip) // one has its node before the next comes
			group.Go(func() {
				for {
					l, err := m.Acquire(ctx)
					if errors.Is(err, context.Canceled) {
						return
					}
					b.must(err)
					time.Sleep(short) // by now whoever queued again is in line
					switch grants++; grants {
					case first:
						b.srv.Ops().Reset()
					case last:
						counts = b.srv.Ops().Counts()
						stop()
					}
					b.must(l.Release(context.Background()))
				}
			})
		}
	}
	b.must(begin.Release(context.Background()))
	group.Wait()
	return counts
}

// rows are the operations. Each is counted on a server of its own.
var rows = []struct {
	name string
	per  int  // how many operations are counted together; 0 is 1
	beat bool // proofs, syncs and pings count too
	run  func(b *bed) zktest.Counts
}{
	{name: "Acquire and Release, warm, held for less than 50 ms", run: func(b *bed) zktest.Counts {
		m := b.mutex(b.connect(), "/dedup/key")
		b.cycle(m, 0)
		return b.count(func() { b.cycle(m, short) })
	}},
	{name: "Acquire and Release, warm, held for longer", run: func(b *bed) zktest.Counts {
		m := b.mutex(b.connect(), "/dedup/key")
		b.cycle(m, 0)
		return b.count(func() { b.cycle(m, long) })
	}},
	{name: "Acquire and Release of a fresh key", run: func(b *bed) zktest.Counts {
		c := b.connect()
		b.cycle(b.mutex(c, "/dedup/other"), 0)
		return b.count(func() { b.cycle(b.mutex(c, "/dedup/key"), short) })
	}},
	{name: "the first Acquire and Release of all, two levels missing", run: func(b *bed) zktest.Counts {
		c := b.connect()
		return b.count(func() { b.cycle(b.mutex(c, "/dedup/key"), short) })
	}},
	{name: "TryAcquire, held by another process", run: func(b *bed) zktest.Counts {
		l := b.acquire(b.mutex(b.connect(), "/dedup/key"))
		m := b.mutex(b.connect(), "/dedup/key")
		time.Sleep(long)
		defer func() { b.must(l.Release(context.Background())) }()
		return b.count(func() {
			if _, err := m.TryAcquire(b.t.Context()); !errors.Is(err, zklock.ErrHeld) {
				b.t.Errorf("TryAcquire: %v", err)
			}
		})
	}},
	{name: "TryAcquire, held in this process", run: func(b *bed) zktest.Counts {
		m := b.mutex(b.connect(), "/dedup/key")
		l := b.acquire(m)
		time.Sleep(long)
		defer func() { b.must(l.Release(context.Background())) }()
		return b.count(func() {
			if _, err := m.TryAcquire(b.t.Context()); !errors.Is(err, zklock.ErrHeld) {
				b.t.Errorf("TryAcquire: %v", err)
			}
		})
	}},
	{name: "Acquire and Release inside the same lock", run: func(b *bed) zktest.Counts {
		m := b.mutex(b.connect(), "/dedup/key")
		l := b.acquire(m)
		time.Sleep(long)
		defer func() { b.must(l.Release(context.Background())) }()
		return b.count(func() {
			again, err := m.Acquire(l.Context())
			b.must(err)
			b.must(again.Release(b.t.Context()))
		})
	}},
	{name: "Await, Err, State, Deadline", run: func(b *bed) zktest.Counts {
		l := b.acquire(b.mutex(b.connect(), "/dedup/key"))
		time.Sleep(long)
		defer func() { b.must(l.Release(context.Background())) }()
		return b.count(func() {
			b.must(l.Await(b.t.Context()))
			b.must(l.Err())
			_, _ = l.State(), l.Deadline()
		})
	}},
	{name: "one waiter more in a process that holds and waits", run: func(b *bed) zktest.Counts {
		m := b.mutex(b.connect(), "/dedup/key")
		l := b.acquire(m)
		ctx, stop := context.WithCancel(b.t.Context())
		var group sync.WaitGroup
		wait := func() { group.Go(func() { _, _ = m.Acquire(ctx) }) }
		wait()
		time.Sleep(long)
		defer func() {
			b.must(l.Release(context.Background()))
			stop()
			group.Wait()
		}()
		return b.count(wait)
	}},
	{name: "hand-over, 20 waiters in one process", per: 100, run: func(b *bed) zktest.Counts { return b.handOvers(1, 20) }},
	{name: "hand-over, 20 waiters in 20 processes", per: 100, run: func(b *bed) zktest.Counts { return b.handOvers(20, 1) }},
	{name: "hand-over, 20 waiters in 4 processes", per: 100, run: func(b *bed) zktest.Counts { return b.handOvers(4, 5) }},
	{name: "dedup: fresh key with a stored outcome", run: func(b *bed) zktest.Counts {
		g := b.guard(false)
		return b.count(func() { b.ask(g, "key") })
	}},
	{name: "dedup: the same with ClaimFirst", run: func(b *bed) zktest.Counts {
		g := b.guard(true)
		return b.count(func() { b.ask(g, "key") })
	}},
	{name: "dedup: replay", run: func(b *bed) zktest.Counts {
		g := b.guard(false)
		b.ask(g, "key")
		return b.count(func() { b.ask(g, "key") })
	}},
	{name: "dedup: 100 duplicates of a fresh key at the same time in one process, together", run: func(b *bed) zktest.Counts {
		g := b.guard(false)
		return b.count(func() {
			var group sync.WaitGroup
			for range 100 {
				group.Go(func() { b.ask(g, "key") })
			}
			group.Wait()
		})
	}},
	{name: "an idle client, for each H", per: 30, beat: true, run: func(b *bed) zktest.Counts { return b.idle(0) }},
	{name: "one lease held, for each H", per: 30, beat: true, run: func(b *bed) zktest.Counts { return b.idle(1) }},
	{name: "1,000 leases held, for each H", per: 30, beat: true, run: func(b *bed) zktest.Counts { return b.idle(1000) }},
}

// idle counts over 30 beats of a client that holds so many leases.
func (b *bed) idle(leases int) zktest.Counts {
	c := b.connect()
	held := make([]*zklock.Lease, leases)
	for i := range held {
		held[i] = b.acquire(b.mutex(c, fmt.Sprint("/dedup/", i)))
	}
	h := c.SessionTimeout() / 6
	time.Sleep(2*h + h/2)
	synctest.Wait()
	b.srv.Ops().Reset()
	time.Sleep(30 * h)
	counts := b.srv.Ops().Counts()
	for _, l := range held {
		b.must(l.Release(context.Background()))
	}
	return counts
}

// kinds are the columns.
var kinds = []struct {
	name string
	ops  []zktest.Op
}{
	{"create", []zktest.Op{zktest.OpCreate, zktest.OpCreate2, zktest.OpCreateContainer}},
	{"delete", []zktest.Op{zktest.OpDelete}},
	{"multi", []zktest.Op{zktest.OpMulti}},
	{"getChildren", []zktest.Op{zktest.OpGetChildren, zktest.OpGetChildren2}},
	{"getData", []zktest.Op{zktest.OpGetData}},
	{"exists", []zktest.Op{zktest.OpExists}},
}

// row prints the counts of an operation.
func row(name string, c zktest.Counts, per int, beat bool) string {
	number := func(n int) string {
		if n == 0 {
			return ""
		}
		return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.2f", float64(n)/float64(per)), "0"), ".")
	}
	cells := []string{name, number(c.Writes()), number(c.Reads())}
	for _, k := range kinds {
		n := c.Count(k.ops...)
		if k.name == "multi" {
			n -= c.Proofs
		}
		cells = append(cells, number(n))
	}
	cells = append(cells, number(c.WatchEvents))
	if beat {
		cells = append(cells, number(c.Proofs), number(c.Count(zktest.OpSync)))
	} else {
		cells = append(cells, "", "")
	}
	return "| " + strings.Join(cells, " | ") + " |\n"
}

func TestRequestsOfEachOperation(t *testing.T) {
	var table strings.Builder
	table.WriteString("| | writes | reads |")
	for _, k := range kinds {
		table.WriteString(" " + k.name + " |")
	}
	table.WriteString(" watch events | proofs | syncs |\n|---|" + strings.Repeat("---|", len(kinds)+5) + "\n")
	for _, r := range rows {
		synctest.Test(t, func(t *testing.T) {
			b := &bed{t: t, srv: zktest.NewServer(t, func(c *zktest.Config) { c.Latency = roundTrip / 2 })}
			c := r.run(b)
			table.WriteString(row(r.name, c, max(r.per, 1), r.beat))
		})
	}
	if *update {
		if err := os.WriteFile("table.md", []byte(table.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if table.String() != Table {
		t.Errorf("the requests are not those of table.md (go test -update writes it anew):\n%s", table.String())
	}
}
