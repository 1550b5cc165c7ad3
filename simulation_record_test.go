package zklock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-zklock/zklock/zktest"
)

// simRecord is what a run is judged by. All times are since its start.
type simRecord struct {
	start time.Time

	mu         sync.Mutex
	events     []simEvent
	holds      []*simHold
	nodes      map[string]*simNode // lock nodes ever made, by path
	killed     map[int64]bool      // sessions expired by a fault
	writes     []simWrite
	largest    map[string]Token // the store: the largest token accepted, by key
	fence      bool
	windows    []simWindow
	stops      []simWindow
	faults     map[string]int // faults that hit, by kind
	calls      int            // of Acquire, TryAcquire and Do
	violations []string
}

// simEvent is one line of the trace.
type simEvent struct {
	at   time.Duration
	text string // the same in every run of a seed
	more string // may differ: tokens, names, logs
}

// simHold is one lock node of ours between its grant and its end.
type simHold struct {
	rec    *simRecord
	client *simClient
	who    string // client and worker
	key    string
	node   string
	token  Token
	called time.Duration // when Acquire was called
	start  time.Duration // when it returned
	end    time.Duration // the first of: Release called, context ended, gate closed
	ended  bool
	why    string
	after  time.Duration   // when the last Release returned nil; 0 if none did
	gates  []time.Duration // when a gate was passed
}

// simNode is what the ensemble did with a lock node.
type simNode struct {
	key     string
	session int64
	token   Token
	made    time.Duration
	gone    time.Duration
	how     string // why it went: "deleted", "expired", "killed", "closed", "operator"; "" while it is there
}

// simWrite is a write that reached the store.
type simWrite struct {
	at       time.Duration
	hold     *simHold
	gated    bool // a gate was passed at the same instant
	accepted bool
	stale    bool // smaller than the largest token accepted before
}

// simWindow is a time in which something was wrong.
type simWindow struct {
	what     string
	client   *simClient // of a stopped process
	from, to time.Duration
}

func newSimRecord(fence bool) *simRecord {
	return &simRecord{
		start: time.Now(), fence: fence,
		nodes: map[string]*simNode{}, killed: map[int64]bool{}, largest: map[string]Token{}, faults: map[string]int{},
	}
}

func (r *simRecord) now() time.Duration { return time.Since(r.start) }

// event adds a line to the trace.
func (r *simRecord) event(text, more string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, simEvent{r.now(), text, more})
}

// violatef notes that an invariant does not hold.
func (r *simRecord) violatef(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.violations = append(r.violations, fmt.Sprintf("%v: ", r.now())+fmt.Sprintf(format, args...))
}

// txn is the ensemble's OnTxn.
func (r *simRecord) txn(t zktest.Txn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.now()
	for _, c := range t.Changes {
		if _, ok := parseContender(path.Base(c.Path)); !ok {
			continue
		}
		if c.Op == zktest.OpCreate {
			r.nodes[c.Path] = &simNode{key: path.Dir(c.Path), session: c.Session, token: Token(t.Zxid), made: at}
			r.events = append(r.events, simEvent{at, "", "node made " + short(c.Path) + " by " + hexID(c.Session)})
			continue
		}
		n := r.nodes[c.Path]
		if c.Op != zktest.OpDelete || n == nil {
			continue
		}
		n.gone = at
		switch {
		case t.Op == zktest.OpCloseSession && r.killed[t.Session]:
			n.how = "killed"
		case t.Op == zktest.OpCloseSession && t.Expired:
			n.how = "expired"
		case t.Op == zktest.OpCloseSession:
			n.how = "closed"
		case t.Session == 0:
			n.how = "operator"
		default:
			n.how = "deleted"
		}
		r.events = append(r.events, simEvent{at, "", "node " + n.how + " " + short(c.Path)})
	}
}

// alive lists the lock nodes of a key, or of all keys if it is empty, in the order in
// which they were made.
func (r *simRecord) alive(key string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var paths []string
	for p, n := range r.nodes {
		if n.how == "" && (key == "" || n.key == key) {
			paths = append(paths, p)
		}
	}
	slices.SortFunc(paths, func(a, b string) int { return cmp.Compare(r.nodes[a].token, r.nodes[b].token) })
	return paths
}

