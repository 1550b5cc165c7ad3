// Package wire wraps the net.Conn under a zk.Conn and reads the ZooKeeper frames
// that pass through it.
//
// The client library tells its user neither when a request was sent and
// answered, nor the zxid of a create, nor what session timeout was granted, and
// it waits on a silent peer for several session timeouts. All of that is on the
// wire, so it is taken from there (design section 4).
//
// Frames are a 4-byte big-endian length and that many bytes. A request starts
// with xid and opcode (int32 each), a reply with xid (int32), zxid (int64) and
// error code (int32).
package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Opcodes of ZooKeeper's protocol that the wrapper has to tell apart.
const (
	opCreate          = 1
	opDelete          = 2
	opExists          = 3
	opGetData         = 4
	opSetData         = 5
	opSetACL          = 7
	opGetChildren     = 8
	opPing            = 11
	opGetChildren2    = 12
	opMulti           = 14
	opCreate2         = 15
	opReconfig        = 16
	opCreateContainer = 19
	opCreateTTL       = 21
	opSetAuth         = 100
	opClose           = -11

	xidWatch = -1
	xidPing  = -2
	xidAuth  = -4

	codeOK             = 0
	codeMarshalling    = -5
	codeSessionExpired = -112
	codeAuthFailed     = -115
	codeSessionMoved   = -118
)

const (
	// maxHandshakeFrame bounds a connect response. Real ones have 37 to 41 bytes;
	// an HTTP server's "HTTP" read as a length is 1.2 GB.
	maxHandshakeFrame = 4096
	// MaxReplyFrame bounds a reply, in bytes. Servers do not limit what they
	// send: a listing of a million children is about 60 MB.
	MaxReplyFrame = 256 << 20
	// maxTouches is how finely touches are kept: one per T/maxTouches.
	maxTouches = 200
)

// ErrHandshakeTimeout is the reason of a connection whose peer accepted and then
// did not finish the connect exchange in time.
var ErrHandshakeTimeout = errors.New("the peer accepted the connection and did not answer the connect request in time")

// NotZooKeeperError is returned for a peer whose first bytes cannot be a connect
// response.
type NotZooKeeperError struct {
	Start []byte // the first bytes it sent, at most 16
	Why   string
}

func (e *NotZooKeeperError) Error() string {
	return fmt.Sprintf("the peer does not speak ZooKeeper's protocol: %s (its answer starts with %q)", e.Why, e.Start)
}

// AuthError is returned when the server refused credentials.
type AuthError struct {
	Scheme string
	Code   int32 // ZooKeeper's error code, -115
}

func (e *AuthError) Error() string {
	return fmt.Sprintf("the server refused the %q credentials (code %d)", e.Scheme, e.Code)
}

// Auth is one scheme with its credentials.
type Auth struct {
	Scheme string
	Data   []byte
}

// Handshake is what a connect response says.
type Handshake struct {
	SessionID int64         // 0: the session that was asked for has expired
	Timeout   time.Duration // granted
	Sent      time.Time     // when the connect request was handed to the socket
}

// Events receives what the wrapper sees. The methods are called on the client
// library's own goroutines and must return at once.
type Events interface {
	// Handshake comes with every connect response, before the library or any
	// credentials see it. An error refuses the connection: the library's read
	// fails. delay is R of the trust rule: how long a server may take to report a
	// touch to the leader.
	Handshake(c *Conn, h Handshake) (delay time.Duration, err error)
	// Up comes once the connection is ready for requests.
	Up(c *Conn)
	// Down comes once for every connection that was handed out, ready or not.
	Down(c *Conn, err error)
	// Touch comes with every answered request: when it was sent, when answered.
	Touch(c *Conn, sent, answered time.Time)
	// Proof comes with every acknowledged write: when its anchor was sent.
	Proof(c *Conn, anchor time.Time)
	// Created comes with every successful create: the path as asked for and the
	// zxid, which is the czxid of the new node.
	Created(path string, zxid int64)
	// WatchEvent comes with every watch notification, before the library sees it.
	WatchEvent()
	// Answered comes with every reply: its opcode's name and how long it took.
	Answered(op string, took time.Duration)
	// Expired comes when the server answers a request with "session expired".
	Expired(c *Conn)
}

