package zktest_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock/zktest"
)

func TestNodes(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t, zktest.WithLatency(time.Millisecond, time.Millisecond, 1))
		c := connect(t, s.Dial, 10*time.Second, s.Addr())

		must[string](t)(c.Create("/a", []byte("one"), 0, world))
		_, err := c.Create("/a", nil, 0, world)
		wantErr(t, err, zk.ErrNodeExists)
		_, err = c.Create("/no/child", nil, 0, world)
		wantErr(t, err, zk.ErrNoNode)
		must[string](t)(c.Create("/a/eph", nil, zk.FlagEphemeral, world))
		_, err = c.Create("/a/eph/x", nil, 0, world)
		wantErr(t, err, zk.ErrNoChildrenForEphemerals)
		wantErr(t, c.Delete("/a", -1), zk.ErrNotEmpty)
		wantErr(t, c.Delete("/a", 7), zk.ErrBadVersion)

		st := must[*zk.Stat](t)(c.Set("/a", []byte("three"), 0))
		if st.Version != 1 || st.DataLength != 5 || st.NumChildren != 1 || st.Cversion != 1 {
			t.Errorf("stat after set: %+v", st)
		}
		_, err = c.Set("/a", nil, 0)
		wantErr(t, err, zk.ErrBadVersion)
		data, st, err := c.Get("/a")
		ok(t, err)
		if string(data) != "three" || st.Czxid >= st.Mzxid || st.Pzxid <= st.Czxid {
			t.Errorf("get: %q %+v", data, st)
		}
		_, eph, err := c.Get("/a/eph")
		ok(t, err)
		if eph.EphemeralOwner != c.SessionID() {
			t.Errorf("owner %#x, session %#x", eph.EphemeralOwner, c.SessionID())
		}
		if eph.Czxid != st.Pzxid {
			t.Errorf("pzxid of the parent %#x, czxid of the child %#x", st.Pzxid, eph.Czxid)
		}
		ok(t, c.Delete("/a/eph", -1))
		wantErr(t, c.Delete("/a/eph", -1), zk.ErrNoNode)
		// Two changes of the children: one create and one delete.
		exists, st, err := c.Exists("/a")
		ok(t, err)
		if !exists || st.Cversion != 2 || st.NumChildren != 0 {
			t.Errorf("exists: %v %+v", exists, st)
		}
		ok(t, c.Delete("/a", 1))
		if s.Exists("/a") {
			t.Error("/a is still there")
		}
		if got := s.Ops().Count(zktest.OpDelete); got != 5 {
			t.Errorf("%d deletes counted, want 5", got)
		}
	})
}

func TestSequence(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t)
		c := connect(t, s.Dial, 10*time.Second, s.Addr())
		must[string](t)(c.Create("/q", nil, 0, world))
		next := func(want string) {
			t.Helper()
			got := must[string](t)(c.Create("/q/n-", nil, zk.FlagEphemeralSequential, world))
			if got != want {
				t.Errorf("created %s, want %s", got, want)
			}
		}
		next("/q/n-0000000000")
		next("/q/n-0000000001")
		// Deletes do not move the counter, other creates do.
		ok(t, c.Delete("/q/n-0000000001", -1))
		next("/q/n-0000000002")
		must[string](t)(c.Create("/q/plain", nil, 0, world))
		next("/q/n-0000000004")
		ok(t, s.SetSequence("/q", 2147483647))
		next("/q/n-2147483647")
		next("/q/n--2147483648")
		ok(t, s.SetSequence("/q", -1000000005))
		next("/q/n--1000000005")
	})
}

func TestContainerIsReaped(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t, func(c *zktest.Config) { c.ContainerInterval = 5 * time.Second })
		c := connect(t, s.Dial, 10*time.Second, s.Addr())
		must[string](t)(c.CreateContainer("/used", nil, zk.FlagContainer, world))
		must[string](t)(c.CreateContainer("/fresh", nil, zk.FlagContainer, world))
		must[string](t)(c.Create("/used/x", nil, 0, world))
		time.Sleep(11 * time.Second)
		if !s.Exists("/used") {
			t.Fatal("a container with a child was reaped")
		}
		exists, _, gone, err := c.ExistsW("/used")
		ok(t, err)
		if !exists {
			t.Fatal("/used is gone")
		}
		ok(t, c.Delete("/used/x", -1))
		if e := <-gone; e.Type != zk.EventNodeDeleted {
			t.Errorf("event %v", e)
		}
		if !s.Exists("/fresh") {
			t.Error("a container that never had a child was reaped")
		}
		_, err = c.CreateTTL("/ttl", nil, zk.FlagTTL, world, time.Second)
		if err == nil {
			t.Error("a TTL node was created without extended types")
		}
	})
}

