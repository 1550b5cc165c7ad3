package wire

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A whole frame is needed to tell what is in a write; several in one are each seen.
func TestRequestsInOneWrite(t *testing.T) {
	b := newBench(t).open()
	b.at(1)
	b.send(requestFrame(1, opGetData, str("/a")), ping, requestFrame(2, opCreate, str("/b"), i32(0)), requestFrame(3, opDelete, str("/c"))[:9])
	for _, r := range [][]byte{replyFrame(1, 1, 0), pong(1), replyFrame(2, 7, 0), replyFrame(3, 8, 0)} {
		b.answer(r)
	}
	b.want("four in one write", "sent /b, answered getData 0s, touch 1 1, touch 1 1, answered create 0s, created /b 0x7, touch 1 1, proof 0")
	for _, p := range [][]byte{{}, {0, 0}, frame(nil), frame(make([]byte, 7)), {0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 1}, requestFrame(4, opCreate, i32(1<<30))} {
		b.send(p) // must not panic, whatever it is
	}
	b.answer(replyFrame(4, 9, 0))
	b.want("a create without a path", "answered create 0s, touch 1 1, proof 0")
}

// The library may read in any pieces.
func TestReadInPieces(t *testing.T) {
	b := newBench(t).open()
	want := cat(replyFrame(1, 1, 0, bytes.Repeat([]byte("x"), 100000)), pong(1), replyFrame(2, 1, 0))
	b.raw.push(want)
	var got []byte
	for i := 0; len(got) < len(want); i++ {
		p := make([]byte, 1+i*i%977)
		n, err := b.c.Read(p)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, p[:n]...)
	}
	if !bytes.Equal(got, want) {
		t.Error("the bytes differ")
	}
}

func TestBadReplies(t *testing.T) {
	for _, tc := range []struct {
		name  string
		bytes []byte
		parts []string
	}{
		{"oversize, to nobody", cat(i32(MaxReplyFrame+1), make([]byte, 16)), []string{"268435457 bytes", "zk1:2181", "over the limit of 268435456"}},
		{"negative length", i32(-1), []string{"4294967295 bytes", "over the limit"}},
		{"shorter than its header", frame(make([]byte, 15)), []string{"a reply of 15 bytes", "shorter than its header"}},
		{"empty", frame(nil), []string{"a reply of 0 bytes"}},
	} {
		b := newBench(t).open()
		b.raw.push(tc.bytes)
		_, err := b.read()
		for _, p := range tc.parts {
			if err == nil || !strings.Contains(err.Error(), p) {
				t.Errorf("%s: %v, want %q in it", tc.name, err, p)
			}
		}
		if ev := b.events(); !strings.HasPrefix(ev, "down ") || !b.raw.closed {
			t.Errorf("%s: events %q, closed %v", tc.name, ev, b.raw.closed)
		}
	}
}

// Once a connection has been refused, what the server sent behind that is not passed
// on, though it has been read from the socket already.
func TestNothingIsPassedOnAfterAnError(t *testing.T) {
	b := newBench(t).open()
	b.send(requestFrame(1, opGetData), requestFrame(2, opGetData))
	b.raw.push(replyFrame(1, 1, codeSessionMoved), replyFrame(2, 1, 0))
	_, first := b.read()
	got, err := b.read()
	if first == nil || !errors.Is(err, first) {
		t.Errorf("the read after %v gives %x, %v", first, got, err)
	}

	b = newBench(t)
	b.refuse = errors.New("not our session")
	b.send(frame(make([]byte, 44)))
	b.raw.push(connectResponse(9, 4000), connectResponse(9, 4000))
	_, _ = b.read()
	if got, err := b.read(); !errors.Is(err, b.refuse) {
		t.Errorf("the read after a refused handshake gives %x, %v", got, err)
	}
	if ev := b.events(); strings.Count(ev, "handshake") != 1 || strings.Contains(ev, "up") {
		t.Errorf("events %s", ev)
	}
}

// A large listing is read, and its memory is given back with the next small reply.
func TestLargeReply(t *testing.T) {
	b := newBench(t).open()
	b.answer(replyFrame(1, 1, 0, make([]byte, 6<<20)))
	b.answer(replyFrame(2, 1, 0))
	if n := cap(b.c.frame); n > 4<<20 {
		t.Errorf("%d bytes are kept for small replies", n)
	}
}

