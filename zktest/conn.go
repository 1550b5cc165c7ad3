package zktest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"
)

// Imitates ZooKeeper 3.8 and 3.9: NIOServerCnxn. One goroutine reads a connection and one writes it; everything
// between them happens under the cluster's lock.

// conn is the server's side of one client connection.
type conn struct {
	s      *Server
	nc     net.Conn
	id     int64
	client string // the name given to Dialer
	host   string // the client's address without the port

	// Guarded by cl.mu.
	session  int64
	timeout  time.Duration // granted
	ready    bool          // the connect exchange is over
	readOnly bool          // the client's connect request had the readOnly field, so its answer has it too
	auth     []authID
	queue    []*request // in the order of arrival, answered in that order
	dead     bool       // out of the server's books; the socket may outlive it
	killed   bool       // close the socket now, whatever holds it
	aborted  bool       // close the socket without sending what is left
	held     Direction  // ways in which a black hole has been counted as a hit
	out      []frame
	changed  chan struct{} // closed and replaced when reader or writer should look again
	stats    connStats
}

// frame is one message to the client.
type frame struct {
	b     []byte
	at    time.Time // not to be sent before, if set
	close bool      // close the socket instead
}

// sessionlessTimeout is how long a connection may take to open its session.
const sessionlessTimeout = 10 * time.Second

// accept takes over a connection; mu is held.
func (s *Server) accept(nc net.Conn, client string) {
	host, _, err := net.SplitHostPort(nc.RemoteAddr().String())
	if err != nil {
		host = nc.RemoteAddr().String()
	}
	c := &conn{s: s, nc: nc, id: s.lastConn, client: client, host: host, changed: make(chan struct{})}
	c.auth = []authID{{"ip", host}}
	c.stats.established = time.Now()
	c.stats.lastCxid = -1
	s.conns[c] = struct{}{}
	s.sockets[c] = struct{}{}
	s.cl.wg.Add(2)
	s.expectSession(c)
	go c.read()
	go c.write()
}

// expectSession ends a connection that has opened no session in time. A server that is paused then looks once more as
// long after; mu is held.
func (s *Server) expectSession(c *conn) {
	s.cl.after(sessionlessTimeout, func() {
		switch {
		case c.ready || c.dead:
		case s.paused:
			s.expectSession(c)
		default:
			c.drop("no session within " + sessionlessTimeout.String())
		}
	})
}

// notify wakes reader and writer; mu is held.
func (c *conn) notify() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// push queues a message; mu is held.
func (c *conn) push(f frame) {
	if c.dead {
		return
	}
	c.out = append(c.out, f)
	c.notify()
}

// finish ends the connection after everything queued so far has been sent; mu is held.
func (c *conn) finish(reason string) {
	if c.dead {
		return
	}
	c.out = append(c.out, frame{close: true})
	c.forget(reason)
}

// drop ends the connection at once; mu is held.
func (c *conn) drop(reason string) {
	if c.dead {
		return
	}
	c.aborted = true
	c.forget(reason)
}

// forget takes the connection and its watches off the server's books. The socket is left to the writer, since a
// fault may keep its end from the client.
func (c *conn) forget(reason string) {
	c.bury()
	c.s.logf("connection %d (session %#x) ends: %s", c.id, uint64(c.session), reason)
	c.notify()
}

// kill closes the socket whatever else is going on; mu is held.
func (c *conn) kill() {
	if !c.dead {
		c.bury()
	}
	c.killed = true
	c.notify()
}

func (c *conn) bury() {
	c.dead = true
	delete(c.s.conns, c)
	c.forgetSession()
	c.s.watches.removeAll(c)
}

// write sends what is queued, in order. It alone closes the socket.
func (c *conn) write() {
	mu := &c.s.cl.mu
	defer c.s.cl.wg.Done()
	defer func() {
		mu.Lock()
		delete(c.s.sockets, c)
		c.s.cl.holes = slices.DeleteFunc(c.s.cl.holes, func(h hole) bool { return h.conn == c })
		mu.Unlock()
		c.nc.Close()
	}()
	for {
		mu.Lock()
		var until time.Time
		switch {
		case c.killed:
			mu.Unlock()
			return
		case c.s.paused || c.s.holds(c, ServerToClient, len(c.out) > 0 || c.aborted):
		case c.aborted:
			mu.Unlock()
			return
		case len(c.out) > 0 && c.out[0].at.After(time.Now()):
			until = c.out[0].at
		case len(c.out) > 0:
			f := c.out[0]
			c.out = c.out[1:]
			mu.Unlock()
			if f.close {
				return
			}
			if _, err := c.nc.Write(f.b); err != nil {
				mu.Lock()
				c.drop("write: " + err.Error())
				mu.Unlock()
			}
			continue
		}
		ch := c.changed
		mu.Unlock()
		pause(ch, until)
	}
}