func TestTTLNode(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t, func(c *zktest.Config) { c.ContainerInterval, c.ExtendedTypes = time.Second, true })
		c := connect(t, s.Dial, 10*time.Second, s.Addr())
		must[string](t)(c.CreateTTL("/ttl", nil, zk.FlagTTL, world, 3*time.Second))
		time.Sleep(2500 * time.Millisecond)
		if !s.Exists("/ttl") {
			t.Fatal("reaped before its time")
		}
		time.Sleep(2 * time.Second)
		if s.Exists("/ttl") {
			t.Error("not reaped after its time")
		}
	})
}

func TestWatches(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t, zktest.WithLatency(2*time.Millisecond, 0, 1))
		c := connect(t, s.Dial, 10*time.Second, s.Addr())
		other := connect(t, s.Dial, 10*time.Second, s.Addr())

		_, _, created, err := c.ExistsW("/w")
		ok(t, err)
		must[string](t)(other.Create("/w", nil, 0, world))
		if e := <-created; e.Type != zk.EventNodeCreated || e.Path != "/w" {
			t.Errorf("event %+v", e)
		}
		_, _, changed, err := c.GetW("/w")
		ok(t, err)
		_, _, kids, err := c.ChildrenW("/w")
		ok(t, err)
		if n := s.Watches(); n != 2 {
			t.Errorf("%d watches, want 2", n)
		}
		must[*zk.Stat](t)(other.Set("/w", []byte("x"), -1))
		if e := <-changed; e.Type != zk.EventNodeDataChanged {
			t.Errorf("event %+v", e)
		}
		must[string](t)(other.Create("/w/kid", nil, 0, world))
		if e := <-kids; e.Type != zk.EventNodeChildrenChanged {
			t.Errorf("event %+v", e)
		}
		if n := s.Watches(); n != 0 {
			t.Errorf("%d watches after they fired", n)
		}
		// A missing node: getData leaves no watch, exists does.
		_, _, _, err = c.GetW("/absent")
		wantErr(t, err, zk.ErrNoNode)
		_, _, _, err = c.ChildrenW("/absent")
		wantErr(t, err, zk.ErrNoNode)
		_, _, _, err = c.ExistsW("/none")
		ok(t, err)
		if got := s.WatchedPaths(); !slices.Equal(got, []string{"/none"}) {
			t.Errorf("watched: %v", got)
		}
		if n := s.Ops().WatchEvents(); n != 3 {
			t.Errorf("%d events, want 3", n)
		}
	})
}

// TestEventBeforeReply looks at the bytes: a connection that deletes the node it watches sees the event first, and one
// that watches data and children of it sees one event.
func TestEventBeforeReply(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t)
		ok(t, s.Create("/n", nil))
		r := rawDial(t, s)
		r.open(10*time.Second, 0, nil)
		r.request(1, zktest.OpGetData, append(str("/n"), 1))
		r.request(2, zktest.OpGetChildren, append(str("/n"), 1))
		r.recv()
		r.recv()
		r.request(3, zktest.OpDelete, append(str("/n"), i32(-1)...))
		p := r.recv()
		xid, zxid, _, body := header(p)
		if xid != -1 {
			t.Fatalf("first message after the delete has xid %d", xid)
		}
		if want := append(append(i32(2), i32(3)...), str("/n")...); !slices.Equal(body, want) {
			t.Errorf("event body %x, want %x", body, want)
		}
		rx, rz, code, _ := header(r.recv())
		if rx != 3 || code != 0 || rz != zxid {
			t.Errorf("reply xid %d zxid %#x code %d, event zxid %#x", rx, rz, code, zxid)
		}
		r.request(4, zktest.OpPing, nil)
		if xid, _, _, _ := header(r.recv()); xid != -2 {
			t.Errorf("message %d between the reply and the ping's: a second event?", xid)
		}
	})
}

