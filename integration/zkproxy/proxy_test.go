package zkproxy_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"github.com/go-zklock/zklock/integration/zkcluster"
	"github.com/go-zklock/zklock/integration/zkproxy"
)

func TestMain(m *testing.M) { os.Exit(zkcluster.Main(m)) }

const patience = time.Minute

// silence is how long a test listens before it says that nothing came.
const silence = 200 * time.Millisecond

// pair is a client and a server without any logic, with a proxy between them.
type pair struct {
	t      *testing.T
	ctx    context.Context
	proxy  *zkproxy.Proxy
	client net.Conn
	server net.Conn
	listen net.Listener
}

func newPair(t *testing.T) *pair {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { listen.Close() })
	p := &pair{t: t, ctx: ctx, listen: listen, proxy: zkproxy.New(t, listen.Addr().String())}
	p.dial()
	return p
}

func (p *pair) dial() {
	p.t.Helper()
	var err error
	p.client, err = net.Dial("tcp", p.proxy.Addr())
	must(p.t, err)
	p.server, err = p.listen.Accept()
	must(p.t, err)
	for _, conn := range []net.Conn{p.client, p.server} {
		p.t.Cleanup(func() { conn.Close() })
		must(p.t, conn.SetDeadline(time.Now().Add(patience)))
	}
}

// greet exchanges the first frames, for a session with this id.
func (p *pair) greet(session int64) {
	p.t.Helper()
	p.pass(p.client, p.server, connectRequest())
	p.pass(p.server, p.client, connectResponse(session, 6000))
}

// pass sends a frame and waits for it on the other side.
func (p *pair) pass(from, to net.Conn, frame []byte) {
	p.t.Helper()
	_, err := from.Write(frame)
	must(p.t, err)
	expect(p.t, to, frame)
}

func (p *pair) send(from net.Conn, frame []byte) {
	p.t.Helper()
	_, err := from.Write(frame)
	must(p.t, err)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, from net.Conn, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(from, got); err != nil {
		t.Fatalf("instead of %d bytes: %v", len(want), err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%x came out as %x", want, got)
	}
}

// quiet fails if anything comes, the end of the stream too.
func quiet(t *testing.T, from net.Conn) {
	t.Helper()
	must(t, from.SetReadDeadline(time.Now().Add(silence)))
	if n, err := from.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("there should be silence: %d bytes, error %v", n, err)
	}
	must(t, from.SetReadDeadline(time.Now().Add(patience)))
}

// over fails unless the stream has ended.
func over(t *testing.T, from net.Conn) {
	t.Helper()
	if n, err := from.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the connection should be over: %d bytes, error %v", n, err)
	}
}

// wire builds a frame: int32, int64, string, bool and []byte values one after the other, with the length in front.
func wire(values ...any) []byte {
	frame := []byte{0, 0, 0, 0}
	for _, value := range values {
		switch v := value.(type) {
		case int:
			frame = binary.BigEndian.AppendUint32(frame, uint32(int32(v)))
		case int64:
			frame = binary.BigEndian.AppendUint64(frame, uint64(v))
		case bool:
			b := byte(0)
			if v {
				b = 1
			}
			frame = append(frame, b)
		case string:
			frame = binary.BigEndian.AppendUint32(frame, uint32(len(v)))
			frame = append(frame, v...)
		default:
			panic(value)
		}
	}
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	return frame
}

func connectRequest() []byte {
	return wire(0, int64(0), 6000, int64(0), "sixteen bytes  .")
}

func connectResponse(session int64, timeout int) []byte {
	return wire(0, timeout, session, "sixteen bytes  .")
}

// The start and the end of the list of operations in a multi.
func multi(xid int, ops ...any) []byte {
	return wire(append(append([]any{xid, 14}, ops...), -1, true, -1)...)
}

func check(path string) []any { return []any{13, false, -1, path, 0} }

func answer(xid int) []byte { return wire(xid, int64(7), 0) }

func event(path string) []byte { return wire(-1, int64(-1), 0, 2, 3, path) }

