package zktest_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock/zktest"
)

func TestDropReply(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t, zktest.WithLatency(time.Millisecond, 0, 1))
		c := connect(t, s.Dial, 10*time.Second, s.Addr())
		other := connect(t, s.Dial, 10*time.Second, s.Addr())
		lost := s.Inject(zktest.DropReply(zktest.OpCreate).Nth(2).Session(c.SessionID()))
		must[string](t)(other.Create("/o", nil, 0, world))
		must[string](t)(c.Create("/a", nil, 0, world))
		if lost.Hits() != 0 {
			t.Error("hit before its turn")
		}
		if _, err := c.Create("/b", nil, 0, world); err == nil {
			t.Error("the reply came")
		}
		if !s.Exists("/b") || lost.Hits() != 1 {
			t.Errorf("applied: %v, hits %d", s.Exists("/b"), lost.Hits())
		}
		c.await(t, zk.StateHasSession)
		must[string](t)(c.Create("/c", nil, 0, world))
		if lost.Hits() != 1 || other.saw(zk.StateDisconnected) {
			t.Error("the fault reached further than told")
		}
	})
}

func TestDropRequest(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t)
		c := connect(t, s.Dial, 10*time.Second, s.Addr())
		f := s.Inject(zktest.DropRequest(zktest.OpDelete, zktest.OpCreate).Path("/x").Times(2))
		must[string](t)(c.Create("/y", nil, 0, world))
		for range 2 {
			if _, err := c.Create("/x", nil, 0, world); err == nil {
				t.Error("the request was answered")
			}
			c.await(t, zk.StateHasSession)
		}
		if s.Exists("/x") || f.Hits() != 2 {
			t.Errorf("applied %v, hits %d", s.Exists("/x"), f.Hits())
		}
		must[string](t)(c.Create("/x", nil, 0, world))
	})
}

// TestSilence loses a reply and everything after it, as a network does that fails without a word.
func TestSilence(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t)
		r := rawDial(t, s)
		r.open(10*time.Second, 0, nil)
		f := s.Inject(zktest.DropReply(zktest.OpCreate).Silent())
		body := slices.Concat(str("/x"), i32(-1), i32(1), i32(31), str("world"), str("anyone"), i32(0))
		r.request(1, zktest.OpCreate, body)
		r.request(2, zktest.OpPing, nil)
		<-f.Hit()
		ok(t, r.nc.SetReadDeadline(time.Now().Add(5*time.Second)))
		if _, err := r.nc.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("the silent connection gave %v", err)
		}
		if !s.Exists("/x") || s.Connections() != 1 {
			t.Error("the create was not applied, or the connection is gone")
		}
		ok(t, r.nc.SetReadDeadline(time.Time{}))
		f.Heal()
		if n, err := r.nc.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("%d bytes, %v after healing; nothing may follow a lost message but the end", n, err)
		}
	})
}

func TestHalfReply(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t)
		f := s.Inject(zktest.HalfReply(zktest.OpConnect))
		nc := rawDial(t, s).nc
		r := &raw{t, nc}
		r.send(slices.Concat(i32(0), make([]byte, 8), i32(10000), make([]byte, 8), i32(16), make([]byte, 16)))
		got, err := io.ReadAll(nc)
		if err != nil || len(got) != 20 || f.Hits() != 1 {
			t.Errorf("%d bytes of 40, %v, hits %d", len(got), err, f.Hits())
		}
		// A client gets past it.
		connect(t, s.Dial, 10*time.Second, s.Addr())
	})
}