func TestMulti(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		var log zktest.History
		s := zktest.NewServer(t, zktest.WithOnTxn(log.Add))
		c := connect(t, s.Dial, 10*time.Second, s.Addr())
		res, err := c.Multi(
			&zk.CreateRequest{Path: "/m", Acl: world},
			&zk.CreateRequest{Path: "/m/s-", Acl: world, Flags: zk.FlagEphemeralSequential},
			&zk.SetDataRequest{Path: "/m", Data: []byte("d"), Version: 0},
			&zk.CheckVersionRequest{Path: "/m", Version: 1},
		)
		ok(t, err)
		if res[1].String != "/m/s-0000000000" || res[2].Stat.Version != 1 {
			t.Errorf("results %+v", res)
		}
		a, _ := s.Stat("/m")
		b, _ := s.Stat("/m/s-0000000000")
		if a.Czxid != b.Czxid || a.Mzxid != a.Czxid || a.Pzxid != a.Czxid {
			t.Errorf("one transaction, several ids: %+v %+v", a, b)
		}

		before := s.Zxid()
		res, err = c.Multi(
			&zk.DeleteRequest{Path: "/m/s-0000000000", Version: -1},
			&zk.CreateRequest{Path: "/m/x", Acl: world},
			&zk.CheckVersionRequest{Path: "/m", Version: 9},
			&zk.DeleteRequest{Path: "/m", Version: -1},
		)
		wantErr(t, err, zk.ErrBadVersion)
		if res[0].Error != nil || res[1].Error != nil || !errors.Is(res[2].Error, zk.ErrBadVersion) || res[3].Error == nil {
			t.Errorf("results %+v", res)
		}
		if got := s.Children("/m"); !slices.Equal(got, []string{"s-0000000000"}) {
			t.Errorf("a failed multi left %v", got)
		}
		if after, _ := s.Stat("/m"); after != a {
			t.Errorf("a failed multi changed the parent: %+v, before %+v", after, a)
		}
		if s.Zxid() != before+1 {
			t.Errorf("a failed multi took %d transactions, want 1", s.Zxid()-before)
		}
		s.Ops().Reset()
		_, err = c.Multi(&zk.CheckVersionRequest{Path: "/m", Version: -1})
		ok(t, err)
		if n := s.Ops(); n.Proofs() != 1 || n.Writes() != 0 {
			t.Errorf("a check-only multi counts as %+v", n.Counts())
		}
		if s.Zxid() != before+2 {
			t.Error("a check-only multi took no transaction")
		}
		txns := log.Txns()
		last := txns[len(txns)-1]
		if last.Op != zktest.OpMulti || len(last.Changes) != 0 || last.Session != c.SessionID() {
			t.Errorf("OnTxn saw %+v", last)
		}
		for i := 1; i < len(txns); i++ {
			if txns[i].Zxid != txns[i-1].Zxid+1 {
				t.Errorf("transaction %#x after %#x", txns[i].Zxid, txns[i-1].Zxid)
			}
		}
	})
}

func TestACL(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t)
		mine := connect(t, s.Dial, 10*time.Second, s.Addr())
		ok(t, mine.AddAuth("digest", []byte("u:secret")))
		must[string](t)(mine.Create("/p", nil, 0, zk.DigestACL(zk.PermAll, "u", "secret")))
		must[string](t)(mine.Create("/p/auth", nil, 0, zk.AuthACL(zk.PermAll)))

		other := connect(t, s.Dial, 10*time.Second, s.Addr())
		_, _, err := other.Get("/p")
		wantErr(t, err, zk.ErrNoAuth)
		_, err = other.Create("/p/x", nil, 0, world)
		wantErr(t, err, zk.ErrNoAuth)
		wantErr(t, other.Delete("/p/auth", -1), zk.ErrNoAuth)
		_, err = other.Create("/y", nil, 0, zk.AuthACL(zk.PermAll))
		wantErr(t, err, zk.ErrInvalidACL)
		_, err = other.Multi(&zk.CheckVersionRequest{Path: "/p", Version: -1})
		wantErr(t, err, zk.ErrNoAuth)
		ok(t, other.AddAuth("digest", []byte("u:secret")))
		_, _, err = other.Get("/p/auth")
		ok(t, err)
		acl, _, err := other.GetACL("/p/auth")
		ok(t, err)
		if len(acl) != 1 || acl[0] != zk.DigestACL(zk.PermAll, "u", "secret")[0] {
			t.Errorf("acl %v", acl)
		}
		other.forget()
		wantErr(t, other.AddAuth("nope", []byte("x")), zk.ErrAuthFailed)
		other.await(t, zk.StateDisconnected)
	})
}

func TestPaths(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t)
		ok(t, s.Create("/a", nil))
		r := rawDial(t, s)
		r.open(10*time.Second, 0, nil)
		create := func(path string) zktest.Code {
			body := append(str(path), i32(-1)...)
			body = append(body, i32(1)...)
			body = append(body, i32(31)...)
			body = append(body, str("world")...)
			body = append(body, str("anyone")...)
			r.request(1, zktest.OpCreate, append(body, i32(0)...))
			_, _, code, _ := header(r.recv())
			return code
		}
		for path, want := range map[string]zktest.Code{
			"":        zktest.CodeBadArguments,
			"x":       zktest.CodeBadArguments,
			"/a/":     zktest.CodeBadArguments,
			"/a//b":   zktest.CodeNoNode, // the parent "/a/" is looked up before the path is checked
			"/.":      zktest.CodeBadArguments,
			"/a/..":   zktest.CodeBadArguments,
			"/\x01":   zktest.CodeBadArguments,
			"/a\x00b": zktest.CodeBadArguments,
			"/\u0085": zktest.CodeBadArguments,
			"/😀":      zktest.CodeBadArguments,
			"/":       zktest.CodeNodeExists,
			"/ä …":    zktest.CodeOK,
			"/a/...":  zktest.CodeOK,
			"/a/.b":   zktest.CodeOK,
		} {
			if got := create(path); got != want {
				t.Errorf("create %q: %v, want %v", path, got, want)
			}
		}
	})
}

func i32(v int32) []byte {
	return []byte{byte(uint32(v) >> 24), byte(v >> 16), byte(v >> 8), byte(v)}
}

func str(s string) []byte { return append(i32(int32(len(s))), s...) }
