package peers_test

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/go-zklock/zklock/integration/internal/report"
	"github.com/go-zklock/zklock/integration/peers"
)

// turn is a grant, and whose it was.
type turn struct {
	peers.Line
	by peers.Library
}

// sequence is the number at the end of a node's name.
func (g turn) sequence() (int, error) {
	if len(g.Node) < 10 {
		return 0, fmt.Errorf("node %q of %s has no number", g.Node, g.by)
	}
	return strconv.Atoi(g.Node[len(g.Node)-10:])
}

// takeTurns lets the peers make so many grants each on one path, all at the same time, and returns all grants in the
// order in which they began.
func takeTurns(t *testing.T, all []*peers.Peer, path string, each int, hold time.Duration) []turn {
	t.Helper()
	for _, p := range all {
		commandf(t, p, "loop %s %d %d nodes", path, each, hold.Milliseconds())
	}
	var turns []turn
	for _, p := range all {
		for {
			l := next(t, p, report.Grant, report.Finished)
			if l.Event == report.Finished {
				break
			}
			turns = append(turns, turn{l, p.Library})
		}
	}
	slices.SortFunc(turns, func(a, b turn) int { return cmp.Compare(a.Got, b.Got) })
	return turns
}

// overlaps counts the grants that began before the one before had ended.
func overlaps(turns []turn) (n int, first string) {
	var end int64
	var holder peers.Library
	for _, g := range turns {
		if g.Got < end {
			if n++; n == 1 {
				first = fmt.Sprintf("%s was granted %v before %s let go", g.by, time.Duration(end-g.Got), holder)
			}
		}
		if g.End > end {
			end, holder = g.End, g.by
		}
	}
	return n, first
}

// checkTurns: nobody overlaps, and everybody is served in the order of the queue.
func checkTurns(t *testing.T, turns []turn, want int) {
	t.Helper()
	if len(turns) != want {
		t.Errorf("%d grants, want %d", len(turns), want)
	}
	if n, first := overlaps(turns); n > 0 {
		t.Errorf("%d overlaps; the first: %s", n, first)
	}
	last := -1
	changes := 0
	var gaps []time.Duration
	for i, g := range turns {
		seq, err := g.sequence()
		must(t, "sequence", err)
		if seq <= last {
			t.Errorf("%s was served with number %d after %d: out of turn", g.by, seq, last)
		}
		last = seq
		if i > 0 {
			gaps = append(gaps, time.Duration(g.Got-turns[i-1].End))
			if g.by != turns[i-1].by {
				changes++
			}
		}
	}
	slices.Sort(gaps)
	took := time.Duration(turns[len(turns)-1].End - turns[0].Got)
	t.Logf("%d grants in %v, %d of them from one library to another; hand-over %v (least), %v (median), %v (most)", len(turns),
		took.Round(time.Millisecond), changes, gaps[0], gaps[len(gaps)/2], gaps[len(gaps)-1])
	if changes < len(turns)/2 {
		t.Errorf("the lock went from one library to another %d times only", changes)
	}
}

// F21: four libraries take 2,000 turns on one path, none together and each in the order of the queue.
func TestFourLibrariesTakeTurns(t *testing.T) {
	const grants = 2000
	cluster := ensemble.Get(t)
	var all []*peers.Peer
	for _, library := range peers.Libraries {
		all = append(all, start(t, library, peers.Options{
			Servers: cluster.ConnectString(), Timeout: 30 * time.Second, CuratorNames: true,
		}))
	}
	checkTurns(t, takeTurns(t, all, uniquePath(), grants/len(all), time.Millisecond), grants)
	for _, p := range all {
		must(t, "finish", p.Finish(bounded(t)))
	}
}

// F21: the same beside children that are no contenders. go-zookeeper's Lock cannot take part, which is shown too.
func TestThreeLibrariesTakeTurnsBesideOddChildren(t *testing.T) {
	const grants = 600
	cluster := ensemble.Get(t)
	observer := observe(t, cluster.Addrs())
	path := uniquePath()
	// What sorts before a number would block Curator's recipe: see TestOddChildren.
	odd := []string{"config", "_c_x", "_c_", "lock", "größe", "x-lock-abc"}
	for _, name := range odd {
		ensure(t, observer, path+"/"+name)
	}
	var all []*peers.Peer
	for _, library := range []peers.Library{peers.Curator, peers.Kazoo, peers.Zklock} {
		all = append(all, start(t, library, peers.Options{
			Servers: cluster.ConnectString(), Timeout: 30 * time.Second, CuratorNames: true,
		}))
	}
	checkTurns(t, takeTurns(t, all, path, grants/len(all), time.Millisecond), grants)
	for _, name := range odd {
		if there, _, err := observer.Exists(path + "/" + name); err != nil || !there {
			t.Errorf("child %q is gone: %v", name, err)
		}
	}
}

// The control of the two above: with the names that kazoo gives its nodes by default, Curator does not see kazoo's
// holder, and the harness does.
func TestControlKazoosOwnNamesAreInvisibleToCurator(t *testing.T) {
	const grants = 100
	cluster := ensemble.Get(t)
	var all []*peers.Peer
	for _, library := range []peers.Library{peers.Curator, peers.Kazoo} {
		all = append(all, start(t, library, peers.Options{Servers: cluster.ConnectString(), Timeout: 30 * time.Second}))
	}
	n, first := overlaps(takeTurns(t, all, uniquePath(), grants/len(all), 5*time.Millisecond))
	t.Logf("%d of %d grants overlap; the first: %s", n, grants, first)
	if n == 0 {
		t.Error("no overlap: the tests above do not show what they should")
	}
}
