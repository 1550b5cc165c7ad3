// Package report is what the test programs tell the tests: one JSON object a line.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Event says what a line is about.
type Event string

// The events of the program worker, in the order in which they may come.
const (
	Acquired Event = "acquired" // a lock is held
	Gated    Event = "gated"    // Await has let the work begin
	Woke     Event = "woke"     // the first gate after the process had been stopped
	Wrote    Event = "wrote"    // what the stores answered
	Checked  Event = "checked"  // what Await and Verify said of a lease
	Grant    Event = "grant"    // one acquisition from beginning to end
	Finished Event = "finished" // nothing is left to do
	Closed   Event = "closed"   // the client is closed, and its goroutines are gone
	Failed   Event = "failed"   // something that must not happen
)

// The events of the peers' adapters, beside Acquired, Grant, Finished, Closed and Failed.
const (
	Ready       Event = "ready"       // a session stands
	TimedOut    Event = "timed out"   // an acquire was not granted in its time
	Released    Event = "released"    // a lock was given back
	Suspended   Event = "suspended"   // the client says that the connection is in doubt
	Reconnected Event = "reconnected" // the client says that the same session goes on
	Lost        Event = "lost"        // the client says that the session, or the lock, is lost
	Status      Event = "status"      // the answer to "status"; State says what the client believes
	Tried       Event = "tried"       // a try without a wait; State is "held" or "acquired"
	Guarded     Event = "guarded"     // a key has an outcome; State is "ran" or "replayed"
)

// Line is one line. Times are of Now.
type Line struct {
	Event Event  `json:"event"`
	At    int64  `json:"at"`
	Path  string `json:"path,omitempty"` // the lock path
	Node  string `json:"node,omitempty"` // the lock node
	Token int64  `json:"token,omitempty"`
	Error string `json:"error,omitempty"`
	Lost  bool   `json:"lost,omitempty"` // Error is a *LostError
	State string `json:"state,omitempty"`

	// Of Wrote: HTTP status codes.
	Fenced int `json:"fenced,omitempty"`
	Open   int `json:"open,omitempty"`

	// Of Status. Memory is in bytes: of a Go program its heap and stacks after a collection, of the others what is
	// resident.
	Waiting int64 `json:"waiting,omitempty"` // calls of Acquire that have not returned
	Memory  int64 `json:"memory,omitempty"`

	// Of Grant, and of Tried and Guarded, which have no Got and End. The lock was held from Got until End at least; Release was called then and returned at Done, which is
	// 0 if it is not known when the ensemble took the lock back.
	Asked int64 `json:"asked,omitempty"`
	Got   int64 `json:"got,omitempty"`
	End   int64 `json:"end,omitempty"`
	Done  int64 `json:"done,omitempty"`
}

// Now is the monotonic clock in nanoseconds. All processes of a machine read the same one.
func Now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(fmt.Sprintf("no monotonic clock: %v", err))
	}
	return ts.Nano()
}

// Writer writes lines. It is safe for concurrent use.
type Writer struct {
	mu  sync.Mutex
	out *json.Encoder
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{out: json.NewEncoder(w)} }

// Line writes l, with the time if it has none.
func (w *Writer) Line(l Line) {
	if l.At == 0 {
		l.At = Now()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.out.Encode(l); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
	}
}
