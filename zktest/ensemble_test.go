package zktest_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock/zktest"
)

// follower returns a server that follows.
func follower(e *zktest.Ensemble) *zktest.Server { return e.Followers()[0] }

func TestEnsembleHasOneHistory(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		e := zktest.NewEnsemble(t, 3, zktest.WithLatency(time.Millisecond, time.Millisecond, 1),
			func(c *zktest.Config) { c.PeerLatency = time.Millisecond })
		if e.Leader() != e.Servers()[2] || len(e.Followers()) != 2 {
			t.Fatalf("leader %v", e.Leader())
		}
		a := connect(t, e.Dial, 10*time.Second, e.Addrs()[0])
		b := connect(t, e.Dial, 10*time.Second, e.Addrs()[2])
		must[string](t)(a.Create("/x", []byte("1"), zk.FlagEphemeral, world))
		data, st, err := b.Get("/x")
		ok(t, err)
		if string(data) != "1" || st.EphemeralOwner != a.SessionID() || st.Czxid>>32 != 1 {
			t.Errorf("at the leader: %q %+v", data, st)
		}
		_, _, gone, err := b.GetW("/x")
		ok(t, err)
		a.Close()
		if ev := <-gone; ev.Type != zk.EventNodeDeleted {
			t.Errorf("event %+v", ev)
		}
		text, _, err := b.Get("/zookeeper/config")
		ok(t, err)
		if n := strings.Count(string(text), ":participant;"); n != 3 || !strings.HasSuffix(string(text), "\nversion=0") {
			t.Errorf("config %q", text)
		}
	})
}

func TestLaggingFollower(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		e := zktest.NewEnsemble(t, 3)
		slow := follower(e)
		reader := connect(t, e.Dial, 10*time.Second, slow.Addr())
		writer := connect(t, e.Dial, 10*time.Second, e.Leader().Addr())
		slow.SetLag(300 * time.Millisecond)
		must[string](t)(writer.Create("/x", nil, 0, world))
		exists, _, err := reader.Exists("/x")
		ok(t, err)
		if exists {
			t.Error("a lagging follower shows a node at once")
		}
		start := time.Now()
		must[string](t)(reader.Sync("/"))
		if d := time.Since(start); d < 290*time.Millisecond {
			t.Errorf("sync took %v", d)
		}
		if exists, _, _ := reader.Exists("/x"); !exists {
			t.Error("sync did not wait for the commit before it")
		}
		// Commits keep their order.
		must[string](t)(writer.Create("/p", nil, 0, world))
		must[string](t)(writer.Create("/p/q", nil, 0, world))
		must[*zk.Stat](t)(writer.Set("/p/q", []byte("1"), -1))
		must[*zk.Stat](t)(writer.Set("/p/q", []byte("2"), -1))
		must[string](t)(reader.Sync("/"))
		if data, _, err := reader.Get("/p/q"); err != nil || string(data) != "2" {
			t.Errorf("after sync: %q %v", data, err)
		}
		// Its own writes are seen by a client of the follower.
		start = time.Now()
		must[string](t)(reader.Create("/y", nil, 0, world))
		if d := time.Since(start); d < 300*time.Millisecond {
			t.Errorf("a write through the lagging follower took %v", d)
		}
		if exists, _, _ := reader.Exists("/y"); !exists {
			t.Error("a client does not see its own write")
		}
	})
}

// TestForwardedWriteDoesNotTouch is the fact that the anchored deadline of a lock client rests on.
func TestForwardedWriteDoesNotTouch(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		var log zktest.History
		e := zktest.NewEnsemble(t, 3, zktest.WithOnTxn(log.Add))
		start := time.Now()
		f := follower(e)
		r := rawDial(t, f)
		r.open(4700*time.Millisecond, 0, nil)
		time.Sleep(1500 * time.Millisecond) // the follower has reported the session at 1 s
		createEphemeral(r, "/e")            // committed at 1.5 s
		time.Sleep(400 * time.Millisecond)
		f.CutFromPeers() // at 1.9 s, before the ping at 2 s is answered
		r.request(9, zktest.OpPing, nil)
		if xid, _, _, _ := header(r.recv()); xid != -2 {
			t.Fatal("a cut-off follower does not answer pings")
		}
		end, _ := log.Await(time.Minute, zktest.Expired)
		// 1 + 4.7 is within the third tick; 1.5 + 4.7 would be within the fourth.
		if got := end.Time.Sub(start); got != 6*time.Second {
			t.Errorf("expired after %v, want 6s", got)
		}
		if e.Leader().Exists("/e") || !f.Exists("/e") {
			t.Error("the leader keeps the node, or the cut-off follower has lost it")
		}
	})
}

