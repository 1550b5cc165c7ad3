package zktest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"
)

// Imitates ZooKeeper 3.8 and 3.9: the connect exchange, SessionTrackerImpl with its expiry in whole ticks,
// closeSession (-11). A session's deadline is the last touch plus its timeout, rounded up to the next tick of the
// leader's clock, which starts when the leader starts to lead.

// session is a session as the leader keeps it.
type session struct {
	id      int64
	timeout time.Duration
	owner   *Server // where its client was last connected
	expires time.Time
	alarm   *alarm
}

// bucket rounds the end of a timeout that starts now up to the next tick; an exact tick counts as passed.
func (cl *cluster) bucket(timeout time.Duration) time.Time {
	origin := cl.leader.peer.ledSince
	tick := cl.cfg.TickTime
	end := time.Since(origin) + timeout
	return origin.Add(end - end%tick + tick)
}

// track begins or renews a session at the leader.
func (cl *cluster) track(id int64, timeout time.Duration, owner *Server) {
	ss := cl.sessions[id]
	if ss == nil {
		ss = &session{id: id, timeout: timeout}
		cl.sessions[id] = ss
	}
	if owner != nil {
		ss.owner = owner
	}
	cl.renew(ss, timeout)
}

// renew moves a session's deadline. The alarm set for an earlier deadline stays and looks again.
func (cl *cluster) renew(ss *session, timeout time.Duration) {
	ss.expires = cl.bucket(timeout)
	if ss.alarm == nil || ss.alarm.dead || ss.alarm.at.After(ss.expires) {
		cl.arm(ss)
	}
}

func (cl *cluster) arm(ss *session) {
	if ss.alarm != nil {
		ss.alarm.dead = true
	}
	ss.alarm = cl.at(ss.expires, func() {
		ss.alarm.dead = true
		if cl.sessions[ss.id] != ss || cl.leader == nil || cl.leader.paused {
			return // a new leader, or one that goes on, sets the alarms again
		}
		if time.Now().Before(ss.expires) {
			cl.arm(ss)
			return
		}
		cl.expire(ss.id)
	})
}

// expire ends a session that ran out, as soon as that can be committed.
func (cl *cluster) expire(id int64) {
	if !cl.canCommit() {
		cl.stalled = append(cl.stalled, func() { cl.expire(id) })
		return
	}
	cl.endSession(id, true, nil)
}

// endSession commits the end of a session and of its ephemeral nodes.
func (cl *cluster) endSession(id int64, expired bool, r *request) {
	if r == nil && cl.sessions[id] == nil {
		return
	}
	t := cl.newTxn(OpCloseSession, id, r)
	t.expired = expired
	for path := range cl.leader.tree.ephemerals[id] {
		t.changes = append(t.changes, change{op: OpDelete, path: path, owner: id})
	}
	sortChanges(t.changes)
	for i, ch := range t.changes {
		t.changes[i] = cl.leader.tree.witness(ch)
		cl.leader.tree.apply(ch, t.zxid, t.time)
	}
	if ss := cl.sessions[id]; ss != nil {
		if ss.alarm != nil {
			ss.alarm.dead = true
		}
		delete(cl.sessions, id)
	}
	cl.commit(t)
}

// touch notes that a client was heard. It reports false if the leader, on the leader's own server, does not know
// the session; a follower believes its clients until it hears otherwise.
func (s *Server) touch(c *conn) bool {
	if !s.leads() {
		s.peer.touched[c.session] = c.timeout
		return true
	}
	return s.cl.touch(c.session, c.timeout)
}

func (cl *cluster) touch(id int64, timeout time.Duration) bool {
	ss := cl.sessions[id]
	if ss == nil {
		return false
	}
	cl.renew(ss, timeout)
	return true
}

// check is the leader's look at the session of a request: it must be there and its client must still be connected
// where the request came from.
func (cl *cluster) check(r *request) Code {
	ss := cl.sessions[r.session]
	switch {
	case ss == nil:
		return CodeSessionExpired
	case ss.owner == nil:
		ss.owner = r.owner
	case ss.owner != r.owner:
		return CodeSessionMoved
	}
	return CodeOK
}

// password is what a client has to show to resume a session. It follows from the id, so that every server knows it.
func password(id int64) []byte {
	p := make([]byte, 16)
	x := uint64(id) ^ 0x5a17ed
	binary.BigEndian.PutUint64(p, mix(x))
	binary.BigEndian.PutUint64(p[8:], mix(x+1))
	return p
}

// connectRequest is the first frame of a connection.
type connectRequest struct {
	seen     int64 // zxid
	timeout  time.Duration
	session  int64 // to resume, or 0
	password []byte
	readOnly bool // the field is there; its value does not matter to a server that can write
}

func decodeConnect(d *decoder) (connectRequest, error) {
	d.int32() // protocol version
	q := connectRequest{seen: d.int64()}
	q.timeout = time.Duration(d.int32()) * time.Millisecond
	q.session, q.password = d.int64(), d.buffer()
	q.readOnly = len(d.b) > 0
	return q, d.err
}

// connect deals with the first frame of a connection; mu is held. An error ends the connection without an answer. f, if
// not nil, happens to the reply.
func (c *conn) connect(q connectRequest, f *Fault) error {
	s := c.s
	s.cl.ops.count(OpConnect)
	if q.seen > s.tree.zxid {
		return fmt.Errorf("client has seen zxid %#x, this server is at %#x", q.seen, s.tree.zxid)
	}
	c.readOnly = q.readOnly
	c.timeout = min(max(q.timeout, s.cfg.MinSessionTimeout), s.maxTimeout)
	id := q.session
	if id == 0 || s.forgetful {
		s.nextSession++
		c.setSession(s.nextSession)
		r := &request{c: c, op: OpCreateSession, session: c.session, owner: s}
		r.after = func() { c.established(true, f) }
		c.queue = append(c.queue, r)
		s.submit(r)
		return nil
	}
	for _, old := range s.sessionConns(id) {
		old.drop("its client has reconnected")
	}
	c.setSession(id)
	if !bytes.Equal(q.password, password(id)) {
		s.logf("connection %d: wrong password for session %#x", c.id, uint64(id))
		c.established(false, f)
		return nil
	}
	r := &request{c: c, op: OpConnect, session: id, owner: s, fault: f}
	c.queue = append(c.queue, r)
	if s.leads() {
		s.cl.revalidate(r)
	} else {
		s.peer.up.send(func() { s.cl.revalidate(r) })
	}
	return nil
}

// revalidate is the leader resuming a session, which touches it.
func (cl *cluster) revalidate(r *request) {
	ok := cl.touch(r.session, r.c.timeout)
	if ok {
		cl.sessions[r.session].owner = r.owner
	}
	r.after = func() { r.c.established(ok, r.fault) }
	if r.owner == cl.leader {
		r.complete(nil)
		return
	}
	r.owner.peer.down.send(func() { r.complete(nil) })
}

// established answers the connect request. A refusal is a session id of 0, and ends the connection.
func (c *conn) established(ok bool, f *Fault) {
	e := newEncoder()
	e.int32(0)
	if ok {
		e.int32(int32(c.timeout / time.Millisecond))
		e.int64(c.session)
		e.buffer(password(c.session))
	} else {
		e.int32(0)
		e.int64(0)
		e.buffer(make([]byte, 16))
	}
	if c.readOnly {
		e.bool(false)
	}
	c.send(e.frame(), f)
	if !ok {
		c.finish("session is unknown or expired")
		return
	}
	c.ready = true
	c.notify()
}
