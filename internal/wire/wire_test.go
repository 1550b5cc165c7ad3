package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeConn is a socket whose other end is the test: what the wrapper writes is
// kept, what the test pushes is read, and an empty queue fails instead of blocking.
type fakeConn struct {
	net.Conn
	mu       sync.Mutex
	in       bytes.Buffer
	writes   [][]byte
	onWrite  func(p []byte)
	writeErr error
	closed   bool
}

var errEmpty = errors.New("nothing to read")

func (f *fakeConn) Read(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.in.Len() == 0 {
		if f.closed {
			return 0, net.ErrClosed
		}
		return 0, errEmpty
	}
	return f.in.Read(p)
}

func (f *fakeConn) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.writeErr != nil {
		return 0, f.writeErr
	}
	f.writes = append(f.writes, bytes.Clone(p))
	if f.onWrite != nil {
		f.onWrite(p)
	}
	return len(p), nil
}

func (f *fakeConn) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}
func (f *fakeConn) SetDeadline(time.Time) error { return nil }

func (f *fakeConn) push(frames ...[]byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, b := range frames {
		f.in.Write(b)
	}
}

// bench is a wrapper with a fake socket, a clock that the test moves, and a record of
// the events as text.
type bench struct {
	t     *testing.T
	raw   *fakeConn
	c     *Conn
	clock time.Time
	mu    sync.Mutex
	log   []string

	delay  time.Duration
	refuse error // of the handshake
}

var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func newBench(t *testing.T, auth ...Auth) *bench {
	b := &bench{t: t, raw: &fakeConn{}, clock: epoch, delay: 2 * time.Second}
	b.c = New(b.raw, "zk1:2181", auth, time.Second, func() time.Time { return b.clock }, b)
	return b
}

func (b *bench) notef(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.log = append(b.log, fmt.Sprintf(format, args...))
}

// sec prints a time as seconds since the epoch.
func sec(t time.Time) string { return fmt.Sprint(t.Sub(epoch).Seconds()) }

func (b *bench) Handshake(_ *Conn, h Handshake) (time.Duration, error) {
	b.notef("handshake %#x %v sent %s", h.SessionID, h.Timeout, sec(h.Sent))
	return b.delay, b.refuse
}
func (b *bench) Up(*Conn)                { b.notef("up") }
func (b *bench) Down(_ *Conn, err error) { b.notef("down %v", err) }
func (b *bench) Touch(_ *Conn, sent, answered time.Time) {
	b.notef("touch %s %s", sec(sent), sec(answered))
}
func (b *bench) Proof(_ *Conn, anchor time.Time)        { b.notef("proof %s", sec(anchor)) }
func (b *bench) Created(path string, zxid int64)        { b.notef("created %s %#x", path, zxid) }
func (b *bench) Plain(path string)                      { b.notef("plain %s", path) }
func (b *bench) Sent(path string)                       { b.notef("sent %s", path) }
func (b *bench) WatchEvent()                            { b.notef("watch") }
func (b *bench) Answered(op string, took time.Duration) { b.notef("answered %s %v", op, took) }
func (b *bench) Expired(*Conn)                          { b.notef("expired") }

// events returns what happened since the last call.
func (b *bench) events() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := strings.Join(b.log, ", ")
	b.log = nil
	return s
}

func (b *bench) want(what, events string) {
	b.t.Helper()
	if got := b.events(); got != events {
		b.t.Errorf("%s: events %q, want %q", what, got, events)
	}
}

func (b *bench) at(seconds float64) {
	b.clock = epoch.Add(time.Duration(seconds * float64(time.Second)))
}

func (b *bench) send(frames ...[]byte) {
	b.t.Helper()
	p := bytes.Join(frames, nil)
	if n, err := b.c.Write(p); n != len(p) || err != nil {
		b.t.Fatalf("Write = %d, %v", n, err)
	}
}

// read takes one frame as the library does: four bytes, and then the rest.
func (b *bench) read() ([]byte, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(b.c, head); err != nil {
		return nil, err
	}
	rest := make([]byte, binary.BigEndian.Uint32(head))
	_, err := io.ReadFull(b.c, rest)
	return cat(head, rest), err
}

// answer pushes one reply and reads it.
func (b *bench) answer(reply []byte) {
	b.t.Helper()
	b.raw.push(reply)
	got, err := b.read()
	if err != nil || !bytes.Equal(got, reply) {
		b.t.Fatalf("the library reads %x, %v; want %x", got, err, reply)
	}
}

// open does the connect exchange at time 0.
func (b *bench) open() *bench {
	b.t.Helper()
	b.send(frame(make([]byte, 44)))
	b.answer(connectResponse(0x17, 12000))
	b.want("connect exchange", "handshake 0x17 12s sent 0, up")
	return b
}

func frame(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

func i32(v int32) []byte { return binary.BigEndian.AppendUint32(nil, uint32(v)) }
func i64(v int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(v)) }
func str(s string) []byte {
	return append(i32(int32(len(s))), s...)
}