type request struct {
	op     int32
	sent   time.Time
	anchor time.Time // zero: nothing to anchor at yet, or not a write
	path   string    // of a create
}

type touch struct{ sent, answered time.Time }

// Conn is one connection to one server.
type Conn struct {
	net.Conn // the raw connection; Read, Write and Close are ours
	address  string
	now      func() time.Time
	events   Events
	auth     []Auth
	limit    time.Duration // of the connect exchange

	// wmu orders frames: what is recorded as sent first is sent first.
	wmu sync.Mutex

	mu        sync.Mutex // guards all below
	connect   touch      // the connect exchange
	delay     time.Duration
	timeout   time.Duration
	ready     bool
	pending   map[int32]request
	pings     []time.Time // sent and not answered, oldest first
	touches   []touch     // answered less than delay ago, oldest first
	anchored  time.Time   // sent time of the newest touch older than that
	closeDone bool        // the server acknowledged closeSession
	killed    error

	downOnce sync.Once

	// Only the library's reading goroutine touches these.
	in    *bufio.Reader
	frame []byte
	out   []byte // what the library has not read yet of frame
	err   error  // the first error of Read; there is nothing after it
}

// New wraps raw. limit is how long the connect exchange may take, credentials
// included; now reads the clock that trust deadlines are measured on.
func New(raw net.Conn, address string, auth []Auth, limit time.Duration, now func() time.Time, events Events) *Conn {
	return &Conn{
		Conn: raw, address: address, now: now, events: events, auth: auth, limit: limit,
		pending: make(map[int32]request),
		in:      bufio.NewReaderSize(raw, 16<<10),
	}
}

// Address is the host:port that was dialled.
func (c *Conn) Address() string { return c.address }

// Kill closes the socket; reads fail with err. Safe to call at any time.
func (c *Conn) Kill(err error) {
	c.mu.Lock()
	if c.killed == nil {
		c.killed = err
	}
	c.mu.Unlock()
	// Under TLS the socket itself is closed: a farewell could block.
	if under, ok := c.Conn.(interface{ NetConn() net.Conn }); ok {
		_ = under.NetConn().Close()
	} else {
		_ = c.Conn.Close()
	}
	c.down(err)
}

// Close is the library's.
func (c *Conn) Close() error {
	err := c.Conn.Close()
	c.down(net.ErrClosed)
	return err
}

func (c *Conn) down(err error) {
	c.downOnce.Do(func() {
		c.mu.Lock()
		if c.killed != nil {
			err = c.killed
		}
		c.mu.Unlock()
		c.events.Down(c, err)
	})
}

// CloseAcknowledged says whether the server answered closeSession.
func (c *Conn) CloseAcknowledged() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closeDone
}

// OldestPing returns when the oldest unanswered ping was sent.
func (c *Conn) OldestPing() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pings) == 0 {
		return time.Time{}, false
	}
	return c.pings[0], true
}

// Ping sends a ping of ours beside the library's. The library ignores the reply.
// It may block for as long as the socket does not take bytes.
func (c *Conn) Ping() {
	var f [12]byte
	binary.BigEndian.PutUint32(f[0:], 8)
	ping := int32(xidPing)
	binary.BigEndian.PutUint32(f[4:], uint32(ping))
	binary.BigEndian.PutUint32(f[8:], opPing)
	_, _ = c.Write(f[:])
}

// Write sends one or more frames of the library, or one of Ping.
//
// It never fails: the library hangs for good when a write fails while it sends
// credentials again. A socket that does not take the bytes is closed, and the
// next read says why.
func (c *Conn) Write(p []byte) (int, error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	// The reading is taken before the bytes are handed to the socket, so that
	// nothing can have happened at the server before it.
	if c.record(p, c.now()) {
		// The limit begins here: a peer that does not even take the request must not
		// hang the library.
		_ = c.Conn.SetDeadline(time.Now().Add(c.limit))
	}
	if _, err := c.Conn.Write(p); err != nil {
		c.Kill(fmt.Errorf("write to %s: %w", c.address, err))
	}
	return len(p), nil
}

