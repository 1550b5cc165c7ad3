package zklock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock/zktest"
)

// The third in the line of a process gets its node in the transaction that deletes the
// first one's. Whatever becomes of that transaction, the first one's node has to go, and
// the third has to come to a node of its own.

// three is a line of three callers of one process on one mutex.
type three struct {
	c           *Client
	m           *InterProcessMutex
	first       *Lease
	second      <-chan result
	third       <-chan result
	cancelThird context.CancelCauseFunc
}

func (b *bundle) three(opts ...func(*Config)) *three {
	b.t.Helper()
	c := b.connect(append([]func(*Config){pinned(b.srv, "c")}, opts...)...)
	m := b.mutex(c, "/dedup/a")
	b.release(b.acquire(m))
	return b.threeOn(m)
}

func (b *bundle) threeOn(m *InterProcessMutex) *three {
	b.t.Helper()
	l := &three{c: m.c, m: m, first: b.acquire(m)}
	l.second = acquireAsync(b.t.Context(), m)
	b.awaitNodes(m.full, 2)
	time.Sleep(oneWay) // until it hears of its node, in virtual time: only the server's answer would tell
	ctx, cancel := context.WithCancelCause(b.t.Context())
	l.third, l.cancelThird = acquireAsync(ctx, m), cancel
	synctest.Wait()
	return l
}

// rest lets the second and the third have their turns, and checks that nothing is left.
func (l *three) rest(b *bundle) {
	t := b.t
	t.Helper()
	second := granted(t, time.Minute, l.second, "the second")
	b.release(second)
	third := granted(t, time.Minute, l.third, "the third")
	if st, err := b.srv.Stat(third.Path()); err != nil || Token(st.Czxid) != third.Token() || st.EphemeralOwner != l.c.SessionID() {
		t.Errorf("the third has token %s, and its node is %+v, %v", third.Token(), st, err)
	}
	if nodes := b.nodes(l.m.full); len(nodes) != 1 {
		t.Errorf("nodes %v, want the third's only", nodes)
	}
	if third.Token() <= second.Token() {
		t.Errorf("token %s after %s", third.Token(), second.Token())
	}
	b.release(third)
	b.atRest(l.m.full)
}

// anew lets both have their turns who queue anew on the next session, in any order, and
// checks that nothing is left.
func (l *three) anew(b *bundle) {
	t := b.t
	t.Helper()
	for range 2 {
		var r result
		select {
		case r = <-l.second:
		case r = <-l.third:
		case <-time.After(time.Minute):
			t.Fatal("nobody goes on")
		}
		if r.err != nil {
			t.Fatal(r.err)
		}
		if st, err := b.srv.Stat(r.l.Path()); err != nil || st.EphemeralOwner != l.c.SessionID() {
			t.Errorf("a lease on %+v, %v; the session is %#x", st, err, l.c.SessionID())
		}
		b.release(r.l)
	}
	b.atRest("/dedup/a")
}

func TestThirdInLineGetsItsNodeWithTheDelete(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		l := b.three()
		b.srv.Ops().Reset()
		b.release(l.first)
		second := granted(t, time.Nanosecond, l.second, "the second")
		if got, want := requests(b.srv.Ops().Counts()), requests(zktest.Counts{ByOp: map[zktest.Op]int{
			zktest.OpMulti: 1, zktest.OpGetChildren2: 1,
		}}); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		ps, err := l.m.Participants(t.Context())
		if err != nil || len(ps) != 2 || ps[1].Identifier != ps[0].Identifier || ps[1].SessionID != l.c.SessionID() {
			t.Errorf("participants %+v, %v", ps, err)
		}
		b.release(second)
		third := granted(t, time.Nanosecond, l.third, "the third")
		if third.Token() != ps[1].Token || third.Path() != ps[1].Path {
			t.Errorf("the third has %s and token %s, want the node that was made for it, %+v", third.Path(), third.Token(), ps[1])
		}
		b.release(third)
		b.atRest("/dedup/a")
	})
}

func TestJoiningThatIsNotAnswered(t *testing.T) {
	for name, fault := range multiUnanswered {
		t.Run(name, func(t *testing.T) {
			var hist zktest.History
			inBubble(t, func(b *bundle) {
				t := b.t
				l := b.three()
				made := lockCreates(&hist, "/dedup/a")
				lost := b.srv.Inject(fault())
				b.release(l.first)
				if lost.Hits() != 1 {
					t.Errorf("%d transactions were lost, want one", lost.Hits())
				}
				l.rest(b)
				if n := lockCreates(&hist, "/dedup/a") - made; n != 1 {
					t.Errorf("%d nodes were made for the third, want one", n)
				}
			}, withHistory(&hist))
		})
	}
}

