package peers_test

import (
	"testing"
	"time"

	"github.com/go-zklock/zklock/integration/internal/report"
	"github.com/go-zklock/zklock/integration/peers"
)

// states counts what the lines of one command say, until it has finished.
func states(t *testing.T, p *peers.Peer, event report.Event) map[string]int {
	t.Helper()
	counts := make(map[string]int)
	for {
		l := next(t, p, event, report.Finished)
		if l.Event == report.Finished {
			return counts
		}
		if l.Asked == 0 || l.Done < l.Asked {
			t.Errorf("%s: %s asked at %d and done at %d", p.Library, event, l.Asked, l.Done)
		}
		counts[l.State]++
	}
}

// The commands for measuring do with every library what they say.
func TestCommandsForMeasuring(t *testing.T) {
	cluster := ensemble.Get(t)
	options := peers.Options{Servers: cluster.ConnectString(), Timeout: 30 * time.Second, CuratorNames: true}
	holder := start(t, peers.Zklock, options)
	held := uniquePath()
	commandf(t, holder, "acquire %s 0", held)
	next(t, holder, report.Acquired)
	for _, library := range peers.Libraries {
		p := start(t, library, options)
		commandf(t, p, "cycle %s 5 3 7", uniquePath())
		if n := states(t, p, report.Grant)[""]; n != 7 {
			t.Errorf("%s: cycle made %d grants, want 7", library, n)
		}
		if library != peers.GoZooKeeper { // it has no such call
			commandf(t, p, "try %s 3", held)
			if got := states(t, p, report.Tried); got["held"] != 3 || len(got) != 1 {
				t.Errorf("%s: try on a held lock: %v, want held 3 times", library, got)
			}
			commandf(t, p, "try %s 3", uniquePath())
			if got := states(t, p, report.Tried); got["acquired"] != 3 || len(got) != 1 {
				t.Errorf("%s: try on a free lock: %v, want acquired 3 times", library, got)
			}
		}
		commandf(t, p, "guard %s 0 4 6", uniquePath())
		if got := states(t, p, report.Guarded); got["ran"] != 4 || got["replayed"] != 2 {
			t.Errorf("%s: guard on 4 keys, 6 times: %v, want 4 ran and 2 replayed", library, got)
		}
		commandf(t, p, "acquire %s 0", held)
		commandf(t, p, "loop %s 1 0", held)
		var status peers.Line
		for status.Waiting == 0 { // there is no event for a call that has begun
			commandf(t, p, "status")
			status = next(t, p, report.Status)
		}
		if status.Memory <= 0 {
			t.Errorf("%s: it says that it uses %d bytes", library, status.Memory)
		}
	}
}