// TestNewSessionIsReported sees the followers take the commit of a new session for a sign of life, so that its first
// deadline counts from the ping after it.
func TestNewSessionIsReported(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		var log zktest.History
		e := zktest.NewEnsemble(t, 3, zktest.WithOnTxn(log.Add))
		start := time.Now()
		time.Sleep(100 * time.Millisecond)
		rawDial(t, e.Leader()).open(5500*time.Millisecond, 0, nil)
		end, _ := log.Await(time.Minute, zktest.Expired)
		// 1 + 5.5 is within the fourth tick; 0.1 + 5.5 would be within the third.
		if got := end.Time.Sub(start); got != 8*time.Second {
			t.Errorf("expired after %v, want 8s", got)
		}
	})
}

func TestFollowerReportsActivity(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		e := zktest.NewEnsemble(t, 3)
		c := connect(t, e.Dial, 4*time.Second, follower(e).Addr())
		must[string](t)(c.Create("/e", nil, zk.FlagEphemeral, world))
		time.Sleep(time.Minute)
		if !e.Leader().Exists("/e") {
			t.Error("a session with a live client expired")
		}
	})
}

func TestCutFollower(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		e := zktest.NewEnsemble(t, 3)
		f := follower(e)
		c := connect(t, e.Dial, 30*time.Second, f.Addr())
		must[string](t)(c.Create("/x", nil, 0, world))
		f.CutFromPeers()
		cut := time.Now()
		if exists, _, err := c.Exists("/x"); err != nil || !exists {
			t.Errorf("a read at the cut-off follower: %v %v", exists, err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := c.Set("/x", []byte("late"), -1)
			done <- err
		}()
		c.await(t, zk.StateDisconnected)
		// The last message of the leader came up to half a tick before the cut.
		if d := time.Since(cut); d < 9*time.Second || d > 10*time.Second {
			t.Errorf("the follower dropped its client after %v, want syncLimit x tick", d)
		}
		if err := <-done; err == nil {
			t.Error("a write passed through the cut")
		}
		if st, _ := e.Leader().Stat("/x"); st.Version != 0 {
			t.Error("the write arrived")
		}
		if f.Role() != "looking" {
			t.Errorf("role %s", f.Role())
		}
		f.HealPeers()
		c.await(t, zk.StateHasSession)
		must[*zk.Stat](t)(c.Set("/x", []byte("now"), -1))
		if f.Role() != "follower" {
			t.Errorf("role after healing %s", f.Role())
		}
	})
}

// TestSyncNeedsTheLeader sees a follower leave a sync to its leader, which answers behind the writes that came first.
func TestSyncNeedsTheLeader(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		e := zktest.NewEnsemble(t, 5)
		f, others := follower(e), e.Followers()[1:]
		c := connect(t, e.Dial, 30*time.Second, f.Addr())
		writer := connect(t, e.Dial, 30*time.Second, e.Leader().Addr())
		// A sync, and a read that is not behind it, while something is wrong for three seconds.
		took := func(what string, begin, end func()) {
			begin()
			start := time.Now()
			go func() {
				time.Sleep(3 * time.Second)
				end()
			}()
			if _, _, err := c.Exists("/"); err != nil || !time.Now().Equal(start) {
				t.Errorf("%s: a read: %v after %v", what, err, time.Since(start))
			}
			must[string](t)(c.Sync("/"))
			if d := time.Since(start); d != 3*time.Second {
				t.Errorf("%s: the sync took %v, want 3s", what, d)
			}
		}
		took("follower cut off", f.CutFromPeers, f.HealPeers)
		took("leader stopped", e.Leader().Pause, e.Leader().Resume)
		// A leader without a quorum, which it needs for no sync unless a write is before it.
		for _, s := range others {
			s.CutFromPeers()
		}
		must[string](t)(c.Sync("/"))
		written := make(chan error, 1)
		took("behind a write without a quorum", func() {
			go func() {
				_, err := writer.Create("/x", nil, 0, world)
				written <- err
			}()
			time.Sleep(time.Millisecond)
		}, func() {
			for _, s := range others {
				s.HealPeers()
			}
		})
		ok(t, <-written)
	})
}

