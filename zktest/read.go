package zktest

import "strings"

// Imitates ZooKeeper 3.8 and 3.9: ping (11), exists (3), getData (4), getACL (6), getChildren (8), getChildren2 (12),
// sync (9). Reads are answered from the copy of the server they reach.

// read answers a request that needs no transaction; mu is held.
func (r *request) read() {
	s := r.c.s
	d := r.body
	if r.op == OpPing {
		e := newEncoder()
		e.header(-2, s.tree.zxid, CodeOK)
		r.reply = e.frame()
		return
	}
	if s.leads() {
		if code := s.cl.check(r); code != CodeOK {
			r.refuse(code)
			return
		}
	}
	if r.op == OpSetWatches || r.op == OpSetWatches2 {
		r.setWatches()
		return
	}
	path := d.string()
	watch := r.op != OpGetACL && d.bool()
	switch {
	case d.err != nil:
		r.fail(CodeMarshalling)
		return
	case strings.IndexByte(path, 0) >= 0 && r.op == OpExists:
		r.fail(CodeBadArguments)
		return
	}
	n := s.tree.get(path)
	if n == nil {
		if r.op == OpExists && watch {
			s.watches.addData(path, r.c)
		}
		r.fail(CodeNoNode)
		return
	}
	need := PermRead
	if r.op == OpGetACL {
		need |= PermAdmin
	}
	// Before 3.9, exists asks for no right.
	if (r.op != OpExists || s.cfg.since39()) && !allowed(n.acl, need, r.auth) {
		r.fail(CodeNoAuth)
		return
	}
	if watch {
		if r.op == OpGetChildren || r.op == OpGetChildren2 {
			s.watches.child.add(path, r.c)
		} else {
			s.watches.addData(path, r.c)
		}
	}
	e := newEncoder()
	e.header(r.xid, s.tree.zxid, CodeOK)
	switch r.op {
	case OpExists:
		e.stat(n.stat())
	case OpGetData:
		e.buffer(n.data)
		e.stat(n.stat())
	case OpGetChildren:
		e.strings(n.childNames())
	case OpGetChildren2:
		e.strings(n.childNames())
		e.stat(n.stat())
	case OpGetACL:
		e.acls(hideDigests(n.acl, r.auth))
		e.stat(n.stat())
	}
	r.reply = e.frame()
}

// hideDigests blanks the password hashes for a reader without the right to change the list.
func hideDigests(list []ACL, ids []authID) []ACL {
	if allowed(list, PermAdmin, ids) {
		return list
	}
	out := append([]ACL(nil), list...)
	for i, a := range out {
		if a.Scheme == "digest" {
			user, _, _ := strings.Cut(a.ID, ":")
			out[i].ID = user + ":x"
		}
	}
	return out
}

// refuse answers with a code; a session that has moved loses its connection instead.
func (r *request) refuse(code Code) {
	if code == CodeSessionMoved {
		r.reply = nil
		r.after = func() { r.c.finish("session has moved to another server") }
		return
	}
	r.fail(code)
}

// answerSync ends a sync: at the leader at once, on a follower after everything committed before.
func (s *Server) answerSync(r *request) {
	finish := func() {
		path := r.body.string()
		if r.body.err != nil {
			r.fail(CodeMarshalling)
		} else {
			e := newEncoder()
			e.header(r.xid, r.c.s.tree.zxid, CodeOK)
			e.string(path)
			r.reply = e.frame()
		}
		r.complete(r.reply)
	}
	if r.owner == s {
		if code := s.cl.check(r); code != CodeOK {
			r.refuse(code)
			r.complete(r.reply)
			return
		}
		finish()
		return
	}
	from := r.owner
	from.peer.down.send(func() { from.queueApply(finish) })
}
