package zktest

import (
	"errors"
	"maps"
	"slices"
	"time"
)

// Imitates ZooKeeper 3.8 and 3.9: what passes between a leader and its followers (Leader, LearnerHandler, Learner) and
// how each finds out that the other is gone.
//
// Between a follower and its leader there are two links, one each way, both in order. Up go forwarded writes, syncs,
// resumptions of sessions and the answers to pings; down go commits, answers and pings. Only a ping's answer, a new
// session and a resumed one touch a session at the leader: a forwarded write does not. A commit needs a majority
// that the leader can reach at that moment, and takes no round trip of its own.

// role is what a server is to the others.
type role uint8

const (
	roleLooking role = iota // no leader: serves nobody
	roleFollower
	roleLeader
)

// peer is a server's part in the ensemble; guarded by cl.mu.
type peer struct {
	role     role
	leader   *Server // of a follower
	applied  int64   // number of transactions applied
	ledSince time.Time
	touched  map[int64]time.Duration // clients heard since the last ping's answer
	lag      time.Duration

	cut     bool // from all other servers
	stopped bool
	orphan  bool // the leader has closed the links, and this server has not seen it yet

	up, down  *link
	heard     time.Time // by the leader
	heardFrom time.Time // the leader, by this server
	pending   []pending
}

// pending is something a follower does after its lag, in order.
type pending struct {
	at time.Time
	fn func()
}

// link is one direction between a follower and its leader.
type link struct {
	cl       *cluster
	from, to *Server
	follower *Server // the one of the two that follows
	last     time.Time
	held     []func() // kept back by a cut or a stopped process, until it is over
	dead     bool
}

// send lets fn happen at the other end, one peer latency later; mu is held. A server without a leader has no link:
// what it would send is lost.
func (l *link) send(fn func()) {
	if l == nil || l.dead {
		return
	}
	at := time.Now().Add(l.cl.cfg.PeerLatency)
	if at.Before(l.last) {
		at = l.last
	}
	l.last = at
	l.cl.at(at, func() { l.arrive(fn) })
}

func (l *link) arrive(fn func()) {
	switch {
	case l.dead:
	case l.from.peer.cut || l.to.peer.cut || l.to.paused || len(l.held) > 0:
		l.held = append(l.held, fn)
	case l.to == l.follower:
		l.follower.peer.heardFrom = time.Now()
		fn()
	default:
		l.follower.peer.heard = time.Now()
		if l.to.leads() { // one that the others have left can do nothing any more
			fn()
		}
	}
}

// release delivers what was held, before anything that is still on its way.
func (l *link) release() {
	if l == nil || l.from.peer.cut || l.to.peer.cut || l.to.paused {
		return
	}
	held := l.held
	l.held = nil
	for _, fn := range held {
		l.arrive(fn)
	}
}

// learn is a follower hearing of a commit.
func (s *Server) learn(t *txn) {
	s.queueApply(func() { s.apply(t) })
}

// apply makes a transaction's changes in a follower's own copy.
func (s *Server) apply(t *txn) {
	for _, ch := range t.changes {
		s.tree.apply(ch, t.zxid, t.time)
	}
	s.applied(t)
	s.cl.trim()
}

// queueApply runs fn after the server's lag and after everything queued before.
func (s *Server) queueApply(fn func()) {
	p := &s.peer
	at := time.Now().Add(p.lag)
	if n := len(p.pending); n > 0 && at.Before(p.pending[n-1].at) {
		at = p.pending[n-1].at
	}
	p.pending = append(p.pending, pending{at, fn})
	if at.After(time.Now()) {
		s.cl.at(at, s.applyDue)
		return
	}
	s.applyDue()
}

func (s *Server) applyDue() {
	p := &s.peer
	for len(p.pending) > 0 && !s.paused && !p.pending[0].at.After(time.Now()) {
		fn := p.pending[0].fn
		p.pending = p.pending[1:]
		fn()
	}
}

// follows reports whether s has live links to leader.
func (s *Server) follows(leader *Server) bool {
	return s.peer.role == roleFollower && s.peer.leader == leader && !s.peer.up.dead
}

// majority is how many servers make a quorum.
func (cl *cluster) majority() int { return len(cl.servers)/2 + 1 }

// quorum reports whether a leader reaches a majority right now.
func (cl *cluster) quorum(leader *Server) bool {
	n := 1
	for _, s := range cl.servers {
		if s.follows(leader) && !s.peer.cut && !s.paused {
			n++
		}
	}
	return n >= cl.majority()
}

var errNoLeader = errors.New("zktest: no leader can commit now")

// operable says why nothing can be committed, if so; mu is held.
func (cl *cluster) operable() error {
	if cl.closed || !cl.canCommit() {
		return errNoLeader
	}
	return nil
}

// lead makes s the leader of a new term, with a new epoch and new session clocks; mu is held.
func (cl *cluster) lead(s *Server) {
	s.catchUp()
	cl.leader = s
	s.peer.role = roleLeader
	s.peer.leader = nil
	s.peer.ledSince = time.Now()
	cl.stalled = nil
	if len(cl.servers) > 1 {
		cl.zxid = (cl.zxid>>32 + 1) << 32
		s.tree.zxid = cl.zxid
	}
	for _, id := range slices.Sorted(maps.Keys(cl.sessions)) {
		ss := cl.sessions[id]
		ss.owner = nil
		cl.renew(ss, ss.timeout)
		cl.arm(ss)
	}
	if len(cl.servers) > 1 {
		cl.after(cl.cfg.TickTime/2, func() { cl.pingLoop(s, s.peer.ledSince, false) })
	}
}

