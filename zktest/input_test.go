package zktest_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock/zktest"
)

// lines collects what a server logs.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) logf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(&l.text, format+"\n", args...)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestBadInput closes the connection that sent it, says why, and disturbs no other.
func TestBadInput(t *testing.T) {
	t.Parallel()
	hello := slices.Concat(i32(44), i32(0), make([]byte, 8), i32(10000), make([]byte, 8), i32(16), make([]byte, 16))
	for name, tc := range map[string]struct {
		send   []byte
		reason string
	}{
		"negative length":      {[]byte{0xff, 0xff, 0xff, 0xf0}, "frame of -16 bytes"},
		"oversize":             {slices.Concat(hello, i32(1<<20)), "jute.maxbuffer"},
		"http":                 {[]byte("GET / HTTP/1.1\r\n\r\n"), "jute.maxbuffer"},
		"short connect":        {slices.Concat(i32(5), make([]byte, 5)), "record ends early"},
		"connect with a lie":   {slices.Concat(i32(28), make([]byte, 24), i32(1<<30)), "record ends early"},
		"short header":         {slices.Concat(hello, i32(6), make([]byte, 6)), "record ends early"},
		"empty frame":          {slices.Concat(hello, i32(0)), "record ends early"},
		"unknown operation":    {slices.Concat(hello, i32(8), i32(1), i32(4711)), "unknown operation"},
		"internal operation":   {slices.Concat(hello, i32(8), i32(1), i32(-10)), "unknown operation"},
		"half-open and silent": {hello[:11], "no session within"},
		"sends nothing":        {nil, "no session within"},
		"half a request":       {slices.Concat(hello, i32(100), i32(1)), "session closed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				var log lines
				s := zktest.NewServer(t, func(c *zktest.Config) { c.Logf = log.logf })
				good := connect(t, s.Dial, 10*time.Second, s.Addr())
				r := rawDial(t, s)
				must[int](t)(r.nc.Write(tc.send))
				if _, err := io.ReadAll(r.nc); err != nil {
					t.Errorf("the connection ends with %v", err)
				}
				if !strings.Contains(log.String(), tc.reason) {
					t.Errorf("the log does not say %q:\n%s", tc.reason, log.String())
				}
				must[string](t)(good.Create("/fine", nil, 0, world))
				if good.saw(zk.StateDisconnected) {
					t.Error("another connection was disturbed")
				}
			})
		})
	}
}

// TestUndecodable answers a request whose body makes no sense with a marshalling error and goes on.
func TestUndecodable(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t)
		r := rawDial(t, s)
		r.open(10*time.Second, 0, nil)
		for _, op := range []zktest.Op{
			zktest.OpCreate, zktest.OpDelete, zktest.OpExists, zktest.OpGetData, zktest.OpSetData, zktest.OpGetACL,
			zktest.OpSetACL, zktest.OpGetChildren, zktest.OpGetChildren2, zktest.OpSync, zktest.OpMulti, zktest.OpCreate2,
			zktest.OpCreateContainer, zktest.OpCreateTTL, zktest.OpSetWatches, zktest.OpSetWatches2,
		} {
			r.request(7, op, []byte{0x7f, 0xff, 0xff, 0xff, 1})
			xid, _, code, _ := header(r.recv())
			if xid != 7 || code != zktest.CodeMarshalling {
				t.Errorf("%v: reply to %d with %v", op, xid, code)
			}
		}
	})
}

// TestVersions shows where 3.8 and 3.9 differ: the zxid of an event, exists without the right to read, a create2 in a
// multi, a check outside of one, and the transaction id of a write that cannot be decoded.
func TestVersions(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"3.8.4", "3.9.3"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				since39 := version == "3.9.3"
				s := zktest.NewServer(t, func(c *zktest.Config) { c.Version = version })
				ok(t, s.Create("/n", nil))
				r := rawDial(t, s)
				r.open(10*time.Second, 0, nil)
				acl := slices.Concat(i32(1), i32(31), str("digest"), str("u:x"))
				r.request(1, zktest.OpSetACL, slices.Concat(str("/n"), acl, i32(-1)))
				r.recv()
				r.request(2, zktest.OpExists, append(str("/n"), 0))
				if _, _, code, _ := header(r.recv()); (code == zktest.CodeNoAuth) != since39 {
					t.Errorf("exists without rights: %v", code)
				}
				r.request(3, zktest.OpExists, append(str("/new"), 1))
				r.recv()
				ok(t, s.Create("/new", nil))
				if _, zxid, _, _ := header(r.recv()); (zxid > 0) != since39 {
					t.Errorf("event with zxid %d", zxid)
				}
				create := slices.Concat(str("/m"), i32(-1), i32(1), i32(31), str("world"), str("anyone"), i32(0))
				r.request(4, zktest.OpMulti, slices.Concat(i32(15), []byte{0}, i32(-1), create, i32(-1), []byte{1}, i32(-1)))
				_, _, _, body := header(r.recv())
				if kind := body[3]; (kind == 15) != since39 {
					t.Errorf("create2 in a multi answers as %d", kind)
				}
				before := s.Zxid()
				r.request(5, zktest.OpDelete, []byte{1})
				r.recv()
				if (s.Zxid() == before) != since39 {
					t.Errorf("an undecodable write took %d transactions", s.Zxid()-before)
				}
				r.request(6, zktest.OpCheck, append(str("/new"), i32(-1)...))
				r.request(7, zktest.OpPing, nil)
				xid, _, code, _ := header(r.recv())
				if since39 && code != zktest.CodeUnimplemented || !since39 && xid != -2 {
					t.Errorf("check alone: reply %d, %v", xid, code)
				}
			})
		})
	}
}

