package zktest

import (
	"errors"
	"hash/fnv"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// An in-memory connection with a buffer, deadlines and latency. Every wait is on a channel, never on a mutex, so a
// bubble of testing/synctest can move its clock while both ends are idle. What one side writes arrives at the other
// side one latency later, in order.

// streamLimit is how much one direction holds before a Write blocks, about what two kernels buffer for a socket.
const streamLimit = 4 << 20

// network gives each message its delay. The delay follows from the seed, the client's name, the direction and the
// instant at which the message is sent, and from nothing else: whatever goroutines do within one instant, in whatever
// order, a run can be repeated up to that order.
type network struct {
	seed uint64

	mu      sync.Mutex
	latency time.Duration
	jitter  time.Duration
}

// route is one direction between a client and a server, as a number that seeds its delays.
type route uint64

// The directions of a client's messages, and the dials themselves.
const (
	routeDial = iota + 1
	routeUp
	routeDown
)

func newNetwork(latency, jitter time.Duration, seed uint64) *network {
	return &network{seed: seed, latency: latency, jitter: jitter}
}

// route is the way of a client's messages in one direction.
func (n *network) route(client string, direction uint64) route {
	h := fnv.New64a()
	h.Write([]byte(client))
	return route(mix(n.seed ^ mix(h.Sum64()+direction)))
}

// mix is the finaliser of splitmix64: it spreads every bit of x over the result.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func (n *network) set(latency, jitter time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.latency, n.jitter = latency, jitter
}

// delay is how long a message sent now is on its way.
func (n *network) delay(r route) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	d := n.latency
	if n.jitter > 0 {
		d += time.Duration(mix(uint64(r)^uint64(time.Now().UnixNano())) % uint64(n.jitter+1))
	}
	return d
}

type segment struct {
	at  time.Time
	b   []byte
	eof bool
}

// stream is one direction of a connection.
type stream struct {
	net   *network
	route route

	mu       sync.Mutex
	segs     []segment
	size     int
	last     time.Time // arrival of the newest segment: later ones may not overtake it
	wclosed  bool
	rclosed  bool
	rejectAt time.Time // from when on the writer knows that nobody reads any more
	rdead    time.Time
	wdead    time.Time
	changed  chan struct{} // closed and replaced at every change
}

func newStream(n *network, r route) *stream {
	return &stream{net: n, route: r, changed: make(chan struct{})}
}

// notify wakes everybody who waits; mu is held.
func (s *stream) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// add puts a segment in flight; mu is held.
func (s *stream) add(b []byte, eof bool) {
	at := time.Now().Add(s.net.delay(s.route))
	if at.Before(s.last) {
		at = s.last
	}
	s.last = at
	s.segs = append(s.segs, segment{at: at, b: b, eof: eof})
	s.size += len(b)
	s.notify()
}

// pause waits for a change or, unless zero, a point in time.
func pause(changed <-chan struct{}, until time.Time) {
	if until.IsZero() {
		<-changed
		return
	}
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-changed:
	case <-t.C:
	}
}

func (s *stream) read(p []byte) (int, error) {
	for {
		s.mu.Lock()
		now := time.Now()
		if s.rclosed {
			s.mu.Unlock()
			return 0, net.ErrClosed
		}
		if !s.rdead.IsZero() && !now.Before(s.rdead) {
			s.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		}
		until := s.rdead
		if len(s.segs) > 0 {
			head := &s.segs[0]
			if !head.at.After(now) {
				if head.eof {
					s.mu.Unlock()
					return 0, io.EOF
				}
				n := copy(p, head.b)
				head.b = head.b[n:]
				if len(head.b) == 0 {
					s.segs = s.segs[1:]
				}
				if s.size > streamLimit {
					s.notify()
				}
				s.size -= n
				s.mu.Unlock()
				return n, nil
			}
			if until.IsZero() || head.at.Before(until) {
				until = head.at
			}
		}
		ch := s.changed
		s.mu.Unlock()
		pause(ch, until)
	}
}

func (s *stream) write(p []byte) (int, error) {
	for {
		s.mu.Lock()
		now := time.Now()
		switch {
		case s.wclosed:
			s.mu.Unlock()
			return 0, net.ErrClosed
		case !s.wdead.IsZero() && !now.Before(s.wdead):
			s.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		case s.rclosed && !now.Before(s.rejectAt):
			s.mu.Unlock()
			return 0, syscall.EPIPE
		case s.rclosed: // on its way to a peer that is gone
			s.mu.Unlock()
			return len(p), nil
		case s.size <= streamLimit:
			if len(p) > 0 {
				s.add(append([]byte(nil), p...), false)
			}
			s.mu.Unlock()
			return len(p), nil
		}
		ch, until := s.changed, s.wdead
		s.mu.Unlock()
		pause(ch, until)
	}
}

// closeRead drops what is in flight. The writer finds out at told, by when everything that was sent to it has arrived:
// what TCP tells a writer comes behind that.
func (s *stream) closeRead(told time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rclosed {
		return
	}
	s.rclosed = true
	s.rejectAt = told
	s.segs, s.size = nil, 0
	s.notify()
}

// closeWrite lets the reader see the end after everything written before, and returns when that is.
func (s *stream) closeWrite() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wclosed {
		return s.last
	}
	s.wclosed = true
	if s.rclosed {
		return time.Now().Add(s.net.delay(s.route))
	}
	s.add(nil, true)
	s.notify()
	return s.last
}

// memConn is one end of an in-memory connection.
type memConn struct {
	in, out       *stream
	local, remote net.Addr
}

// memAddr is the address of an in-memory end.
type memAddr string

func (memAddr) Network() string  { return "zktest" }
func (a memAddr) String() string { return string(a) }

// newPipe returns the client's and the server's end of a connection.
func newPipe(n *network, name string, client, server memAddr) (*memConn, *memConn) {
	up := newStream(n, n.route(name, routeUp))
	down := newStream(n, n.route(name, routeDown))
	return &memConn{in: down, out: up, local: client, remote: server},
		&memConn{in: up, out: down, local: server, remote: client}
}

func (c *memConn) fail(op string, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return &net.OpError{Op: op, Net: "zktest", Source: c.local, Addr: c.remote, Err: err}
}

func (c *memConn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := c.in.read(p)
	return n, c.fail("read", err)
}

func (c *memConn) Write(p []byte) (int, error) {
	n, err := c.out.write(p)
	return n, c.fail("write", err)
}

func (c *memConn) Close() error {
	c.in.closeRead(c.out.closeWrite())
	return nil
}

func (c *memConn) LocalAddr() net.Addr  { return c.local }
func (c *memConn) RemoteAddr() net.Addr { return c.remote }

func (c *memConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *memConn) SetReadDeadline(t time.Time) error {
	return c.in.setDeadline(&c.in.rdead, t)
}

func (c *memConn) SetWriteDeadline(t time.Time) error {
	return c.out.setDeadline(&c.out.wdead, t)
}

func (s *stream) setDeadline(field *time.Time, t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	*field = t
	s.notify()
	return nil
}
