package torture

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"sync"

	"github.com/go-zklock/zklock/integration/internal/report"
)

// The events of the fault source, beside those of the workers and of the store.
const (
	faultBegins report.Event = "fault begins" // State is its kind
	faultEnds   report.Event = "fault ends"
	recovered   report.Event = "recovered"
	killed      report.Event = "killed"    // Process was killed
	stopped     report.Event = "stopped"   // Process was stopped
	continued   report.Event = "continued" // and goes on
)

// entry is one line of the history: what a process said of itself, or what was done to it.
type entry struct {
	Process string `json:"process"`
	report.Line
}

// history collects what everybody says, in memory and in one file.
type history struct {
	mu      sync.Mutex
	file    *os.File
	out     *json.Encoder
	err     error
	entries []entry
	// last is when each path was last granted.
	last map[string]int64
	news chan struct{} // closed and made anew with every entry
}

func newHistory(name string) (*history, error) {
	file, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	return &history{
		file: file, out: json.NewEncoder(file), last: make(map[string]int64),
		news: make(chan struct{}),
	}, nil
}

func (h *history) add(process string, l report.Line) {
	if l.At == 0 {
		l.At = report.Now()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	e := entry{process, l}
	h.entries = append(h.entries, e)
	h.err = errors.Join(h.err, h.out.Encode(e))
	if l.Event == report.Acquired {
		h.last[l.Path] = max(h.last[l.Path], l.Got)
	}
	close(h.news)
	h.news = make(chan struct{})
}

// grantedSince tells whether every path was granted after a time; otherwise the channel closes when there is news.
func (h *history) grantedSince(paths []string, at int64) (all bool, news <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, path := range paths {
		if h.last[path] < at {
			return false, h.news
		}
	}
	return true, h.news
}

// soFar are the entries until now.
func (h *history) soFar() []entry {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.entries)
}

// close ends the file and returns all entries.
func (h *history) close() ([]entry, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.entries, errors.Join(h.err, h.file.Close())
}
