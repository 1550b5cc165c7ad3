package zktest

import (
	"container/heap"
	"time"
)

// clock runs functions at given times on one goroutine, each under the cluster's lock and in the order of their
// times. All waiting of the servers themselves happens here; connections wait on their own goroutines.

// alarm is one function that waits for its time.
type alarm struct {
	at   time.Time
	seq  uint64 // order among equal times
	fn   func()
	dead bool
}

type alarmHeap []*alarm

func (h alarmHeap) Len() int { return len(h) }
func (h alarmHeap) Less(i, j int) bool {
	if !h[i].at.Equal(h[j].at) {
		return h[i].at.Before(h[j].at)
	}
	return h[i].seq < h[j].seq
}
func (h alarmHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *alarmHeap) Push(x any)   { *h = append(*h, x.(*alarm)) }
func (h *alarmHeap) Pop() any {
	old := *h
	a := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return a
}

// after runs fn under the lock once d has passed; mu is held.
func (cl *cluster) after(d time.Duration, fn func()) { cl.at(time.Now().Add(d), fn) }

// at runs fn under the lock at t; mu is held.
func (cl *cluster) at(t time.Time, fn func()) *alarm {
	cl.seq++
	a := &alarm{at: t, seq: cl.seq, fn: fn}
	heap.Push(&cl.alarms, a)
	if cl.alarms[0] == a {
		select {
		case cl.wake <- struct{}{}:
		default:
		}
	}
	return a
}

// runClock is the goroutine of the clock; it ends when the cluster closes.
func (cl *cluster) runClock() {
	defer cl.wg.Done()
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for {
		cl.mu.Lock()
		wait := time.Hour
		for len(cl.alarms) > 0 && !cl.closed {
			a := cl.alarms[0]
			if d := time.Until(a.at); d > 0 {
				wait = d
				break
			}
			heap.Pop(&cl.alarms)
			if !a.dead {
				a.fn()
			}
		}
		cl.mu.Unlock()
		t.Reset(wait)
		select {
		case <-t.C:
		case <-cl.wake:
		case <-cl.stop:
			return
		}
	}
}