// A reply that is too large is read to its end and not kept. The library gets an error
// that says so in its place, and the connection goes on.
func TestOversizeReply(t *testing.T) {
	b := newBench(t).open()
	b.c.MaxReply = 4096
	b.send(requestFrame(1, opGetChildren2, str("/a"), []byte{0}), requestFrame(2, opMulti), requestFrame(3, opCreate, str("/b")), requestFrame(4, opGetData))
	b.raw.push(
		replyFrame(1, 7, 0, make([]byte, 4096-16+1)), replyFrame(2, 8, 0, multiOK(1000)), replyFrame(3, 9, 0, make([]byte, 1<<20)),
		replyFrame(4, 9, 0, make([]byte, 4096-16)), replyFrame(5, 9, 0))
	for i, want := range [][]byte{
		replyFrame(1, 7, -4097), replyFrame(2, 8, int32(-(16 + len(multiOK(1000))))), replyFrame(3, 9, -(16 + 1<<20)),
		replyFrame(4, 9, 0, make([]byte, 4096-16)), replyFrame(5, 9, 0),
	} {
		if got, err := b.read(); err != nil || !bytes.Equal(got, want) {
			t.Errorf("reply %d: the library reads %d bytes, %x, %v; want %x", i+1, len(got), got[:min(len(got), 20)], err, want[:20])
		}
	}
	// Heard, and nothing proved or made as far as anybody can tell.
	b.want("oversize", "sent /b, answered getChildren 0s, touch 0 0, answered multi 0s, touch 0 0, answered create 0s, touch 0 0, answered getData 0s, touch 0 0")

	for text, want := range map[string]int{
		"unknown error: -4097": 4097, "unknown error: -2147483647": 2147483647,
		"unknown error: -6": 0, "4097": 0, "unknown error: 4097": 0, "zk: node does not exist": 0, "unknown error: -40x": 0,
	} {
		if n, ok := Oversize(errors.New(text)); ok != (want != 0) || ok && n != want {
			t.Errorf("%s: %d, %v", text, n, ok)
		}
	}
	if _, ok := Oversize(nil); ok {
		t.Error("no error is an error")
	}
	// One that breaks off.
	b.send(requestFrame(6, opGetData))
	b.raw.push(replyFrame(6, 7, 0, make([]byte, 8000))[:6000])
	if got, err := b.read(); err == nil {
		t.Errorf("the library reads %x", got)
	}
}

// The library hangs for good if a write fails at the wrong moment: it is told by the
// next read.
func TestWriteErrorsComeWithTheRead(t *testing.T) {
	b := newBench(t).open()
	b.raw.writeErr = errors.New("broken pipe")
	b.send(ping) // fails the test if Write returns an error
	if !b.raw.closed {
		t.Error("the socket is still open")
	}
	if _, err := b.read(); err == nil || !strings.Contains(err.Error(), "write to zk1:2181: broken pipe") {
		t.Errorf("the read says %v", err)
	}
	b.want("a failed write", "down write to zk1:2181: broken pipe")
	b.send(ping)
	b.want("another one", "")
}

// What comes after a delete is sent after it. A delete that did not get out has
// nothing after it.
func TestSentComesOnceTheFrameIsOnItsWay(t *testing.T) {
	b := newBench(t).open()
	b.send(requestFrame(1, opDelete, str("/a"), i32(-1)), requestFrame(2, opGetData, str("/b"), []byte{0}), requestFrame(3, opDelete, str("/c"), i32(-1)))
	b.want("two deletes", "sent /a, sent /c")
	b.raw.writeErr = errors.New("broken pipe")
	b.send(requestFrame(4, opDelete, str("/a"), i32(-1)))
	b.want("a failed write", "down write to zk1:2181: broken pipe")
}

func TestKillAndClose(t *testing.T) {
	cause := errors.New("enough")
	b := newBench(t).open()
	b.c.Kill(cause)
	b.c.Kill(errors.New("again"))
	_ = b.c.Close()
	if _, err := b.read(); !errors.Is(err, cause) {
		t.Errorf("the read after Kill says %v", err)
	}
	b.want("Kill", "down enough")

	b = newBench(t).open()
	_ = b.c.Close()
	_ = b.c.Close()
	b.want("Close", "down use of closed network connection")

	// Killed while the connect response is on its way: not Up.
	b = newBench(t)
	b.send(frame(make([]byte, 44)))
	b.c.Kill(cause)
	b.raw.push(connectResponse(1, 4000))
	if _, err := b.read(); !errors.Is(err, cause) {
		t.Errorf("the handshake after Kill says %v", err)
	}
	if ev := b.events(); strings.Contains(ev, "up") || strings.Count(ev, "down") != 1 {
		t.Errorf("events %s", ev)
	}
}

// tlsLike is a connection whose Close blocks until it may say farewell.
type tlsLike struct {
	*fakeConn
	under *fakeConn
}

func (c tlsLike) NetConn() net.Conn { return c.under }
func (c tlsLike) Close() error      { panic("a farewell") }

var _ interface{ NetConn() net.Conn } = (*tls.Conn)(nil)

func TestKillUnderTLSClosesTheSocket(t *testing.T) {
	b := newBench(t)
	under := &fakeConn{}
	c := New(tlsLike{b.raw, under}, "zk1:2181", nil, time.Second, func() time.Time { return b.clock }, b)
	c.Kill(errors.New("enough"))
	if !under.closed {
		t.Error("the socket is still open")
	}
}

