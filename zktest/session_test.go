package zktest_test

import (
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock/zktest"
)

// TestExpiry holds a silent session against the rule: last touch plus timeout, up to the next tick.
func TestExpiry(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		var log zktest.History
		s := zktest.NewServer(t, zktest.WithTickTime(time.Second), zktest.WithOnTxn(log.Add))
		start := time.Now()
		r := rawDial(t, s)
		time.Sleep(300 * time.Millisecond)
		timeout, id, passwd := r.open(4500*time.Millisecond, 0, nil)
		if timeout != 4500*time.Millisecond {
			t.Errorf("granted %v", timeout)
		}
		createEphemeral(r, "/e")
		if got := s.EphemeralsOf(id); !slices.Equal(got, []string{"/e"}) {
			t.Errorf("ephemerals %v", got)
		}
		time.Sleep(2400 * time.Millisecond) // 2.7 s: the touch that counts
		r.request(2, zktest.OpPing, nil)
		r.recv()
		if r.recv() != nil {
			t.Error("a frame before the end of the expired session's connection")
		}
		// 2.7 + 4.5 = 7.2, so the eighth tick.
		end, _ := log.Find(zktest.Deletes("/e"))
		if got := end.Time.Sub(start); got != 8*time.Second || !end.Expired || end.Session != id {
			t.Errorf("expired after %v, want 8s: %+v", got, end)
		}
		if s.Exists("/e") || len(s.Sessions()) != 0 {
			t.Error("something is left of the session")
		}
		again := rawDial(t, s)
		if timeout, id, _ := again.open(4*time.Second, id, passwd); id != 0 || timeout != 0 {
			t.Errorf("resuming an expired session gives id %#x, timeout %v", id, timeout)
		}
		if again.recv() != nil {
			t.Error("the connection stays open after a refusal")
		}
	})
}

// ephemeral is the body of a create.
func ephemeral(path string) []byte {
	return slices.Concat(str(path), i32(-1), i32(1), i32(31), str("world"), str("anyone"), i32(1))
}

func createEphemeral(r *raw, path string) {
	r.t.Helper()
	r.request(1, zktest.OpCreate, ephemeral(path))
	if _, _, code, _ := header(r.recv()); code != 0 {
		r.t.Fatalf("create %s: %v", path, code)
	}
}

func TestResume(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t, zktest.WithLatency(time.Millisecond, 0, 1))
		r := rawDial(t, s)
		_, id, passwd := r.open(10*time.Second, 0, nil)
		createEphemeral(r, "/e")

		bad := rawDial(t, s)
		if _, got, _ := bad.open(10*time.Second, id, make([]byte, 16)); got != 0 {
			t.Error("a wrong password resumed the session")
		}
		if r.recv() != nil {
			t.Error("the old connection was not closed by the attempt to resume")
		}
		time.Sleep(9 * time.Second)
		good := rawDial(t, s)
		if timeout, got, _ := good.open(99*time.Second, id, passwd); got != id || timeout != 40*time.Second {
			t.Errorf("resumed as %#x with %v", got, timeout)
		}
		time.Sleep(39 * time.Second)
		if !s.Exists("/e") {
			t.Error("the resumption did not renew the session with its new timeout")
		}
		good.request(1, zktest.OpCloseSession, nil)
		if _, _, code, _ := header(good.recv()); code != 0 {
			t.Errorf("close: %v", code)
		}
		if good.recv() != nil {
			t.Error("the connection stays open after closeSession")
		}
		if s.Exists("/e") {
			t.Error("closeSession left the ephemeral node")
		}
	})
}

func TestSessionTimeoutBounds(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t)
		for asked, want := range map[time.Duration]time.Duration{
			time.Millisecond: 4 * time.Second,
			time.Minute:      40 * time.Second,
			7 * time.Second:  7 * time.Second,
		} {
			if got, _, _ := rawDial(t, s).open(asked, 0, nil); got != want {
				t.Errorf("asked for %v, granted %v, want %v", asked, got, want)
			}
		}
		s.SetMaxSessionTimeout(5 * time.Second)
		if got, _, _ := rawDial(t, s).open(time.Minute, 0, nil); got != 5*time.Second {
			t.Errorf("granted %v under a maximum of 5s", got)
		}
	})
}

// TestClientSurvivesCut sees the client keep session, node and watch over a lost connection.
func TestClientSurvivesCut(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t, zktest.WithLatency(time.Millisecond, time.Millisecond, 3))
		c := connect(t, s.Dial, 10*time.Second, s.Addr())
		id := c.SessionID()
		must[string](t)(c.Create("/e", nil, zk.FlagEphemeral, world))
		_, _, gone, err := c.GetW("/e")
		ok(t, err)
		s.Refuse(true)
		if n := s.CutConnections(); n != 1 {
			t.Errorf("%d connections cut", n)
		}
		c.await(t, zk.StateDisconnected)
		time.Sleep(3 * time.Second)
		s.Refuse(false)
		c.await(t, zk.StateHasSession)
		if c.SessionID() != id {
			t.Errorf("session %#x, was %#x", c.SessionID(), id)
		}
		must[string](t)(c.Sync("/"))
		if n := s.Ops().Count(zktest.OpSetWatches); n != 1 {
			t.Errorf("%d setWatches", n)
		}
		ok(t, s.Delete("/e"))
		if e := <-gone; e.Type != zk.EventNodeDeleted {
			t.Errorf("event %+v", e)
		}
	})
}

