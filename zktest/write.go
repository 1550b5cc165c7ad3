package zktest

import (
	"fmt"
	"strings"
	"time"
)

// Imitates ZooKeeper 3.8 and 3.9: create (1), create2 (15), createContainer (19), createTTL (21), delete (2),
// setData (5), setACL (7), check (13), reconfig (16, always disabled) in PrepRequestProcessor and
// FinalRequestProcessor. A write that fails takes a transaction id as well, as in the real server.

// Txn is one transaction as told to Config.OnTxn.
type Txn struct {
	Zxid    int64
	Time    time.Time
	Op      Op       // the request's kind; OpDeleteContainer for a reaped container or TTL node
	Path    string   // of the node; empty for a multi and for sessions
	Session int64    // who asked, or whose session began or ended; 0 for the server itself
	Err     Code     // CodeOK, or why nothing was changed
	Expired bool     // for OpCloseSession: the session ran out or was expired by a fault
	Changes []Change // what happened to nodes, in order
}

// Change is one node made, deleted or set by a transaction.
type Change struct {
	Op      Op // OpCreate, OpDelete, OpSetData or OpSetACL
	Path    string
	Session int64  // owner of an ephemeral node made or deleted, otherwise 0
	Data    []byte // what a node was made with or set to; not to be changed
}

// txn is a transaction on its way to all servers.
type txn struct {
	zxid    int64
	time    int64
	op      Op
	path    string
	session int64
	timeout time.Duration // OpCreateSession
	expired bool
	code    Code
	changes []change
	results []result
	req     *request // who waits for it, if anybody
}

// result is the outcome of one operation.
type result struct {
	op   Op
	code Code
	path string
	stat Stat
}

func (t *txn) public() Txn {
	p := Txn{Zxid: t.zxid, Time: time.UnixMilli(t.time), Op: t.op, Path: t.path, Session: t.session, Err: t.code, Expired: t.expired}
	for _, ch := range t.changes {
		if ch.op != OpCheck {
			p.Changes = append(p.Changes, Change{Op: ch.op, Path: ch.path, Session: ch.owner, Data: ch.data})
		}
	}
	return p
}

// writeOp is one operation that changes the tree, alone or inside a multi.
type writeOp struct {
	op      Op
	path    string
	data    []byte
	acl     []ACL
	flags   int32
	ttl     int64
	version int32
}

// decodeWrite reads the body of one operation.
func decodeWrite(op Op, d *decoder) writeOp {
	w := writeOp{op: op, ttl: -1, version: -1}
	switch op {
	case OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL:
		w.path, w.data, w.acl, w.flags = d.string(), d.buffer(), d.acls(), d.int32()
		if op == OpCreateTTL {
			w.ttl = d.int64()
		}
	case OpDelete, OpCheck:
		w.path, w.version = d.string(), d.int32()
	case OpSetData:
		w.path, w.data, w.version = d.string(), d.buffer(), d.int32()
	case OpSetACL:
		w.path, w.acl, w.version = d.string(), d.acls(), d.int32()
	}
	return w
}

// newTxn takes the next transaction id.
func (cl *cluster) newTxn(op Op, session int64, r *request) *txn {
	cl.zxid++
	return &txn{zxid: cl.zxid, time: now(), op: op, session: session, req: r}
}

// process turns a client's write into a transaction; the caller has seen to it that it can be committed.
func (cl *cluster) process(r *request) {
	switch r.op {
	case OpMulti:
		cl.processMulti(r)
		return
	case OpCreateSession:
		t := cl.newTxn(OpCreateSession, r.session, r)
		t.timeout = r.c.timeout
		cl.track(r.session, r.c.timeout, r.owner)
		cl.commit(t)
		return
	case OpCloseSession:
		cl.endSession(r.session, false, r)
		return
	}
	w := decodeWrite(r.op, r.body)
	if r.body.err != nil {
		cl.undecodable(r)
		return
	}
	t := cl.newTxn(r.op, r.session, r)
	t.path = w.path
	cl.run(t, w, r)
	if t.code == CodeOK {
		t.path = t.results[0].path
	}
	cl.commit(t)
}

// undecodable answers a write whose body makes no sense. A multi takes a transaction id all the same; so do the others
// before 3.9.
func (cl *cluster) undecodable(r *request) {
	if r.op == OpMulti || !cl.cfg.since39() {
		t := cl.newTxn(r.op, r.session, nil)
		t.code = CodeMarshalling
		cl.commit(t)
	}
	answer := func() {
		r.fail(CodeMarshalling)
		r.complete(r.reply)
	}
	if r.owner == cl.leader {
		answer()
		return
	}
	from := r.owner
	from.peer.down.send(func() { from.queueApply(answer) })
}

// run checks one operation against the leader's tree and, if it may, applies it there. It returns what takes the
// change back.
func (cl *cluster) run(t *txn, w writeOp, r *request) (undo func()) {
	code := cl.check(r)
	var ch change
	if code == CodeOK {
		ch, code = cl.prepare(w, r)
	}
	if code != CodeOK {
		if t.code == CodeOK {
			t.code = code
		}
		t.results = append(t.results, result{op: w.op, code: code, path: w.path})
		return func() {}
	}
	ch = cl.leader.tree.witness(ch)
	st, undo := cl.leader.tree.apply(ch, t.zxid, t.time)
	t.changes = append(t.changes, ch)
	t.results = append(t.results, result{op: w.op, path: ch.path, stat: st})
	return undo
}