func TestShortCutDeliversLater(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		e := zktest.NewEnsemble(t, 3)
		f := follower(e)
		c := connect(t, e.Dial, 30*time.Second, f.Addr())
		f.CutFromPeers()
		start := time.Now()
		go func() {
			time.Sleep(3 * time.Second)
			f.HealPeers()
		}()
		must[string](t)(c.Create("/x", nil, 0, world))
		if d := time.Since(start); d != 3*time.Second {
			t.Errorf("the write took %v, want 3s", d)
		}
	})
}

func TestLeaderStops(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		e := zktest.NewEnsemble(t, 3)
		old := e.Leader()
		c := connect(t, e.Dial, 6*time.Second, e.Addrs()...)
		id := c.SessionID()
		must[string](t)(c.Create("/e", nil, zk.FlagEphemeral, world))
		before := old.Zxid()
		old.Stop()
		c.await(t, zk.StateHasSession)
		if c.SessionID() != id {
			t.Error("the session was lost")
		}
		must[string](t)(c.Create("/x", nil, 0, world))
		st, err := e.Leader().Stat("/x")
		ok(t, err)
		if e.Leader() == old || st.Czxid>>32 != before>>32+1 || int32(st.Czxid) != 1 {
			t.Errorf("leader %s, czxid %#x after %#x", e.Leader().Addr(), st.Czxid, before)
		}
		old.Restart()
		time.Sleep(time.Second)
		if old.Role() != "follower" || !old.Exists("/x") {
			t.Errorf("the restarted server is %s, has the node: %v", old.Role(), old.Exists("/x"))
		}
	})
}

// TestElectionRenewsSessions gives a silent session a full timeout again.
func TestElectionRenewsSessions(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		var log zktest.History
		e := zktest.NewEnsemble(t, 3, zktest.WithOnTxn(log.Add))
		r := rawDial(t, e.Leader())
		r.open(4*time.Second, 0, nil)
		time.Sleep(3500 * time.Millisecond)
		e.Elect(e.Servers()[0])
		if r.recv() != nil {
			t.Error("the client was not dropped")
		}
		time.Sleep(300 * time.Millisecond)
		if e.Leader() != e.Servers()[0] {
			t.Fatalf("leader %v", e.Leader())
		}
		elected := time.Now().Add(-100 * time.Millisecond)
		end, _ := log.Await(time.Minute, zktest.Expired)
		if d := end.Time.Sub(elected); d != 6*time.Second {
			t.Errorf("expired %v after the election, want 6s: timeout plus the tick", d)
		}
	})
}

func TestCutLeader(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		e := zktest.NewEnsemble(t, 3)
		old := e.Leader()
		stuck := connect(t, e.Dial, 30*time.Second, old.Addr())
		must[string](t)(stuck.Create("/x", nil, 0, world))
		old.CutFromPeers()
		cut := time.Now()
		if _, _, err := stuck.Get("/x"); err != nil {
			t.Errorf("a read at the cut-off leader: %v", err)
		}
		result := make(chan error, 1)
		go func() {
			_, err := stuck.Create("/lost", nil, 0, world)
			result <- err
		}()
		stuck.await(t, zk.StateDisconnected)
		if d := time.Since(cut); d < 9*time.Second || d > 12*time.Second {
			t.Errorf("the leader gave up after %v", d)
		}
		if err := <-result; err == nil {
			t.Error("a leader without a quorum committed")
		}
		time.Sleep(2 * time.Second)
		if e.Leader() == old || e.Leader() == nil || len(e.Followers()) != 1 {
			t.Fatalf("leader %v, followers %d", e.Leader(), len(e.Followers()))
		}
		c := connect(t, e.Dial, 10*time.Second, e.Leader().Addr())
		must[string](t)(c.Create("/y", nil, 0, world))
		old.HealPeers()
		stuck.await(t, zk.StateHasSession)
		must[string](t)(stuck.Sync("/"))
		if exists, _, _ := stuck.Exists("/y"); !exists || old.Exists("/lost") {
			t.Error("the old leader does not share the history")
		}
	})
}