func TestCounts(t *testing.T) {
	p := newPair(t)
	p.greet(-5)
	requests := []struct {
		frame []byte
		kind  zkproxy.Kind
	}{
		{wire(1, 1, "/a", "data", 0, 3), zkproxy.Create},
		{wire(2, 15, "/a", "data", 0, 3), zkproxy.Create},
		{wire(3, 19, "/a", "data", 0, 4), zkproxy.Create},
		{wire(4, 2, "/a", -1), zkproxy.Delete},
		{wire(5, 3, "/a", true), zkproxy.Exists},
		{wire(6, 4, "/a", true), zkproxy.GetData},
		{wire(7, 5, "/a", "data", -1), zkproxy.SetData},
		{wire(8, 8, "/", false), zkproxy.GetChildren},
		{wire(9, 12, "/", false), zkproxy.GetChildren},
		{wire(10, 9, "/a"), zkproxy.Sync},
		{multi(11, check("/a")...), zkproxy.Proof},
		{multi(12, append(check("/a"), check("/b")...)...), zkproxy.Proof},
		{multi(13, append(check("/a"), 2, false, -1, "/b", 0)...), zkproxy.Multi},
		{multi(14, 1, false, -1, "/b", "", 0, 1), zkproxy.Multi},
		{multi(15), zkproxy.Multi},                          // empty: it proves nothing
		{wire(16, 14, 13, false, -1, 1<<30), zkproxy.Multi}, // cut short, with a length that lies
		{wire(-2, 11), zkproxy.Ping},
		{wire(-4, 100, 0, "digest", "a:b"), zkproxy.SetAuth},
		{wire(-8, 101, int64(0), 0, 0, 0), zkproxy.SetWatches},
		{wire(17, -11), zkproxy.CloseSession},
	}
	want := map[zkproxy.Kind]int{zkproxy.Connect: 1}
	for _, request := range requests {
		p.pass(p.client, p.server, request.frame)
		p.pass(p.server, p.client, answer(int(int32(binary.BigEndian.Uint32(request.frame[4:])))))
		want[request.kind]++
		if got := p.proxy.Snapshot().Total; got.Requests[request.kind] != want[request.kind] || got.Replies[request.kind] != want[request.kind] {
			t.Errorf("%x should be a %s; counted: %s", request.frame, request.kind, got)
		}
	}
	p.pass(p.server, p.client, event("/a"))
	p.pass(p.server, p.client, event("/a"))
	p.pass(p.server, p.client, event("/b"))

	s := p.proxy.Snapshot()
	conn := s.Conns[0]
	if conn.Session != -5 || conn.Timeout != 6000 || !conn.Open || conn.ID != 1 {
		t.Errorf("the connection is %+v", conn)
	}
	for what, pair := range map[string][2]int{
		"writes": {conn.Writes(), 9}, "reads": {conn.Reads(), 4}, "proofs": {conn.Proofs(), 2},
		"watch events": {conn.WatchEvents(), 3}, "events of /a": {conn.Events["/a"], 2}, "undecoded": {conn.Undecoded, 0},
		"of the session": {s.Session(-5).Writes(), 9}, "of another session": {s.Session(5).Writes(), 0},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: %d counted, %d sent", what, pair[0], pair[1])
		}
	}
	if before := p.proxy.Reset().Total.Writes(); before != 9 {
		t.Errorf("Reset returns %d writes", before)
	}
	if after := p.proxy.Snapshot(); after.Total.Writes() != 0 || after.Conns[0].Session != -5 {
		t.Errorf("after Reset: %+v", after)
	}
}

// Whatever pieces TCP makes of the stream, what comes out is what went in, and the counts are the same.
func TestSegmentation(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	for round := range 20 * zkcluster.Repeat(t) {
		p := newPair(t)
		const frames = 50
		up, down := connectRequest(), connectResponse(1, 6000)
		for xid := range frames {
			up = append(up, wire(xid, 5, "/a", string(make([]byte, random.IntN(2000))), -1)...)
			down = append(down, answer(xid)...)
			down = append(down, event("/a")...)
		}
		limit := 1 + random.IntN(300)
		if round == 0 {
			limit = 1
			up, down = up[:1000], down[:1000]
		}
		pieces := func(to net.Conn, stream []byte) {
			for len(stream) > 0 {
				n := min(1+random.IntN(limit), len(stream))
				p.send(to, stream[:n])
				stream = stream[n:]
			}
		}
		pieces(p.client, up)
		if round > 0 { // the stream of round 0 ends inside a frame, which is not passed on
			expect(t, p.server, up)
		}
		pieces(p.server, down)
		if round == 0 {
			continue
		}
		expect(t, p.client, down)
		got := p.proxy.Snapshot().Total
		if got.Requests[zkproxy.SetData] != frames || got.Replies[zkproxy.SetData] != frames || got.WatchEvents() != frames || got.Undecoded != 0 {
			t.Fatalf("in pieces of up to %d bytes: %s", limit, got)
		}
		p.proxy.Close()
	}
}

func TestFourLetterWord(t *testing.T) {
	p := newPair(t)
	p.pass(p.client, p.server, []byte("srvr"))
	p.pass(p.server, p.client, []byte("Zookeeper version: 3.9\n"))
	must(t, p.server.Close())
	over(t, p.client)
	if got := p.proxy.Snapshot().Total; got.Requests[zkproxy.FourLetterWord] != 1 || got.Undecoded != 0 {
		t.Errorf("counted: %s", got)
	}
}

// A stream that is something else is counted as such and passed on as it is.
func TestForeignStream(t *testing.T) {
	p := newPair(t)
	p.pass(p.client, p.server, []byte("GET / HTTP/1.1\r\n"))
	if got := p.proxy.Snapshot().Total; got.Undecoded != 1 {
		t.Errorf("counted: %s", got)
	}
}
