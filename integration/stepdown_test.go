package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/integration/internal/figures"
	"github.com/go-zklock/zklock/integration/internal/report"
	"github.com/go-zklock/zklock/integration/zkcluster"
)

// These tests show what zklock is for: a holder steps down before the ensemble can
// give its lock away, whatever is cut. One process holds all the clocks that are
// compared.

// sample is one held lock during a cut.
type sample struct {
	timeout  time.Duration
	lease    *zklock.Lease
	begun    time.Time // before the create was sent
	canceled time.Time // when the context ended
	awaited  error     // what Await said then
	seen     time.Time // the last time a synced read still began and found the node
	gone     time.Time // the first time a synced read did not find it
	held     bool      // whether the lease still said Held when the node was gone

	fault   time.Time                 // when the cut was begun
	doubted atomic.Pointer[time.Time] // when the client was first suspended; nil: it was not
	next    time.Time                 // when somebody on another server was granted the lock; zero: nobody waited
}

// lead is at least how long the holder had stepped down when the node went.
func (s *sample) lead() time.Duration { return s.seen.Sub(s.canceled) }

// watchSample follows one lease until both its context has ended and its node is gone.
func watchSample(ctx context.Context, s *sample, observer *zk.Conn) error {
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-s.lease.Context().Done():
			s.canceled = time.Now()
			s.awaited = s.lease.Await(ctx)
		case <-ctx.Done():
		}
	})
	var unread error // why the observer could not look; that makes the lead smaller, not larger
	wg.Go(func() {
		for ctx.Err() == nil {
			began := time.Now()
			_, e := observer.Sync(s.lease.Path())
			there := false
			if e == nil {
				there, _, e = observer.Exists(s.lease.Path())
			}
			if e != nil {
				unread = e
				time.Sleep(5 * time.Millisecond)
				continue
			}
			if !there {
				s.gone = time.Now()
				s.held = s.lease.State() == zklock.LeaseHeld
				return
			}
			s.seen = began
			time.Sleep(5 * time.Millisecond)
		}
	})
	wg.Wait()
	if s.gone.IsZero() || s.canceled.IsZero() {
		missed := fmt.Errorf("T = %v: context ended: %v, node gone: %v", s.timeout, !s.canceled.IsZero(), !s.gone.IsZero())
		return errors.Join(missed, unread)
	}
	return nil
}

// cut is one kind of fault.
type cut struct {
	name     string
	timeouts []time.Duration // of ten clients, in turn
	trust    zklock.TrustMode
	// idle clients acquire right before the fault; the others have held for a while.
	idle bool
	// afterTick and a hundredth of its T is how long after a tick of the leader an idle client acquires;
	// 0: at any time.
	afterTick time.Duration
	do        func(ctx context.Context, server *zkcluster.Server) error
}

const clientsPerCut = 10

