package dedup_test

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup/driver"
	"github.com/go-zklock/zklock/zktest"
)

// simTruth is what the ensemble did, transaction by transaction. What calls return is
// judged by it (simulation_check_test.go); what is wrong in itself is noted at once.
type simTruth struct {
	start        time.Time
	sweepUnknown bool

	mu         sync.Mutex
	lives      map[string][]*simLife // of the records, by path
	claims     map[string]*simClaim  // lock nodes ever made, by path
	byToken    map[zklock.Token]*simClaim
	queues     map[string][]*simClaim // those that are there, by the node that they are in
	byHand     map[int64]bool         // sessions that a fault expired
	entries    map[string]string      // of the index, with the paths of their records
	execs      []*simExec
	calls      []*simCall
	stops      []simStop
	faults     map[string]int // that hit, by kind
	events     []string
	violations []string
	swept      int
}

// simLife is one record from its making to its removal.
type simLife struct {
	key    string
	writes []simWrite
	died   time.Duration // 0 while it is there
}

// simWrite is one version of a record.
type simWrite struct {
	at   time.Duration
	zxid int64
	rec  driver.Record
}

func (l *simLife) last() *simWrite { return &l.writes[len(l.writes)-1] }

// token is the token that the record says, as a reader of it learns it.
func (l *simLife) token(w *simWrite) zklock.Token {
	if w.rec.Token == 0 {
		return zklock.Token(l.writes[0].zxid)
	}
	return zklock.Token(w.rec.Token)
}

// simClaim is a lock node in a record's node, or the sweeper's.
type simClaim struct {
	key     string
	uuid    string
	session int64
	token   zklock.Token
	made    time.Duration
	gone    time.Duration
	how     string // why it went; "" while it is there
}

// simStop is a time in which a process was stopped.
type simStop struct {
	proc     *simProcess
	from, to time.Duration
}

func newSimTruth(sweepUnknown bool) *simTruth {
	return &simTruth{
		start: time.Now(), sweepUnknown: sweepUnknown,
		lives: map[string][]*simLife{}, claims: map[string]*simClaim{}, byToken: map[zklock.Token]*simClaim{}, queues: map[string][]*simClaim{}, byHand: map[int64]bool{}, entries: map[string]string{}, faults: map[string]int{},
	}
}

func (r *simTruth) now() time.Duration { return time.Since(r.start) }

func (r *simTruth) eventf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.eventLockedf(format, args...)
}

func (r *simTruth) eventLockedf(format string, args ...any) {
	r.events = append(r.events, fmt.Sprintf("%13.6f ms  ", float64(r.now())/float64(time.Millisecond))+fmt.Sprintf(format, args...))
}

func (r *simTruth) violatef(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.violateLockedf(format, args...)
}

func (r *simTruth) violateLockedf(format string, args ...any) {
	r.violations = append(r.violations, fmt.Sprintf("%v: ", r.now())+fmt.Sprintf(format, args...))
	r.eventLockedf("VIOLATION "+format, args...)
}

var lockNode = regexp.MustCompile(`_c_([0-9a-f-]{36})-lock-`)

const (
	simRoot  = "/dedup"
	simIndex = "/dedup-expiry"
)

// txn is the ensemble's OnTxn.
func (r *simTruth) txn(t zktest.Txn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range t.Changes {
		dir := path.Dir(c.Path)
		m := lockNode.FindStringSubmatch(path.Base(c.Path))
		switch {
		case m != nil && c.Op == zktest.OpCreate:
			n := &simClaim{key: dir, uuid: m[1], session: c.Session, token: zklock.Token(t.Zxid), made: r.now()}
			r.claims[c.Path], r.byToken[n.token] = n, n
			r.queues[dir] = append(r.queues[dir], n)
			r.eventLockedf("claim made %s by %x token %#x", c.Path, c.Session, t.Zxid)
		case m != nil && c.Op == zktest.OpDelete:
			r.claimGone(t, c)
		case dir == simRoot && c.Op == zktest.OpDelete:
			r.recordGone(t, c.Path)
		case dir == simRoot && len(c.Data) > 0:
			r.written(t, c)
		case strings.HasPrefix(dir, simIndex+"/") && c.Op == zktest.OpCreate:
			r.entries[c.Path] = simRoot + "/" + string(c.Data)
		case strings.HasPrefix(dir, simIndex+"/") && c.Op == zktest.OpDelete:
			delete(r.entries, c.Path)
		}
	}
}

func (r *simTruth) claimGone(t zktest.Txn, c zktest.Change) {
	n := r.claims[c.Path]
	n.gone = r.now()
	r.queues[n.key] = slices.DeleteFunc(r.queues[n.key], func(o *simClaim) bool { return o == n })
	switch {
	case t.Op == zktest.OpCloseSession && r.byHand[t.Session], t.Session == 0 && t.Op != zktest.OpCloseSession:
		n.how = "by hand"
	case t.Op == zktest.OpCloseSession && t.Expired:
		n.how = "expired"
	case t.Op == zktest.OpCloseSession:
		n.how = "closed"
	default:
		n.how = "deleted"
	}
	r.eventLockedf("claim %s %s", n.how, c.Path)
}

