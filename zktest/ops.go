package zktest

import "maps"

// Ops counts what reached the server, or all servers of an ensemble. Requests are counted when they arrive, also
// those that fail or whose answer is lost.
type Ops struct {
	cl          *cluster
	byOp        map[Op]int
	proofs      int
	watchEvents int
}

// Counts is a copy of the counters at one moment.
type Counts struct {
	ByOp        map[Op]int // requests by kind; OpMulti counts proofs too
	Proofs      int        // multis with nothing but checks: they change nothing and prove the session
	WatchEvents int        // watch events sent
}

// Ops returns the counters. Those of an ensemble are shared by its servers.
func (s *Server) Ops() *Ops { return &s.cl.ops }

// Counts returns a copy of all counters.
func (o *Ops) Counts() Counts {
	o.cl.mu.Lock()
	defer o.cl.mu.Unlock()
	return Counts{ByOp: maps.Clone(o.byOp), Proofs: o.proofs, WatchEvents: o.watchEvents}
}

// Reset sets all counters to zero.
func (o *Ops) Reset() {
	o.cl.mu.Lock()
	defer o.cl.mu.Unlock()
	o.byOp, o.proofs, o.watchEvents = nil, 0, 0
}

// Count returns how many requests of the given kinds there were.
func (o *Ops) Count(ops ...Op) int { return o.Counts().Count(ops...) }

// Writes is Counts.Writes as of now.
func (o *Ops) Writes() int { return o.Counts().Writes() }

// Reads is Counts.Reads as of now.
func (o *Ops) Reads() int { return o.Counts().Reads() }

// Proofs returns how many multis held nothing but checks.
func (o *Ops) Proofs() int { return o.Counts().Proofs }

// WatchEvents returns how many watch events were sent.
func (o *Ops) WatchEvents() int { return o.Counts().WatchEvents }

// Count returns how many requests of the given kinds there were.
func (c Counts) Count(ops ...Op) int {
	n := 0
	for _, op := range ops {
		n += c.ByOp[op]
	}
	return n
}

// Writes returns how many requests were to change nodes: creates of all kinds, deletes, setData, setACL and multis
// other than proofs.
func (c Counts) Writes() int {
	return c.Count(OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL, OpDelete, OpSetData, OpSetACL, OpMulti) - c.Proofs
}

// Reads returns how many requests were to read nodes: exists, getData, getACL, getChildren and getChildren2. Sync,
// setWatches and pings are not among them.
func (c Counts) Reads() int {
	return c.Count(OpExists, OpGetData, OpGetACL, OpGetChildren, OpGetChildren2)
}

// count adds a request; mu is held.
func (o *Ops) count(op Op) {
	if o.byOp == nil {
		o.byOp = map[Op]int{}
	}
	o.byOp[op]++
}

// countMulti looks whether a multi is a proof; mu is held.
func (o *Ops) countMulti(body []byte) {
	ops := decodeMulti(&decoder{b: body}, o.cl.cfg.since39())
	for _, w := range ops {
		if w.op != OpCheck {
			return
		}
	}
	if len(ops) > 0 {
		o.proofs++
	}
}
