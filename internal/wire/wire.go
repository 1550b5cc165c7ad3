// Package wire wraps the net.Conn under a zk.Conn and reads the ZooKeeper frames
// that pass through it.
//
// The client library tells its user neither when a request was sent and
// answered, nor the zxid of a create, nor what session timeout was granted, and
// it waits on a silent peer for several session timeouts. All of that is on the
// wire, so it is taken from there.
//
// Frames are a 4-byte big-endian length and that many bytes. A request starts
// with xid and opcode (int32 each), a reply with xid (int32), zxid (int64) and
// error code (int32).
package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
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
	opSync            = 9
	opPing            = 11
	opGetChildren2    = 12
	opMulti           = 14
	opCreate2         = 15
	opCheck           = 13
	opReconfig        = 16
	opCreateContainer = 19
	opCreateTTL       = 21
	opSetAuth         = 100
	opSetWatches      = 101
	opClose           = -11

	flagContainer = 4

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
	// MaxReplyFrame is the default bound of a reply, in bytes. Servers do not limit what
	// they send: a listing of a million children is about 60 MB.
	MaxReplyFrame = 256 << 20
	// minOversize is larger than every error code of a server is below zero.
	minOversize = 1 << 10
	// watchesWithin is how long the library may take on a resumed session to ask for its
	// watches again. It does so at once, unless it has none or the process stands still.
	watchesWithin = time.Second
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
type Events interface { //nolint:interfacebloat // what one connection shows, not an abstraction
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
	// Created comes with every successful create, those inside a transaction
	// included: the path as asked for and the zxid, which is the czxid of the new node.
	Created(path string, zxid int64)
	// Sent comes with every create and delete, those inside a transaction included, once
	// its frame is on its way: the server carries out after it what is sent after it.
	// Write calls it. The path is the one asked for.
	Sent(path string)
	// Plain comes when a server answers that it made a plain node where a transaction
	// asked for a container: one that takes no container there.
	Plain(path string)
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
	paths  []string  // of creates

	container string // the path of the container that a transaction makes; "" if none
}

type touch struct{ sent, answered time.Time }

// Conn is one connection to one server.
type Conn struct {
	// MaxReply bounds a reply, in bytes; at least 1024. What is larger is not kept: the
	// library gets an error in its place, see Oversize. Set it before the first Read.
	MaxReply int

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
	touches   []touch     // too new to be anchors yet, oldest first
	anchored  time.Time   // sent time of the newest touch older than those
	led       []touch     // answered by the leader less than delay/100 ago, oldest first
	ledSent   time.Time   // sent time of the newest answer of the leader older than that
	closeDone bool        // the server acknowledged closeSession
	resumed   bool        // the connect request asked for a session that exists
	rewatched bool        // the library has asked for its watches again
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
		Conn: raw, address: address, now: now, events: events, auth: auth, limit: limit, MaxReply: MaxReplyFrame,
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
	first, sent := c.record(p, c.now())
	if first {
		// The limit begins here: a peer that does not even take the request must not
		// hang the library.
		_ = c.Conn.SetDeadline(time.Now().Add(c.limit))
	}
	if _, err := c.Conn.Write(p); err != nil {
		c.Kill(fmt.Errorf("write to %s: %w", c.address, err))
		return len(p), nil
	}
	for _, path := range sent {
		c.events.Sent(path)
	}
	return len(p), nil
}

// record notes the requests in p, sent at now. first says that it is the connect
// request; sent are the paths of creates and deletes.
func (c *Conn) record(p []byte, now time.Time) (first bool, sent []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.connect.sent.IsZero() {
		c.connect.sent = now
		// Behind the length, the version, a zxid and a timeout stands the session.
		c.resumed = len(p) >= 28 && binary.BigEndian.Uint64(p[20:]) != 0
		return true, nil
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
			if p, ok := readString(body[8:]); ok {
				r.paths = []string{p}
				sent = append(sent, p)
			}
		case opDelete:
			if p, ok := readString(body[8:]); ok {
				sent = append(sent, p)
			}
		case opSetWatches:
			c.rewatched = true
		case opMulti:
			var deletes []string
			r.paths, deletes, r.container = multiPaths(body[8:])
			sent = append(append(sent, deletes...), r.paths...)
		}
		c.pending[xid] = r
	}
	return false, sent
}

// anchorAt returns when the newest touch was sent that the server has certainly
// reported to the leader by the time a write sent now is answered.
//
// The leader asks for reports every half tick while it runs, and right after it goes
// on if it was stopped. So a touch counts if it was answered at least one report delay
// ago, and if the leader has answered something since that was sent well after the
// report was due: that shows that the leader ran then, and asked. The write's own
// answer shows that the report, which is ahead of it on its way, got through. The
// connect exchange needs nothing of this, since making or resuming a session touches
// the leader itself.
func (c *Conn) anchorAt(now time.Time) time.Time {
	// A leader that goes on after a stop needs a moment to come to its pings.
	keep := 0
	for _, q := range c.led {
		if q.answered.Add(c.delay / 100).After(now) {
			break
		}
		c.ledSent = q.sent
		keep++
	}
	c.led = append(c.led[:0], c.led[keep:]...)

	// A half of the delay until the report is due, and a quarter for it to be asked for.
	reported := c.ledSent.Add(-c.delay * 3 / 4)
	if late := now.Add(-c.delay); late.Before(reported) {
		reported = late
	}
	keep = 0
	for _, t := range c.touches {
		if t.answered.After(reported) {
			break
		}
		c.anchored = t.sent
		keep++
	}
	// What is as old as the session timeout is of no use any more: without answers of
	// the leader the list would grow for as long as the connection lasts.
	for keep < len(c.touches) && now.Sub(c.touches[keep].sent) >= c.timeout {
		keep++
	}
	c.touches = append(c.touches[:0], c.touches[keep:]...)
	if c.anchored.IsZero() && c.ready {
		return c.connect.sent
	}
	return c.anchored
}