func TestPausedFollower(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		e := zktest.NewEnsemble(t, 3)
		f := follower(e)
		c := connect(t, e.Dial, 30*time.Second, f.Addr())
		f.Pause()
		start := time.Now()
		go func() {
			time.Sleep(4 * time.Second)
			f.Resume()
		}()
		must[string](t)(c.Create("/x", nil, 0, world))
		if d := time.Since(start).Round(time.Microsecond); d != 4*time.Second {
			t.Errorf("a write at the stopped server took %v, want 4s", d)
		}
		if f.Role() != "follower" {
			t.Errorf("role %s", f.Role())
		}
		f.Pause()
		if _, err := f.Dial(t.Context(), "tcp", f.Addr()); err != nil {
			t.Errorf("a stopped server does not accept: %v", err)
		}
		time.Sleep(15 * time.Second) // longer than the leader waits
		c.forget()
		f.Resume()
		c.await(t, zk.StateHasSession)
		must[string](t)(c.Create("/y", nil, 0, world))
	})
}

func TestPausedLeader(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		e := zktest.NewEnsemble(t, 3)
		old := e.Leader()
		c := connect(t, e.Dial, 30*time.Second, follower(e).Addr())
		old.Pause()
		start := time.Now()
		c.await(t, zk.StateDisconnected)
		c.await(t, zk.StateHasSession)
		must[string](t)(c.Create("/x", nil, 0, world))
		if d := time.Since(start); d < 9*time.Second || d > 12*time.Second {
			t.Errorf("a new leader after %v", d)
		}
		old.Resume()
		time.Sleep(4 * time.Second)
		if old.Role() != "follower" || !old.Exists("/x") {
			t.Errorf("the old leader is %s", old.Role())
		}
	})
}

// TestResumedLeaderPings sees a leader that goes on ask its followers at once whom they have heard, and not up to half a
// tick later.
func TestResumedLeaderPings(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		e := zktest.NewEnsemble(t, 3, zktest.WithTickTime(2*time.Second), zktest.WithLatency(time.Millisecond, 0, 1))
		connect(t, e.Dial, 8*time.Second, follower(e).Addr())
		leader := e.Leader()
		for range 7 { // some of the pauses end long before the next ping would be due
			leader.Pause()
			time.Sleep(3300 * time.Millisecond)
			leader.Resume()
			resumed := time.Now()
			time.Sleep(time.Millisecond)
			if expires := leader.Sessions()[0].Expires; expires.Before(resumed.Add(8 * time.Second)) {
				t.Errorf("%v after it goes on, the leader has not heard of the session: it expires after %v", time.Since(resumed), expires.Sub(resumed))
			}
			time.Sleep(4 * time.Second)
		}
	})
}

// TestNoQuorumNoExpiry keeps a session whose time is over until somebody can commit its end.
func TestNoQuorumNoExpiry(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		e := zktest.NewEnsemble(t, 3)
		r := rawDial(t, e.Leader())
		r.open(4*time.Second, 0, nil)
		createEphemeral(r, "/e")
		for _, f := range e.Followers() {
			f.Stop()
		}
		time.Sleep(time.Minute)
		if !e.Servers()[2].Exists("/e") || len(e.Servers()[2].Sessions()) != 1 {
			t.Error("a session expired without a quorum")
		}
		e.Servers()[0].Restart()
		time.Sleep(20 * time.Second)
		if len(e.Servers()[2].Sessions()) != 0 {
			t.Error("the session did not expire afterwards")
		}
	})
}

