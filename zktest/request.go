package zktest

import "slices"

// Imitates ZooKeeper 3.8 and 3.9: ZooKeeperServer.submitRequest, UnimplementedRequestProcessor and the order in
// which CommitProcessor answers one session: a read waits for the writes that came before it, also for those that came
// over an earlier connection of the session.

// request is one request of a client between its arrival and its answer.
type request struct {
	c       *conn
	op      Op
	xid     int32
	session int64
	owner   *Server // the server it came in on
	auth    []authID
	body    *decoder

	done  bool
	reply []byte
	after func() // runs once the reply has been queued
	fault *Fault // happens to the reply, if not nil
}

// handle starts a request; mu is held. f, if not nil, happens to its reply.
func (c *conn) handle(xid int32, op Op, d *decoder, f *Fault) {
	s := c.s
	counted := op
	if _, known := opNames[op]; !known {
		counted = OpUnknown
	}
	switch op {
	case OpDeleteContainer, OpCreateSession, OpConnect: // not for clients
		counted = OpUnknown
	case OpCheck: // outside a multi: unknown from 3.9 on, before that a write that is never answered
		if s.cfg.since39() {
			counted = OpUnknown
		}
	}
	s.cl.ops.count(counted)
	if op == OpSetAuth {
		c.setAuth(xid, d, f)
		return
	}
	if !s.touch(c) {
		return // the session is gone; the real server drops the request without an answer too
	}
	if counted == OpUnknown {
		e := newEncoder()
		e.header(xid, -1, CodeUnimplemented)
		c.send(e.frame(), f)
		c.finish("unknown operation " + op.String())
		return
	}
	r := &request{c: c, op: op, xid: xid, session: c.session, owner: s, body: d, fault: f}
	r.auth = append(r.auth, c.auth...)
	c.enqueue(r)
}

// enqueue puts the request into the connection's order and starts it; mu is held.
func (c *conn) enqueue(r *request) {
	c.queue = append(c.queue, r)
	if r.op.write() {
		c.s.writes[r.session] = append(c.s.writes[r.session], r)
	}
	switch {
	case r.op == OpMulti:
		c.s.cl.ops.countMulti(r.body.b)
		c.s.submit(r)
	case r.op.write() || r.op == OpSync:
		c.s.submit(r)
	default:
		c.drain()
	}
}

// behind reports whether a write that the session sent over an earlier connection to this server is under way: requests
// are carried out in the order of their session, not of their connection; mu is held.
func (c *conn) behind() bool {
	return slices.ContainsFunc(c.s.writes[c.session], func(w *request) bool { return w.c != c })
}

// drain answers what can be answered; mu is held.
func (c *conn) drain() {
	for len(c.queue) > 0 && !c.dead && (!c.ready || !c.behind()) {
		r := c.queue[0]
		if !r.done {
			if r.op.write() || r.op == OpSync || r.op == OpConnect {
				return
			}
			r.read()
		}
		c.queue = c.queue[1:]
		c.answer(r)
	}
}

// answer sends the reply of a finished request; mu is held.
func (c *conn) answer(r *request) {
	if r.reply != nil {
		c.send(r.reply, r.fault)
		c.stats.sent++
		c.s.stats.sent++
	}
	c.stats.lastZxid = c.s.tree.zxid
	if r.after != nil {
		r.after()
	}
}

// complete marks a request that went to the leader as done and answers what waited for it; mu is held.
func (r *request) complete(reply []byte) {
	r.done, r.reply = true, reply
	s := r.c.s
	if writes := slices.DeleteFunc(s.writes[r.session], func(w *request) bool { return w == r }); len(writes) > 0 {
		s.writes[r.session] = writes
	} else {
		delete(s.writes, r.session)
	}
	r.c.drain()
	for _, c := range s.sessionConns(r.session) { // those that have replaced a connection that is gone
		if c != r.c {
			c.drain()
		}
	}
}

// submit sends a write or a sync to the leader; mu is held.
func (s *Server) submit(r *request) {
	if s.leads() {
		s.cl.receive(r)
		return
	}
	s.peer.up.send(func() { s.cl.receive(r) })
}

// receive is the leader taking up a request; mu is held.
func (cl *cluster) receive(r *request) {
	if r.op == OpSync {
		// One from a follower waits for what was proposed before it, and for nothing else.
		if r.owner != cl.leader && len(cl.stalled) > 0 {
			cl.stalled = append(cl.stalled, func() { cl.receive(r) })
			return
		}
		cl.leader.answerSync(r)
		return
	}
	if !cl.canCommit() {
		cl.stalled = append(cl.stalled, func() { cl.receive(r) })
		return
	}
	cl.process(r)
}

// fail answers a request with a code and nothing else; mu is held.
func (r *request) fail(code Code) {
	e := newEncoder()
	e.header(r.xid, r.c.s.tree.zxid, code)
	r.reply = e.frame()
}