// TestMissedEvents sees setWatches tell what happened while the client was away.
func TestMissedEvents(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t)
		for _, p := range []string{"/data", "/gone", "/kids", "/same"} {
			ok(t, s.Create(p, nil))
		}
		c := connect(t, s.Dial, 10*time.Second, s.Addr())
		want := map[<-chan zk.Event]zk.EventType{}
		for _, p := range []string{"/data", "/gone", "/same"} {
			_, _, ch, err := c.GetW(p)
			ok(t, err)
			want[ch] = map[string]zk.EventType{"/data": zk.EventNodeDataChanged, "/gone": zk.EventNodeDeleted}[p]
		}
		_, _, ch, err := c.ChildrenW("/kids")
		ok(t, err)
		want[ch] = zk.EventNodeChildrenChanged
		_, _, ch, err = c.ExistsW("/new")
		ok(t, err)
		want[ch] = zk.EventNodeCreated
		s.Refuse(true)
		s.CutConnections()
		ok(t, s.Set("/data", []byte("x")))
		ok(t, s.Delete("/gone"))
		ok(t, s.Create("/kids/k", nil))
		ok(t, s.Create("/new", nil))
		s.Refuse(false)
		for ch, typ := range want {
			if typ == 0 {
				continue
			}
			if e := <-ch; e.Type != typ {
				t.Errorf("%s: event %v, want %v", e.Path, e.Type, typ)
			}
		}
		if got := s.WatchedPaths(); !slices.Equal(got, []string{"/same"}) {
			t.Errorf("watched afterwards: %v", got)
		}
	})
}

func TestForgetfulServer(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t)
		c := connect(t, s.Dial, 10*time.Second, s.Addr())
		id := c.SessionID()
		s.ForgetSessions(true)
		s.CutConnections()
		c.await(t, zk.StateHasSession)
		if c.SessionID() == id {
			t.Error("the session was resumed")
		}
		if c.saw(zk.StateExpired) {
			t.Error("the client was told that its session had expired")
		}
	})
}

// TestNegativeSessionID covers ids with the high bit set.
func TestNegativeSessionID(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t, func(c *zktest.Config) { c.ServerID = 200 })
		c := connect(t, s.Dial, 10*time.Second, s.Addr())
		if c.SessionID() >= 0 {
			t.Errorf("session id %#x is not negative", c.SessionID())
		}
		must[string](t)(c.Create("/e", nil, zk.FlagEphemeral, world))
		if got := s.EphemeralsOf(c.SessionID()); len(got) != 1 {
			t.Errorf("ephemerals %v", got)
		}
	})
}

func TestExpireNow(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t)
		c := connect(t, s.Dial, 10*time.Second, s.Addr())
		must[string](t)(c.Create("/e", nil, zk.FlagEphemeral, world))
		if !s.Expire(c.SessionID()) || s.Expire(1) {
			t.Error("Expire reports the wrong thing")
		}
		c.await(t, zk.StateExpired)
		c.await(t, zk.StateHasSession)
		if s.Exists("/e") {
			t.Error("the node of the expired session is there")
		}
	})
}

// TestTCP speaks to one server over a socket and in memory.
func TestTCP(t *testing.T) {
	t.Parallel()
	s := zktest.NewServer(t, zktest.WithListen("127.0.0.1:0"))
	tcp := connect(t, (&net.Dialer{}).DialContext, 10*time.Second, s.Addr())
	mem := connect(t, s.Dial, 10*time.Second, s.Addr())
	must[string](t)(tcp.Create("/t", []byte("x"), 0, world))
	data, _, err := mem.Get("/t")
	ok(t, err)
	if string(data) != "x" {
		t.Errorf("read %q", data)
	}
	if _, err := s.Dial(context.Background(), "tcp", "elsewhere:2181"); err == nil {
		t.Error("Dial took a foreign address")
	}
}

// TestCloseLeavesNothing relies on the bubble: it fails when a goroutine is left at its end.
func TestCloseLeavesNothing(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s, err := zktest.Start(zktest.Config{Latency: time.Millisecond})
		ok(t, err)
		nc := must[net.Conn](t)(s.Dial(context.Background(), "tcp", s.Addr()))
		defer nc.Close()
		s.Close()
		s.Close()
		if _, err := nc.Read(make([]byte, 1)); err == nil {
			t.Error("the connection outlived the server")
		}
		if _, err := s.Dial(context.Background(), "tcp", s.Addr()); err == nil {
			t.Error("a closed server took a connection")
		}
	})
}
