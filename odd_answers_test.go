package zklock

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// codes rewrites the error code of replies to one opcode.
type codes struct {
	net.Conn
	op, code int32
	on       *atomic.Bool
	hits     *atomic.Int64
	mu       sync.Mutex
	begun    bool
	ops      map[int32]int32
	in, out  []byte
	first    bool
}

func (c *codes) Write(b []byte) (int, error) {
	c.mu.Lock()
	if !c.begun {
		c.begun = true
	} else {
		for r := b; len(r) >= 12; r = r[4+binary.BigEndian.Uint32(r):] {
			c.ops[int32(binary.BigEndian.Uint32(r[4:]))] = int32(binary.BigEndian.Uint32(r[8:]))
		}
	}
	c.mu.Unlock()
	return c.Conn.Write(b)
}

func (c *codes) Read(b []byte) (int, error) {
	for len(c.out) == 0 {
		buf := make([]byte, 4096)
		n, err := c.Conn.Read(buf)
		if err != nil {
			return 0, err
		}
		c.in = append(c.in, buf[:n]...)
		for len(c.in) >= 4 && len(c.in) >= 4+int(binary.BigEndian.Uint32(c.in)) {
			size := 4 + int(binary.BigEndian.Uint32(c.in))
			f := append([]byte(nil), c.in[:size]...)
			c.in = c.in[size:]
			if c.first {
				c.mu.Lock()
				op := c.ops[int32(binary.BigEndian.Uint32(f[4:]))]
				c.mu.Unlock()
				if op == c.op && c.on.Load() {
					c.hits.Add(1)
					binary.BigEndian.PutUint32(f[16:], uint32(c.code))
					f = f[:20]
					binary.BigEndian.PutUint32(f, 16)
				}
			}
			c.first = true
			c.out = append(c.out, f...)
		}
	}
	n := copy(b, c.out)
	c.out = c.out[n:]
	return n, nil
}

func answering(op, code int32, on *atomic.Bool, hits *atomic.Int64) func(*Config) {
	return func(cfg *Config) {
		dial := cfg.Dial
		cfg.Dial = func(ctx context.Context, n, a string) (net.Conn, error) {
			conn, err := dial(ctx, n, a)
			if err != nil {
				return nil, err
			}
			return &codes{Conn: conn, op: op, code: code, on: on, hits: hits, ops: map[int32]int32{}}, nil
		}
	}
}

// watchOwn repeats at once, without a pause, a getData that is answered with an
// unknown code (-127, THROTTLEDOP, say).
func TestWatchOwnHotLoop(t *testing.T) {
	for _, code := range []int32{-127, -100, -115} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			inBubble(t, func(b *bundle) {
				var on atomic.Bool
				var hits atomic.Int64
				on.Store(true)
				c := b.connect(answering(4, code, &on, &hits)) // getData
				l := b.acquire(b.mutex(c, "/l"))
				time.Sleep(10 * time.Second)
				if n := hits.Load(); n > 20 {
					t.Errorf("%d getData in 10 s for one lease", n)
				}
				b.release(l)
			})
		})
	}
}

// Known codes that are neither "answered" nor "unknown" (-100 APIERROR, -115
// AUTHFAILED, -116, -117, -123) are taken for a broken connection and repeated for
// as long as ctx allows; in ensureParents by recursion.
func TestKnownCodesHotLoop(t *testing.T) {
	for name, op := range map[string]int32{"exists": 3, "getChildren": 12, "create": 1} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bundle) {
				var on atomic.Bool
				var hits atomic.Int64
				on.Store(true)
				c := b.connect(answering(op, -115, &on, &hits))
				ctx, cancel := context.WithTimeout(b.t.Context(), 10*time.Second)
				defer cancel()
				_, err := b.mutex(c, "/l").Acquire(ctx)
				if n := hits.Load(); n > 50 {
					t.Errorf("%d requests in 10 s: %v", n, err)
				}
				on.Store(false)
			})
		})
	}
}
