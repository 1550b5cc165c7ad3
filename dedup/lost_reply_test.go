package dedup_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/dedup/driver"
	"github.com/go-zklock/zklock/zktest"
)

// F12: the reply to the commit is lost. The record is read, the truth told, and the
// function not run again.
func TestCommitWhoseReplyIsLost(t *testing.T) {
	faults := map[string]func() *zktest.Fault{
		"reply":      func() *zktest.Fault { return zktest.DropReply(zktest.OpMulti) },
		"half reply": func() *zktest.Fault { return zktest.HalfReply(zktest.OpMulti) },
		"silence":    func() *zktest.Fault { return zktest.DropReply(zktest.OpMulti).Silent() },
		"request":    func() *zktest.Fault { return zktest.DropRequest(zktest.OpMulti) },
	}
	for name, fault := range faults {
		for times := 1; times <= 3; times++ {
			t.Run(fmt.Sprintf("%s, %d times", name, times), func(t *testing.T) {
				inBubble(t, func(b *bundle) {
					t := b.t
					p, q := b.start(), b.start()
					b.warm(p)
					id := p.client.SessionID()
					b.srv.Inject(fault().Client(p.name).Path("/dedup/k").Nth(2).Times(times))
					ran := 0
					r, err := p.do(t.Context(), "k", func(context.Context, *dedup.Claim) (string, error) { ran++; return "one", nil })
					if err != nil || r.Value != "one" || r.Replayed || ran != 1 {
						t.Errorf("%+v, %v, ran %d times", r, err, ran)
					}
					if again, err := q.do(t.Context(), "k", mustNotRun(t)); err != nil || again.Value != "one" || again.Token != r.Token {
						t.Errorf("%+v, %v", again, err)
					}
					if p.client.SessionID() != id {
						t.Error("the session did not survive")
					}
					b.atRest()
				})
			})
		}
	}
}

// The same with the session lost. A commit that was carried out is a success. One that
// was not can still be, as long as the claim's node is there; if it is not, nobody
// knows, and the record says so.
func TestCommitWhoseReplyAndSessionAreLost(t *testing.T) {
	for _, applied := range []bool{true, false} {
		t.Run(fmt.Sprintf("applied %v", applied), func(t *testing.T) {
			inBubble(t, func(b *bundle) {
				t := b.t
				p, q := b.start(), b.start()
				b.warm(p)
				fault := zktest.DropRequest(zktest.OpMulti)
				if applied {
					fault = zktest.DropReply(zktest.OpMulti)
				}
				lost := b.srv.Inject(fault.Client(p.name).Path("/dedup/k").Nth(2))
				go func() { <-lost.Hit(); b.srv.Expire(p.client.SessionID()) }()
				ran := 0
				r, err := p.do(t.Context(), "k", func(context.Context, *dedup.Claim) (string, error) { ran++; return "one", nil })
				if ran != 1 {
					t.Errorf("ran %d times", ran)
				}
				if applied {
					if err != nil || r.Value != "one" || r.Replayed {
						t.Errorf("%+v, %v", r, err)
					}
					if r, err := q.do(t.Context(), "k", mustNotRun(t)); err != nil || r.Value != "one" {
						t.Errorf("%+v, %v", r, err)
					}
					return
				}
				if !errors.Is(err, dedup.ErrIndeterminate) || r.Value != "" {
					t.Errorf("%+v, %v: want ErrIndeterminate", r, err)
				}
				if _, err := q.do(t.Context(), "k", mustNotRun(t)); !errors.Is(err, dedup.ErrIndeterminate) {
					t.Errorf("%v, want ErrIndeterminate", err)
				}
				b.atRest()
			})
		})
	}
}

// The commit is lost with the session, and somebody else has run the key by the time
// it can be asked about.
func TestCommitThatComesTooLateGetsTheSuccessorsOutcome(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(), b.start()
		b.warm(p)
		lost := b.srv.Inject(zktest.DropRequest(zktest.OpMulti).Client(p.name).Path("/dedup/k").Nth(2))
		hole := zktest.Blackhole(zktest.BothWays).Client(p.name)
		first := p.goDo(t.Context(), "k", says("one"))
		<-lost.Hit()
		b.srv.Inject(hole)
		b.srv.Expire(p.client.SessionID())
		second, err := q.do(t.Context(), "k", says("two"), dedup.WithPolicy(dedup.Reexecute))
		if err != nil || second.Value != "two" {
			t.Fatalf("%+v, %v", second, err)
		}
		hole.Heal()
		if o := <-first; o.err != nil || o.r.Value != "two" || !o.r.Replayed || o.r.Token != second.Token {
			t.Errorf("%+v, want the successor's outcome", o)
		}
		b.atRest()
	})
}