func cat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func connectResponse(id int64, timeout int32) []byte {
	return frame(cat(i32(0), i32(timeout), i64(id), str("0123456789abcdef"), []byte{0}))
}

func requestFrame(xid, op int32, body ...[]byte) []byte {
	return frame(cat(i32(xid), i32(op), cat(body...)))
}

func replyFrame(xid int32, zxid int64, code int32, body ...[]byte) []byte {
	return frame(cat(i32(xid), i64(zxid), i32(code), cat(body...)))
}

var ping = requestFrame(xidPing, opPing)

func pong(zxid int64) []byte { return replyFrame(xidPing, zxid, 0) }

func TestConnectExchange(t *testing.T) {
	b := newBench(t)
	b.at(1)
	b.send(frame(make([]byte, 44)))
	b.want("connect request", "")
	b.at(3)
	b.answer(connectResponse(-5, 4000)) // ids can be negative
	b.want("connect response", "handshake -0x5 4s sent 1, up")
	if b.c.Address() != "zk1:2181" || b.c.CloseAcknowledged() {
		t.Errorf("address %s", b.c.Address())
	}
}

func TestHandshakeRefused(t *testing.T) {
	b := newBench(t, Auth{"digest", []byte("u:p")})
	b.refuse = errors.New("not our session")
	b.send(frame(make([]byte, 44)))
	b.raw.push(connectResponse(9, 4000))
	if got, err := b.read(); !errors.Is(err, b.refuse) || len(got) != 0 {
		t.Errorf("the library reads %x, %v", got, err)
	}
	b.want("refused", "handshake 0x9 4s sent 0, down not our session")
	if len(b.raw.writes) != 1 || !b.raw.closed {
		t.Errorf("%d writes and closed %v; credentials must not go to a session that is not ours", len(b.raw.writes), b.raw.closed)
	}
}

func TestBadConnectResponses(t *testing.T) {
	for _, tc := range []struct {
		name  string
		bytes []byte
		parts []string // of the error
	}{
		{"HTTP", []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), []string{`"HTTP/1.1 400 Bad`, "does not speak ZooKeeper"}},
		{"a long frame", frame(make([]byte, maxHandshakeFrame+1)), []string{"does not speak ZooKeeper", "4097 bytes"}},
		{"an empty frame", frame(nil), []string{"a connect response of 0 bytes"}},
		{"19 bytes", frame(make([]byte, 19)), []string{"a connect response of 19 bytes"}},
		{"a password longer than the frame", frame(cat(i32(0), i32(4000), i64(1), i32(17), make([]byte, 16))), []string{"password is longer than itself"}},
		{"a password of a negative length", frame(cat(i32(0), i32(4000), i64(1), i32(-2))), []string{"password"}},
		{"a timeout of 0", connectResponse(1, 0), []string{"session timeout of 0 ms"}},
		{"a negative timeout", connectResponse(1, -4000), []string{"session timeout of -4000 ms"}},
		{"half", connectResponse(1, 4000)[:20], []string{"EOF"}},
	} {
		b := newBench(t)
		b.send(frame(make([]byte, 44)))
		b.raw.push(tc.bytes)
		if tc.name == "half" {
			// The peer has gone. (One that stays silent is in TestHandshakeLimit.)
			b.raw = &fakeConn{}
			b.c.in.Reset(io.MultiReader(bytes.NewReader(tc.bytes)))
		}
		got, err := b.read()
		if err == nil || len(got) != 0 {
			t.Errorf("%s: the library reads %x, %v", tc.name, got, err)
			continue
		}
		for _, p := range tc.parts {
			if !strings.Contains(err.Error(), p) {
				t.Errorf("%s: error %q does not say %q", tc.name, err, p)
			}
		}
		if ev := b.events(); !strings.HasPrefix(ev, "down ") || strings.Contains(ev, "up") {
			t.Errorf("%s: events %s", tc.name, ev)
		}
	}
	// An expired session is an answer like any other: id 0, timeout 0.
	b := newBench(t)
	b.send(frame(make([]byte, 44)))
	b.answer(connectResponse(0, 0))
	b.want("expired", "handshake 0x0 0s sent 0, up")
}

// Credentials go out before the library learns that it is connected, so that
// nothing can be sent before they have been accepted.
func TestCredentialsBeforeAnything(t *testing.T) {
	b := newBench(t, Auth{"digest", []byte("u:p")}, Auth{"ip", nil})
	b.send(frame(make([]byte, 44)))
	accepted := 0
	b.raw.onWrite = func([]byte) {
		accepted++
		b.notef("credential %d", accepted)
		if accepted == 2 {
			b.raw.in.Write(cat(replyFrame(xidAuth, 0, 0), replyFrame(xidAuth, 0, 0)))
		}
	}
	b.raw.push(connectResponse(0x17, 12000))
	got, err := b.read()
	if err != nil || !bytes.Equal(got, connectResponse(0x17, 12000)) {
		t.Fatalf("the library reads %x, %v", got, err)
	}
	b.want("order", "handshake 0x17 12s sent 0, credential 1, credential 2, up")
	for i, want := range [][]byte{
		requestFrame(xidAuth, opSetAuth, i32(0), str("digest"), str("u:p")), requestFrame(xidAuth, opSetAuth, i32(0), str("ip"), str("")),
	} {
		if !bytes.Equal(b.raw.writes[1+i], want) {
			t.Errorf("credential %d goes out as %x, want %x", i, b.raw.writes[1+i], want)
		}
	}
	// They were not the library's, and prove nothing.
	b.raw.onWrite = nil
	b.at(1)
	b.send(ping)
	b.answer(pong(1))
	b.want("after them", "touch 1 1")
}