// prepare turns an operation into its effect, or says why it has none.
func (cl *cluster) prepare(w writeOp, r *request) (change, Code) {
	tree := cl.leader.tree
	switch w.op {
	case OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL:
		return cl.prepareCreate(w, r)
	case OpDelete:
		if strings.LastIndexByte(w.path, '/') < 0 || strings.IndexByte(w.path, 0) >= 0 || special(w.path) {
			return change{}, CodeBadArguments
		}
		parentPath, _ := parentOf(w.path)
		parent := tree.get(parentPath)
		if parent == nil {
			return change{}, CodeNoNode
		}
		if !allowed(parent.acl, PermDelete, r.auth) {
			return change{}, CodeNoAuth
		}
		n := tree.get(w.path)
		switch {
		case n == nil:
			return change{}, CodeNoNode
		case w.version != -1 && w.version != n.version:
			return change{}, CodeBadVersion
		case len(n.children) > 0:
			return change{}, CodeNotEmpty
		}
		return change{op: OpDelete, path: w.path, owner: n.owner}, CodeOK
	case OpReconfig:
		return change{}, CodeReconfigDisabled
	}
	if !validPath(w.path) {
		return change{}, CodeBadArguments
	}
	var acl []ACL
	if w.op == OpSetACL {
		var code Code
		if acl, code = fixACL(w.acl, r.auth); code != CodeOK {
			return change{}, code
		}
	}
	n := tree.get(w.path)
	if n == nil {
		return change{}, CodeNoNode
	}
	need, have := PermWrite, n.version
	switch w.op {
	case OpSetACL:
		need, have = PermAdmin, n.aversion
	case OpCheck:
		need = PermRead
	}
	if !allowed(n.acl, need, r.auth) {
		return change{}, CodeNoAuth
	}
	if w.version != -1 && w.version != have {
		return change{}, CodeBadVersion
	}
	return change{op: w.op, path: w.path, data: w.data, acl: acl, version: have + 1}, CodeOK
}

func special(path string) bool {
	return path == rootPath || path == systemPath || path == quotaPath || path == configPath
}

// The modes of a create.
const (
	flagEphemeral = 1
	flagSequence  = 2
	flagContainer = 4
	flagTTL       = 5
	flagSeqTTL    = 6
)

func (cl *cluster) prepareCreate(w writeOp, r *request) (change, Code) {
	if w.flags < 0 || w.flags > flagSeqTTL {
		return change{}, CodeBadArguments
	}
	ttlMode := w.flags == flagTTL || w.flags == flagSeqTTL
	sequential := w.flags == flagSequence || w.flags == flagEphemeral|flagSequence || w.flags == flagSeqTTL
	const maxTTL = 1<<40 - 1
	switch {
	case ttlMode && !cl.cfg.ExtendedTypes:
		return change{}, CodeUnimplemented
	case ttlMode && (w.ttl <= 0 || w.ttl > maxTTL), !ttlMode && (w.ttl >= 0 || w.op == OpCreateTTL):
		return change{}, CodeBadArguments
	}
	if strings.LastIndexByte(w.path, '/') < 0 || strings.IndexByte(w.path, 0) >= 0 {
		return change{}, CodeBadArguments
	}
	acl, code := fixACL(w.acl, r.auth)
	if code != CodeOK {
		return change{}, code
	}
	parentPath, _ := parentOf(w.path)
	parent := cl.leader.tree.get(parentPath)
	if parent == nil {
		return change{}, CodeNoNode
	}
	if !allowed(parent.acl, PermCreate, r.auth) {
		return change{}, CodeNoAuth
	}
	path := w.path
	if sequential {
		path += fmt.Sprintf("%010d", parent.creates)
	}
	switch {
	case !validPath(path):
		return change{}, CodeBadArguments
	case cl.leader.tree.get(path) != nil:
		return change{}, CodeNodeExists
	case parent.kind == kindEphemeral:
		return change{}, CodeNoChildrenForEph
	}
	ch := change{op: OpCreate, path: path, data: w.data, acl: acl, creates: parent.creates + 1}
	switch {
	case w.op == OpCreateContainer:
		ch.kind = kindContainer
	case w.op == OpCreateTTL:
		ch.kind, ch.ttl = kindTTL, w.ttl
	case w.flags == flagEphemeral || w.flags == flagEphemeral|flagSequence:
		ch.kind, ch.owner = kindEphemeral, r.session
	}
	return ch, CodeOK
}

// finish builds the reply from the transaction once the client's own server has applied it.
func (r *request) finish(t *txn) {
	e := newEncoder()
	switch r.op {
	case OpCreateSession:
		r.complete(nil)
		return
	case OpCloseSession:
		e.header(r.xid, t.zxid, CodeOK)
		r.after = func() { r.c.finish("session closed by the client") }
	case OpMulti:
		if t.code == CodeSessionMoved {
			r.refuse(t.code)
			r.complete(r.reply)
			return
		}
		e.header(r.xid, t.zxid, CodeOK)
		encodeResults(e, t.results)
	default:
		if t.code != CodeOK {
			r.refuse(t.code)
			r.complete(r.reply)
			return
		}
		res := t.results[0]
		e.header(r.xid, t.zxid, CodeOK)
		switch r.op {
		case OpCreate:
			e.string(res.path)
		case OpCreate2, OpCreateContainer, OpCreateTTL:
			e.string(res.path)
			e.stat(res.stat)
		case OpSetData, OpSetACL:
			e.stat(res.stat)
		case OpCheck:
			r.complete(nil)
			return
		}
	}
	r.complete(e.frame())
}
