package integration

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-zklock/zklock"
)

// greeting is what a server answers to the request for a session.
type greeting struct {
	mu  sync.Mutex
	buf []byte
}

// greeted is a connection that keeps the first bytes it reads.
type greeted struct {
	net.Conn
	g *greeting
}

// The answer: its length, the version, the timeout, the session id, and the password
// with its length.
const greetingSize = 4 + 4 + 4 + 8 + 4 + 16

func (c greeted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	if missing := greetingSize - len(c.g.buf); missing > 0 {
		c.g.buf = append(c.g.buf, p[:min(n, missing)]...)
	}
	return n, err
}

// closeSession ends the session of a greeting over a connection to another server than
// the owner's, as a second process with the same id and password does. To the owner that
// is an expiry. (On the owner's server the two connections would close each other.)
func closeSession(ctx context.Context, server string, g *greeting) error {
	g.mu.Lock()
	secret := append([]byte(nil), g.buf...)
	g.mu.Unlock()
	if len(secret) < greetingSize {
		return fmt.Errorf("only %d bytes of the greeting were seen", len(secret))
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", server)
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	// Version 0, no zxid seen, the timeout, the session and its password.
	request := binary.BigEndian.AppendUint32(nil, 44)
	request = append(request, make([]byte, 12)...)
	request = append(request, secret[8:greetingSize]...)
	// Then xid 1, closeSession.
	request = binary.BigEndian.AppendUint32(request, 8)
	request = binary.BigEndian.AppendUint32(request, 1)
	request = binary.BigEndian.AppendUint32(request, 0xfffffff5)
	if _, err := conn.Write(request); err != nil {
		return err
	}
	answer := make([]byte, greetingSize)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return fmt.Errorf("resume the session: %w", err)
	}
	if string(answer[12:20]) != string(secret[12:20]) {
		return fmt.Errorf("resumed session %x, want %x", answer[12:20], secret[12:20])
	}
	_, err = io.Copy(io.Discard, conn) // until the server has closed it
	return err
}

// F8: a session ends. Each of its leases is lost once, the lock can be taken again at
// once, and a late Release takes nothing from the next holder.
func TestExpiredSessionLosesItsLeasesOnce(t *testing.T) {
	for _, tc := range []struct {
		name    string
		reasons []zklock.Reason
	}{
		// The watch on the own node may be quicker than the end of the session.
		{"ended by another connection", []zklock.Reason{zklock.SessionExpired, zklock.NodeDeleted}},
		{"silence for longer than T", []zklock.Reason{zklock.TrustExpired}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx := bounded(t)
			follower, leader := roles(t, ensemble.Get(t))
			observer := observe(t, leader)
			var g greeting
			c, p := viaProxy(t, follower, 6*time.Second, func(cfg *zklock.Config) {
				cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
					conn, err := new(net.Dialer).DialContext(ctx, network, address)
					return greeted{conn, &g}, err
				}
			})
			st := watchStates(t, c)
			session := c.SessionID()
			var paths []string
			var leases []*zklock.Lease
			var rivals []<-chan result
			rival := clientOf(t, []string{leader.Addr()}, 6*time.Second)
			for range 3 {
				path := uniquePath(t)
				paths = append(paths, path)
				leases = append(leases, acquire(t, mutexOf(t, c, path)))
				rivals = append(rivals, acquireAsync(ctx, mutexOf(t, rival, path)))
				awaitNodes(t, observer, path, 2)
			}
			begun := time.Now()
			back := func() {}
			if tc.reasons[0] == zklock.TrustExpired {
				back = silence(p)
			} else {
				must(t, "end the session", closeSession(ctx, leader.Addr(), &g))
			}
			var ends []time.Duration
			for _, l := range leases {
				await(t, "loss", l.Lost())
				ends = append(ends, ms(time.Since(begun)))
				var lost *zklock.LostError
				if err := l.Err(); !errors.As(err, &lost) || !slices.Contains(tc.reasons, lost.Reason) {
					t.Errorf("Err: %v, want reason %v", err, tc.reasons)
				}
				isErr(t, "context", context.Cause(l.Context()), zklock.ErrLost)
				isErr(t, "Await", l.Await(ctx), zklock.ErrLost)
			}
			next := make([]*zklock.Lease, len(paths))
			for i, r := range rivals {
				next[i] = granted(t, "the next holder", r)
			}
			t.Logf("lost after %v, taken by another after %v", ends, ms(time.Since(begun)))
			back()

			again := acquireAsync(ctx, mutexOf(t, c, paths[0]))
			awaitNodes(t, observer, paths[0], 2)
			other := acquire(t, mutexOf(t, c, uniquePath(t)))
			if c.SessionID() == session {
				t.Errorf("the session is still %x", session)
			}
			for i, l := range leases {
				isErr(t, "Release", l.Release(ctx), zklock.ErrLost)
				must(t, "the next holder's lease", next[i].Verify(ctx))
				if next[i].Token() <= l.Token() {
					t.Errorf("token %v after %v", next[i].Token(), l.Token())
				}
				release(t, next[i])
			}
			release(t, granted(t, "the same mutex again", again))
			release(t, other)
			if n := st.count(zklock.Lost); n != 1 {
				t.Errorf("%d times Lost, want 1: %v", n, st)
			}
			t.Logf("states: %v", st)
		})
	}
}
