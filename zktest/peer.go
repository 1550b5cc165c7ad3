package zktest

import (
	"errors"
	"time"
)

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
	applied  int64     // number of transactions applied
	ledSince time.Time // origin of the ticks of a leader
	touched  map[int64]time.Duration
	cut      bool // from all other servers
	stopped  bool
	up, down *link
}

// link is one direction between a follower and its leader.
type link struct{}

func (l *link) send(fn func()) { fn() }

func (s *Server) queueApply(fn func()) { fn() }

func (s *Server) learn(t *txn) {}

func (cl *cluster) quorum(*Server) bool { return true }

func (cl *cluster) lead(s *Server) {
	cl.leader = s
	s.peer.role = roleLeader
	s.peer.ledSince = time.Now()
}

var errNoLeader = errors.New("zktest: no leader can commit now")

func (cl *cluster) operable() error {
	if cl.closed || !cl.canCommit() {
		return errNoLeader
	}
	return nil
}
