package zktest

import (
	"slices"
	"strings"
	"time"
)

// Direction is one way of a connection.
type Direction uint8

// The directions that Blackhole takes.
const (
	ClientToServer Direction = 1
	ServerToClient Direction = 2
	BothWays       Direction = ClientToServer | ServerToClient
)

type faultKind uint8

const (
	faultDropRequest faultKind = iota
	faultDropReply
	faultHalfReply
	faultCutAfter
	faultDelayRequest
	faultDelayReply
	faultBefore
	faultLoseWatch
	faultBlackhole
)

// loss is what happens to the connection after a message was lost on it.
type loss uint8

const (
	lossCuts    loss = iota // it ends
	lossSilence             // nothing more comes through that way, and the connection stays
	lossOnly                // it goes on as if nothing had happened
)

// Fault is something that goes wrong once a matching request arrives. Build one with a function such as DropReply,
// narrow it with its methods, and hand it to Server.Inject or Ensemble.Inject:
//
//	lost := srv.Inject(zktest.DropReply(zktest.OpCreate).Session(id))
//
// A fault without Times hits once. A fault that was built wrongly, or never injected, never hits.
type Fault struct {
	kind    faultKind
	ops     []Op
	loss    loss
	delay   time.Duration
	fn      func()
	dir     Direction
	session *int64
	client  *string
	prefix  string
	nth     int // from which match on it hits, counted from 1
	times   int // how many matches it hits; 0 for all

	cl     *cluster
	server *Server // nil: any
	seen   int
	hits   int
	hit    chan struct{} // closed at the first hit
}

func newFault(kind faultKind, ops []Op) *Fault {
	return &Fault{kind: kind, ops: ops, nth: 1, times: 1, hit: make(chan struct{})}
}

// DropRequest loses a request of one of the kinds (any kind if none is given) before it has an effect, and cuts the
// connection; see Silent and Only.
func DropRequest(ops ...Op) *Fault { return newFault(faultDropRequest, ops) }

// DropReply lets a request take effect, loses its reply, and cuts the connection; see Silent and Only.
func DropReply(ops ...Op) *Fault { return newFault(faultDropReply, ops) }

// HalfReply lets a request take effect, sends the first half of its reply's bytes, and cuts the connection.
func HalfReply(ops ...Op) *Fault { return newFault(faultHalfReply, ops) }

// CutAfter cuts the connection right after the reply has been sent.
func CutAfter(ops ...Op) *Fault { return newFault(faultCutAfter, ops) }

// DelayRequest keeps a request, and everything its connection sends after it, back for d before it takes effect.
func DelayRequest(d time.Duration, ops ...Op) *Fault {
	f := newFault(faultDelayRequest, ops)
	f.delay = d
	return f
}

// DelayReply keeps the reply, and everything the server sends after it, back for d.
func DelayReply(d time.Duration, ops ...Op) *Fault {
	f := newFault(faultDelayReply, ops)
	f.delay = d
	return f
}

// Before calls fn when a request has arrived and before it takes effect. fn may call the server, for instance to reap
// a container or to expire a session at that moment; it delays only its connection.
func Before(fn func(), ops ...Op) *Fault {
	f := newFault(faultBefore, ops)
	f.fn = fn
	return f
}

// LoseWatch loses a watch event: the watch is spent and its client is not told.
func LoseWatch() *Fault { return newFault(faultLoseWatch, nil) }

// Blackhole lets nothing through in the given direction, neither data nor the end of a connection, until Heal.
// What was held back arrives then, as TCP would repeat it. It holds on to every connection that matches. With no
// Session, dials are swallowed too. It hits once for each connection and direction, and each dial, that it kept waiting.
func Blackhole(dir Direction) *Fault {
	f := newFault(faultBlackhole, nil)
	f.dir, f.times = dir, 0
	return f
}

// Session limits the fault to connections of a session. A connect request belongs to the session it wants to resume.
func (f *Fault) Session(id int64) *Fault { f.session = &id; return f }

// Client limits the fault to connections made by a Dialer with that name.
func (f *Fault) Client(name string) *Fault { f.client = &name; return f }

// Path limits the fault to requests, or events, for paths that start with prefix. A multi matches if one of its
// operations does.
func (f *Fault) Path(prefix string) *Fault { f.prefix = prefix; return f }

// Nth lets the first n-1 matches pass.
func (f *Fault) Nth(n int) *Fault { f.nth = n; return f }

// Times makes the fault hit n matches in a row instead of one.
func (f *Fault) Times(n int) *Fault { f.times = n; return f }

// Always makes the fault hit every match until Heal.
func (f *Fault) Always() *Fault { f.times = 0; return f }

// Silent changes DropRequest and DropReply: the connection is not cut, but nothing comes through in that direction
// any more, like a network that fails without a word. Heal cuts it: TCP delivers nothing that comes after a gap.
func (f *Fault) Silent() *Fault { f.loss = lossSilence; return f }

// Only changes DropRequest and DropReply: exactly one message is lost and the connection goes on. TCP never does that;
// a broken proxy may.
func (f *Fault) Only() *Fault { f.loss = lossOnly; return f }

// Inject puts a fault to work on this server and returns it.
func (s *Server) Inject(f *Fault) *Fault { return s.cl.inject(f, s) }

// Inject puts a fault to work on all servers and returns it.
func (e *Ensemble) Inject(f *Fault) *Fault { return e.cl.inject(f, nil) }

func (cl *cluster) inject(f *Fault, s *Server) *Fault {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	f.cl, f.server = cl, s
	cl.faults = append(cl.faults, f)
	return f
}

