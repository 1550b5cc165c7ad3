package zktest

import (
	"sync"
	"time"
)

// cluster is what the servers of an ensemble share: one history of transactions, the sessions as the leader sees
// them, and one lock for everything. A single server is a cluster of one.
type cluster struct {
	cfg  Config
	wg   sync.WaitGroup
	wake chan struct{}
	stop chan struct{}

	mu        sync.Mutex // held for short steps only, never across a wait
	closed    bool
	servers   []*Server
	leader    *Server // nil while there is none
	zxid      int64   // newest transaction: epoch<<32 | counter
	log       []*txn  // in commit order; what every server has applied is cut off
	logStart  int64   // number of the first entry of log
	sessions  map[int64]*session
	stalled   []func() // what a leader without a quorum would have committed
	preferred *Server  // wins the next election if it can be reached
	faults    []*Fault
	holes     []hole
	ops       Ops
	alarms    alarmHeap
	seq       uint64
}

func startCluster(cfg Config, n int) (*cluster, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	cl := &cluster{
		cfg:      cfg,
		wake:     make(chan struct{}, 1),
		stop:     make(chan struct{}),
		sessions: map[int64]*session{},
	}
	cl.ops.cl = cl
	for i := range n {
		cl.servers = append(cl.servers, newServer(cl, i))
	}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.wg.Add(1)
	go cl.runClock()
	for _, s := range cl.servers {
		if err := s.listen(); err != nil {
			cl.shut()
			return nil, err
		}
	}
	if n > 1 {
		text := []byte(cl.configText())
		for _, s := range cl.servers {
			c := s.tree.get(configPath)
			c.data, c.version, c.mtime = text, -1, now()
		}
	}
	cl.elect() // the highest id wins a first election, as in the real one
	cl.after(cfg.ContainerInterval, cl.reapLoop)
	return cl, nil
}

// shut tells everything to end; mu is held.
func (cl *cluster) shut() {
	if cl.closed {
		return
	}
	cl.closed = true
	close(cl.stop)
	for _, s := range cl.servers {
		if s.ln != nil {
			s.ln.Close()
		}
		for c := range s.sockets {
			c.kill()
		}
		s.notify()
	}
}

func (cl *cluster) close() {
	cl.mu.Lock()
	cl.shut()
	cl.mu.Unlock()
	cl.wg.Wait()
}

// serving reports whether s answers clients; mu is held.
func (s *Server) serving() bool { return !s.cl.closed && s.peer.role != roleLooking }

// leads reports whether s is the leader; mu is held.
func (s *Server) leads() bool { return s.cl.leader == s }

// canCommit reports whether the leader has its quorum and runs; mu is held.
func (cl *cluster) canCommit() bool {
	return cl.leader != nil && !cl.leader.paused && !cl.leader.peer.cut && cl.quorum(cl.leader)
}

// commit makes t part of the history: the leader applies it (unless that has been done while it was checked), and
// the followers learn of it; mu is held.
func (cl *cluster) commit(t *txn) {
	cl.log = append(cl.log, t)
	if fn := cl.cfg.OnTxn; fn != nil {
		fn(t.public())
	}
	cl.leader.applied(t)
	for _, s := range cl.servers {
		if s.follows(cl.leader) {
			s.peer.down.send(func() { s.learn(t) })
		}
	}
	cl.trim()
}

// trim forgets the transactions that every server has applied.
func (cl *cluster) trim() {
	least := cl.logStart + int64(len(cl.log))
	for _, s := range cl.servers {
		least = min(least, s.peer.applied)
	}
	gone := least - cl.logStart
	clear(cl.log[:gone])
	cl.log, cl.logStart = cl.log[gone:], least
}

// applied finishes a transaction on a server whose tree already has its changes: watches first, then the answer to
// the client that asked, so that an event comes before the reply to its cause.
func (s *Server) applied(t *txn) {
	s.peer.applied++
	s.tree.zxid = t.zxid
	for _, ch := range t.changes {
		s.fire(ch, t.zxid)
	}
	switch t.op {
	case OpCreateSession:
		s.peer.touched[t.session] = t.timeout
	case OpCloseSession:
		for _, c := range s.sessionConns(t.session) {
			if t.req == nil || t.req.c != c {
				c.finish("session closed")
			}
		}
		delete(s.peer.touched, t.session)
	}
	if t.req != nil && t.req.c.s == s {
		t.req.finish(t)
	}
}

// now is the time of a transaction in milliseconds.
func now() int64 { return time.Now().UnixMilli() }
