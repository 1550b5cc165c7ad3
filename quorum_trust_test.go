package zklock

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zklock/zklock/zktest"
)

// A server that is cut off from the others answers pings for up to ten seconds,
// and one that has stopped has not passed on what it heard last.

// cutOff cuts a holder's server off from its peers and returns how long before the
// node's end the context ended, and the client's states.
func cutOff(t *testing.T, timeout, phase time.Duration, trust TrustMode) (lead time.Duration, suspended time.Duration) {
	inEnsemble(t, 3, func(g *group) {
		t := g.t
		f, _ := g.follower()
		c := g.connect(pinned(f, "holder"), withTimeout(timeout), withTrust(trust))
		states := logStates(c)
		l := g.acquire(g.mutex(c, "/dedup/a"))
		ended := endOf(l)
		time.Sleep(timeout + phase)
		start := time.Now()
		f.CutFromPeers()
		gone := deletedAt(t, g.hist, 3*timeout, l.Path())
		if trust == TrustConnection && l.State() == LeaseHeld {
			lead = -1 // an overlap; how long it lasts does not matter
		}
		lost := within(t, 3*timeout, ended, "the context")
		if lead == 0 {
			lead = gone.Sub(lost)
		}
		if at := states.first(Suspended, start); !at.IsZero() {
			suspended = at.Sub(start)
		}
	})
	return lead, suspended
}

func TestServerCutFromItsPeersEndsTheContextBeforeTheNode(t *testing.T) {
	for _, timeout := range []time.Duration{6 * time.Second, 12 * time.Second} {
		t.Run(timeout.String(), func(t *testing.T) {
			var all leads
			for phase := range 8 {
				lead, suspended := cutOff(t, timeout, time.Duration(phase)*heartbeat(timeout)/8, TrustQuorum)
				all.add(t, fmt.Sprint("phase ", phase), lead)
				if limit := 2*heartbeat(timeout) + roundTrip; suspended == 0 || suspended > limit {
					t.Errorf("phase %d: suspended after %v, want at most %v", phase, suspended, limit)
				}
			}
			t.Logf("%d cuts, least lead %v", all.n, all.least)
		})
	}
}

// The control: without a quorum's word the lease says held while the node is gone.
// If this stops failing, the test above shows nothing.
func TestTrustConnectionOverlapsWhenTheServerIsCutOff(t *testing.T) {
	if lead, _ := cutOff(t, 6*time.Second, 0, TrustConnection); lead >= 0 {
		t.Errorf("no overlap, a lead of %v", lead)
	}
}

// margins is one fault under the rule in use and under the simpler one.
type margins struct {
	lead      time.Duration // of the context
	untrusted time.Duration // by how much "last acknowledged proof + T" is before the node's end
}

