package zkproxy_test

import (
	"net"
	"testing"
	"time"

	"github.com/go-zklock/zklock/integration/zkproxy"
)

func set(xid int) []byte { return wire(xid, 5, "/a", "data", -1) }

func TestCut(t *testing.T) {
	p := newPair(t)
	p.greet(1)
	p.proxy.CutSession(2)
	p.pass(p.client, p.server, set(1))
	p.proxy.CutSession(1)
	over(t, p.client)
	over(t, p.server)

	p.dial() // a cut is over when it is done
	p.greet(3)
	p.proxy.Cut()
	over(t, p.client)
	if open := p.proxy.Snapshot().Conns[1].Open; open {
		t.Error("a cut connection counts as open")
	}
	p.proxy.Reset()
	if n := len(p.proxy.Snapshot().Conns); n != 0 {
		t.Errorf("Reset keeps %d closed connections", n)
	}
}

func TestRefuse(t *testing.T) {
	p := newPair(t)
	p.greet(1)
	p.proxy.Refuse(true)
	refused, err := net.Dial("tcp", p.proxy.Addr())
	must(t, err)
	defer refused.Close()
	must(t, refused.SetDeadline(time.Now().Add(patience)))
	over(t, refused)
	p.pass(p.client, p.server, set(1)) // what stands is left alone
	p.proxy.Refuse(false)
	p.dial()
	p.greet(2)
}

func TestHold(t *testing.T) {
	p := newPair(t)
	p.greet(1)

	p.proxy.Hold(zkproxy.ToServer)
	p.send(p.client, set(1))
	p.send(p.client, set(2))
	quiet(t, p.server)
	p.pass(p.server, p.client, event("/a")) // the other direction is open
	if n := p.proxy.Snapshot().Total.Requests[zkproxy.SetData]; n != 2 {
		t.Errorf("%d requests counted while they are held", n)
	}
	p.proxy.Pass(zkproxy.ToServer)
	expect(t, p.server, append(set(1), set(2)...))

	// The end of the server is held as its answers are.
	p.proxy.Hold(zkproxy.ToClient)
	p.send(p.server, answer(1))
	must(t, p.server.Close())
	quiet(t, p.client)
	p.proxy.Pass(zkproxy.ToClient)
	expect(t, p.client, answer(1))
	over(t, p.client)
}

func TestDiscard(t *testing.T) {
	p := newPair(t)
	p.greet(1)
	p.proxy.Discard(zkproxy.ToServer)
	p.send(p.client, set(1))
	must(t, p.proxy.Await(p.ctx, func(s zkproxy.Snapshot) bool { return s.Total.Dropped == 1 }))
	quiet(t, p.server)
	p.proxy.Pass(zkproxy.ToServer)
	p.pass(p.client, p.server, set(2))
	p.proxy.Discard(zkproxy.ToServer)
	must(t, p.client.Close())
	quiet(t, p.server)
	p.proxy.Pass(zkproxy.ToServer)
	over(t, p.server)
}

func TestDelay(t *testing.T) {
	p := newPair(t)
	p.greet(1)
	const by = 50 * time.Millisecond
	p.proxy.Delay(zkproxy.ToServer, by)
	begun := time.Now()
	p.send(p.client, append(set(1), set(2)...))
	expect(t, p.server, append(set(1), set(2)...))
	if took := time.Since(begun); took < by {
		t.Errorf("delayed by %s, and there after %s", by, took)
	}
	p.proxy.Delay(zkproxy.ToServer, time.Hour)
	p.send(p.client, set(3))
	quiet(t, p.server)
	p.proxy.Pass(zkproxy.ToServer)
	expect(t, p.server, set(3))
}

func TestLose(t *testing.T) {
	t.Run("reply swallowed", func(t *testing.T) {
		p := newPair(t)
		p.greet(1)
		done := p.proxy.Lose(zkproxy.ToClient, zkproxy.SetData, 2, zkproxy.Swallow)
		for xid := range 3 {
			p.pass(p.client, p.server, set(xid))
		}
		p.pass(p.client, p.server, wire(3, 9, "/a"))
		p.send(p.server, answer(0))
		p.pass(p.server, p.client, answer(3)) // of another kind
		p.send(p.server, answer(1))
		p.pass(p.server, p.client, answer(2)) // the third
		<-done
		if got := p.proxy.Snapshot().Total; got.Dropped != 2 || got.Replies[zkproxy.SetData] != 3 {
			t.Errorf("counted: %s", got)
		}
	})
	t.Run("reply lost with the connection", func(t *testing.T) {
		p := newPair(t)
		p.greet(1)
		done := p.proxy.Lose(zkproxy.ToClient, zkproxy.SetData, 1, zkproxy.Break)
		p.pass(p.client, p.server, set(1))
		p.send(p.server, append(event("/a"), answer(1)...))
		expect(t, p.client, event("/a")) // what came before is not lost
		over(t, p.client)
		over(t, p.server)
		<-done
	})
	t.Run("request", func(t *testing.T) {
		p := newPair(t)
		p.greet(1)
		p.proxy.Lose(zkproxy.ToServer, zkproxy.Proof, 1, zkproxy.Swallow)
		p.send(p.client, multi(1, check("/a")...))
		p.pass(p.client, p.server, multi(2, check("/a")...))
	})
	t.Run("watch event", func(t *testing.T) {
		p := newPair(t)
		p.greet(1)
		p.proxy.Lose(zkproxy.ToClient, zkproxy.WatchEventFrame, 1, zkproxy.Swallow)
		p.send(p.server, event("/a"))
		p.pass(p.server, p.client, event("/b"))
		if got := p.proxy.Snapshot().Total.Events; got["/a"] != 0 || got["/b"] != 1 {
			t.Errorf("passed on: %v", got)
		}
	})
	t.Run("handshake", func(t *testing.T) {
		p := newPair(t)
		p.proxy.Lose(zkproxy.ToClient, zkproxy.Connect, 1, zkproxy.Swallow)
		p.pass(p.client, p.server, connectRequest())
		p.send(p.server, connectResponse(1, 6000))
		quiet(t, p.client)
	})
	t.Run("none", func(t *testing.T) {
		p := newPair(t)
		<-p.proxy.Lose(zkproxy.ToClient, zkproxy.Ping, 0, zkproxy.Break)
	})
}

func TestServerAway(t *testing.T) {
	p := newPair(t)
	must(t, p.listen.Close())
	conn, err := net.Dial("tcp", p.proxy.Addr())
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(patience)))
	over(t, conn)
}

func TestCloseIsComplete(t *testing.T) {
	p := newPair(t)
	p.greet(1)
	p.proxy.Hold(zkproxy.ToClient)
	p.send(p.server, event("/a"))
	p.proxy.Close()
	p.proxy.Close()
	over(t, p.client)
	if _, err := net.DialTimeout("tcp", p.proxy.Addr(), time.Second); err == nil {
		t.Error("a closed proxy takes connections")
	}
}