// TestSessionMoves resumes a session elsewhere; the connection left behind may read and not write.
func TestSessionMoves(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		e := zktest.NewEnsemble(t, 3)
		old := rawDial(t, e.Followers()[0])
		_, id, passwd := old.open(10*time.Second, 0, nil)
		createEphemeral(old, "/e")
		moved := rawDial(t, e.Followers()[1])
		if _, got, _ := moved.open(10*time.Second, id, passwd); got != id {
			t.Fatal("not resumed")
		}
		old.request(5, zktest.OpExists, append(str("/e"), 0))
		if _, _, code, _ := header(old.recv()); code != 0 {
			t.Errorf("a read on the old connection: %v", code)
		}
		old.request(6, zktest.OpDelete, append(str("/e"), i32(-1)...))
		if old.recv() != nil {
			t.Error("a write on the old connection was answered")
		}
		moved.request(1, zktest.OpDelete, append(str("/e"), i32(-1)...))
		if _, _, code, _ := header(moved.recv()); code != 0 {
			t.Errorf("a write on the new connection: %v", code)
		}
	})
}

func TestServersGrantDifferently(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		e := zktest.NewEnsemble(t, 3)
		strict := e.Servers()[1]
		strict.SetMaxSessionTimeout(5 * time.Second)
		r := rawDial(t, e.Servers()[0])
		long, id, passwd := r.open(20*time.Second, 0, nil)
		short, got, _ := rawDial(t, strict).open(20*time.Second, id, passwd)
		if long != 20*time.Second || short != 5*time.Second || got != id {
			t.Errorf("granted %v, then %v for session %#x", long, short, got)
		}
	})
}

func TestPipelineThroughFollower(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		e := zktest.NewEnsemble(t, 3, func(c *zktest.Config) { c.PeerLatency = 5 * time.Millisecond })
		ok(t, e.Leader().Create("/n", []byte("0")))
		r := rawDial(t, follower(e))
		r.open(10*time.Second, 0, nil)
		start := time.Now()
		for i := range int32(10) {
			r.request(2*i+1, zktest.OpSetData, slices.Concat(str("/n"), str(string('a'+i)), i32(-1)))
			r.request(2*i+2, zktest.OpGetData, append(str("/n"), 0))
		}
		for i := range int32(10) {
			if xid, _, code, _ := header(r.recv()); xid != 2*i+1 || code != 0 {
				t.Fatalf("reply %d, code %v, want %d", xid, code, 2*i+1)
			}
			xid, _, _, body := header(r.recv())
			if want := str(string('a' + i)); xid != 2*i+2 || !slices.Equal(body[:5], want) {
				t.Fatalf("reply %d shows %q, want its own write", xid, body[:5])
			}
		}
		if d := time.Since(start); d > 15*time.Millisecond {
			t.Errorf("ten pipelined writes took %v", d)
		}
	})
}

// TestSessionOrder sees the requests of a session keep their order when the connection changes in between: a write that
// waits for a quorum is carried out before what the session sends over its next connection to the same server.
func TestSessionOrder(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		e := zktest.NewEnsemble(t, 3, zktest.WithLatency(time.Millisecond, 0, 1))
		leader := e.Leader()
		first := rawDial(t, leader)
		_, id, passwd := first.open(20*time.Second, 0, nil)
		for _, f := range e.Followers() {
			f.CutFromPeers()
		}
		first.request(1, zktest.OpCreate, ephemeral("/x"))
		time.Sleep(10 * time.Millisecond)
		first.nc.Close()
		second := rawDial(t, leader)
		second.open(20*time.Second, id, passwd)
		second.request(7, zktest.OpSync, str("/"))
		second.request(8, zktest.OpExists, append(str("/x"), 0))
		time.Sleep(time.Second)
		if leader.Exists("/x") {
			t.Fatal("a leader without a quorum has committed")
		}
		for _, s := range e.Servers() {
			s.HealPeers()
		}
		for _, want := range []int32{7, 8} {
			if xid, _, code, _ := header(second.recv()); xid != want || code != zktest.CodeOK {
				t.Errorf("answer to %d with code %v, want one to %d", xid, code, want)
			}
		}
	})
}