// A caller gives up while the transaction that has its create is under way, at every
// point of the way.
func TestCallerThatGivesUpWhileItJoinsLeavesNothing(t *testing.T) {
	cause := errors.New("no more")
	for _, after := range []time.Duration{0, time.Nanosecond, oneWay, oneWay + time.Nanosecond, roundTrip, roundTrip + time.Nanosecond, 3 * roundTrip} {
		for name, faults := range map[string]func() []*zktest.Fault{
			"in time":  func() []*zktest.Fault { return nil },
			"late":     func() []*zktest.Fault { return []*zktest.Fault{zktest.DelayReply(20*oneWay, zktest.OpMulti)} },
			"no reply": func() []*zktest.Fault { return []*zktest.Fault{zktest.DropReply(zktest.OpMulti)} },
		} {
			t.Run(fmt.Sprint(name, " ", after), func(t *testing.T) {
				inBubble(t, func(b *bundle) {
					t := b.t
					l := b.three()
					for _, f := range faults() {
						b.srv.Inject(f)
					}
					released := make(chan error, 1)
					go func() { released <- l.first.Release(t.Context()) }()
					time.Sleep(after)
					l.cancelThird(cause)
					if r := within(t, time.Nanosecond, l.third, "the third"); !errors.Is(r.err, cause) || !errors.Is(r.err, ErrNotAcquired) {
						t.Errorf("the third: %+v", r)
					}
					if err := within(t, time.Minute, released, "the release"); err != nil {
						t.Errorf("Release: %v", err)
					}
					b.release(granted(t, time.Minute, l.second, "the second"))
					b.atRest("/dedup/a")
				})
			})
		}
	}
}

// Somebody else has deleted the first one's node, so the transaction fails. The release
// tells, and the third makes its node itself.
func TestJoiningBesideANodeThatIsGone(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		l := b.three()
		if err := b.srv.Delete(l.first.Path()); err != nil {
			t.Fatal(err)
		}
		var lost *LostError
		if err := l.first.Release(t.Context()); !errors.As(err, &lost) || lost.Reason != NodeDeleted {
			t.Errorf("Release: %v, want lost, %v", err, NodeDeleted)
		}
		l.rest(b)
	})
}

// Whoever may delete and not create: the release goes through all the same, and the third
// is told.
func TestJoiningThatIsRefusedHoldsNoReleaseUp(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		l := b.three()
		if _, err := l.c.Conn().SetACL("/dedup/a", zk.WorldACL(zk.PermAll&^zk.PermCreate), -1); err != nil {
			t.Fatal(err)
		}
		b.release(l.first)
		if r := within(t, time.Second, l.third, "the third"); !errors.Is(r.err, zk.ErrNoAuth) {
			t.Errorf("the third: %+v, want %v", r, zk.ErrNoAuth)
		}
		b.release(granted(t, time.Second, l.second, "the second"))
		b.atRest("/dedup/a")
	})
}

// The session ends while the transaction is under way. Both who wait go on with the next.
func TestJoiningOnASessionThatExpires(t *testing.T) {
	for _, applied := range []bool{true, false} {
		t.Run(fmt.Sprint("applied ", applied), func(t *testing.T) {
			inBubble(t, func(b *bundle) {
				t := b.t
				l := b.three()
				fault := zktest.DropRequest(zktest.OpMulti)
				if applied {
					fault = zktest.DropReply(zktest.OpMulti)
				}
				lost := b.srv.Inject(fault.Silent())
				released := make(chan error, 1)
				go func() { released <- l.first.Release(t.Context()) }()
				<-lost.Hit()
				b.srv.Expire(l.c.SessionID())
				if err := within(t, time.Minute, released, "the release"); err != nil {
					t.Errorf("Release: %v", err)
				}
				l.anew(b)
			})
		})
	}
}

// A caller gives up when its create is ready to go along, and before it has gone.
func TestCallerThatGivesUpBeforeItsCreateIsSentLeavesNothing(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		var l *three
		sent := false
		l = b.three(func(cfg *Config) {
			dial := cfg.Dial
			cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := dial(ctx, network, address)
				return &odd{conn, func(frame []byte) {
					if op, ok := frameTxn(frame); ok && op == zktest.OpDelete {
						sent = true
						l.cancelThird(context.Canceled)
						if r := <-l.third; !errors.Is(r.err, context.Canceled) {
							t.Errorf("the third: %+v", r)
						}
					}
				}}, err
			}
		})
		b.release(l.first)
		if !sent {
			t.Error("no create went along with the delete")
		}
		b.release(granted(t, time.Minute, l.second, "the second"))
		b.atRest("/dedup/a")
	})
}

