package peers_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zklock/zklock/integration/internal/figures"
	"github.com/go-zklock/zklock/integration/internal/report"
	"github.com/go-zklock/zklock/integration/peers"
	"github.com/go-zklock/zklock/integration/zkcluster"
	"github.com/go-zklock/zklock/integration/zkproxy"
)

// listener keeps all that a peer says.
type listener struct {
	*peers.Peer
	mu    sync.Mutex
	lines []peers.Line
	news  chan struct{}
}

func listen(p *peers.Peer) *listener {
	l := &listener{Peer: p, news: make(chan struct{})}
	go func() {
		for line := range p.Lines {
			l.mu.Lock()
			l.lines = append(l.lines, line)
			close(l.news)
			l.news = make(chan struct{})
			l.mu.Unlock()
		}
	}()
	return l
}

// first is the first line about one of the events after a moment.
func (l *listener) first(after int64, events ...report.Event) (line peers.Line, found bool, news <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if line.At >= after && slices.Contains(events, line.Event) {
			return line, true, l.news
		}
	}
	return line, false, l.news
}

// within waits a while for a line about one of the events after a moment.
func (l *listener) within(d time.Duration, after int64, events ...report.Event) (peers.Line, bool) {
	end := time.After(d)
	for {
		line, found, news := l.first(after, events...)
		if found {
			return line, true
		}
		select {
		case <-news:
		case <-end:
			return line, false
		}
	}
}

// trial is one library under one fault: a holder, and a rival that waits behind it.
type trial struct {
	stopped bool // the fault is to stop the holder, so it can be told nothing meanwhile

	library peers.Library
	path    string
	holder  *listener
	rival   *listener
	proxies []*zkproxy.Proxy // the holder's, in front of each server

	begun, ended int64 // the fault
	// When the holder was told to pause, that it may go on, and that all is lost; when the rival had the lock. Since
	// the fault began; 0 if never.
	paused, resumed, lost, taken time.Duration
	believed                     string // what the holder's client believed when the rival had the lock
	afterwards                   string
}

const timeout = 6 * time.Second

// newTrial lets a holder have the lock, connected to the server at, with the others to go to; a rival waits.
func newTrial(t *testing.T, library peers.Library, cluster *zkcluster.Cluster, at, rivals *zkcluster.Server) *trial {
	t.Helper()
	tr := &trial{library: library, path: uniquePath()}
	var addrs []string
	for _, s := range cluster.Servers() {
		p := zkproxy.New(t, s.Addr())
		p.Refuse(s != at)
		tr.proxies = append(tr.proxies, p)
		addrs = append(addrs, p.Addr())
	}
	tr.holder = listen(start(t, library, peers.Options{Servers: strings.Join(addrs, ","), Timeout: timeout}))
	tr.rival = listen(start(t, library, peers.Options{Servers: rivals.Addr(), Timeout: timeout}))
	commandf(t, tr.holder.Peer, "acquire %s 0", tr.path)
	if _, ok := tr.holder.within(patience, 0, report.Acquired); !ok {
		t.Fatalf("%s: the holder has no lock", library)
	}
	commandf(t, tr.rival.Peer, "acquire %s 0", tr.path)
	tr.each(func(p *zkproxy.Proxy) { p.Refuse(false) })
	return tr
}

func (tr *trial) each(f func(*zkproxy.Proxy)) {
	for _, p := range tr.proxies {
		f(p)
	}
}

// since is the time from the beginning of the fault to a line, or 0 if it never came.
func (tr *trial) since(line peers.Line, found bool) time.Duration {
	if !found {
		return 0
	}
	return max(1, time.Duration(line.At-tr.begun))
}

// askWhenTaken asks the holder's client what it believes once the rival has the lock.
func (tr *trial) askWhenTaken(limit time.Duration) {
	got, ok := tr.rival.within(limit, tr.begun, report.Acquired)
	if tr.taken = tr.since(got, ok); !ok || tr.holder.Command("status") != nil {
		return
	}
	if answer, ok := tr.holder.within(5*time.Second, got.At, report.Status); ok {
		tr.believed = answer.State
	}
}

// collect reads what the holder was told.
func (tr *trial) collect() {
	line, ok, _ := tr.holder.first(tr.begun, report.Suspended)
	tr.paused = tr.since(line, ok)
	line, ok, _ = tr.holder.first(tr.begun, report.Lost)
	tr.lost = tr.since(line, ok)
	line, ok, _ = tr.holder.first(tr.begun, report.Reconnected)
	tr.resumed = tr.since(line, ok)
}