// noteTouch adds a touch to a list, unless it is of no use. Touches closer together
// than T/200 are not worth keeping apart; dropping the newer one only makes an anchor
// older.
func (c *Conn) noteTouch(list []touch, t touch) []touch {
	n := len(list)
	if t.answered.Sub(t.sent) >= c.timeout || n > 0 && t.sent.Sub(list[n-1].sent) < c.timeout/maxTouches {
		return list
	}
	return append(list, t)
}

// touched notes an answered request, byLeader one that only the leader can answer.
func (c *Conn) touched(sent, answered time.Time, byLeader bool) {
	c.mu.Lock()
	c.anchorAt(answered) // prune
	c.touches = c.noteTouch(c.touches, touch{sent, answered})
	if byLeader {
		c.led = c.noteTouch(c.led, touch{sent, answered})
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
	frame, err := c.readReply()
	if err != nil {
		return err
	}
	r, err := c.reply(frame[4:])
	if err != nil {
		return err
	}
	if r.container != "" {
		var made bool
		if frame, made = withoutStats(frame); !made {
			c.events.Plain(r.container)
		}
	}
	c.out = frame
	return nil
}

// readReply reads one reply. In the place of one that is larger than MaxReply there is
// an error of 16 bytes: if the connection ended, the library would ask again on the
// next one, and every lock of the process would pay for that each time.
func (c *Conn) readReply() ([]byte, error) {
	head, err := c.in.Peek(4)
	if err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(head))
	if n <= c.MaxReply || n > math.MaxInt32 {
		return c.readFrame(c.MaxReply)
	}
	if head, err = c.in.Peek(20); err != nil {
		return nil, err
	}
	c.mu.Lock()
	_, known := c.pending[int32(binary.BigEndian.Uint32(head[4:]))]
	c.mu.Unlock()
	if !known {
		return c.readFrame(c.MaxReply) // says that it is too large
	}
	frame := bytes.Clone(head)
	binary.BigEndian.PutUint32(frame, 16)
	binary.BigEndian.PutUint32(frame[16:], uint32(int32(-n)))
	_, err = c.in.Discard(4 + n)
	return frame, err
}

// Oversize says whether err is what the library makes of the error that stands for a
// reply over MaxReply, and how many bytes that had: the error code is their number below
// zero, which is none that a server has.
func Oversize(err error) (size int, ok bool) {
	if err == nil {
		return 0, false
	}
	digits, found := strings.CutPrefix(err.Error(), "unknown error: -")
	n, err := strconv.Atoi(digits)
	return n, found && err == nil && n >= minOversize
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

// reply notes what a reply says, and hides its zxid from the library while that may not
// know it. It returns the request if that was carried out.
func (c *Conn) reply(body []byte) (request, error) {
	if len(body) < 16 {
		return request{}, fmt.Errorf("a reply of %d bytes from %s: shorter than its header", len(body), c.address)
	}
	xid := int32(binary.BigEndian.Uint32(body))
	zxid := int64(binary.BigEndian.Uint64(body[4:]))
	code := int32(binary.BigEndian.Uint32(body[12:]))
	now := c.now()

	switch {
	case xid == xidWatch:
		c.events.WatchEvent()
		return request{}, nil
	case xid == xidPing:
		c.mu.Lock()
		var sent time.Time
		if len(c.pings) > 0 {
			sent = c.pings[0]
			c.pings = append(c.pings[:0], c.pings[1:]...)
		}
		c.mu.Unlock()
		if !sent.IsZero() && code == codeOK {
			c.touched(sent, now, false)
		}
		return request{}, nil
	}

	c.mu.Lock()
	r, known := c.pending[xid]
	delete(c.pending, xid)
	if known && r.op == opClose {
		c.closeDone = true
	}
	if c.resumed && !c.rewatched && now.Sub(c.connect.answered) < watchesWithin {
		// The library asks for its watches as of the newest zxid it was told of, on a
		// goroutine that an answer to a request of ours can outrun: then it would miss what
		// has happened meanwhile, and race with itself. A zxid of 0 it passes over.
		clear(body[4:12])
	}
	c.mu.Unlock()
	if !known {
		return request{}, nil
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
		return request{}, nil
	case codeSessionMoved:
		// The session belongs to another connection; nothing said here counts.
		return request{}, fmt.Errorf("%s says that the session has moved to another server", c.address)
	}
	if ok {
		for _, p := range r.paths {
			c.events.Created(p, zxid)
		}
	}
	// A refusal may be the server's own.
	c.touched(r.sent, now, ok && (isWrite(r.op) || r.op == opSync))
	if ok && isWrite(r.op) && !r.anchor.IsZero() && c.timely(r, now) {
		c.events.Proof(c, r.anchor)
	}
	if !ok {
		r = request{}
	}
	return r, nil
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

// opName gives the names that the metrics use.
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