func TestDelays(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t)
		c := connect(t, s.Dial, 10*time.Second, s.Addr())
		s.Inject(zktest.DelayRequest(time.Second, zktest.OpCreate).Path("/late"))
		s.Inject(zktest.DelayReply(2*time.Second, zktest.OpCreate).Path("/slow"))
		start := time.Now()
		go func() {
			time.Sleep(900 * time.Millisecond)
			if s.Exists("/late") {
				t.Error("a delayed request took effect at once")
			}
		}()
		must[string](t)(c.Create("/late", nil, 0, world))
		if d := time.Since(start); d != time.Second {
			t.Errorf("took %v", d)
		}
		start = time.Now()
		go func() {
			time.Sleep(100 * time.Millisecond)
			if !s.Exists("/slow") {
				t.Error("a delayed reply held up the effect")
			}
		}()
		must[string](t)(c.Create("/slow", nil, 0, world))
		if d := time.Since(start); d != 2*time.Second {
			t.Errorf("took %v", d)
		}
	})
}

func TestCutAfter(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t)
		c := connect(t, s.Dial, 10*time.Second, s.Addr())
		s.Inject(zktest.CutAfter(zktest.OpMulti))
		_, err := c.Multi(&zk.CreateRequest{Path: "/m", Acl: world})
		ok(t, err)
		c.await(t, zk.StateDisconnected)
	})
}

// TestBefore reaps a container between its making and the first child.
func TestBefore(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t)
		c := connect(t, s.Dial, 10*time.Second, s.Addr())
		f := s.Inject(zktest.Before(func() { _ = s.Reap("/c") }, zktest.OpCreate).Path("/c/"))
		must[string](t)(c.CreateContainer("/c", nil, zk.FlagContainer, world))
		_, err := c.Create("/c/x", nil, 0, world)
		wantErr(t, err, zk.ErrNoNode)
		if f.Hits() != 1 {
			t.Errorf("hits %d", f.Hits())
		}
		wantErr(t, s.Reap("/c"), zktest.CodeNoNode)
		wantErr(t, s.Reap("/zookeeper"), zktest.CodeNotEmpty)
		wantErr(t, s.Reap("/zookeeper/quota"), zktest.CodeBadVersion)
	})
}

func TestLoseWatch(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t)
		c := connect(t, s.Dial, 10*time.Second, s.Addr())
		for _, p := range []string{"/a", "/b"} {
			ok(t, s.Create(p, nil))
		}
		_, _, a, err := c.GetW("/a")
		ok(t, err)
		_, _, b, err := c.GetW("/b")
		ok(t, err)
		f := s.Inject(zktest.LoseWatch().Path("/a").Client(""))
		ok(t, s.Delete("/a"))
		ok(t, s.Delete("/b"))
		<-b
		select {
		case e := <-a:
			t.Errorf("the lost event came: %+v", e)
		default:
		}
		if f.Hits() != 1 || s.Watches() != 0 || s.Ops().WatchEvents() != 1 {
			t.Errorf("hits %d, watches %d, events %d", f.Hits(), s.Watches(), s.Ops().WatchEvents())
		}
	})
}

// TestBlackholeUp keeps the server from hearing a client, which then loses its session without being told.
func TestBlackholeUp(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		var log zktest.History
		s := zktest.NewServer(t, zktest.WithOnTxn(log.Add), zktest.WithLatency(time.Millisecond, 0, 1))
		c := connect(t, s.Dialer("cut"), 6*time.Second, s.Addr())
		live := connect(t, s.Dialer("live"), 6*time.Second, s.Addr())
		must[string](t)(c.Create("/e", nil, zk.FlagEphemeral, world))
		id := c.SessionID()
		f := s.Inject(zktest.Blackhole(zktest.ClientToServer).Client("cut"))
		end, found := log.Await(time.Minute, zktest.Expired)
		if !found || end.Session != id {
			t.Fatalf("expired: %v %+v", found, end)
		}
		if c.saw(zk.StateExpired) || f.Hits() == 0 {
			t.Errorf("client told: %v, hits %d", c.saw(zk.StateExpired), f.Hits())
		}
		if live.saw(zk.StateDisconnected) {
			t.Error("the other client lost its connection")
		}
		f.Heal()
		c.await(t, zk.StateExpired)
	})
}