// record notes the requests in p, sent at now. first says that it is the connect
// request.
func (c *Conn) record(p []byte, now time.Time) (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.connect.sent.IsZero() {
		c.connect.sent = now
		return true
	}
	for len(p) >= 12 {
		n := int(binary.BigEndian.Uint32(p))
		if n < 8 || n > len(p)-4 {
			break // not a whole frame: its reply will touch and prove nothing
		}
		body := p[4 : 4+n]
		p = p[4+n:]
		xid := int32(binary.BigEndian.Uint32(body))
		op := int32(binary.BigEndian.Uint32(body[4:]))
		if xid == xidPing {
			c.pings = append(c.pings, now)
			continue
		}
		r := request{op: op, sent: now}
		if isWrite(op) {
			r.anchor = c.anchorAt(now)
		}
		switch op {
		case opCreate, opCreate2, opCreateContainer, opCreateTTL:
			r.path, _ = readString(body[8:])
		}
		c.pending[xid] = r
	}
	return false
}

// anchorAt returns when the newest touch was sent that the server has certainly
// reported to the leader by the time a write sent now is answered: it was
// answered at least one report delay ago. The connect exchange needs no delay,
// since making or resuming a session touches the leader itself.
func (c *Conn) anchorAt(now time.Time) time.Time {
	keep := 0
	for _, t := range c.touches {
		if t.answered.Add(c.delay).After(now) {
			break
		}
		c.anchored = t.sent
		keep++
	}
	if keep > 0 {
		c.touches = append(c.touches[:0], c.touches[keep:]...)
	}
	if c.anchored.IsZero() && c.ready {
		return c.connect.sent
	}
	return c.anchored
}

// touched notes an answered request.
func (c *Conn) touched(sent, answered time.Time) {
	c.mu.Lock()
	// Touches closer together than T/200 are not worth keeping apart; dropping
	// the newer one only makes an anchor older.
	if n := len(c.touches); n == 0 || sent.Sub(c.touches[n-1].sent) >= c.timeout/maxTouches {
		c.anchorAt(answered) // prune
		c.touches = append(c.touches, touch{sent, answered})
	}
	c.mu.Unlock()
	c.events.Touch(c, sent, answered)
}

// Read gives the library whole, checked frames.
func (c *Conn) Read(p []byte) (int, error) {
	if len(c.out) == 0 && c.err == nil {
		if c.err = c.next(); c.err != nil {
			_ = c.Conn.Close()
			c.down(c.err)
			c.mu.Lock()
			if c.killed != nil {
				c.err = c.killed
			}
			c.mu.Unlock()
		}
	}
	if c.err != nil {
		return 0, c.err
	}
	n := copy(p, c.out)
	c.out = c.out[n:]
	return n, nil
}

func (c *Conn) next() error {
	c.mu.Lock()
	ready := c.ready
	c.mu.Unlock()
	if !ready {
		return c.handshake()
	}
	frame, err := c.readFrame(MaxReplyFrame)
	if err != nil {
		return err
	}
	if err := c.reply(frame[4:]); err != nil {
		return err
	}
	c.out = frame
	return nil
}

// readFrame reads one frame, its length included, into c.frame.
func (c *Conn) readFrame(limit int) ([]byte, error) {
	head, err := c.in.Peek(4)
	if err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(head))
	if n < 0 || n > limit {
		return nil, fmt.Errorf("a frame of %d bytes from %s: over the limit of %d", n, c.address, limit)
	}
	// Memory grows with what arrives, not with what a length promises.
	const step = 1 << 20
	f := c.frame[:0]
	if cap(f) > 4*step && n < step {
		f = nil // one huge listing must not be kept for ever
	}
	for want := 4 + n; len(f) < want; {
		chunk := min(want-len(f), step)
		if cap(f)-len(f) < chunk {
			f = append(make([]byte, 0, max(len(f)+chunk, 2*len(f))), f...)
		}
		at := len(f)
		f = f[:at+chunk]
		if _, err := io.ReadFull(c.in, f[at:]); err != nil {
			return nil, err
		}
	}
	c.frame = f
	return f, nil
}