// follow makes s a follower of the leader, with everything the leader has.
func (s *Server) follow(leader *Server) {
	s.catchUp()
	s.tree.zxid = leader.tree.zxid
	p := &s.peer
	p.role, p.leader, p.orphan = roleFollower, leader, false
	p.up = &link{cl: s.cl, from: s, to: leader, follower: s}
	p.down = &link{cl: s.cl, from: leader, to: s, follower: s}
	p.heard, p.heardFrom = time.Now(), time.Now()
	p.touched = map[int64]time.Duration{}
	s.watchLeader(p.down)
}

// catchUp applies what the history holds and s does not.
func (s *Server) catchUp() {
	s.peer.pending = nil
	for s.peer.applied < s.cl.logStart+int64(len(s.cl.log)) {
		t := s.cl.log[s.peer.applied-s.cl.logStart]
		for _, ch := range t.changes {
			s.tree.apply(ch, t.zxid, t.time)
		}
		s.applied(t)
	}
	s.cl.trim()
}

// pingLoop runs every half tick while s leads: it pings, and every whole tick it looks who was heard.
func (cl *cluster) pingLoop(s *Server, term time.Time, whole bool) {
	if cl.closed || s.peer.role != roleLeader || !s.peer.ledSince.Equal(term) {
		return
	}
	cl.after(cl.cfg.TickTime/2, func() { cl.pingLoop(s, term, !whole) })
	if s.paused {
		return
	}
	if heard := cl.pingFollowers(s); whole && heard < cl.majority() {
		s.leave("leader without a quorum")
	}
}

// pingFollowers pings who follows s, closes the links to those it has not heard of for too long, and returns how many
// servers are left, itself included.
func (cl *cluster) pingFollowers(s *Server) (heard int) {
	limit := time.Duration(cl.cfg.SyncLimit) * cl.cfg.TickTime
	heard = 1
	for _, f := range cl.servers {
		if !f.follows(s) {
			continue
		}
		if time.Since(f.peer.heard) > limit {
			f.peer.up.dead, f.peer.down.dead = true, true
			f.peer.orphan = true
			cl.after(cl.cfg.PeerLatency, f.noticeOrphan)
			continue
		}
		heard++
		f.peer.down.send(f.pinged)
	}
	return heard
}

// pinged is a follower answering its leader's ping with the clients it has heard.
func (s *Server) pinged() {
	touched := s.peer.touched
	s.peer.touched = map[int64]time.Duration{}
	s.peer.up.send(func() {
		for _, id := range slices.Sorted(maps.Keys(touched)) {
			s.cl.touch(id, touched[id])
		}
	})
}

// watchLeader ends a follower that has heard nothing of its leader for too long.
func (s *Server) watchLeader(down *link) {
	limit := time.Duration(s.cl.cfg.SyncLimit) * s.cl.cfg.TickTime
	s.cl.at(s.peer.heardFrom.Add(limit), func() {
		if s.peer.down != down || s.peer.role != roleFollower || s.paused {
			return
		}
		if time.Since(s.peer.heardFrom) >= limit {
			s.leave("follower has lost its leader")
			return
		}
		s.watchLeader(down)
	})
}

// leave takes a server out of its term: it drops its clients and looks for a leader; mu is held.
func (s *Server) leave(why string) {
	s.logf("%s", why)
	p := &s.peer
	led := p.role == roleLeader
	p.role, p.orphan = roleLooking, false
	for _, c := range byID(s.conns) {
		c.drop(why)
	}
	clear(s.writes) // what was under way is lost
	if p.up != nil {
		p.up.dead, p.down.dead = true, true
	}
	if led {
		if s.leads() {
			s.cl.leader = nil
			s.cl.stalled = nil
		}
		for _, f := range s.cl.servers {
			if !f.follows(s) {
				continue
			}
			f.peer.up.dead, f.peer.down.dead = true, true
			f.peer.orphan = true
			s.cl.after(s.cl.cfg.PeerLatency, f.noticeOrphan)
		}
	}
	s.cl.after(s.cl.cfg.ElectionTime, s.cl.elect)
}

// noticeOrphan is a follower seeing its connection to the leader closed, which a cut or a stop hides from it.
func (s *Server) noticeOrphan() {
	if s.peer.orphan && !s.peer.cut && !s.paused && s.peer.role == roleFollower {
		s.leave("leader has closed the connection")
	}
}

// elect lets the servers that look for a leader find one, if those who can talk to each other are enough.
func (cl *cluster) elect() {
	if cl.closed {
		return
	}
	var free []*Server
	for _, s := range cl.servers {
		if s.peer.role == roleLooking && !s.peer.stopped && !s.peer.cut && !s.paused {
			free = append(free, s)
		}
	}
	if l := cl.leader; l == nil || l.peer.cut || l.paused {
		if len(free) < cl.majority() {
			return
		}
		best := free[0]
		for _, s := range free[1:] {
			if s.peer.applied > best.peer.applied || s.peer.applied == best.peer.applied && s.id > best.id {
				best = s
			}
		}
		if cl.preferred != nil {
			for _, s := range free {
				if s == cl.preferred {
					best = s
				}
			}
			cl.preferred = nil
		}
		cl.lead(best)
	}
	for _, s := range free {
		if s != cl.leader {
			s.follow(cl.leader)
		}
	}
	cl.unstall()
}

// unstall commits what waited for a quorum; mu is held.
func (cl *cluster) unstall() {
	if !cl.canCommit() {
		return
	}
	stalled := cl.stalled
	cl.stalled = nil
	for _, fn := range stalled {
		fn()
	}
}