// Frames of the library and pings of ours never mix, and are recorded in the order
// in which they go out.
func TestConcurrentWrites(t *testing.T) {
	b := newBench(t).open()
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for j := range 200 {
				if i == 0 {
					b.c.Ping()
				} else {
					_, _ = b.c.Write(requestFrame(int32(1000*i+j), opMulti))
				}
			}
		})
	}
	wg.Wait()
	if len(b.c.pings) != 200 || len(b.c.pending) != 600 || len(b.raw.writes) != 801 {
		t.Errorf("%d pings and %d requests recorded, %d frames sent", len(b.c.pings), len(b.c.pending), len(b.raw.writes))
	}
	for _, w := range b.raw.writes[1:] {
		if !bytes.Equal(w, ping) && len(w) != 12 {
			t.Fatalf("a mixed frame: %x", w)
		}
	}
}

// A peer that accepts and says nothing, or stops halfway, or does not answer the
// credentials, costs the limit and no more.
func TestHandshakeLimit(t *testing.T) {
	for _, tc := range []struct {
		name string
		auth []Auth
		say  []byte
	}{
		{"silent", nil, nil},
		{"three bytes", nil, []byte{0, 0, 0}},
		{"half a response", nil, connectResponse(1, 4000)[:20]},
		{"credentials not answered", []Auth{{"digest", []byte("u:p")}}, connectResponse(1, 4000)},
		{"half an answer to the credentials", []Auth{{"digest", []byte("u:p")}}, cat(connectResponse(1, 4000), replyFrame(xidAuth, 0, 0)[:10])},
	} {
		synctest.Test(t, func(t *testing.T) {
			client, server := net.Pipe()
			defer func() { _ = server.Close() }()
			go func() { _, _ = io.Copy(io.Discard, server) }()
			b := &bench{t: t}
			c := New(client, "zk1:2181", tc.auth, 700*time.Millisecond, time.Now, b)
			if _, err := c.Write(frame(make([]byte, 44))); err != nil {
				t.Fatal(err)
			}
			go func() { _, _ = server.Write(tc.say) }()
			start := time.Now()
			_, err := c.Read(make([]byte, 4))
			if !errors.Is(err, ErrHandshakeTimeout) || !strings.Contains(err.Error(), "700ms") {
				t.Errorf("%s: %v", tc.name, err)
			}
			if d := time.Since(start); d != 700*time.Millisecond {
				t.Errorf("%s: it took %v", tc.name, d)
			}
		})
	}
}

// The limit ends with the handshake: a quiet connection is not a dead one.
func TestNoLimitAfterTheHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		go func() {
			_, _ = io.ReadFull(server, make([]byte, 48))
			_, _ = server.Write(connectResponse(1, 4000))
			time.Sleep(time.Hour)
			_, _ = server.Write(replyFrame(xidWatch, 0, 0))
			_ = server.Close()
		}()
		b := &bench{t: t}
		c := New(client, "zk1:2181", nil, time.Second, time.Now, b)
		_, _ = c.Write(frame(make([]byte, 44)))
		b.c = c
		for range 2 {
			if _, err := b.read(); err != nil {
				t.Fatal(err)
			}
		}
		_ = c.Close()
	})
}

// The library asks for its watches as of the newest zxid that it has read, and an answer can
// outrun that: what happened between the last connection and the answer would wake nobody.
func TestZxidsAreHiddenUntilTheWatchesAreAskedFor(t *testing.T) {
	watches := requestFrame(9, opSetWatches, i64(7), i32(0), i32(0), i32(0))
	hidden := func(b *bench, xid int32) bool {
		b.t.Helper()
		b.send(requestFrame(xid, opGetData, str("/a"), []byte{0}))
		b.raw.push(replyFrame(xid, 0x2a, 0, []byte("data")))
		got, err := b.read()
		if want := replyFrame(xid, 0, 0, []byte("data")); err == nil && bytes.Equal(got, want) {
			return true
		}
		if err != nil || !bytes.Equal(got, replyFrame(xid, 0x2a, 0, []byte("data"))) {
			b.t.Fatalf("the library reads %x, %v", got, err)
		}
		return false
	}
	connected := func(session int64) *bench {
		b := newBench(t)
		b.send(frame(cat(i32(0), i64(7), i32(12000), i64(session), str("0123456789abcdef"))))
		b.answer(connectResponse(0x17, 12000))
		b.events()
		return b
	}
	b := connected(0x17)
	if !hidden(b, 1) || !hidden(b, 2) {
		t.Error("the library is told the zxid before it has asked for its watches")
	}
	b.send(requestFrame(3, opCreate, str("/a"), i32(0)))
	b.raw.push(replyFrame(3, 0x2b, 0, str("/a")))
	if _, err := b.read(); err != nil {
		t.Fatal(err)
	}
	if ev := b.events(); !strings.Contains(ev, "created /a 0x2b") {
		t.Errorf("the zxid of a create is lost: %s", ev)
	}
	b.send(watches)
	if hidden(b, 4) {
		t.Error("the zxid is hidden although the watches have been asked for")
	}
	b = connected(0x17)
	if b.at(0.9); !hidden(b, 1) {
		t.Error("the zxid is told within a second")
	}
	if b.at(1); hidden(b, 2) {
		t.Error("the zxid is hidden from a library without watches after a second")
	}
	if b = connected(0); hidden(b, 1) {
		t.Error("the zxid is hidden on a new session, which has no watches")
	}
}
