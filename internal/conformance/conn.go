package conformance

import (
	"encoding/binary"
	"io"
	"net"
	"time"
)

// conn is one connection of a case.
type conn struct {
	name    string
	server  int
	nc      net.Conn
	frames  chan frame // what arrives; closed at the end of the connection
	last    int32      // number of the newest request
	pending []request  // not answered yet
	pings   []bool     // pings not answered yet: true for one that a command asked for
	session int64
	hello   bool // the connect request has been sent and not been answered
	silent  bool // no pings between commands
	ending  bool // an answer has come after which the server closes the connection
	ended   bool
}

// frame is one message from the server, or, with a nil body, the end of the connection.
type frame struct {
	body []byte
	at   time.Time
}

// manyFrames is more than any command brings, so that the reading goroutine never waits for the case.
const manyFrames = 10000

func newConn(name string, server int, nc net.Conn) *conn {
	c := &conn{name: name, server: server, nc: nc, frames: make(chan frame, manyFrames)}
	go c.read()
	return c
}

func (c *conn) read() {
	defer close(c.frames)
	for {
		var head [4]byte
		if _, err := io.ReadFull(c.nc, head[:]); err != nil {
			break
		}
		n := binary.BigEndian.Uint32(head[:])
		if n > 1<<26 {
			break
		}
		body := make([]byte, n)
		if _, err := io.ReadFull(c.nc, body); err != nil {
			break
		}
		c.frames <- frame{body, time.Now()}
	}
	// A large request may still be on its way to a server that has gone.
	_ = c.nc.SetWriteDeadline(time.Now())
	c.frames <- frame{nil, time.Now()}
}

// send writes frames at one go. That the server has closed the connection is found out by reading.
func (c *conn) send(bodies ...[]byte) {
	var all []byte
	for _, body := range bodies {
		all = binary.BigEndian.AppendUint32(all, uint32(len(body)))
		all = append(all, body...)
	}
	_ = c.nc.SetWriteDeadline(time.Now().Add(writePatience))
	_, _ = c.nc.Write(all)
}

// patience is how long the client waits for what must come.
const (
	patience      = 20 * time.Second
	writePatience = 3 * time.Second
)

// ping asks for an answer that comes after everything the server has sent before. shown says whether the answer
// belongs to the record.
func (c *conn) ping(shown bool) {
	c.pings = append(c.pings, shown)
	q := request{op: 11, xid: -2}
	c.send(q.header())
}

func (q request) header() []byte {
	var w writer
	w.int32(q.xid)
	w.int32(q.op)
	return w.b
}

// helloFrame is a connect request.
func helloFrame(seen int64, timeout time.Duration, id int64, password []byte, readOnly bool) []byte {
	var w writer
	w.int32(0)
	w.int64(seen)
	w.int32(int32(timeout / time.Millisecond))
	w.int64(id)
	w.bytes(password)
	if readOnly {
		w.bool(false)
	}
	return w.b
}