// granted begins a hold.
func (r *simRecord) granted(c *simClient, who, key string, l *Lease, called time.Duration) *simHold {
	r.mu.Lock()
	h := &simHold{rec: r, client: c, who: who, key: key, node: l.Path(), token: l.Token(), called: called, start: r.now()}
	r.holds = append(r.holds, h)
	r.events = append(r.events, simEvent{h.start, "granted " + who + " " + key, short(h.node) + " " + h.token.String()})
	r.mu.Unlock()
	c.mu.Lock()
	c.holds[h] = l
	c.mu.Unlock()
	h.follow(l)
	return h
}

// follow ends the hold when a lease on it is lost.
func (h *simHold) follow(l *Lease) {
	context.AfterFunc(l.Context(), func() {
		var lost *LostError
		if errors.As(context.Cause(l.Context()), &lost) {
			h.over("lost: " + string(lost.Reason))
		}
	})
}

// release ends the hold because its last lease is about to be released, unless the
// lease was lost at this very instant.
func (h *simHold) release(l *Lease) {
	var lost *LostError
	if errors.As(context.Cause(l.Context()), &lost) {
		h.over("lost: " + string(lost.Reason))
		return
	}
	h.over("released")
}

// over ends the hold. Only the first end counts.
func (h *simHold) over(why string) {
	r := h.rec
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.ended {
		return
	}
	h.ended, h.end, h.why = true, r.now(), why
	h.client.mu.Lock()
	delete(h.client.holds, h)
	h.client.mu.Unlock()
	r.events = append(r.events, simEvent{h.end, "ended " + h.who + " " + h.key + " " + why, short(h.node)})
}

// passed notes that a gate was open.
func (h *simHold) passed() {
	h.rec.mu.Lock()
	defer h.rec.mu.Unlock()
	h.gates = append(h.gates, h.rec.now())
}

// write is a write to the store that compares tokens.
func (h *simHold) write(gated bool) {
	r := h.rec
	r.mu.Lock()
	defer r.mu.Unlock()
	w := simWrite{at: r.now(), hold: h, gated: gated, stale: h.token < r.largest[h.key]}
	w.accepted = !w.stale || !r.fence
	if w.accepted {
		r.largest[h.key] = max(r.largest[h.key], h.token)
	}
	r.writes = append(r.writes, w)
}

// released notes that Release has said that the node is gone.
func (h *simHold) released() {
	r := h.rec
	r.mu.Lock()
	defer r.mu.Unlock()
	h.after = r.now()
	if n := r.nodes[h.node]; n == nil || n.how == "" {
		r.violations = append(r.violations, fmt.Sprintf("%v: %s: Release returned nil and the node %s is there", r.now(), h.who, h.node))
	}
}

// window notes a time in which something was wrong.
func (r *simRecord) window(w simWindow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.client != nil {
		r.stops = append(r.stops, w)
	}
	r.windows = append(r.windows, w)
}

var uuidPattern = regexp.MustCompile(`_c_[0-9a-f-]{36}`)

// short takes the uuids out of a text.
func short(text string) string { return uuidPattern.ReplaceAllString(text, "_c_…") }

// trace lists what happened. With all it has what may differ between two runs of a
// seed; without, equal instants are sorted, since their order may differ too.
func (r *simRecord) trace(all bool) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := slices.Clone(r.events)
	slices.SortStableFunc(events, func(a, b simEvent) int {
		if c := cmp.Compare(a.at, b.at); c != 0 || all {
			return c
		}
		return strings.Compare(a.text, b.text)
	})
	var lines []string
	for _, e := range events {
		if !all && e.text == "" {
			continue
		}
		line := fmt.Sprintf("%13.6f ms  %s", float64(e.at)/float64(time.Millisecond), e.text)
		if all && e.more != "" {
			line += "  # " + e.more
		}
		lines = append(lines, line)
	}
	return lines
}