func TestUnknownOperationReply(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		r := rawDial(t, zktest.NewServer(t))
		r.open(10*time.Second, 0, nil)
		r.request(3, 4711, nil)
		if xid, zxid, code, _ := header(r.recv()); xid != 3 || zxid != -1 || code != zktest.CodeUnimplemented {
			t.Errorf("reply %d %d %v", xid, zxid, code)
		}
		if r.recv() != nil {
			t.Error("the connection goes on")
		}
	})
}

// TestLimit takes a request of exactly the limit and refuses one byte more.
func TestLimit(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		s := zktest.NewServer(t, func(c *zktest.Config) { c.JuteMaxBuffer = 1000 })
		ok(t, s.Create("/n", nil))
		r := rawDial(t, s)
		r.open(10*time.Second, 0, nil)
		data := make([]byte, 1000-8-6-4-4)
		r.request(1, zktest.OpSetData, slices.Concat(str("/n"), str(string(data)), i32(-1)))
		if _, _, code, _ := header(r.recv()); code != 0 {
			t.Errorf("a request of the limit: %v", code)
		}
		r.request(2, zktest.OpSetData, slices.Concat(str("/n"), str(string(data)+"x"), i32(-1)))
		if r.recv() != nil {
			t.Error("a request over the limit was answered")
		}
	})
}

func word(t *testing.T, s *zktest.Server, w string) string {
	t.Helper()
	nc := must[net.Conn](t)(s.Dial(context.Background(), "tcp", s.Addr()))
	defer nc.Close()
	must[int](t)(nc.Write([]byte(w)))
	return string(must[[]byte](t)(io.ReadAll(nc)))
}

func TestFourLetterWords(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		e := zktest.NewEnsemble(t, 3, func(c *zktest.Config) { c.FourLetterWords = []string{"*"} })
		s := e.Leader()
		c := connect(t, e.Dial, 10*time.Second, s.Addr())
		must[string](t)(c.Create("/e", nil, zk.FlagEphemeral, world))
		_, _, _, err := c.GetW("/e")
		ok(t, err)
		_, _, _, err = c.ChildrenW("/e")
		ok(t, err)
		id := fmt.Sprintf("%#x", c.SessionID())
		for w, patterns := range map[string][]string{
			"ruok": {`^imok$`},
			"srvr": {`^Zookeeper version: 3\.9\.3-`, `\nConnections: 2\n`, `\nZxid: 0x1[0-9a-f]{8}\n`, `\nMode: leader\n`, `\nNode count: 6\n`},
			"stat": {`\nClients:\n /192`, `\nMode: leader\n`},
			"mntr": {`\nzk_server_state\tleader\n`, `\nzk_quorum_size\t3\n`, `\nzk_synced_followers\t2\n`, `\nzk_ephemerals_count\t1\n`, `\nzk_watch_count\t2\n`},
			"cons": {`,sid=` + id + `,lop=GETC,est=\d+,to=10000,lcxid=0x`},
			"dump": {`Session Sets \(1\)/\(1\):\n1 expire at .*:\n\t` + id, `Sessions with Ephemerals \(1\):\n` + id + `:\n\t/e\n`},
			"wchs": {`^1 connections watching 1 paths\nTotal watches:1\n$`},
			"wchp": {`^/e\n\t` + id + `\n`},
			"wchc": {`^` + id + `\n\t/e\n`},
			"conf": {`\ntickTime=2000\n`, `\nmaxSessionTimeout=40000\n`, `\nsyncLimit=5\n`, `\nserver\.2=192\.0\.2\.2:2888`},
			"envi": {`^envi is not executed because it is not in the whitelist\.\n$`},
		} {
			got := word(t, s, w)
			for _, p := range patterns {
				if !regexp.MustCompile(p).MatchString(got) {
					t.Errorf("%s does not match %q:\n%s", w, p, got)
				}
			}
		}
		if got := word(t, e.Followers()[0], "mntr"); !strings.Contains(got, "zk_server_state\tfollower\n") {
			t.Errorf("mntr of a follower:\n%s", got)
		}
	})
}