// Hits returns how often the fault has hit.
func (f *Fault) Hits() int {
	if f.cl == nil {
		return 0
	}
	f.cl.mu.Lock()
	defer f.cl.mu.Unlock()
	return f.hits
}

// Hit returns a channel that is closed when the fault hits for the first time.
func (f *Fault) Hit() <-chan struct{} { return f.hit }

// Heal ends the fault. What a black hole has held back goes through now; a connection that a lost message has silenced
// is cut.
func (f *Fault) Heal() {
	if f.cl == nil {
		return
	}
	f.cl.mu.Lock()
	defer f.cl.mu.Unlock()
	f.cl.faults = slices.DeleteFunc(f.cl.faults, func(g *Fault) bool { return g == f })
	f.cl.holes = slices.DeleteFunc(f.cl.holes, func(h hole) bool {
		if h.fault == f {
			h.conn.drop("fault: the connection that had fallen silent is cut")
		}
		return h.fault == f
	})
	for _, s := range f.cl.servers {
		s.notify()
	}
}

// hole is the silence that a fault leaves behind on one connection.
type hole struct {
	fault *Fault
	conn  *conn
	dir   Direction
}

// on reports whether the fault concerns a connection; mu is held.
func (f *Fault) on(c *conn, session int64) bool {
	return (f.server == nil || f.server == c.s) &&
		(f.session == nil || *f.session == session) &&
		(f.client == nil || *f.client == c.client)
}

// strike counts a match and reports whether the fault hits; mu is held.
func (f *Fault) strike() bool {
	f.seen++
	if f.seen < f.nth || f.times > 0 && f.seen >= f.nth+f.times {
		return false
	}
	f.struck()
	return true
}

func (f *Fault) struck() {
	f.hits++
	if f.hits == 1 {
		close(f.hit)
	}
}

// verdict is what faults do to one request.
type verdict struct {
	before []func()
	delay  time.Duration
	drop   *Fault // lose the request
	reply  *Fault // for the reply
}

// judge finds the faults that a request meets; mu is held.
func (cl *cluster) judge(c *conn, op Op, session int64, body *decoder) (v verdict) {
	for _, f := range cl.faults {
		if f.kind >= faultLoseWatch || !f.on(c, session) || len(f.ops) > 0 && !slices.Contains(f.ops, op) {
			continue
		}
		if f.prefix != "" && !slices.ContainsFunc(requestPaths(op, *body), func(p string) bool { return strings.HasPrefix(p, f.prefix) }) {
			continue
		}
		if v.drop != nil || !f.strike() {
			continue
		}
		switch f.kind {
		case faultBefore:
			v.before = append(v.before, f.fn)
		case faultDelayRequest:
			v.delay += f.delay
		case faultDropRequest:
			v.drop = f
		default:
			v.reply = f
		}
	}
	return v
}

// requestPaths are the paths a request is about.
func requestPaths(op Op, d decoder) []string {
	switch op {
	case OpMulti:
		var paths []string
		for _, w := range decodeMulti(&d, true) {
			paths = append(paths, w.path)
		}
		return paths
	case OpConnect, OpPing, OpCloseSession, OpSetAuth, OpSetWatches, OpSetWatches2:
		return nil
	}
	return []string{d.string()}
}

// silence keeps a connection from being heard, or from hearing, from now on; mu is held.
func (c *conn) silence(f *Fault, dir Direction) {
	c.s.cl.holes = append(c.s.cl.holes, hole{f, c, dir})
	c.notify()
}

// lose drops a request; mu is held.
func (c *conn) lose(f *Fault) {
	switch f.loss {
	case lossCuts:
		c.drop("fault: request dropped")
	case lossSilence:
		c.silence(f, ClientToServer)
	}
}

// send queues a reply, unless a fault is in its way; mu is held.
func (c *conn) send(b []byte, f *Fault) {
	if f == nil {
		c.push(frame{b: b})
		return
	}
	switch f.kind {
	case faultDropReply:
		switch f.loss {
		case lossCuts:
			c.drop("fault: reply dropped")
		case lossSilence:
			c.silence(f, ServerToClient)
		}
	case faultHalfReply:
		c.push(frame{b: b[:len(b)/2]})
		c.finish("fault: half a reply")
	case faultCutAfter:
		c.push(frame{b: b})
		c.finish("fault: cut after a reply")
	case faultDelayReply:
		c.push(frame{b: b, at: time.Now().Add(f.delay)})
	}
}

// holds reports whether a black hole keeps one direction of a connection shut; mu is held. waiting says that there is
// something to hold back.
func (s *Server) holds(c *conn, dir Direction, waiting bool) bool {
	held := false
	for _, h := range s.cl.holes {
		held = held || h.conn == c && h.dir&dir != 0
	}
	for _, f := range s.cl.faults {
		if f.kind != faultBlackhole || f.dir&dir == 0 || !f.on(c, c.session) {
			continue
		}
		held = true
		if waiting && c.held&dir == 0 {
			c.held |= dir
			f.struck()
		}
	}
	if !held {
		c.held &^= dir
	}
	return held
}

// swallowsDial reports whether a black hole keeps a client from connecting; mu is held.
func (s *Server) swallowsDial(client string) bool {
	for _, f := range s.cl.faults {
		if f.kind == faultBlackhole && f.session == nil && (f.server == nil || f.server == s) &&
			(f.client == nil || *f.client == client) {
			f.struck()
			return true
		}
	}
	return false
}

// loses reports whether a watch event gets lost; mu is held.
func (s *Server) loses(c *conn, path string) bool {
	for _, f := range s.cl.faults {
		if f.kind == faultLoseWatch && f.on(c, c.session) && strings.HasPrefix(path, f.prefix) && f.strike() {
			return true
		}
	}
	return false
}