// The session is lost when the create has been carried out and the third has not looked
// yet: the node is the old session's, and no lease may rest on it.
func TestNodeThatJoinedOnALostSessionIsNotTaken(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		l := b.three()
		s := l.c.session()
		if err := l.c.remove(t.Context(), s, l.first.Path(), l.first.hold.ticket.third(s)); err != nil {
			t.Fatal(err)
		}
		s.lose(TrustExpired, errors.New("lost by the test"))
		l.anew(b)
	})
}

// The transaction could not be sent after all. The third makes its node itself.
func TestJoiningThatIsNotSent(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		l := b.three()
		s := l.c.session()
		j := l.first.hold.ticket.third(s)
		if j == nil {
			t.Fatal("no create is ready")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := l.c.remove(ctx, s, l.first.Path(), j); !errors.Is(err, errNotSent) {
			t.Fatalf("remove: %v, want %v", err, errNotSent)
		}
		b.release(l.first)
		l.rest(b)
	})
}

// What is expected of an answer is forgotten with it, also if the third has left.
func TestJoiningLeavesNothingExpected(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		inBubble(t, func(b *bundle) {
			t := b.t
			l := b.three()
			s := l.c.session()
			j := l.first.hold.ticket.third(s)
			if leaves {
				l.cancelThird(context.Canceled)
				<-l.third
			}
			if err := l.c.remove(t.Context(), s, l.first.Path(), j); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			s.mu.Lock()
			n := len(s.creates)
			s.mu.Unlock()
			if n != 0 {
				t.Errorf("%d creates are expected", n)
			}
			_ = l.first.Release(t.Context()) // the node has gone without it
			b.release(granted(t, time.Minute, l.second, "the second"))
			if !leaves {
				b.release(granted(t, time.Minute, l.third, "the third"))
			}
			b.atRest("/dedup/a")
		})
	}
}

// A waiter on a record, whose node is not made by it, must not take the missing node of
// the first one for a record that is not there.
func TestJoiningInsideARecordBesideANodeThatIsGone(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		for _, p := range []string{"/dedup", "/dedup/a"} {
			if err := b.srv.Create(p, nil); err != nil {
				t.Fatal(err)
			}
		}
		l := b.threeOn(b.connect(pinned(b.srv, "c")).mutexAt("/dedup/a"))
		if err := b.srv.Delete(l.first.Path()); err != nil {
			t.Fatal(err)
		}
		if err := l.first.Release(t.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("Release: %v", err)
		}
		l.rest(b)
	})
}

// Only a third without a node, and without one under way, gets it with a delete.
func TestWhoHasANodeIsNotGivenAnother(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		l := b.three()
		s := l.c.session()
		// Somebody with a node goes before all: the third is then one who has a node.
		n, err := s.madeNode(l.first.Path(), l.first.Token())
		if err != nil {
			t.Fatal(err)
		}
		head := l.c.enqueueFirst("/dedup/a", &n.contender)
		if j := head.third(s); j != nil {
			t.Errorf("%s would be made", j.create.Path)
		}
		head.leave()
		if j := l.first.hold.ticket.third(s); j == nil {
			t.Error("nothing would be made for the third")
		} else if again := l.first.hold.ticket.third(s); again != nil {
			t.Errorf("%s would be made too", again.create.Path)
		} else {
			j.answer <- made{err: errAbsent} // as remove does with what is not sent
		}
		b.release(l.first)
		l.rest(b)
	})
}

// What fits into a request by itself need not fit together.
func TestLongPathsNextToTheLimitOfARequest(t *testing.T) {
	inBubble(t, func(b *bundle) {
		p := "/" + strings.Repeat("k", 2000)
		c := b.connect(pinned(b.srv, "c"), func(cfg *Config) { cfg.MaxBuffer = 4096 })
		l := b.threeOn(b.mutex(c, p)) // the path is made for the first
		b.release(l.first)
		l.rest(b)
	})
}

// Two of a line have their nodes in the other order, behind one who came to his in a
// transaction of dedup's. When he leaves, the earlier node goes first; else each of the
// two would wait for the other.
func TestLineBehindAClaimFollowsTheEnsemble(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		c := b.connect()
		node := func(seq int) *contender {
			n, ok := parseContender(fmt.Sprintf("_c_00000000-0000-0000-0000-000000000000-lock-%010d", seq))
			if !ok {
				t.Fatal(seq)
			}
			return &n
		}
		first, second := c.enqueue("/dedup/a", false, nil), c.enqueue("/dedup/a", false, nil)
		claim := c.enqueueFirst("/dedup/a", node(1))
		first.standsWith(node(3))
		second.standsWith(node(2))
		if isOpen(second.turn) {
			t.Error("the second goes before the claim")
		}
		claim.leave()
		if !isOpen(second.turn) {
			t.Error("the one with the earlier node waits for the one with the later")
		}
		second.leave()
		first.leave()
	})
}