func TestWhitelist(t *testing.T) {
	t.Parallel()
	s := zktest.NewServer(t, zktest.WithListen("127.0.0.1:0"))
	if got := word(t, s, "ruok"); got != "ruok is not executed because it is not in the whitelist.\n" {
		t.Errorf("ruok: %q", got)
	}
	stats, good := zk.FLWSrvr([]string{s.Addr()}, 5*time.Second)
	if !good || stats[0].Mode != zk.ModeStandalone || stats[0].NodeCount != 5 {
		t.Errorf("srvr as a client reads it: %+v", stats[0])
	}
}

// FuzzServer feeds bytes to a connection that has a session, and to one that has none, and waits until the server has
// dealt with all of them. It must not panic, nor allocate far more than has arrived, and must go on serving others.
func FuzzServer(f *testing.F) {
	acl := slices.Concat(i32(1), i32(31), str("world"), str("anyone"))
	frame := func(op zktest.Op, body ...[]byte) []byte {
		b := slices.Concat(append([][]byte{i32(1), i32(int32(op))}, body...)...)
		return append(i32(int32(len(b))), b...)
	}
	create := slices.Concat(str("/a"), str("x"), acl, i32(2))
	f.Add(frame(zktest.OpPing))
	f.Add(frame(zktest.OpGetData, str("/"), []byte{1}))
	f.Add(slices.Concat(frame(zktest.OpCreate, create), frame(zktest.OpDelete, str("/a0000000001"), i32(-1))))
	f.Add(frame(zktest.OpMulti, i32(1), []byte{0}, i32(-1), create, i32(13), []byte{0}, i32(-1), str("/zoo"), i32(-1), i32(-1), []byte{1}, i32(-1)))
	f.Add(frame(zktest.OpSetWatches, make([]byte, 8), i32(1), str("/"), i32(0), i32(1<<30)))
	f.Add(frame(zktest.OpSetACL, str("/"), acl, i32(0)))
	f.Add(frame(zktest.OpSetAuth, i32(0), str("digest"), str("u:p")))
	f.Add(frame(zktest.OpCloseSession))
	f.Add([]byte("mntr"))
	f.Fuzz(func(t *testing.T, in []byte) {
		synctest.Test(t, func(t *testing.T) {
			s := zktest.NewServer(t, func(c *zktest.Config) {
				c.JuteMaxBuffer, c.FourLetterWords, c.ExtendedTypes = 1<<16, []string{"*"}, true
				c.Logf = func(string, ...any) {}
			})
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for _, session := range []bool{false, true} {
				r := rawDial(t, s)
				if session {
					r.open(4*time.Second, 0, nil)
				}
				must[int](t)(r.nc.Write(in))
				synctest.Wait()
				r.nc.Close()
			}
			runtime.ReadMemStats(&after)
			if grew := after.TotalAlloc - before.TotalAlloc; grew > 1<<20+64*uint64(len(in)) {
				t.Errorf("%d bytes allocated for %d that arrived", grew, len(in))
			}
			check := rawDial(t, s)
			check.open(4*time.Second, 0, nil)
			check.request(1, zktest.OpCloseSession, nil)
			p := check.recv()
			if len(p) < 16 || binary.BigEndian.Uint32(p) != 1 {
				t.Fatalf("after %x the server answers %x", in, p)
			}
		})
	})
}

// greedy remembers the largest piece it was asked for.
type greedy struct {
	r       io.Reader
	largest int
}

func (g *greedy) Read(p []byte) (int, error) {
	g.largest = max(g.largest, len(p))
	return g.r.Read(p)
}

// TestBodyGrowsWithInput keeps a claimed length from costing memory: a gigabyte is promised and ten bytes come.
func TestBodyGrowsWithInput(t *testing.T) {
	t.Parallel()
	g := &greedy{r: bytes.NewReader(make([]byte, 10))}
	if _, err := zktest.ReadBody(g, 1<<30); err == nil {
		t.Error("ten bytes are enough for a gigabyte")
	}
	if g.largest > 64<<10 {
		t.Errorf("a buffer of %d bytes for ten bytes", g.largest)
	}
	want := bytes.Repeat([]byte("abc"), 100_000)
	got, err := zktest.ReadBody(bytes.NewReader(want), len(want))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}