func TestCredentialsRefused(t *testing.T) {
	for _, tc := range []struct {
		name    string
		answers []byte
		want    string
	}{
		{"refused", replyFrame(xidAuth, 0, codeAuthFailed), `the server refused the "digest" credentials (code -115)`},
		{"the second refused", cat(replyFrame(xidAuth, 0, 0), replyFrame(xidAuth, 0, -4)), `the server refused the "ip" credentials (code -4)`},
		{"another request answered", replyFrame(7, 0, 0), "an answer to request 7"},
		{"short", frame(make([]byte, 15)), "bytes to the \"digest\" credentials"},
	} {
		b := newBench(t, Auth{"digest", []byte("u:p")}, Auth{"ip", nil})
		b.send(frame(make([]byte, 44)))
		b.raw.push(connectResponse(0x17, 12000), tc.answers)
		got, err := b.read()
		if err == nil || len(got) != 0 || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: the library reads %x, %v; want %s", tc.name, got, err, tc.want)
		}
		var refused *AuthError
		if isRefusal := strings.Contains(tc.name, "refused"); errors.As(err, &refused) != isRefusal {
			t.Errorf("%s: the error is %T", tc.name, err)
		}
		if ev := b.events(); strings.Contains(ev, "up") || !strings.Contains(ev, "down") {
			t.Errorf("%s: events %s", tc.name, ev)
		}
	}
}

func TestTouches(t *testing.T) {
	b := newBench(t).open()
	b.at(1)
	b.send(requestFrame(1, opGetData, str("/a"), []byte{0}))
	b.at(1.5)
	b.answer(replyFrame(1, 5, 0))
	b.want("a read", "answered getData 500ms, touch 1 1.5")

	// A refusal is an answer.
	b.send(requestFrame(2, opExists, str("/a"), []byte{0}))
	b.answer(replyFrame(2, 5, -101))
	b.want("a refused read", "answered exists 0s, touch 1.5 1.5")

	// What did not come from us touches nothing.
	b.answer(replyFrame(xidWatch, -1, 0, i32(2), i32(3), str("/a")))
	b.want("a watch event", "watch")
	b.answer(replyFrame(99, 5, 0))
	b.want("a reply to nothing", "")
	b.answer(replyFrame(2, 5, 0))
	b.want("a second reply", "")
	b.answer(pong(5))
	b.want("a ping of nobody's", "")
	b.answer(replyFrame(xidAuth, 5, 0))
	b.want("a late answer to credentials", "")
}

func TestSessionErrorsTouchNothing(t *testing.T) {
	b := newBench(t).open()
	b.send(requestFrame(1, opCreate, str("/a")))
	b.answer(replyFrame(1, 5, codeSessionExpired))
	b.want("-112", "sent /a, answered create 0s, expired")

	b.send(requestFrame(2, opGetData, str("/a")))
	b.raw.push(replyFrame(2, 5, codeSessionMoved))
	if _, err := b.read(); err == nil || !strings.Contains(err.Error(), "moved") || !strings.Contains(err.Error(), "zk1:2181") {
		t.Errorf("-118: %v", err)
	}
	if ev := b.events(); strings.Contains(ev, "touch") || strings.Contains(ev, "expired") || !strings.Contains(ev, "down zk1:2181 says that the session has moved") {
		t.Errorf("-118: events %s", ev)
	}
}

// Pings have one xid; their answers come in the order in which they were sent.
func TestPingsAreFirstInFirstOut(t *testing.T) {
	b := newBench(t).open()
	if _, waiting := b.c.OldestPing(); waiting {
		t.Error("a ping waits before any was sent")
	}
	for i := range 3 {
		b.at(float64(i + 1))
		if i == 1 {
			b.c.Ping() // ours beside the library's
		} else {
			b.send(ping)
		}
	}
	if sent, waiting := b.c.OldestPing(); !waiting || sec(sent) != "1" {
		t.Errorf("the oldest ping: %s, %v", sec(sent), waiting)
	}
	for i, want := range []string{"touch 1 5", "touch 2 6", "touch 3 7"} {
		b.at(float64(5 + i))
		b.answer(pong(1))
		b.want("pong", want)
	}
	if _, waiting := b.c.OldestPing(); waiting {
		t.Error("a ping waits after all were answered")
	}
	b.send(ping)
	b.answer(replyFrame(xidPing, 0, codeSessionExpired))
	b.want("a refused ping", "")
	if !bytes.Equal(b.raw.writes[2], ping) {
		t.Errorf("our ping goes out as %x", b.raw.writes[2])
	}
}