// TestBlackholeDown lets requests through and no answers.
func TestBlackholeDown(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t)
		c := connect(t, s.Dial, 6*time.Second, s.Addr())
		f := s.Inject(zktest.Blackhole(zktest.ServerToClient).Session(c.SessionID()))
		start := time.Now()
		if _, err := c.Create("/x", nil, 0, world); err == nil {
			t.Error("an answer came through")
		}
		if d := time.Since(start); !s.Exists("/x") || d < 3*time.Second {
			t.Errorf("applied %v, failed after %v", s.Exists("/x"), d)
		}
		f.Heal()
		c.await(t, zk.StateHasSession)
	})
}

func TestBlackholeSwallowsDials(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t)
		f := s.Inject(zktest.Blackhole(zktest.BothWays))
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		start := time.Now()
		_, err := s.Dial(ctx, "tcp", s.Addr())
		wantErr(t, err, context.DeadlineExceeded)
		if d := time.Since(start); d != time.Second || f.Hits() != 1 {
			t.Errorf("dial failed after %v, hits %d", d, f.Hits())
		}
		go func() {
			time.Sleep(time.Second)
			f.Heal()
		}()
		nc, err := s.Dial(context.Background(), "tcp", s.Addr())
		ok(t, err)
		nc.Close()
	})
}

// TestPause stops a single server: time goes on, and on Resume the session is over before its pings are read.
func TestPause(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t)
		c := connect(t, s.Dial, 6*time.Second, s.Addr())
		must[string](t)(c.Create("/e", nil, zk.FlagEphemeral, world))
		s.Pause()
		time.Sleep(3 * time.Second)
		if !s.Exists("/e") {
			t.Error("a stopped server expired a session")
		}
		s.Resume()
		must[string](t)(c.Sync("/"))
		s.Pause()
		time.Sleep(20 * time.Second)
		if !s.Exists("/e") {
			t.Error("a stopped server expired a session")
		}
		s.Resume()
		if s.Exists("/e") {
			t.Error("the session is not over at Resume")
		}
		c.await(t, zk.StateExpired)
	})
}

// TestPausedServerIsSilent keeps an answer back that was due while the server stood still.
func TestPausedServerIsSilent(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t)
		c := connect(t, s.Dial, 30*time.Second, s.Addr())
		s.Inject(zktest.DelayReply(time.Second, zktest.OpCreate))
		start := time.Now()
		go func() {
			time.Sleep(500 * time.Millisecond)
			s.Pause()
			time.Sleep(2500 * time.Millisecond)
			s.Resume()
		}()
		must[string](t)(c.Create("/x", nil, 0, world))
		if d := time.Since(start); d != 3*time.Second {
			t.Errorf("answered after %v, want 3s", d)
		}
	})
}

// TestSilentConnectionOfAPausedServerEnds ends a connection without a session also if its time was over while the server
// stood still.
func TestSilentConnectionOfAPausedServerEnds(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t)
		r := rawDial(t, s)
		s.Pause()
		time.Sleep(15 * time.Second)
		s.Resume()
		start := time.Now()
		if _, err := io.ReadAll(r.nc); err != nil {
			t.Errorf("the connection ends with %v", err)
		}
		if d := time.Since(start); d > 10*time.Second {
			t.Errorf("it ends %v after the server went on", d)
		}
	})
}

// TestLostExchange loses the answer to a resumption: the client comes back to its session once more.
func TestLostExchange(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		e := zktest.NewEnsemble(t, 3)
		c := connect(t, e.Dial, 10*time.Second, e.Addrs()...)
		id := c.SessionID()
		f := e.Inject(zktest.DropReply(zktest.OpConnect).Session(id))
		for _, s := range e.Servers() {
			s.CutConnections()
		}
		c.await(t, zk.StateHasSession)
		if f.Hits() != 1 || c.SessionID() != id {
			t.Errorf("hits %d, session %#x, was %#x", f.Hits(), c.SessionID(), id)
		}
	})
}
