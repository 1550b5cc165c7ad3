package zklock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock/zktest"
)

// The first node on a path is made together with the path, which is a container.

// fresh is a path whose parent is there.
func (b *bundle) fresh() string {
	if err := b.srv.Create("/dedup", nil); err != nil {
		b.t.Fatal(err)
	}
	return "/dedup/fresh"
}

// reaped checks that the ensemble removes a path, as it does with containers that have
// had a child.
func (b *bundle) reaped(path string) {
	b.t.Helper()
	time.Sleep(5 * time.Minute)
	if b.srv.Exists(path) {
		b.t.Errorf("%s stays", path)
	}
}

// multiUnanswered is what can happen to a transaction so that no answer comes.
var multiUnanswered = map[string]func() *zktest.Fault{
	"no reply":     func() *zktest.Fault { return zktest.DropReply(zktest.OpMulti) },
	"half a reply": func() *zktest.Fault { return zktest.HalfReply(zktest.OpMulti) },
	"silence":      func() *zktest.Fault { return zktest.DropReply(zktest.OpMulti).Silent() },
	"no request":   func() *zktest.Fault { return zktest.DropRequest(zktest.OpMulti) },
	"swallowed":    func() *zktest.Fault { return zktest.DropRequest(zktest.OpMulti).Silent() },
}

func TestFreshPathWhoseCreateIsNotAnswered(t *testing.T) {
	for name, fault := range multiUnanswered {
		t.Run(name, func(t *testing.T) {
			var hist zktest.History
			inBubble(t, func(b *bundle) {
				t := b.t
				path := b.fresh()
				m := b.mutex(b.connect(), path)
				lost := b.srv.Inject(fault())
				l := b.acquire(m)
				if lost.Hits() != 1 {
					t.Errorf("%d transactions were lost, want one", lost.Hits())
				}
				if n := lockCreates(&hist, path); n != 1 {
					t.Errorf("%d nodes were made, want one", n)
				}
				if st, err := b.srv.Stat(l.Path()); err != nil || Token(st.Czxid) != l.Token() {
					t.Errorf("token %s, node %+v, %v", l.Token(), st, err)
				}
				b.release(l)
				b.atRest(path)
				b.reaped(path)
			}, withHistory(&hist))
		})
	}
}

func TestCallerThatGivesUpOnAFreshPathLeavesNothing(t *testing.T) {
	cause := errors.New("no more")
	for _, after := range []time.Duration{0, oneWay, roundTrip + oneWay, roundTrip + oneWay + time.Nanosecond, 2*roundTrip - time.Nanosecond} {
		t.Run(after.String(), func(t *testing.T) {
			inBubble(t, func(b *bundle) {
				t := b.t
				path := b.fresh()
				m := b.mutex(b.connect(), path)
				ctx, cancel := context.WithCancelCause(t.Context())
				got := acquireAsync(ctx, m)
				time.Sleep(after)
				cancel(cause)
				if r := within(t, time.Nanosecond, got, "the caller"); !errors.Is(r.err, cause) {
					t.Errorf("%+v", r)
				}
				b.atRest(path)
				b.reaped(path)
			})
		})
	}
}

// What was seen of the parents may be different by the time that the transaction arrives.
func TestParentsThatChangeBeforeTheTransaction(t *testing.T) {
	for name, change := range map[string]func(b *bundle) error{
		"somebody else was first": func(b *bundle) error { return b.srv.Create("/dedup/fresh", nil) },
		"what is above has gone":  func(b *bundle) error { return b.srv.Delete("/dedup") },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bundle) {
				t := b.t
				m := b.mutex(b.connect(), b.fresh())
				changed := b.srv.Inject(zktest.Before(func() {
					if err := change(b); err != nil {
						t.Error(err)
					}
				}, zktest.OpMulti))
				l := b.acquire(m)
				if changed.Hits() != 1 {
					t.Error("it was not made in a transaction")
				}
				b.release(l)
				b.atRest("/dedup/fresh")
			})
		})
	}
}

// A path that must not be made is no business of the second try's.
func TestFreshPathThatIsRefused(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		path := b.fresh()
		c := b.connect()
		if _, err := c.Conn().SetACL("/dedup", zk.WorldACL(zk.PermRead), -1); err != nil {
			t.Fatal(err)
		}
		b.srv.Ops().Reset()
		if _, err := b.mutex(c, path).Acquire(t.Context()); !errors.Is(err, zk.ErrNoAuth) || !strings.Contains(err.Error(), path) {
			t.Errorf("%v, want %v with the path", err, zk.ErrNoAuth)
		}
		if n := b.srv.Ops().Writes(); n != 1 {
			t.Errorf("%d writes, want one", n)
		}
	})
}

// odd changes what a client sends.
type odd struct {
	net.Conn
	change func(frame []byte)
}

func (o *odd) Write(p []byte) (int, error) {
	o.change(p)
	return o.Conn.Write(p)
}

// Servers that take no container in a transaction are asked for it no more than twice:
// one that cannot read it ends the connection.
func TestServerThatMakesNoContainerInATransaction(t *testing.T) {
	t.Run("it says so", func(t *testing.T) {
		inBubble(t, func(b *bundle) {
			b.fresh()
			c := b.connect()
			c.session().Plain("/dedup/other")
			b.madeApart(c, "/dedup/fresh")
		})
	})
	for name, tc := range map[string]struct {
		asked int
		odd   func(conn net.Conn, flags []byte)
	}{
		"it cannot read it":      {1, func(_ net.Conn, flags []byte) { flags[3] = 99 }}, // which no server knows
		"it ends the connection": {2, func(conn net.Conn, _ []byte) { _ = conn.Close() }},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bundle) {
				t := b.t
				b.fresh()
				asked := 0
				c := b.connect(func(cfg *Config) {
					cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
						conn, err := b.srv.Dial(ctx, network, address)
						if err != nil {
							return nil, err
						}
						return &odd{conn, func(frame []byte) {
							_, flags, found := bytes.Cut(frame, []byte("anyone"))
							if found && frameOp(frame) == zktest.OpMulti && bytes.HasPrefix(flags, []byte{0, 0, 0, 4}) {
								asked++
								tc.odd(conn, flags)
							}
						}}, nil
					}
				})
				for i := range 2 {
					b.release(b.acquire(b.mutex(c, fmt.Sprint("/dedup/k", i))))
				}
				b.madeApart(c, "/dedup/fresh")
				if asked != tc.asked {
					t.Errorf("%d transactions with a container, want %d", asked, tc.asked)
				}
			})
		})
	}
}

// madeApart checks that a fresh path is made by itself.
func (b *bundle) madeApart(c *Client, path string) {
	b.t.Helper()
	b.srv.Ops().Reset()
	b.release(b.acquire(b.mutex(c, path)))
	if n := b.srv.Ops().Counts(); n.Count(zktest.OpCreateContainer) != 1 || n.Count(zktest.OpMulti) != 0 {
		b.t.Errorf("%v, want a container by itself", n.ByOp)
	}
	b.reaped(path)
}
