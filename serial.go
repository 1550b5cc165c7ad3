package zklock

import (
	"context"
	"log/slog"
	"sync"
)

// serial runs functions one after the other on a goroutine of its own, which lives
// only while there is something to run. Whoever queues one is not delayed by it.
// Listeners and the logger are called this way: what belongs to the user may block,
// and must not keep a lease from being cancelled in time.
type serial struct {
	mu      sync.Mutex
	queue   []func()
	running bool
	stopped bool
	idle    chan struct{} // closed when the queue has drained; nil while nobody waits
}

// run queues f. After stop it does nothing.
func (s *serial) run(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	s.queue = append(s.queue, f)
	if !s.running {
		s.running = true
		go s.drain()
	}
}

func (s *serial) drain() {
	for {
		s.mu.Lock()
		if len(s.queue) == 0 {
			s.running = false
			if s.idle != nil {
				close(s.idle)
				s.idle = nil
			}
			s.mu.Unlock()
			return
		}
		f := s.queue[0]
		s.queue[0] = nil
		s.queue = s.queue[1:]
		s.mu.Unlock()
		s.call(f)
	}
}

// call runs f. If f ends the goroutine (runtime.Goexit, as t.FailNow does), another
// goes on with the rest.
func (s *serial) call(f func()) {
	returned := false
	defer func() {
		if !returned {
			go s.drain()
		}
	}()
	f()
	returned = true
}

// stop drops what is queued and refuses more. What runs goes on.
func (s *serial) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.queue = nil
}

// drained returns a channel that is closed once nothing is queued or running.
func (s *serial) drained() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running {
		ch := make(chan struct{})
		close(ch)
		return ch
	}
	if s.idle == nil {
		s.idle = make(chan struct{})
	}
	return s.idle
}

func (s *serial) length() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue)
}

// maxLogQueue is how many records wait for a logger that blocks before more are
// dropped.
const maxLogQueue = 4096

// asyncHandler hands records to the user's handler in order, on another goroutine:
// a full pipe on stderr must not delay the end of a lease.
type asyncHandler struct {
	slog.Handler
	queue *serial
}

// newLog is a log that nothing waits for. One that is discarded costs nothing.
func newLog(h slog.Handler, queue *serial) *slog.Logger {
	if h == slog.DiscardHandler {
		return slog.New(h)
	}
	return slog.New(asyncHandler{h, queue})
}

// Enabled asks later: it is the user's code too.
func (h asyncHandler) Enabled(context.Context, slog.Level) bool { return true }

// Handle queues the record.
func (h asyncHandler) Handle(_ context.Context, r slog.Record) error {
	if h.queue.length() >= maxLogQueue {
		return nil
	}
	r = r.Clone()
	h.queue.run(func() {
		// A handler that panics costs its record and not the process.
		defer func() { _ = recover() }()
		if h.Handler.Enabled(context.Background(), r.Level) {
			_ = h.Handler.Handle(context.Background(), r)
		}
	})
	return nil
}

// WithAttrs keeps the queue.
func (h asyncHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return asyncHandler{h.Handler.WithAttrs(attrs), h.queue}
}

// WithGroup keeps the queue.
func (h asyncHandler) WithGroup(name string) slog.Handler {
	return asyncHandler{h.Handler.WithGroup(name), h.queue}
}
