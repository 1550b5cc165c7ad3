package zklock

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-zklock/zklock/zktest"
)

// A leader that was stopped for seconds goes on with the requests that piled up before
// it hears what its followers have to report, and a follower that is cut off from it
// in that very moment never reports. Reads and pings were answered all the while.

// leaderStop is one such run.
type leaderStop struct {
	holds  bool          // the client holds a lease before; otherwise it is idle
	before time.Duration // how long before the leader goes on a create is sent
	cut    time.Duration // how long after that the client's server is cut off
}

// run adds by how much the contexts of the client's leases ended before their nodes
// did; answered says whether the create was.
func (r leaderStop) run(t *testing.T, all *leads) (answered bool) {
	const timeout, stopped = 20 * time.Second, 8 * time.Second
	inEnsemble(t, 3, func(g *group) {
		t := g.t
		f, _ := g.follower()
		leader := g.ens.Leader()
		c := g.connect(pinned(f, "holder"), withTimeout(timeout))
		if err := g.ens.Servers()[0].Create("/dedup", nil); err != nil {
			t.Fatal(err)
		}
		g.release(g.acquire(g.mutex(c, "/dedup/a")))
		var leases []*Lease
		if r.holds {
			leases = append(leases, g.acquire(g.mutex(c, "/dedup/held")))
		}
		time.Sleep(timeout)
		// Right behind a proof, or a sync: the answer to the next one waits for the leader,
		// and the answers to all that follows wait for that one.
		time.Sleep(time.Until(nextBeat(c)) + 10*roundTrip)
		leader.Pause()
		resume := time.Now().Add(stopped)
		for time.Until(nextBeat(c)) > 100*time.Millisecond {
			if _, _, err := c.Conn().Exists("/dedup"); err != nil { // a touch
				t.Fatalf("a read while the leader is stopped: %v", err)
			}
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(time.Until(resume) - r.before)
		acquired := acquireAsync(t.Context(), g.mutex(c, "/dedup/a"))
		time.Sleep(time.Until(resume))
		leader.Resume()
		time.Sleep(r.cut)
		f.CutFromPeers()
		time.Sleep(10 * roundTrip)
		select {
		case got := <-acquired:
			if got.err != nil {
				t.Fatalf("Acquire: %v", got.err)
			}
			leases = append(leases, got.l)
			answered = true
		default:
			// The commit did not get through. Cleaned up with the client.
		}
		var ends []<-chan time.Time
		for _, l := range leases {
			ends = append(ends, endOf(l))
		}
		for i, l := range leases {
			lost := within(t, 3*timeout, ends[i], "the context")
			all.add(t, fmt.Sprintf("%+v", r), deletedAt(t, g.hist, 3*timeout, l.Path()).Sub(lost))
		}
	}, func(c *zktest.Config) { c.PeerLatency = time.Millisecond })
	return answered
}

func TestLeaderThatWasStoppedEndsTheContextBeforeTheNode(t *testing.T) {
	var all leads
	stops, answers := 0, 0
	for _, holds := range []bool{false, true} {
		for _, before := range []time.Duration{100 * time.Millisecond, 600 * time.Millisecond, 1100 * time.Millisecond, 1990 * time.Millisecond} {
			for cut := time.Duration(0); cut <= 3*time.Millisecond; cut += 500 * time.Microsecond {
				stops++
				if (leaderStop{holds, before, cut}).run(t, &all) {
					answers++
				}
			}
		}
	}
	t.Logf("%d stops, %d creates answered, %d leases, least lead %v", stops, answers, all.n, all.least)
	if answers < stops/2 {
		t.Errorf("%d of %d creates were answered", answers, stops)
	}
}