// alive returns the lock nodes in a node, or all, the first in the queue first.
func (r *simTruth) alive(dir string) (all []*simClaim) {
	if dir != "" {
		return slices.Clone(r.queues[dir])
	}
	for _, queue := range r.queues {
		all = append(all, queue...)
	}
	return all
}

func (r *simTruth) life(key string) *simLife {
	lives := r.lives[key]
	if len(lives) == 0 || lives[len(lives)-1].died != 0 {
		return nil
	}
	return lives[len(lives)-1]
}

// written judges a write to a record.
func (r *simTruth) written(t zktest.Txn, c zktest.Change) {
	rec, err := driver.ParseRecord(c.Data, c.Path)
	if err != nil {
		r.violateLockedf("an unreadable record was written: %v", err)
		return
	}
	w := simWrite{at: r.now(), zxid: t.Zxid, rec: rec}
	r.eventLockedf("record %s %s attempt %d claim %s token %#x: %.60q %.60q", c.Path, rec.State, rec.Attempt, rec.Claim, rec.Token, rec.Outcome, rec.Message)
	creates := func(prefix string) bool {
		return slices.ContainsFunc(t.Changes, func(o zktest.Change) bool {
			return o.Op == zktest.OpCreate && strings.HasPrefix(o.Path, prefix)
		})
	}
	l := r.life(c.Path)
	if c.Op == zktest.OpCreate {
		r.lives[c.Path] = append(r.lives[c.Path], &simLife{key: c.Path, writes: []simWrite{w}})
		if rec.State != driver.Running || rec.Attempt != 1 || !creates(c.Path+"/_c_"+rec.Claim) || !creates(simIndex+"/") {
			r.violateLockedf("a record was made as %s, attempt %d, without its claim or its entry", rec.State, rec.Attempt)
		}
		return
	}
	if l == nil {
		r.violateLockedf("%s: a write to no record", c.Path)
		return
	}
	was := l.last()
	if was.rec.State.Final() {
		r.violateLockedf("%s: the final outcome %q was changed to %s %q", c.Path, was.rec.Outcome, rec.State, rec.Outcome)
	}
	first := ""
	if queue := r.alive(c.Path); len(queue) > 0 {
		first = queue[0].uuid
	}
	ends := slices.ContainsFunc(t.Changes, func(o zktest.Change) bool {
		return o.Op == zktest.OpDelete && strings.HasPrefix(o.Path, c.Path+"/_c_"+rec.Claim)
	})
	undone := rec.State == driver.Open && rec.Attempt == 0 && len(l.writes) == 1 && was.rec.Claim == rec.Claim
	switch {
	case undone:
	case first != rec.Claim:
		r.violateLockedf("%s: written as %s by %s, and %q has the claim", c.Path, rec.State, rec.Claim, first)
	case rec.State != driver.Running && !ends:
		r.violateLockedf("%s: written as %s, and the claim %s stayed", c.Path, rec.State, rec.Claim)
	case rec.State.Final() && was.rec.State != driver.Running:
		r.violateLockedf("%s: from %s to %s", c.Path, was.rec.State, rec.State)
	case rec.State == driver.Running && rec.Attempt < was.rec.Attempt:
		r.violateLockedf("%s: attempt %d after %d", c.Path, rec.Attempt, was.rec.Attempt)
	}
	if string(was.rec.Fingerprint) != string(rec.Fingerprint) {
		r.violateLockedf("%s: the fingerprint changed", c.Path)
	}
	l.writes = append(l.writes, w)
}

// recordGone judges the removal of a record: only the sweeper does that, after the
// retention, under its lock.
func (r *simTruth) recordGone(t zktest.Txn, key string) {
	l := r.life(key)
	if l == nil {
		return // the empty node of a plain lock
	}
	l.died = max(r.now(), 1)
	r.swept++
	last := l.last()
	r.eventLockedf("record swept %s", key)
	if age := r.now() - last.at + time.Millisecond; age < last.rec.Retention { // the ensemble counts milliseconds
		r.violateLockedf("%s: removed %v after its last change, its retention is %v", key, age, last.rec.Retention)
	}
	if last.rec.State == driver.Running && !r.sweepUnknown {
		r.violateLockedf("%s: removed with an unknown outcome", key)
	}
	if queue := r.alive(simIndex + "/sweeper"); len(queue) == 0 || queue[0].session != t.Session {
		r.violateLockedf("%s: removed by a session that does not hold the sweeper's lock", key)
	}
}
