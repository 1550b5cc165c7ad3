package zklock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zklock/zklock/zktest"
)

// A request that was carried out and whose reply was lost. The client has to find
// out what came of it, and nothing may be left that nobody knows of.

// atRest checks that no lock node and no watch is left.
func (b *bundle) atRest(path string) {
	b.t.Helper()
	time.Sleep(5 * roundTrip)
	synctest.Wait()
	if nodes := b.nodes(path); len(nodes) != 0 {
		b.t.Errorf("left behind: %v", nodes)
	}
	if watched := b.srv.WatchedPaths(); len(watched) != 0 {
		b.t.Errorf("watches left on %v", watched)
	}
}

func TestCreateWhoseReplyIsLostIsFoundByItsUUID(t *testing.T) {
	for name, fault := range map[string]func() *zktest.Fault{
		"no reply":     func() *zktest.Fault { return zktest.DropReply(zktest.OpCreate) },
		"half a reply": func() *zktest.Fault { return zktest.HalfReply(zktest.OpCreate) },
		"silence":      func() *zktest.Fault { return zktest.DropReply(zktest.OpCreate).Silent() },
	} {
		for _, contended := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, contended %v", name, contended), func(t *testing.T) {
				var hist zktest.History
				inBubble(t, func(b *bundle) {
					t := b.t
					c := b.connect(pinned(b.srv, "c"))
					id := c.SessionID()
					m := b.mutex(c, "/dedup/a")
					b.release(b.acquire(m))
					var holder *Lease
					if contended {
						holder = b.acquire(b.mutex(b.connect(pinned(b.srv, "holder")), "/dedup/a"))
					}
					made := lockCreates(&hist, "/dedup/a")
					lost := b.srv.Inject(fault().Client("c").Path("/dedup/a/"))
					got := acquireAsync(t.Context(), m)
					<-lost.Hit()
					time.Sleep(6 * time.Second)
					if contended {
						notYet(t, got, "the waiter")
						b.release(holder)
					}
					// Silence costs a ping, the client's patience of 2H with it, and a dial.
					l := granted(t, c.SessionTimeout(), got, "the acquire")
					if nodes := b.nodes("/dedup/a"); len(nodes) != 1 || "/dedup/a/"+nodes[0] != l.Path() {
						t.Errorf("nodes %v, want only %s", nodes, l.Path())
					}
					if n := lockCreates(&hist, "/dedup/a") - made; n != 1 {
						t.Errorf("%d nodes were made, want one", n)
					}
					if st, err := b.srv.Stat(l.Path()); err != nil || Token(st.Czxid) != l.Token() || st.EphemeralOwner != id {
						t.Errorf("token %s, node %+v, %v", l.Token(), st, err)
					}
					if c.SessionID() != id {
						t.Error("the session did not survive")
					}
					b.release(l)
					b.atRest("/dedup/a")
				}, withHistory(&hist))
			})
		}
	}
}

// The search runs on a server that has not seen the create yet.
func TestCreateWhoseReplyIsLostIsFoundOnAServerThatLags(t *testing.T) {
	inEnsemble(t, 3, func(g *group) {
		t := g.t
		f, others := g.follower()
		var roam atomic.Bool
		c := g.connect(g.startingAt(f, "c", &roam))
		m := g.mutex(c, "/dedup/a")
		g.release(g.acquire(m))
		roam.Store(true)
		for _, s := range others {
			s.SetLag(500 * time.Millisecond) // the leader has no lag, whatever it is set to
		}
		g.ens.Leader().Refuse(true)
		f.Refuse(true)
		made := lockCreates(g.hist, "/dedup/a")
		f.Inject(zktest.DropReply(zktest.OpCreate))
		l := g.acquire(m)
		if n := lockCreates(g.hist, "/dedup/a") - made; n != 1 {
			t.Errorf("%d nodes were made, want one", n)
		}
		if names := g.ens.Leader().Children("/dedup/a"); len(names) != 1 || "/dedup/a/"+names[0] != l.Path() {
			t.Errorf("nodes %v, want only %s", names, l.Path())
		}
		g.release(l)
		if names := g.ens.Leader().Children("/dedup/a"); len(names) != 0 {
			t.Errorf("left behind: %v", names)
		}
		g.ens.Leader().Refuse(false)
		f.Refuse(false)
	})
}

