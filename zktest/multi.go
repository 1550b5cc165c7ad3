package zktest

import "slices"

// Imitates ZooKeeper 3.8 and 3.9: multi (14) with create, create2, createContainer, createTTL, delete, setData and
// check. All operations share one transaction id. When one fails, nothing is changed, the reply header still says
// success, and the results are error records: 0 before the failed one, its code, and runtime inconsistency after it.

// decodeMulti reads the list of operations. Each has a header of type, a done flag and an error field; a header with
// the flag set ends the list. A create whose flags say container is one, whatever its type; before 3.9, its type
// counts for nothing else.
func decodeMulti(d *decoder, since39 bool) []writeOp {
	var ops []writeOp
	for {
		op, done := Op(d.int32()), d.bool()
		d.int32()
		if d.err != nil {
			return nil
		}
		if done {
			return ops
		}
		switch op {
		case OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL, OpDelete, OpSetData, OpCheck:
		default:
			d.err = errShort
			return nil
		}
		w := decodeWrite(op, d)
		if d.err != nil {
			return nil
		}
		switch op {
		case OpCreate, OpCreate2, OpCreateContainer:
			switch {
			case w.flags == flagTTL || w.flags == flagSeqTTL, since39 && (w.flags < 0 || w.flags > flagSeqTTL):
				d.err = errShort
				return nil
			case w.flags == flagContainer:
				w.op = OpCreateContainer
			case !since39:
				w.op = OpCreate
			}
		}
		ops = append(ops, w)
	}
}

func (cl *cluster) processMulti(r *request) {
	ops := decodeMulti(r.body, cl.cfg.since39())
	if r.body.err != nil {
		cl.undecodable(r)
		return
	}
	t := cl.newTxn(OpMulti, r.session, r)
	var undo []func()
	for _, w := range ops {
		if t.code != CodeOK {
			t.results = append(t.results, result{op: w.op, code: CodeRuntimeInconsistency})
			continue
		}
		undo = append(undo, cl.run(t, w, r))
	}
	if t.code != CodeOK {
		for _, f := range slices.Backward(undo) {
			f()
		}
		t.changes = nil
	}
	cl.commit(t)
}

// encodeResults writes the results of a multi.
func encodeResults(e *encoder, results []result) {
	failed := false
	for _, res := range results {
		failed = failed || res.code != CodeOK
	}
	for _, res := range results {
		op := res.op
		switch op {
		case OpCreateContainer, OpCreateTTL:
			op = OpCreate2
		}
		if failed {
			op = -1
		}
		e.int32(int32(op))
		e.bool(false)
		e.int32(int32(res.code))
		switch {
		case failed:
			e.int32(int32(res.code))
		case op == OpCreate:
			e.string(res.path)
		case op == OpCreate2:
			e.string(res.path)
			e.stat(res.stat)
		case op == OpSetData:
			e.stat(res.stat)
		}
	}
	e.int32(-1)
	e.bool(true)
	e.int32(-1)
}
