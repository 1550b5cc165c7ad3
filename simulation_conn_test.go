package zklock

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/go-zklock/zklock/zktest"
)

// Goroutines of one client that are ready at one instant run in any order, and so do
// the requests that they send then. What the server makes of them may depend on the
// order: a read behind a write waits for it, and of two lock nodes the first made is
// the first in the queue. simConn puts the requests of one instant into an order that
// is the same in every run of a seed. Deletes go first, since what follows in the same
// instant may have waited for one to be sent.
type simConn struct {
	net.Conn
	sent func(frame []byte) // is shown every request; may be nil

	mu    sync.Mutex
	begun bool     // the connect request has passed
	batch [][]byte // frames of this instant
}

type simDial = func(ctx context.Context, network, address string) (net.Conn, error)

func sortedDialer(dial simDial, sent func(frame []byte)) simDial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &simConn{Conn: conn, sent: sent}, nil
	}
}

// Write sends what it gets a nanosecond later, when every goroutine has had its turn.
func (c *simConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.begun {
		c.begun = true
		return c.Conn.Write(p)
	}
	if len(c.batch) == 0 {
		go func() {
			time.Sleep(time.Nanosecond)
			c.flush()
		}()
	}
	for rest := p; len(rest) > 0; {
		n := 4 + binary.BigEndian.Uint32(rest)
		c.batch = append(c.batch, bytes.Clone(rest[:n]))
		rest = rest[n:]
	}
	return len(p), nil
}

func (c *simConn) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.SortStableFunc(c.batch, func(a, b []byte) int {
		return cmp.Or(cmp.Compare(frameOrder(a), frameOrder(b)), bytes.Compare(frameKey(a), frameKey(b)))
	})
	for _, frame := range c.batch {
		if c.sent != nil {
			c.sent(frame)
		}
	}
	// A write that fails shows itself to the reader soon enough.
	_, _ = c.Conn.Write(bytes.Join(c.batch, nil))
	c.batch = nil
}

// frameOrder is the order of the kinds of requests.
func frameOrder(frame []byte) zktest.Op {
	op := frameOp(frame)
	if begins, ok := frameTxn(frame); ok && begins != zktest.OpCheck {
		op = begins
	}
	if op == zktest.OpDelete {
		return -1 << 31
	}
	return op
}

// frameTxn says what a transaction begins with.
func frameTxn(frame []byte) (begins zktest.Op, ok bool) {
	if frameOp(frame) != zktest.OpMulti || len(frame) < 16 {
		return 0, false
	}
	return zktest.Op(int32(binary.BigEndian.Uint32(frame[12:]))), true
}

func frameOp(frame []byte) zktest.Op { return zktest.Op(int32(binary.BigEndian.Uint32(frame[8:]))) }

// frameKey is a request without its number and without uuids, which differ from run to
// run. A create has the name of its worker in its data.
func frameKey(frame []byte) []byte { return uuidPattern.ReplaceAll(frame[12:], nil) }

// framePath is the first path of a request, without its uuid; "" if it has none.
func framePath(frame []byte) string {
	body := frame[12:]
	if frameOp(frame) == zktest.OpMulti && len(body) > 9 {
		body = body[9:] // the header of the first operation
	}
	if len(body) < 4 {
		return ""
	}
	n := int64(binary.BigEndian.Uint32(body))
	if n > int64(len(body)-4) {
		return ""
	}
	return short(string(body[4 : 4+n]))
}