func TestCreateAndSearchWhoseRepliesAreLostLeaveNoOrphan(t *testing.T) {
	for _, op := range []zktest.Op{zktest.OpSync, zktest.OpGetChildren2, zktest.OpGetData} {
		for times := 1; times <= 3; times++ {
			for _, quits := range []bool{false, true} {
				t.Run(fmt.Sprintf("%v, %d times, caller quits %v", op, times, quits), func(t *testing.T) {
					// A loop without a pause keeps virtual time from going on: real time ends it.
					spins := time.AfterFunc(20*time.Second, func() { panic("something spins while the create is settled") })
					defer spins.Stop()
					var hist zktest.History
					inBubble(t, func(b *bundle) {
						t := b.t
						c := b.connect(pinned(b.srv, "c"))
						m := b.mutex(c, "/dedup/a")
						b.release(b.acquire(m))
						made := lockCreates(&hist, "/dedup/a")
						b.srv.Inject(zktest.DropReply(zktest.OpCreate).Client("c"))
						search := b.srv.Inject(zktest.DropReply(op).Client("c").Times(times))
						ctx, cancel := context.WithCancel(t.Context())
						defer cancel()
						got := acquireAsync(ctx, m)
						<-search.Hit()
						if quits {
							cancel()
							if r := <-got; !errors.Is(r.err, context.Canceled) {
								t.Fatalf("error %v", r.err)
							}
							time.Sleep(c.SessionTimeout())
						} else {
							l := granted(t, time.Minute, got, "the acquire")
							if n := len(b.nodes("/dedup/a")); n != 1 {
								t.Errorf("%d nodes while one is held", n)
							}
							b.release(l)
						}
						if n := lockCreates(&hist, "/dedup/a") - made; n != 1 {
							t.Errorf("%d nodes were made, want one", n)
						}
						b.atRest("/dedup/a")
						b.release(b.acquire(m))
					}, withHistory(&hist))
				})
			}
		}
	}
}

// The create did not arrive at all: a second one is made, and only one counts.
func TestCreateThatIsLostIsSentAgain(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect(pinned(b.srv, "c"))
		m := b.mutex(c, "/dedup/a")
		b.release(b.acquire(m))
		b.srv.Inject(zktest.DropRequest(zktest.OpCreate).Client("c").Times(3))
		l := b.acquire(m)
		if n := len(b.nodes("/dedup/a")); n != 1 {
			t.Errorf("%d nodes while one is held", n)
		}
		b.release(l)
		b.atRest("/dedup/a")
	})
}

// The create arrives late: the caller has gone, and a second client has the lock.
func TestCreateOfACallerThatHasGoneIsDeletedWhenItArrives(t *testing.T) {
	var hist zktest.History
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect(pinned(b.srv, "c"))
		m := b.mutex(c, "/dedup/a")
		b.release(b.acquire(m))
		made := lockCreates(&hist, "/dedup/a")
		b.srv.Inject(zktest.DelayRequest(2*time.Second, zktest.OpCreate).Client("c"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := m.Acquire(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("error %v", err)
		}
		l := b.acquire(b.mutex(b.connect(pinned(b.srv, "other")), "/dedup/a"))
		for range 1000 {
			if lockCreates(&hist, "/dedup/a") == made+2 {
				break
			}
			time.Sleep(oneWay)
		}
		late := nodeOf(&hist, "/dedup/a", made+1)
		madeAt, ok := hist.Find(zktest.Creates(late))
		if !ok || late == l.Path() {
			t.Fatalf("the late create did not arrive; %q", late)
		}
		if d := deletedAt(t, &hist, time.Minute, late).Sub(madeAt.Time); d > roundTrip {
			t.Errorf("it was there for %v", d)
		}
		b.release(l)
		b.atRest("/dedup/a")
	}, withHistory(&hist))
}

func TestRepliesLostWhileWaitingLeaveNoOrphan(t *testing.T) {
	// Of the requests of one acquire: the listing, the watch on the predecessor, the
	// listing after it has gone, and the watch on the own node.
	for _, tc := range []struct {
		op  zktest.Op
		nth int
	}{
		{zktest.OpGetChildren2, 1}, {zktest.OpGetChildren2, 2},
		{zktest.OpGetData, 1}, {zktest.OpGetData, 2}, {zktest.OpDelete, 1},
	} {
		for times := 1; times <= 3; times++ {
			t.Run(fmt.Sprintf("%v %d, %d times", tc.op, tc.nth, times), func(t *testing.T) {
				inBubble(t, func(b *bundle) {
					t := b.t
					holder := b.acquire(b.mutex(b.connect(pinned(b.srv, "holder")), "/dedup/a"))
					c := b.connect(pinned(b.srv, "c"))
					id := c.SessionID()
					fault := b.srv.Inject(zktest.DropReply(tc.op).Client("c").Nth(tc.nth).Times(times))
					got := acquireAsync(t.Context(), b.mutex(c, "/dedup/a"))
					b.awaitNodes("/dedup/a", 2)
					time.Sleep(5 * time.Second)
					b.release(holder)
					l := granted(t, 5*time.Second, got, "the waiter")
					time.Sleep(5 * time.Second)
					if n := len(b.nodes("/dedup/a")); n != 1 || c.SessionID() != id {
						t.Errorf("%d nodes, session %s, was %s", n, hexID(c.SessionID()), hexID(id))
					}
					b.release(l) // a repeated delete that finds nothing is success
					if fault.Hits() != times {
						t.Errorf("the fault hit %d times, want %d", fault.Hits(), times)
					}
					b.atRest("/dedup/a")
				})
			})
		}
	}
}

// A create that is lost time and again is given up in the end, and the error says that
// and not that the parents are to blame.
func TestCreateThatIsAlwaysLostSaysSo(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		m := b.mutex(b.connect(pinned(b.srv, "c")), "/dedup/a")
		b.release(b.acquire(m))
		b.srv.Inject(zktest.DropRequest(zktest.OpCreate).Client("c").Always())
		_, err := m.Acquire(b.within(time.Hour))
		wantErr(t, err, ErrNotAcquired, "/dedup/a", "20 times the create was lost", "0 times the parents")
	})
}