// run makes one cut under ten clients and returns what was seen of each.
func (c cut) run(t *testing.T, on *zkcluster.Shared) []*sample {
	t.Helper()
	cluster := on.Get(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	followers, err := cluster.Followers(ctx)
	must(t, "followers", err)
	// The holders' server is a follower: a leader that is cut off starts every
	// session's time anew, which only makes room.
	server := followers[0]
	leader, err := cluster.Leader(ctx)
	must(t, "leader", err)
	observer := observe(t, leader)

	samples := make([]*sample, clientsPerCut)
	mutexes := make([]*zklock.InterProcessMutex, clientsPerCut)
	for i := range samples {
		samples[i] = &sample{timeout: c.timeouts[i%len(c.timeouts)]}
		client := clientOf(t, []string{server.Addr()}, samples[i].timeout, func(cfg *zklock.Config) { cfg.Trust = c.trust })
		client.OnStateChange(func(change zklock.StateChange) {
			if at := time.Now(); change.State == zklock.Suspended {
				samples[i].doubted.CompareAndSwap(nil, &at)
			}
		})
		mutexes[i] = mutexOf(t, client, uniquePath(t))
		if c.idle {
			// The path is made beforehand, so that the create is the first write after
			// a long time of pings only.
			must(t, "warm", acquire(t, mutexes[i]).Release(ctx))
		}
	}
	// Each client is at another point between two heartbeats when the cut comes.
	settle := 2 * c.timeouts[len(c.timeouts)-1] / 3
	var wg sync.WaitGroup
	errs := make([]error, clientsPerCut)
	take := func(i int) {
		samples[i].begun = time.Now()
		samples[i].lease, errs[i] = mutexes[i].Acquire(ctx)
	}
	if c.idle {
		time.Sleep(settle)
	}
	if c.afterTick > 0 {
		// Sessions end at whole ticks of the monotonic clock (ZooKeeper's ExpiryQueue).
		tick := cluster.TickTime()
		time.Sleep(tick - time.Duration(report.Now())%tick)
	}
	for i := range samples {
		wg.Go(func() {
			switch {
			case c.afterTick > 0:
				time.Sleep(c.afterTick + samples[i].timeout/100)
			case !c.idle:
				time.Sleep(time.Duration(rand.Int64N(int64(samples[i].timeout) / 6)))
			}
			take(i)
		})
	}
	wg.Wait()
	must(t, "acquire", errors.Join(errs...))
	if !c.idle {
		time.Sleep(settle)
	}

	// Somebody waits for a lock of each timeout, on the other side of the cut.
	rivals := make([]error, len(c.timeouts))
	for i := range rivals {
		s, m := samples[i], mutexOf(t, clientOf(t, []string{leader.Addr()}, 30*time.Second), mutexes[i].Path())
		wg.Go(func() {
			_, rivals[i] = m.Acquire(ctx)
			s.next = time.Now()
		})
	}
	fault := time.Now()
	must(t, c.name, c.do(ctx, server))
	for i, s := range samples {
		s.fault = fault
		wg.Go(func() { errs[i] = watchSample(ctx, s, observer) })
	}
	wg.Wait()
	must(t, "samples", errors.Join(errors.Join(errs...), errors.Join(rivals...)))
	return samples
}

// cuts are the five kinds of the contract's S2.
var cuts = []cut{
	{
		name:     "server cut off from the quorum",
		timeouts: []time.Duration{6 * time.Second, 12 * time.Second},
		do:       func(ctx context.Context, s *zkcluster.Server) error { return s.CutPeers(ctx) },
	},
	{
		name:     "silent partition between client and server",
		timeouts: []time.Duration{6 * time.Second, 12 * time.Second},
		do:       func(ctx context.Context, s *zkcluster.Server) error { return s.CutClients(ctx) },
	},
	{
		name:     "server stopped",
		timeouts: []time.Duration{6 * time.Second, 12 * time.Second},
		do:       func(ctx context.Context, s *zkcluster.Server) error { return s.Pause(ctx) },
	},
	{
		name:     "server stopped right after an idle client's first create",
		timeouts: []time.Duration{6 * time.Second, 12 * time.Second, 30 * time.Second},
		idle:     true,
		do:       func(ctx context.Context, s *zkcluster.Server) error { return s.Pause(ctx) },
	},
	stalled(6 * time.Second),
	stalled(12 * time.Second),
}

// stalled loses what the clients send for 0.6 T, lets the backlog be answered, and
// stops the server.
func stalled(timeout time.Duration) cut {
	return cut{
		name:     fmt.Sprintf("uplink stalled for 0.6 T of %v, then server stopped", timeout),
		timeouts: []time.Duration{timeout},
		do: func(ctx context.Context, s *zkcluster.Server) error {
			if err := s.StallUplink(ctx); err != nil {
				return err
			}
			time.Sleep(6 * timeout / 10)
			if err := s.HealClients(ctx); err != nil {
				return err
			}
			// The kernel sends the backlog again within its retransmission time, which
			// has grown to about as long as the stall so far.
			time.Sleep(timeout / 10)
			return s.Pause(ctx)
		},
	}
}

// F6, F7 and F7a.
func TestHolderStepsDownBeforeItsNodeGoes(t *testing.T) { //nolint:tparallel // other tests break the same servers
	onBothVersions(t, stepDown)
}

func stepDown(t *testing.T, on *zkcluster.Shared) {
	t.Helper()
	for round := range zkcluster.Repeat(t) {
		for _, c := range cuts {
			t.Run(fmt.Sprintf("%s/%d", c.name, round), func(t *testing.T) {
				least := time.Hour
				version := versionOf(t, on.Get(t))
				var leads []time.Duration
				samples := c.run(t, on)
				if round == 0 {
					drawSamples(t, c.name, version, samples[:len(c.timeouts)])
				}
				for _, s := range samples {
					leads = append(leads, s.lead())
					t.Logf("T = %-3v lead %v", s.timeout, s.lead().Round(time.Millisecond))
					least = min(least, s.lead())
					if s.lead() < 0 {
						t.Errorf("T = %v: the node was gone %v before the holder's context ended", s.timeout, -s.lead())
					}
					if !errors.Is(s.awaited, zklock.ErrLost) {
						t.Errorf("T = %v: Await said %v after the context had ended", s.timeout, s.awaited)
					}
					if !s.next.IsZero() && !s.canceled.Before(s.next) {
						t.Errorf("T = %v: the next holder had the lock %v before this one's context ended", s.timeout, s.canceled.Sub(s.next))
					}
				}
				t.Logf("least lead: %v", least.Round(time.Millisecond))
				figures.Record(t, c.name, version, figures.Lead, leads...)
			})
		}
	}
}

// drawSamples shows when holders ended their work, and when the next ones had their locks.
func drawSamples(t *testing.T, name, version string, samples []*sample) {
	t.Helper()
	const around = 3 * time.Second
	var rows []string
	var bars []figures.Bar
	end := time.Duration(0)
	for i, s := range samples {
		at := func(moment time.Time) time.Duration { return moment.Sub(s.fault) }
		rows = append(rows, fmt.Sprintf("T = %v", s.timeout))
		from, doubted := max(at(s.begun), -around), at(s.canceled)
		if moment := s.doubted.Load(); moment != nil {
			doubted = at(*moment)
		}
		bars = append(bars,
			figures.Bar{Row: i, From: from, Till: doubted, State: figures.Holds},
			figures.Bar{Row: i, From: doubted, Till: at(s.canceled), State: figures.Doubts},
			figures.Bar{Row: i, From: at(s.next), Till: at(s.next) + around, State: figures.Rival})
		end = max(end, at(s.next)+around)
	}
	bars = append(bars, figures.Bar{From: 0, Till: end, State: figures.Faulted})
	file := "stepdown-" + version + "-" + strings.NewReplacer(" ", "-", ",", "", "'", "", ".", "").Replace(name)
	figures.Timeline(t, file, name+", ZooKeeper "+version, rows, bars)
}

// Without proofs by quorum writes a holder whose server is cut off must be seen to
// overlap; otherwise the test above proves nothing.
func TestControlTrustConnectionOverlaps(t *testing.T) {
	c := cuts[0]
	c.trust = zklock.TrustConnection
	overlaps := 0
	for _, s := range c.run(t, ensemble) {
		t.Logf("T = %-3v lead %v, still Held when the node was gone: %v", s.timeout, s.lead().Round(time.Millisecond), s.held)
		if s.held {
			overlaps++
		}
	}
	if overlaps == 0 {
		t.Error("no overlap: the cut does not do what the test above needs")
	}
}

// A rule that trusts a session until T after its last committed write, without going
// back to what the leader has heard, must be seen to be late for the first lease of
// an idle client. The create was sent after begun, so that rule's deadline is begun +
// T − T/100 at the earliest.
func TestControlUnanchoredRuleIsLate(t *testing.T) {
	c := cuts[3]
	// A leader rounds an expiry up to the next tick. That hides how old its knowledge of a session is,
	// unless there was a tick between the last it heard and the create, and T/100 has gone by since.
	c.afterTick = 100 * time.Millisecond
	// It asks its followers at a moment of each half tick that is its own. One that asks right after the
	// tick has heard of the clients since, so another may have to take over.
	const leaders = 3
	for range leaders {
		late := 0
		for _, s := range c.run(t, ensemble) {
			unanchored := s.begun.Add(s.timeout - s.timeout/100)
			t.Logf("T = %-3v the unanchored rule's deadline is %v after the node went; ours was %v before", s.timeout,
				unanchored.Sub(s.gone).Round(time.Millisecond), s.lead().Round(time.Millisecond))
			if unanchored.After(s.gone) {
				late++
			}
		}
		if late > 0 {
			return
		}
		cluster := ensemble.Get(t) // heals the servers
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		must(t, "restart", cluster.RollingRestart(ctx))
		cancel()
	}
	t.Error("the unanchored rule was not late: the case does not test the anchor")
}