// hold waits while something keeps the server from hearing this connection, or until it is over. Connections that were
// held together go on one after the other, the oldest first, so that a run can be repeated.
func (c *conn) hold(ready bool) (ok bool) {
	mu := &c.s.cl.mu
	for held := false; ; {
		mu.Lock()
		stopped := !c.dead && (c.s.paused || c.s.holds(c, ClientToServer, true))
		switch {
		case c.dead:
			mu.Unlock()
			return false
		case stopped || ready && !c.ready:
			held = held || stopped
			ch := c.changed
			mu.Unlock()
			<-ch
		case held:
			held = false
			mu.Unlock()
			time.Sleep(time.Duration(c.id) * time.Nanosecond)
		default:
			mu.Unlock()
			return true
		}
	}
}

// read takes requests off the socket and hands them in, one after another.
func (c *conn) read() {
	defer c.s.cl.wg.Done()
	err := c.readFrames()
	// A black hole also swallows the end of the connection.
	if !c.hold(false) {
		return
	}
	c.s.cl.mu.Lock()
	defer c.s.cl.mu.Unlock()
	reason := err.Error()
	if errors.Is(err, io.EOF) {
		reason = "closed by the client"
	}
	c.drop(reason)
	c.kill() // nobody is left to hide the end from
}

func (c *conn) readFrames() error {
	for first := true; ; first = false {
		var word [4]byte
		if _, err := io.ReadFull(c.nc, word[:]); err != nil {
			return err
		}
		n := int(int32(binary.BigEndian.Uint32(word[:])))
		if first && isCommand(string(word[:])) {
			if !c.hold(false) {
				return io.EOF
			}
			c.s.cl.mu.Lock()
			c.command(string(word[:]))
			c.s.cl.mu.Unlock()
			return io.EOF
		}
		if n < 0 || n > c.s.cfg.JuteMaxBuffer {
			return fmt.Errorf("frame of %d bytes is malformed or larger than jute.maxbuffer=%d", n, c.s.cfg.JuteMaxBuffer)
		}
		body, err := readBody(c.nc, n)
		if err != nil {
			return fmt.Errorf("frame of %d bytes: %w", n, err)
		}
		if !c.hold(!first) {
			return io.EOF
		}
		if err := c.receive(first, body); err != nil {
			return err
		}
	}
}

// receive deals with one frame.
func (c *conn) receive(first bool, body []byte) error {
	mu := &c.s.cl.mu
	mu.Lock()
	defer mu.Unlock()
	c.stats.received++
	c.s.stats.received++
	if !c.s.serving() {
		return errors.New("server is not serving")
	}
	d := &decoder{b: body}
	xid, op, session := int32(0), OpConnect, c.session
	var err error
	var hello connectRequest
	if first {
		hello, err = decodeConnect(d)
		session = hello.session
	} else {
		xid, op = d.int32(), Op(d.int32())
		err = d.err
	}
	if err != nil {
		return fmt.Errorf("header: %w", err)
	}
	v := c.s.cl.judge(c, op, session, d)
	if len(v.before) > 0 || v.delay > 0 {
		mu.Unlock()
		ok := c.delayed(v)
		mu.Lock()
		if !ok {
			return io.EOF
		}
	}
	if v.drop != nil {
		c.lose(v.drop)
		return nil
	}
	if first {
		return c.connect(hello, v.reply)
	}
	c.stats.lastCxid, c.stats.lastOp = int64(xid), op
	c.handle(xid, op, d, v.reply)
	return nil
}

// delayed lets the faults that come before a request happen, without the lock.
func (c *conn) delayed(v verdict) bool {
	for _, fn := range v.before {
		fn()
	}
	if v.delay > 0 {
		t := time.NewTimer(v.delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-c.s.cl.stop:
		}
	}
	return c.hold(false)
}
