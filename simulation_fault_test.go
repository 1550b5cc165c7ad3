package zklock

import (
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/go-zklock/zklock/zktest"
)

// inject lets one fault of the plan happen, ends it when its time is over or the
// traffic ends, and counts it if it hit a request, a lease or a watch.
func (w *simWorld) inject(i int, f simFault) {
	if !w.sleep(f.at) {
		return
	}
	f.index = i
	from := w.rec.now()
	w.rec.event("fault "+f.String(), "")
	hit := w.apply(f)
	w.rec.window(simWindow{what: f.kind, from: from, to: w.rec.now()})
	w.rec.event(fmt.Sprintf("over: %s client=c%d server=%d, hit=%v", f.kind, f.client, f.server, hit), "")
	if hit {
		w.rec.mu.Lock()
		w.rec.faults[f.kind]++
		w.rec.mu.Unlock()
	}
}

func (w *simWorld) apply(f simFault) (hit bool) {
	s := w.ens.Servers()[f.server]
	c := w.clients[f.client]
	switch f.kind {
	case "cut":
		hit = w.serves(s)
		s.CutConnections()
	case "drop request":
		hit = w.message(f, zktest.DropRequest(f.op))
	case "drop reply":
		hit = w.message(f, zktest.DropReply(f.op))
	case "half reply":
		hit = w.message(f, zktest.HalfReply(f.op))
	case "cut after":
		hit = w.message(f, zktest.CutAfter(f.op))
	case "delay request":
		hit = w.message(f, zktest.DelayRequest(f.short, f.op))
	case "delay reply":
		hit = w.message(f, zktest.DelayReply(f.short, f.op))
	case "lose watch":
		hit = w.injected(f, zktest.LoseWatch().Times(f.times))
	case "black hole":
		hit = w.injected(f, zktest.Blackhole(f.dir))
	case "expire":
		hit = w.expire(s, c)
	case "reap":
		hit = w.reap(f)
	case "operator":
		hit = w.operator(f)
	case "pause":
		hit = w.serves(s)
		s.Pause()
		w.lasts(f)
		s.Resume()
	case "refuse":
		hit = w.serves(s)
		s.Refuse(true)
		s.CutConnections()
		w.lasts(f)
		s.Refuse(false)
	case "restart":
		hit = w.serves(s)
		s.Stop()
		w.lasts(f)
		s.Restart()
	case "forget":
		hit = w.serves(s)
		s.ForgetSessions(true)
		s.CutConnections()
		w.lasts(f)
		s.ForgetSessions(false)
	case "shorter":
		hit = w.serves(s)
		s.SetMaxSessionTimeout(f.short)
		s.CutConnections()
		w.lasts(f)
		s.SetMaxSessionTimeout(20 * w.plan.tick)
	case "cut off":
		hit = w.serves(s)
		s.CutFromPeers()
		w.lasts(f)
		s.HealPeers()
	case "elect":
		for _, other := range w.ens.Servers() {
			hit = hit || w.serves(other)
		}
		w.ens.Elect(s)
	case "stop":
		hit = c.stop(f)
	default:
		panic("no such fault: " + f.kind)
	}
	return hit
}

// lasts waits until a fault is over. Those that the end of the traffic ends do so one
// after the other.
func (w *simWorld) lasts(f simFault) {
	if !w.sleep(f.d) {
		time.Sleep(time.Duration(f.index) * 10 * time.Microsecond)
	}
}

// message injects a fault about requests of one kind.
func (w *simWorld) message(f simFault, z *zktest.Fault) bool {
	z.Nth(f.nth).Times(f.times)
	if f.silent {
		z.Silent()
	}
	return w.injected(f, z)
}

func (w *simWorld) injected(f simFault, z *zktest.Fault) bool {
	w.ens.Inject(z.Client(w.clients[f.client].name))
	w.lasts(f)
	z.Heal()
	hit := z.Hits() > 0
	if hit && (f.kind == "delay request" || f.kind == "delay reply") {
		time.Sleep(f.short) // what is delayed already stays so
	}
	return hit
}

// serves says whether a client that waits or holds is connected to s.
func (w *simWorld) serves(s *zktest.Server) bool {
	for _, info := range s.Sessions() {
		for _, c := range w.clients {
			if info.Connected > 0 && info.Client == c.name && info.Server == s.Addr() && c.active() {
				return true
			}
		}
	}
	return false
}

// expire ends a client's session at the ensemble, as an operator can.
func (w *simWorld) expire(s *zktest.Server, c *simClient) bool {
	cl := c.get()
	if cl == nil {
		return false
	}
	id := cl.SessionID()
	w.rec.mu.Lock()
	w.rec.killed[id] = true
	w.rec.mu.Unlock()
	return s.Expire(id) && c.active()
}

// reap removes a path that is empty, at once and between the making of a path and
// the create in it.
func (w *simWorld) reap(f simFault) bool {
	key := w.plan.keys[f.key].path
	s := w.ens.Servers()[0]
	var hits atomic.Int32
	z := w.ens.Inject(zktest.Before(func() {
		if s.Reap(key) == nil {
			hits.Add(1)
		}
	}, zktest.OpCreate).Path(key + "/").Times(f.times))
	w.lasts(f)
	z.Heal()
	_ = s.Reap(key)
	// The counter of a path that is there and empty may stand anywhere.
	if len(w.rec.alive(key)) == 0 && len(w.plan.opts.only) == 0 && w.plan.opts.sequence == nil {
		_ = s.SetSequence(key, 2147483640)
	}
	return hits.Load() > 0
}

// operator deletes a lock node by hand.
func (w *simWorld) operator(f simFault) bool {
	for !w.isDraining() {
		if nodes := w.rec.alive(w.plan.keys[f.key].path); len(nodes) > 0 {
			return w.ens.Servers()[0].Delete(nodes[(f.nth-1)%len(nodes)]) == nil
		}
		w.sleep(time.Millisecond)
	}
	return false
}

func (w *simWorld) isDraining() bool {
	select {
	case <-w.draining:
		return true
	default:
		return false
	}
}

// checkGates passes the gates of a process that has just gone on: a lease whose node
// is gone must be found lost at once.
func (w *simWorld) checkGates(c *simClient) {
	c.mu.Lock()
	leases := maps.Clone(c.holds)
	c.mu.Unlock()
	for h, l := range leases {
		if l.Err() != nil {
			continue
		}
		w.rec.mu.Lock()
		n := w.rec.nodes[h.node]
		wrong := n.how == "expired"
		w.rec.mu.Unlock()
		if wrong {
			w.rec.violatef("%s: after a stop the gate of %s is open and its node has expired", h.who, h.key)
		}
	}
}
