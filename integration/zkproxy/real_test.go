package zkproxy_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock/integration/zkcluster"
	"github.com/go-zklock/zklock/integration/zkproxy"
)

var server = zkcluster.NewShared(zkcluster.Options{TickTime: 500 * time.Millisecond})

type silent struct{}

func (silent) Printf(string, ...any) {}

// session opens a session of the plain client through a proxy of its own.
func session(t *testing.T) (*zk.Conn, *zkproxy.Proxy) {
	t.Helper()
	proxy := zkproxy.New(t, server.Get(t).Server(0).Addr())
	conn, events, err := zk.Connect([]string{proxy.Addr()}, 10*time.Second, zk.WithLogger(silent{}))
	must(t, err)
	t.Cleanup(conn.Close)
	timeout := time.After(patience)
	for {
		select {
		case event := <-events:
			if event.State == zk.StateHasSession {
				return conn, proxy
			}
		case <-timeout:
			t.Fatal("no session through the proxy")
		}
	}
}

var anyone = zk.WorldACL(zk.PermAll)

// The counts of what a real client and a real server say are exact.
func TestRealServer(t *testing.T) {
	conn, proxy := session(t)
	path, err := conn.Create("/real-", []byte("x"), zk.FlagEphemeral|zk.FlagSequence, anyone)
	must(t, err)
	_, _, fired, err := conn.GetW(path)
	must(t, err)
	_, _, err = conn.Children("/")
	must(t, err)
	_, err = conn.Multi(&zk.CheckVersionRequest{Path: path, Version: 0})
	must(t, err)
	_, err = conn.Multi(&zk.CheckVersionRequest{Path: path, Version: 0}, &zk.SetDataRequest{Path: path, Version: 0})
	must(t, err)
	<-fired
	_, err = conn.Sync(path)
	must(t, err)
	must(t, conn.Delete(path, -1))

	s := proxy.Snapshot()
	got := s.Session(conn.SessionID())
	t.Logf("%s", got)
	for kind, want := range map[zkproxy.Kind]int{
		zkproxy.Connect: 1, zkproxy.Create: 1, zkproxy.GetData: 1, zkproxy.GetChildren: 1, zkproxy.Proof: 1,
		zkproxy.Multi: 1, zkproxy.Sync: 1, zkproxy.Delete: 1,
	} {
		if got.Requests[kind] != want || got.Replies[kind] != want {
			t.Errorf("%s: %d requests and %d replies counted, %d made", kind, got.Requests[kind], got.Replies[kind], want)
		}
	}
	if got.Writes() != 3 || got.Reads() != 2 || got.WatchEvents() != 1 || got.Events[path] != 1 || got.Undecoded != 0 {
		t.Errorf("%d writes, %d reads, events %v, %d undecoded", got.Writes(), got.Reads(), got.Events, got.Undecoded)
	}
	if granted := s.Conns[0].Timeout; granted != 10_000 {
		t.Errorf("the server granted %d ms; read were 10000", granted)
	}
}

// A create whose reply is lost with the connection was carried out, and the session lives on.
func TestRealReplyLost(t *testing.T) {
	conn, proxy := session(t)
	id := conn.SessionID()
	lost := proxy.Lose(zkproxy.ToClient, zkproxy.Create, 1, zkproxy.Break)
	_, err := conn.Create("/reply-lost", nil, zk.FlagEphemeral, anyone)
	<-lost
	if !errors.Is(err, zk.ErrConnectionClosed) {
		t.Errorf("a create whose reply is lost reports %v", err)
	}
	there, stat, err := conn.Exists("/reply-lost")
	must(t, err)
	if !there || stat.EphemeralOwner != id || conn.SessionID() != id {
		t.Errorf("there %t, owner %#x, session %#x, now %#x", there, stat.EphemeralOwner, id, conn.SessionID())
	}
	if conns := proxy.Snapshot().Conns; len(conns) < 2 || conns[0].Open {
		t.Errorf("the connections are %+v", conns)
	}
}

// A client behind a proxy that holds everything back hears nothing, and its session expires at the server.
func TestRealSilence(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	observer, _ := session(t)
	proxy := zkproxy.New(t, server.Get(t).Server(0).Addr())
	conn, _, err := zk.Connect([]string{proxy.Addr()}, time.Second, zk.WithLogger(silent{}))
	must(t, err)
	t.Cleanup(conn.Close)
	_, err = conn.Create("/silence", nil, zk.FlagEphemeral, anyone)
	must(t, err)
	_, _, gone, err := observer.ExistsW("/silence")
	must(t, err)
	begun := time.Now()
	proxy.Hold(zkproxy.ToServer)
	proxy.Hold(zkproxy.ToClient)
	select {
	case event := <-gone:
		if event.Type != zk.EventNodeDeleted {
			t.Errorf("the observer saw %s", event.Type)
		}
	case <-ctx.Done():
		t.Fatal("the session of a silent client does not expire")
	}
	t.Logf("a session of 1 s expired %s after the silence began", time.Since(begun).Round(time.Millisecond))
	proxy.Pass(zkproxy.ToServer)
	proxy.Pass(zkproxy.ToClient)
}
