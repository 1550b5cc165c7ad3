package zktest

import (
	"slices"
	"sync"
	"time"
)

// History keeps every transaction. Its Add is meant for Config.OnTxn. The zero History is ready for use.
type History struct {
	mu   sync.Mutex
	txns []Txn
	wake chan struct{}
}

// Add appends a transaction.
func (h *History) Add(t Txn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.txns = append(h.txns, t)
	if h.wake != nil {
		close(h.wake)
		h.wake = nil
	}
}

// Txns returns a copy of all transactions so far, in commit order.
func (h *History) Txns() []Txn {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.txns)
}

// Find returns the first transaction that match accepts.
func (h *History) Find(match func(Txn) bool) (Txn, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := slices.IndexFunc(h.txns, match)
	if i < 0 {
		return Txn{}, false
	}
	return h.txns[i], true
}

// Await waits until there is a transaction that match accepts and returns the first one. It gives up after d.
func (h *History) Await(d time.Duration, match func(Txn) bool) (Txn, bool) {
	limit := time.NewTimer(d)
	defer limit.Stop()
	for {
		h.mu.Lock()
		if h.wake == nil {
			h.wake = make(chan struct{})
		}
		wake := h.wake
		h.mu.Unlock()
		if t, ok := h.Find(match); ok {
			return t, true
		}
		select {
		case <-wake:
		case <-limit.C:
			return h.Find(match)
		}
	}
}

// Expired accepts the end of a session that ran out.
func Expired(t Txn) bool { return t.Expired }

// Deletes accepts a transaction that deletes the node at path, for whatever reason.
func Deletes(path string) func(Txn) bool { return changes(OpDelete, path) }

// Creates accepts a transaction that makes the node at path.
func Creates(path string) func(Txn) bool { return changes(OpCreate, path) }

func changes(op Op, path string) func(Txn) bool {
	return func(t Txn) bool {
		return slices.ContainsFunc(t.Changes, func(c Change) bool { return c.Op == op && c.Path == path })
	}
}
