package dedup_test

import (
	"context"
	"time"

	"github.com/go-zklock/zklock/zktest"
)

// inject lets one fault of the plan happen, ends it when its time is over or the
// traffic ends, and counts it if it hit.
func (w *simWorld) inject(i int, f simFault) {
	if !w.sleep(f.at) {
		return
	}
	w.truth.eventf("fault %d %v", i, f)
	hit := w.apply(f)
	w.truth.eventf("over: fault %d, hit %v", i, hit)
	if hit {
		w.truth.mu.Lock()
		w.truth.faults[f.kind]++
		w.truth.mu.Unlock()
	}
}

func (w *simWorld) apply(f simFault) (hit bool) {
	s, slot := w.ens.Servers()[f.server], w.slots[f.slot]
	pr := slot.get()
	switch f.kind {
	case "drop request":
		return w.message(f, pr, zktest.DropRequest(f.op))
	case "drop reply":
		return w.message(f, pr, zktest.DropReply(f.op))
	case "half reply":
		return w.message(f, pr, zktest.HalfReply(f.op))
	case "cut after":
		return w.message(f, pr, zktest.CutAfter(f.op))
	case "delay request":
		return w.message(f, pr, zktest.DelayRequest(f.short, f.op))
	case "delay reply":
		return w.message(f, pr, zktest.DelayReply(f.short, f.op))
	case "black hole":
		return w.injected(f, pr, zktest.Blackhole(f.dir))
	case "cut":
		return s.CutConnections() > 0
	case "expire":
		if pr == nil {
			return false
		}
		id := pr.client.SessionID()
		w.truth.mu.Lock()
		w.truth.byHand[id] = true
		w.truth.mu.Unlock()
		return s.Expire(id)
	case "operator":
		return w.operator(f)
	case "kill":
		if hit = slot.die(); hit {
			slot.open()
		}
	case "close":
		if hit = pr != nil; hit {
			slot.close()
			slot.open()
		}
	case "close guard":
		if hit = pr != nil; hit {
			ctx, cancel := context.WithTimeout(context.Background(), 3*w.plan.timeout)
			defer cancel()
			_ = pr.getGuard().Close(ctx)
			pr.openGuard(w.plan.claimFirst[f.slot], true)
		}
	case "stop":
		return pr != nil && pr.stop(f)
	case "pause":
		hit = s.Connections() > 0
		s.Pause()
		w.lasts(f)
		s.Resume()
	case "restart":
		hit = s.Connections() > 0
		s.Stop()
		w.lasts(f)
		s.Restart()
	case "cut off":
		hit = s.Connections() > 0
		s.CutFromPeers()
		w.lasts(f)
		s.HealPeers()
	case "elect":
		w.ens.Elect(s)
		return true
	default:
		panic("no such fault: " + f.kind)
	}
	return hit
}

// lasts waits until a fault is over.
func (w *simWorld) lasts(f simFault) { w.sleep(f.d) }

// message injects a fault about requests of one kind.
func (w *simWorld) message(f simFault, pr *simProcess, z *zktest.Fault) bool {
	z.Nth(f.nth).Times(f.times)
	if f.silent {
		z.Silent()
	}
	return w.injected(f, pr, z)
}

func (w *simWorld) injected(f simFault, pr *simProcess, z *zktest.Fault) bool {
	if pr == nil {
		return false
	}
	w.ens.Inject(z.Client(pr.name))
	w.lasts(f)
	z.Heal()
	if z.Hits() > 0 {
		time.Sleep(f.short) // what is delayed already stays so
		return true
	}
	return false
}

// operator deletes a claim by hand.
func (w *simWorld) operator(f simFault) bool {
	key := simRoot + "/" + w.plan.keys[f.key].String()
	for end := time.Now().Add(f.d); time.Now().Before(end); {
		w.truth.mu.Lock()
		queue := w.truth.alive(key)
		w.truth.mu.Unlock()
		for _, n := range queue {
			for _, name := range w.ens.Servers()[0].Children(key) {
				if m := lockNode.FindStringSubmatch(name); m != nil && m[1] == n.uuid {
					return w.ens.Servers()[0].Delete(key+"/"+name) == nil
				}
			}
		}
		if !w.sleep(time.Millisecond) {
			return false
		}
	}
	return false
}