// The commit was carried out, its reply is lost, and the connection goes to a server
// that lags. The record is read as it is, and the commit not sent again.
func TestCommitWhoseReplyIsLostIsReadAfterASync(t *testing.T) {
	inEnsemble(t, func(g *group) {
		t := g.t
		var roam atomic.Bool
		p := g.start(func(c *zklock.Config, _ *dedup.Config) {
			c.Servers = g.ens.Addrs()
			near, roaming := g.follower.Dialer(c.Identifier), g.ens.Dialer(c.Identifier)
			c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if roam.Load() {
					return roaming(ctx, network, addr)
				}
				return near(ctx, network, g.follower.Addr())
			}
		})
		q := g.at(0)
		g.warm(p)
		id := p.client.SessionID()
		g.ens.Followers()[1].SetLag(900 * time.Millisecond)
		g.leader.Refuse(true)
		g.follower.Refuse(true)
		roam.Store(true)
		lost := g.follower.Inject(zktest.DropReply(zktest.OpMulti).Client(p.name).Path("/dedup/k").Nth(2))
		go func() { <-lost.Hit(); g.ens.Ops().Reset() }()
		r, err := p.do(t.Context(), "k", func(context.Context, *dedup.Claim) (string, error) {
			// The other server has the record by then, which is all that the client has seen.
			time.Sleep(1200 * time.Millisecond)
			return "one", nil
		})
		if err != nil || r.Value != "one" || r.Replayed || p.client.SessionID() != id {
			t.Errorf("%+v, %v", r, err)
		}
		if n := g.ens.Ops().Count(zktest.OpMulti); n != 0 {
			t.Errorf("the commit was sent again %d times", n)
		}
		if r, err := q.do(t.Context(), "k", mustNotRun(t)); err != nil || r.Value != "one" {
			t.Errorf("%+v, %v", r, err)
		}
		g.leader.Refuse(false)
		g.follower.Refuse(false)
	})
}

// The record was made and the reply is lost: it is adopted by its uuid, one to three
// times.
func TestRecordWhoseReplyIsLostIsAdopted(t *testing.T) {
	for _, fault := range []func(...zktest.Op) *zktest.Fault{zktest.DropReply, zktest.HalfReply} {
		for times := 1; times <= 3; times++ {
			inBubble(t, func(b *bundle) {
				t := b.t
				p := b.start()
				b.warm(p)
				z := b.srv.Inject(fault(zktest.OpMulti).Client(p.name).Path("/dedup/k"))
				search := b.srv.Inject(zktest.DropReply(zktest.OpGetData, zktest.OpSync, zktest.OpGetChildren2).Client(p.name).Path("/dedup/k").Nth(2).Times(times - 1))
				if times == 1 {
					search.Heal()
				}
				r, err := p.do(t.Context(), "k", func(_ context.Context, c *dedup.Claim) (string, error) {
					if c.Attempt() != 1 || c.Prior() != nil {
						t.Errorf("attempt %d, prior %+v", c.Attempt(), c.Prior())
					}
					if n := len(b.srv.Children("/dedup/k")); n != 1 {
						t.Errorf("%d claims", n)
					}
					return "one", nil
				})
				if err != nil || r.Attempt != 1 || z.Hits() != 1 {
					t.Errorf("%+v, %v, hits %d", r, err, z.Hits())
				}
				if n := b.writesTo("/dedup/k"); n != 2 {
					t.Errorf("the record was written %d times, want 2", n)
				}
				b.atRest()
			})
		}
	}
}

// writesTo is how often a node has been made or set since it is there.
func (b *bundle) writesTo(path string) int {
	st, err := b.srv.Stat(path)
	if err != nil {
		b.t.Fatal(err)
	}
	return int(st.Version) + 1
}

