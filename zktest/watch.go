package zktest

// Imitates ZooKeeper 3.8 and 3.9: one-shot data and child watches as in WatchManager, setWatches (101) and
// setWatches2 (105, without its persistent watches). A watch lives on the connection that set it.

// eventType is the kind of a watch event, by its number on the wire.
type eventType int32

const (
	nodeCreated         eventType = 1
	nodeDeleted         eventType = 2
	nodeDataChanged     eventType = 3
	nodeChildrenChanged eventType = 4
)

// watchSet is the watches of one kind.
type watchSet map[string]map[*conn]struct{}

// addData sets a data watch. That a connection has had one stays on the books of the four-letter words.
func (t *watchTable) addData(path string, c *conn) {
	t.data.add(path, c)
	c.stats.watchedData = true
}

func (w watchSet) add(path string, c *conn) {
	if w[path] == nil {
		w[path] = map[*conn]struct{}{}
	}
	w[path][c] = struct{}{}
	if c.stats.watched == nil {
		c.stats.watched = map[string]struct{}{}
	}
	c.stats.watched[path] = struct{}{}
}

// take returns and removes the watches on a path.
func (w watchSet) take(path string) map[*conn]struct{} {
	set := w[path]
	delete(w, path)
	return set
}

type watchTable struct{ data, child watchSet }

func newWatchTable() watchTable { return watchTable{data: watchSet{}, child: watchSet{}} }

// removeAll forgets the watches of a connection that has ended.
func (t *watchTable) removeAll(c *conn) {
	for path := range c.stats.watched {
		for _, set := range []watchSet{t.data, t.child} {
			delete(set[path], c)
			if len(set[path]) == 0 {
				delete(set, path)
			}
		}
	}
	c.stats.watched = nil
}

func (t *watchTable) len() int {
	n := 0
	for _, set := range []watchSet{t.data, t.child} {
		for _, conns := range set {
			n += len(conns)
		}
	}
	return n
}

// fire sends the events of one change to the connections of this server; mu is held.
func (s *Server) fire(ch change, zxid int64) {
	parent, _ := parentOf(ch.path)
	switch ch.op {
	case OpCreate:
		s.trigger(s.watches.data.take(ch.path), nil, ch.nodeACL, nodeCreated, ch.path, zxid)
		s.trigger(s.watches.child.take(parent), nil, ch.parentACL, nodeChildrenChanged, parent, zxid)
	case OpDelete:
		told := s.watches.data.take(ch.path)
		s.trigger(told, nil, ch.nodeACL, nodeDeleted, ch.path, zxid)
		// Who watched both data and children is told once.
		s.trigger(s.watches.child.take(ch.path), told, ch.nodeACL, nodeDeleted, ch.path, zxid)
		s.trigger(s.watches.child.take(parent), nil, ch.parentACL, nodeChildrenChanged, parent, zxid)
	case OpSetData:
		s.trigger(s.watches.data.take(ch.path), nil, ch.nodeACL, nodeDataChanged, ch.path, zxid)
	}
}

// trigger tells the connections that may read a node with that list. The watch of the others is spent all the same.
func (s *Server) trigger(conns, except map[*conn]struct{}, list []ACL, typ eventType, path string, zxid int64) {
	for _, c := range byID(conns) {
		_, data := s.watches.data[path][c]
		_, child := s.watches.child[path][c]
		if !data && !child {
			delete(c.stats.watched, path)
		}
		if _, told := except[c]; !told && allowed(list, PermRead, c.auth) {
			c.event(typ, path, zxid)
		}
	}
}

// event sends one watch event. The header carries the transaction from 3.9 on and -1 before.
func (c *conn) event(typ eventType, path string, zxid int64) {
	if c.s.loses(c, path) {
		return
	}
	if !c.s.cfg.since39() {
		zxid = -1
	}
	e := newEncoder()
	e.header(-1, zxid, CodeOK)
	e.int32(int32(typ))
	e.int32(3) // SyncConnected
	e.string(path)
	c.push(frame{b: e.frame()})
	c.stats.sent++
	c.s.stats.sent++
	c.s.cl.ops.watchEvents++
}

// setWatches sets a reconnected client's watches again, or tells at once what it has missed.
func (r *request) setWatches() {
	s, c, d := r.c.s, r.c, r.body
	since := d.int64()
	data, exist, child := d.strings(), d.strings(), d.strings()
	if r.op == OpSetWatches2 {
		persistent, recursive := d.strings(), d.strings()
		if d.err == nil && len(persistent)+len(recursive) > 0 {
			r.fail(CodeUnimplemented)
			return
		}
	}
	if d.err != nil {
		r.fail(CodeMarshalling)
		return
	}
	for _, path := range data {
		switch n := s.tree.get(path); {
		case n == nil:
			c.event(nodeDeleted, path, -1)
		case n.mzxid > since:
			c.event(nodeDataChanged, path, -1)
		default:
			s.watches.addData(path, c)
		}
	}
	for _, path := range exist {
		if s.tree.get(path) != nil {
			c.event(nodeCreated, path, -1)
		} else {
			s.watches.addData(path, c)
		}
	}
	for _, path := range child {
		switch n := s.tree.get(path); {
		case n == nil:
			c.event(nodeDeleted, path, -1)
		case n.pzxid > since:
			c.event(nodeChildrenChanged, path, -1)
		default:
			s.watches.child.add(path, c)
		}
	}
	e := newEncoder()
	e.header(r.xid, s.tree.zxid, CodeOK)
	r.reply = e.frame()
}