func (c *Conn) reply(body []byte) error {
	if len(body) < 16 {
		return fmt.Errorf("a reply of %d bytes from %s: shorter than its header", len(body), c.address)
	}
	xid := int32(binary.BigEndian.Uint32(body))
	zxid := int64(binary.BigEndian.Uint64(body[4:]))
	code := int32(binary.BigEndian.Uint32(body[12:]))
	now := c.now()

	switch {
	case xid == xidWatch:
		c.events.WatchEvent()
		return nil
	case xid == xidPing:
		c.mu.Lock()
		var sent time.Time
		if len(c.pings) > 0 {
			sent = c.pings[0]
			c.pings = append(c.pings[:0], c.pings[1:]...)
		}
		c.mu.Unlock()
		if !sent.IsZero() && code == codeOK {
			c.touched(sent, now)
		}
		return nil
	}

	c.mu.Lock()
	r, known := c.pending[xid]
	delete(c.pending, xid)
	if known && r.op == opClose {
		c.closeDone = true
	}
	c.mu.Unlock()
	if !known {
		return nil
	}
	c.events.Answered(opName(r.op), now.Sub(r.sent))

	ok := code == codeOK
	if ok && r.op == opMulti {
		// A failed multi is answered with code 0 and an error for each operation.
		code = firstMultiError(body[16:])
		ok = code == codeOK
	}
	switch code {
	case codeSessionExpired:
		c.events.Expired(c)
		return nil
	case codeSessionMoved:
		// The session belongs to another connection; nothing said here counts.
		return fmt.Errorf("%s says that the session has moved to another server", c.address)
	}
	if ok && isCreate(r.op) && r.path != "" {
		c.events.Created(r.path, zxid)
	}
	c.touched(r.sent, now)
	if ok && isWrite(r.op) && !r.anchor.IsZero() && c.timely(r, now) {
		c.events.Proof(c, r.anchor)
	}
	return nil
}

// timely says whether the answer to a write shows what its anchor claims. One that
// took longer than the report delay may come from a leader that was stopped: it goes
// on with the requests that piled up before it hears what its followers have to
// report. Having made or resumed the session needs no report.
func (c *Conn) timely(r request, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.Sub(r.sent) <= c.delay || r.anchor.Equal(c.connect.sent)
}

func isCreate(op int32) bool {
	return op == opCreate || op == opCreate2 || op == opCreateContainer || op == opCreateTTL
}

func isWrite(op int32) bool {
	return isCreate(op) || op == opDelete || op == opSetData || op == opSetACL || op == opMulti || op == opReconfig
}

// opName gives the names that the metrics use (design section 8).
func opName(op int32) string {
	switch op {
	case opCreate, opCreate2, opCreateContainer, opCreateTTL:
		return "create"
	case opDelete:
		return "delete"
	case opExists:
		return "exists"
	case opGetData:
		return "getData"
	case opSetData:
		return "setData"
	case opGetChildren, opGetChildren2:
		return "getChildren"
	case opMulti:
		return "multi"
	default:
		return "other"
	}
}

// firstMultiError returns the code of the operation that failed a multi: the
// first that is neither 0 (rolled back) nor absent. Session errors count
// wherever they stand.
func firstMultiError(body []byte) int32 {
	first := int32(codeOK)
	for len(body) >= 9 {
		kind := int32(binary.BigEndian.Uint32(body))
		done := body[4] != 0
		if done || kind != -1 {
			// Results other than errors come only from a multi that was applied.
			return first
		}
		if len(body) < 13 {
			return codeMarshalling
		}
		code := int32(binary.BigEndian.Uint32(body[9:]))
		if code == codeSessionExpired || code == codeSessionMoved {
			return code
		}
		if first == codeOK && code != codeOK {
			first = code
		}
		body = body[13:]
	}
	return codeMarshalling // cut short: it says nothing
}

// readString reads a length-prefixed string.
func readString(b []byte) (string, bool) {
	if len(b) < 4 {
		return "", false
	}
	n := int(int32(binary.BigEndian.Uint32(b)))
	if n < 0 || n > len(b)-4 {
		return "", false
	}
	return string(b[4 : 4+n]), true
}