// told is when the holder first had a reason to stop; 0 if it never had.
func (tr *trial) told() time.Duration {
	if tr.paused > 0 && (tr.lost == 0 || tr.paused < tr.lost) {
		return tr.paused
	}
	return tr.lost
}

// goOn finds out what becomes of the lock object: it is released, the rival has the lock and releases it, and it is
// taken again.
func (tr *trial) goOn(t *testing.T) {
	t.Helper()
	at := report.Now()
	commandf(t, tr.holder.Peer, "release %s", tr.path)
	line, ok := tr.holder.within(20*time.Second, at, report.Released, report.Failed)
	tr.afterwards = "release: " + outcome(line, ok)
	if _, ok := tr.rival.within(20*time.Second, tr.begun, report.Acquired); ok {
		commandf(t, tr.rival.Peer, "release %s", tr.path)
	} else {
		tr.afterwards += "; the rival has nothing"
	}
	at = report.Now()
	commandf(t, tr.holder.Peer, "acquire %s 20000", tr.path)
	line, ok = tr.holder.within(30*time.Second, at, report.Acquired, report.TimedOut, report.Failed)
	tr.afterwards += "; again: " + outcome(line, ok)
}

// longestOutcome is how much of an error goes into the table.
const longestOutcome = 60

func outcome(line peers.Line, found bool) string {
	if !found {
		return "nothing"
	}
	if line.Event != report.Failed && line.Event != report.TimedOut {
		return "ok"
	}
	if len(line.Error) > longestOutcome {
		line.Error = strings.ToValidUTF8(line.Error[:longestOutcome], "") + "…"
	}
	return strings.TrimSpace(string(line.Event) + " " + line.Error)
}

// String is the cell of the table.
func (tr *trial) String() string {
	if tr.stopped {
		return fmt.Sprintf("rival %s; told %s after it went on", sec(tr.taken), sec(tr.told()-time.Duration(tr.ended-tr.begun)))
	}
	if tr.told() == 0 && tr.taken == 0 {
		return "told nothing; keeps its lock"
	}
	if tr.taken == 0 && tr.lost == 0 {
		return fmt.Sprintf("told to pause %s, to go on %s; keeps its lock", sec(tr.paused), sec(tr.resumed))
	}
	text := fmt.Sprintf("told to pause %s, lost %s; rival %s", sec(tr.paused), sec(tr.lost), sec(tr.taken))
	switch overlap := tr.overlap(); {
	case tr.taken == 0:
	case overlap > 0:
		text += fmt.Sprintf(": **two holders for %.2f s**", overlap.Seconds())
	default:
		text += fmt.Sprintf(": nobody for %.2f s", (tr.taken - tr.told()).Seconds())
	}
	return text
}

func sec(d time.Duration) string {
	if d == 0 {
		return "never"
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}

// overlap is how long the rival had the lock before the holder was told anything, as far as the run shows.
func (tr *trial) overlap() time.Duration {
	if tr.taken == 0 {
		return 0
	}
	told := tr.told()
	if told == 0 {
		told = time.Duration(tr.ended - tr.begun)
	}
	return max(0, told-tr.taken)
}

// bars draw the trial.
func (tr *trial) bars(row int, until time.Duration) []figures.Bar {
	told, lost := tr.told(), tr.lost
	if told == 0 {
		told = until
	}
	if lost == 0 {
		lost = until
	}
	bars := []figures.Bar{{Row: 2 * row, From: -time.Second, Till: min(told, until), State: figures.Holds}}
	if tr.lost == 0 && tr.resumed > told {
		bars = append(bars, figures.Bar{Row: 2 * row, From: told, Till: min(tr.resumed, until), State: figures.Doubts},
			figures.Bar{Row: 2 * row, From: min(tr.resumed, until), Till: until, State: figures.Holds})
	} else if lost = min(lost, until); lost > told {
		bars = append(bars, figures.Bar{Row: 2 * row, From: told, Till: lost, State: figures.Doubts})
	}
	if tr.taken > 0 {
		bars = append(bars, figures.Bar{Row: 2*row + 1, From: tr.taken, Till: until, State: figures.Rival})
	}
	return bars
}

// awaitQueue waits until every rival stands in its queue.
func awaitQueues(ctx context.Context, t *testing.T, cluster *zkcluster.Cluster, trials []*trial) {
	t.Helper()
	conn := observe(t, cluster.Addrs())
	for _, tr := range trials {
		for {
			children, _, err := conn.Children(tr.path)
			must(t, "children", err)
			if len(children) == 2 {
				break
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				t.Fatalf("%s: %v at %s, want two nodes", tr.library, children, tr.path)
			}
		}
	}
}