// The record was made, the reply and the session are lost: nothing has run, so it is no
// unknown outcome, for nobody.
func TestRecordWhoseReplyAndSessionAreLostIsNoRun(t *testing.T) {
	for _, stays := range []bool{true, false} {
		inBubble(t, func(b *bundle) {
			t := b.t
			p, q := b.start(), b.start()
			b.warm(p)
			lost := b.srv.Inject(zktest.DropReply(zktest.OpMulti).Client(p.name).Path("/dedup/k"))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				<-lost.Hit()
				b.srv.Expire(p.client.SessionID())
				if !stays {
					cancel()
				}
			}()
			first := p.goDo(ctx, "k", func(_ context.Context, c *dedup.Claim) (string, error) {
				if c.Attempt() != 1 || c.Prior() != nil {
					t.Errorf("attempt %d, prior %+v", c.Attempt(), c.Prior())
				}
				return "one", nil
			})
			o := <-first
			if stays {
				if o.err != nil || o.r.Attempt != 1 {
					t.Errorf("%+v", o)
				}
			} else {
				time.Sleep(time.Minute)
				if s := b.state("k"); s != "open 0" {
					t.Errorf("the record is %s", s)
				}
				if r, err := q.do(t.Context(), "k", says("two")); err != nil || r.Attempt != 1 {
					t.Errorf("%+v, %v", r, err)
				}
			}
			b.atRest()
		})
	}
}

// The record was made, the reply and the session are lost, and the caller has gone. A
// successor runs by the time that the record is to be opened again, between the look at it
// and the transaction. His record stays, and nobody runs beside him.
func TestAbandonedRecordThatASuccessorRunsIsNotOpened(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q, other := b.start(), b.start(), b.start()
		b.warm(p)
		work, started, goOn := blocks("two")
		var second <-chan outcome
		behind := zktest.Before(func() {
			if s := b.state("k"); s != "running 1" {
				t.Errorf("the record is %s", s)
			}
			second = q.goDo(t.Context(), "k", work, dedup.WithPolicy(dedup.Reexecute))
			<-started
		}, zktest.OpMulti).Client(p.name).Path("/dedup/k")
		lost := b.srv.Inject(zktest.DropReply(zktest.OpMulti).Client(p.name).Path("/dedup/k"))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			<-lost.Hit()
			b.srv.Inject(behind)
			b.srv.Expire(p.client.SessionID())
			cancel()
		}()
		if _, err := p.do(ctx, "k", mustNotRun(t)); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want the end of the ctx", err)
		}
		if err := p.Close(t.Context()); err != nil { // waits for what is undone
			t.Error(err)
		}
		if s := b.state("k"); s != "running 2" || behind.Hits() != 1 {
			t.Fatalf("the record is %s, a successor came %d times", s, behind.Hits())
		}
		close(goOn)
		if o := <-second; o.err != nil || o.r.Value != "two" || o.r.Attempt != 2 {
			t.Errorf("%+v", o)
		}
		if r, err := other.do(t.Context(), "k", mustNotRun(t)); err != nil || r.Value != "two" {
			t.Errorf("%+v, %v", r, err)
		}
		b.atRest()
	})
}

// The reply to "running" before another attempt is lost, with and without its session.
func TestRenewWhoseReplyIsLost(t *testing.T) {
	for _, session := range []bool{true, false} {
		for _, unknown := range []bool{false, true} {
			for times := 1; times <= 3; times++ {
				t.Run(fmt.Sprintf("session lost %v, after an unknown outcome %v, %d times", !session, unknown, times), func(t *testing.T) {
					inBubble(t, func(b *bundle) {
						t := b.t
						p, q := b.start(), b.start()
						policy := dedup.Refuse
						if unknown {
							b.unknown(p, "k")
							policy = dedup.Reexecute
						} else if _, err := p.do(t.Context(), "k", fails(errors.New("broken"))); err == nil {
							t.Fatal("no error")
						}
						z := b.srv.Inject(zktest.DropReply(zktest.OpMulti).Client(q.name).Path("/dedup/k").Times(times))
						if !session {
							go func() { <-z.Hit(); b.srv.Expire(q.client.SessionID()) }()
						}
						ran := 0
						r, err := q.do(t.Context(), "k", func(_ context.Context, c *dedup.Claim) (string, error) {
							ran++
							pr := c.Prior()
							if pr == nil || pr.Attempt != 1 || pr.Unknown != unknown || !unknown && pr.Message != "broken" {
								t.Errorf("prior %+v", pr)
							}
							if s := b.state("k"); s != fmt.Sprint("running ", c.Attempt()) {
								t.Errorf("attempt %d, the record is %s", c.Attempt(), s)
							}
							return "two", nil
						}, dedup.WithPolicy(policy))
						if err != nil || r.Value != "two" || ran != 1 || session && r.Attempt != 2 {
							t.Errorf("%+v, %v, ran %d times", r, err, ran)
						}
						b.atRest()
					})
				})
			}
		}
	}
}