// stopAfterFirstCreate stops a follower right after the first create of a client
// that had nothing to prove before.
func stopAfterFirstCreate(t *testing.T, timeout, idle time.Duration) (s margins) {
	inEnsemble(t, 3, func(g *group) {
		t := g.t
		f, _ := g.follower()
		var tp tap
		c := g.connect(pinned(f, "holder"), withTimeout(timeout), tp.into)
		if err := g.ens.Servers()[0].Create("/dedup", nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(timeout + idle)
		l := g.acquire(g.mutex(c, "/dedup/a"))
		f.Pause()
		s.measure(g, l, &tp, timeout)
	})
	return s
}

// measure waits until the lease and its node are gone.
func (s *margins) measure(g *group, l *Lease, tp *tap, timeout time.Duration) {
	lost := within(g.t, 3*timeout, endOf(l), "the context")
	gone := deletedAt(g.t, g.hist, 3*timeout, l.Path())
	s.lead = gone.Sub(lost)
	s.untrusted = gone.Sub(tp.proof().Add(timeout))
}

func TestServerStoppedAfterTheFirstCreateEndsTheContextBeforeTheNode(t *testing.T) {
	const timeout = 30 * time.Second
	var all leads
	late := 0
	for phase := range 16 {
		s := stopAfterFirstCreate(t, timeout, time.Duration(phase)*heartbeat(timeout)/16)
		all.add(t, fmt.Sprint("phase ", phase), s.lead)
		if s.untrusted < 0 {
			late++
		}
	}
	t.Logf("%d stops, least lead %v; the time of the last proof plus T was after the node's end in %d", all.n, all.least, late)
	if late == 0 {
		t.Error("the rule without an anchor would have done: this shows nothing")
	}
}

// stall keeps what the client sends from a follower for a while, lets it through,
// and then stops the follower.
func stall(t *testing.T, timeout, phase, stalled time.Duration) (s margins) {
	inEnsemble(t, 3, func(g *group) {
		f, _ := g.follower()
		var tp tap
		c := g.connect(pinned(f, "holder"), withTimeout(timeout), tp.into)
		l := g.acquire(g.mutex(c, "/dedup/a"))
		time.Sleep(timeout + phase)
		hole := f.Inject(zktest.Blackhole(zktest.ClientToServer).Client("holder"))
		time.Sleep(stalled)
		hole.Heal()
		time.Sleep(2 * roundTrip) // the backlog is answered
		f.Pause()
		s.measure(g, l, &tp, timeout)
	})
	return s
}

func TestStalledUplinkAndAStopEndTheContextBeforeTheNode(t *testing.T) {
	var all leads
	for _, timeout := range []time.Duration{6 * time.Second, 12 * time.Second, 30 * time.Second} {
		for _, stalled := range []time.Duration{timeout * 3 / 10, timeout * 6 / 10} {
			for phase := range 4 {
				s := stall(t, timeout, time.Duration(phase)*heartbeat(timeout)/4, stalled)
				all.add(t, fmt.Sprintf("T %v, stalled for %v, phase %d", timeout, stalled, phase), s.lead)
			}
		}
	}
	t.Logf("%d stops, least lead %v", all.n, all.least)
}

func TestHolderMovesOverFromACutOffServer(t *testing.T) {
	const timeout = 12 * time.Second
	h := heartbeat(timeout)
	var slowest time.Duration
	for phase := range 8 {
		inEnsemble(t, 3, func(g *group) {
			t := g.t
			f, _ := g.follower()
			var roam atomic.Bool
			c := g.connect(g.startingAt(f, "holder", &roam), withTimeout(timeout))
			roam.Store(true)
			states := logStates(c)
			l := g.acquire(g.mutex(c, "/dedup/a"))
			path, token, id := l.Path(), l.Token(), c.SessionID()
			time.Sleep(timeout + time.Duration(phase)*h/8)

			start := time.Now()
			f.CutFromPeers()
			for l.State() == LeaseHeld {
				time.Sleep(h / 100)
			}
			if got := l.State(); got != LeaseSuspended {
				t.Fatalf("phase %d: state %v, want suspended", phase, got)
			}
			blocked := time.Now()
			if err := l.Await(t.Context()); err != nil {
				t.Fatalf("phase %d: Await: %v", phase, err)
			}
			if time.Now().Equal(blocked) {
				t.Errorf("phase %d: Await did not wait", phase)
			}
			// The first proof after the cut goes out within H and is given 2H.
			moved := time.Since(start)
			slowest = max(slowest, moved)
			if limit := 3*h + 10*roundTrip; moved > limit {
				t.Errorf("phase %d: moved over after %v, want at most %v", phase, moved, limit)
			}
			if at := states.first(Suspended, start); at.Sub(start) > 2*h+roundTrip {
				t.Errorf("phase %d: suspended after %v", phase, at.Sub(start))
			}
			if l.Path() != path || l.Token() != token || c.SessionID() != id {
				t.Errorf("phase %d: %s %s %s became %s %s %s", phase, path, token, hexID(id), l.Path(), l.Token(), hexID(c.SessionID()))
			}
			if err := l.Verify(t.Context()); err != nil {
				t.Errorf("phase %d: Verify: %v", phase, err)
			}
			if context.Cause(l.Context()) != nil || states.count(Lost) > 0 || states.count(Reconnected) != 1 {
				t.Errorf("phase %d: cause %v, states %v", phase, context.Cause(l.Context()), states)
			}
			time.Sleep(2 * timeout)
			g.release(l)
		})
	}
	t.Logf("moved over after at most %v", slowest)
}