// The reply to "open" is lost: the record is open, and the next attempt runs.
func TestGiveUpWhoseReplyIsLost(t *testing.T) {
	for _, session := range []bool{true, false} {
		for times := 1; times <= 3; times++ {
			inBubble(t, func(b *bundle) {
				t := b.t
				p, q := b.start(), b.start()
				b.warm(p)
				z := b.srv.Inject(zktest.DropReply(zktest.OpMulti).Client(p.name).Path("/dedup/k").Nth(2).Times(times))
				if !session {
					go func() { <-z.Hit(); b.srv.Expire(p.client.SessionID()) }()
				}
				broken := errors.New("broken")
				if _, err := p.do(t.Context(), "k", fails(broken)); !errors.Is(err, broken) {
					t.Errorf("%v, want fn's error", err)
				}
				if s := b.state("k"); s != "open 1" {
					t.Errorf("the record is %s", s)
				}
				if r, err := q.do(t.Context(), "k", says("two")); err != nil || r.Attempt != 2 {
					t.Errorf("%+v, %v", r, err)
				}
				b.atRest()
			})
		}
	}
}

// "Running" arrives after its caller has gone and the claim has been given back: the
// record does not say that something runs.
func TestRenewThatArrivesLateChangesNothing(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(), b.start()
		if _, err := p.do(t.Context(), "k", fails(errors.New("broken"))); err == nil {
			t.Fatal("no error")
		}
		late := b.srv.Inject(zktest.DelayRequest(2*time.Second, zktest.OpMulti).Client(q.name).Path("/dedup/k"))
		ctx, cancel := context.WithCancel(t.Context())
		got := q.goDo(ctx, "k", mustNotRun(t))
		<-late.Hit()
		cancel()
		if o := <-got; !errors.Is(o.err, context.Canceled) {
			t.Errorf("%+v", o)
		}
		if err := q.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if s := b.state("k"); s != "open 1" {
			t.Errorf("the record is %s", s)
		}
		r, err := p.do(t.Context(), "k", func(_ context.Context, c *dedup.Claim) (string, error) {
			if pr := c.Prior(); pr == nil || pr.Attempt != 1 || pr.Message != "broken" {
				t.Errorf("prior %+v", pr)
			}
			return "two", nil
		})
		if err != nil || r.Attempt != 2 {
			t.Errorf("%+v, %v", r, err)
		}
		b.atRest()
	})
}

// "Running" is not answered, its claim is given back, and the write is carried out between
// the look at the record and the end of the claim. The record does not say that something
// runs.
func TestRenewThatIsCarriedOutBehindTheLook(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(), b.start()
		if _, err := p.do(t.Context(), "k", fails(errors.New("broken"))); err == nil {
			t.Fatal("no error")
		}
		lost := b.srv.Inject(zktest.DropRequest(zktest.OpMulti).Client(q.name).Path("/dedup/k"))
		ctx, cancel := context.WithCancel(t.Context())
		got := q.goDo(ctx, "k", mustNotRun(t))
		<-lost.Hit()
		behind := b.srv.Inject(zktest.Before(func() {
			r, err := driverRecord(b, "k")
			nodes := b.srv.Children("/dedup/k")
			if err != nil || r.State != driver.Open || len(nodes) != 1 {
				t.Errorf("%+v, %v, nodes %v", r, err, nodes)
				return
			}
			r = r.Next(driver.Running)
			r.Attempt++
			id, _, _ := strings.Cut(nodes[0], "-lock-")
			r.Claim = strings.TrimPrefix(id, "_c_")
			data, err := r.MarshalBinary()
			if err == nil {
				err = b.srv.Set("/dedup/k", data)
			}
			if err != nil {
				t.Error(err)
			}
		}, zktest.OpMulti, zktest.OpDelete).Client(q.name).Path("/dedup/k"))
		cancel()
		if o := <-got; !errors.Is(o.err, context.Canceled) {
			t.Errorf("%+v", o)
		}
		if err := q.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if s := b.state("k"); s != "open 1" || behind.Hits() != 1 {
			t.Errorf("the record is %s, written behind the look %d times", s, behind.Hits())
		}
		if r, err := p.do(t.Context(), "k", says("two")); err != nil || r.Attempt != 2 {
			t.Errorf("%+v, %v", r, err)
		}
		b.atRest()
	})
}
