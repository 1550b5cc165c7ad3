package peers_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-zklock/zklock/integration/internal/expire"
	"github.com/go-zklock/zklock/integration/internal/figures"
	"github.com/go-zklock/zklock/integration/internal/report"
	"github.com/go-zklock/zklock/integration/peers"
	"github.com/go-zklock/zklock/integration/zkcluster"
	"github.com/go-zklock/zklock/integration/zkproxy"
)

// everything runs all scenes. Without it the partitions that differ most and a short disconnect are run.
var everything = flag.Bool("everything", false, "run all scenes of TestLibrariesUnderFaults")

// scene is one kind of fault, made under the holders of all libraries at the same moment.
type scene struct {
	name   string
	figure string // the name of its time line; "" for none
	long   time.Duration
	keeps  bool // the holder is to keep its lock
	stops  bool // the holder's process is stopped
	extra  bool // only with -everything
	begin  func(ctx context.Context, at, other *zkcluster.Server, trials []*trial) error
	end    func(ctx context.Context, at *zkcluster.Server, trials []*trial) error
}

// each does something to every line between the holders and the servers, to begin a fault.
func each(f func(*zkproxy.Proxy)) func(context.Context, *zkcluster.Server, *zkcluster.Server, []*trial) error {
	return func(_ context.Context, _, _ *zkcluster.Server, trials []*trial) error {
		for _, tr := range trials {
			tr.each(f)
		}
		return nil
	}
}

// healed does so to end one.
func healed(f func(*zkproxy.Proxy)) func(context.Context, *zkcluster.Server, []*trial) error {
	return func(_ context.Context, _ *zkcluster.Server, trials []*trial) error {
		for _, tr := range trials {
			tr.each(f)
		}
		return nil
	}
}

// signal sends a signal to every holder's process.
func signal(ctx context.Context, trials []*trial, sig syscall.Signal) error {
	for _, tr := range trials {
		if err := tr.holder.Signal(ctx, sig); err != nil {
			return fmt.Errorf("%s: %w", tr.library, err)
		}
	}
	return nil
}

func nothing(context.Context, *zkcluster.Server, []*trial) error { return nil }

var scenes = []scene{
	{
		name: "The holder's server is cut off from the other servers for 17 s", figure: "server-cut-off", long: 17 * time.Second,
		begin: func(ctx context.Context, at, _ *zkcluster.Server, _ []*trial) error { return at.CutPeers(ctx) },
		end:   func(ctx context.Context, at *zkcluster.Server, _ []*trial) error { return at.HealPeers(ctx) },
	},
	{
		name: "The holder is cut off from all servers for 17 s, without a word", figure: "client-cut-off", long: 17 * time.Second,
		begin: each(func(p *zkproxy.Proxy) { p.Hold(zkproxy.ToServer); p.Hold(zkproxy.ToClient) }),
		end:   healed(func(p *zkproxy.Proxy) { p.Pass(zkproxy.ToServer); p.Pass(zkproxy.ToClient) }),
	},
	{
		name: "Only what the holder sends is lost, for 17 s", figure: "uplink-stalled", long: 17 * time.Second,
		begin: each(func(p *zkproxy.Proxy) { p.Hold(zkproxy.ToServer) }),
		end:   healed(func(p *zkproxy.Proxy) { p.Pass(zkproxy.ToServer) }),
	},
	{
		name: "Only what the holder is sent is lost, for 17 s", figure: "downlink-stalled", long: 17 * time.Second, extra: true,
		begin: each(func(p *zkproxy.Proxy) { p.Hold(zkproxy.ToClient) }),
		end:   healed(func(p *zkproxy.Proxy) { p.Pass(zkproxy.ToClient) }),
	},
	{
		name: "The holder's session is ended by another connection", long: 8 * time.Second, extra: true,
		begin: func(ctx context.Context, _, other *zkcluster.Server, trials []*trial) error {
			var wg sync.WaitGroup
			errs := make([]error, len(trials))
			for i, tr := range trials {
				wg.Go(func() {
					for _, p := range tr.proxies {
						for _, c := range p.Snapshot().Conns {
							if c.Open && c.Session != 0 {
								errs[i] = expire.Session(ctx, other.Addr(), c.Greeting)
							}
						}
					}
				})
			}
			wg.Wait()
			for i, tr := range trials {
				if errs[i] != nil {
					return fmt.Errorf("%s: %w", tr.library, errs[i])
				}
			}
			return nil
		},
		end: nothing,
	},
	{
		name: "The holder's process is stopped for 15 s", long: 15 * time.Second, stops: true, extra: true,
		begin: func(ctx context.Context, _, _ *zkcluster.Server, trials []*trial) error {
			return signal(ctx, trials, syscall.SIGSTOP)
		},
		end: func(ctx context.Context, _ *zkcluster.Server, trials []*trial) error {
			return signal(ctx, trials, syscall.SIGCONT)
		},
	},
	{
		name: "The holder's connection is lost for 0.5 s", long: 500 * time.Millisecond, keeps: true,
		begin: each(func(p *zkproxy.Proxy) { p.Refuse(true); p.Cut() }),
		end:   healed(func(p *zkproxy.Proxy) { p.Refuse(false) }),
	},
}

// settle is how long the libraries have after a fault to tell what they still want to tell.
const settle = 5 * time.Second

func (sc scene) run(t *testing.T) []*trial {
	t.Helper()
	cluster := ensemble.Get(t)
	ctx := bounded(t)
	followers, err := cluster.Followers(ctx)
	must(t, "followers", err)
	leader, err := cluster.Leader(ctx)
	must(t, "leader", err)
	at := followers[0]
	var trials []*trial
	for _, library := range peers.Libraries {
		tr := newTrial(t, library, cluster, at, leader)
		tr.stopped = sc.stops
		trials = append(trials, tr)
	}
	awaitQueues(ctx, t, cluster, trials)
	time.Sleep(2 * time.Second) // a heartbeat of each: other libraries tell nobody of theirs

	begun := report.Now()
	for _, tr := range trials {
		tr.begun = begun
	}
	must(t, sc.name, sc.begin(ctx, at, leader, trials))
	healAt := time.Now().Add(sc.long)
	var asking sync.WaitGroup
	for _, tr := range trials {
		asking.Go(func() { tr.askWhenTaken(sc.long) })
	}
	time.Sleep(time.Until(healAt))
	ended := report.Now()
	must(t, "heal", sc.end(ctx, at, trials))
	for _, tr := range trials {
		tr.ended = ended
	}
	asking.Wait()
	must(t, "quorum", cluster.WaitQuorum(ctx))
	time.Sleep(settle)
	for _, tr := range trials {
		tr.collect()
		tr.goOn(t)
	}
	return trials
}

// The four libraries under the same faults at the same moment. Only of zklock is anything demanded; of the others it
// is written down. That the harness can see an overlap is shown by the first fault, under which each of them is known
// to have one.
func TestLibrariesUnderFaults(t *testing.T) {
	versions, err := kitOf(t).Versions(bounded(t))
	must(t, "versions", err)
	server, err := ensemble.Get(t).Server(0).Version(bounded(t))
	must(t, "version of the servers", err)
	table := &strings.Builder{}
	fmt.Fprintf(table, "ZooKeeper %s, three servers, tick 2 s, syncLimit 5, session timeout %v.\n\n| |", server, timeout)
	for _, library := range peers.Libraries {
		fmt.Fprintf(table, " %s %s |", library, versions[library])
	}
	table.WriteString("\n|---|" + strings.Repeat("---|", len(peers.Libraries)) + "\n")
	for _, sc := range scenes {
		if sc.extra && !*everything {
			continue
		}
		t.Run(sc.name, func(t *testing.T) {
			trials := sc.run(t)
			cells, after := "| "+sc.name+" |", "| … afterwards |"
			var rows []string
			var bars []figures.Bar
			overlaps := 0
			for i, tr := range trials {
				t.Logf("%-12s %v; believed then: %q; %s", tr.library, tr, tr.believed, tr.afterwards)
				cells += fmt.Sprintf(" %v |", tr)
				after += " " + strings.ReplaceAll(tr.afterwards, "|", `\|`) + " |"
				rows = append(rows, string(tr.library)+": holder", "rival")
				bars = append(bars, tr.bars(i, sc.long)...)
				if tr.library != peers.Zklock && tr.overlap() > 0 {
					overlaps++
				}
			}
			table.WriteString(cells + "\n" + after + "\n")
			ours := trials[len(trials)-1]
			sc.demand(t, ours, server)
			if sc.figure != "" {
				bars = append(bars, figures.Bar{Till: sc.long, State: figures.Faulted})
				figures.Timeline(t, sc.figure, sc.name+fmt.Sprintf(" (T = %v)", timeout), rows, bars)
			}
			if sc.figure == "server-cut-off" && overlaps == 0 {
				t.Error("no library overlaps: the harness does not show what it should")
			}
		})
	}
	if folder := figures.Folder(); folder != "" {
		must(t, "table", os.WriteFile(filepath.Join(folder, "comparison.md"), []byte(table.String()), 0o644)) //nolint:gosec // for everybody to read
	}
}

// demand checks zklock's part.
func (sc scene) demand(t *testing.T, ours *trial, version string) {
	t.Helper()
	switch {
	case sc.keeps && (ours.taken > 0 || ours.lost > 0):
		t.Errorf("zklock did not keep its lock: %v", ours)
	case sc.keeps:
	case ours.taken == 0 && ours.lost == 0 && sc.figure == "server-cut-off":
		// It has moved to another server in time.
	case ours.taken == 0 || ours.lost == 0:
		t.Errorf("zklock: %v; the rival was to have the lock, and the holder to be told", ours)
	case sc.figure == "":
		// A process that was stopped, or a session that was ended at the ensemble, can only be told afterwards.
	case ours.lost > ours.taken:
		t.Errorf("zklock: the rival had the lock before the holder was told: %v", ours)
	default:
		figures.Record(t, sc.name, version, figures.Lead, ours.taken-ours.lost)
	}
	if !sc.keeps && !strings.HasSuffix(ours.afterwards, "again: ok") {
		t.Errorf("zklock afterwards: %s", ours.afterwards)
	}
}

// odd are children that are nobody's lock nodes.
var odd = []string{"config", "größe", "lock", "_c_", "_c_x", "x-lock-abc", "0", "0000000000", "lock-", "-lock-", "__lock__"}

// F21: what one odd child does to each library. Only of zklock is anything demanded.
func TestOddChildren(t *testing.T) {
	cluster := ensemble.Get(t)
	observer := observe(t, cluster.Addrs())
	const limit = 3 * time.Second
	results := make(map[peers.Library][]string)
	var mu sync.Mutex
	var wg sync.WaitGroup
	running := make(map[peers.Library]*listener)
	for _, library := range peers.Libraries {
		running[library] = listen(start(t, library, peers.Options{Servers: cluster.ConnectString(), Timeout: 30 * time.Second}))
	}
	for library, p := range running {
		var paths []string
		for _, name := range odd {
			path := uniquePath()
			ensure(t, observer, path+"/"+name)
			paths = append(paths, path)
		}
		wg.Go(func() {
			for i, path := range paths {
				at := report.Now()
				if err := p.Command("acquire %s %d", path, limit.Milliseconds()); err != nil {
					t.Errorf("%s: %v", library, err)
					return
				}
				line, ok := p.within(4*limit, at, report.Acquired, report.TimedOut, report.Failed)
				mu.Lock()
				results[library] = append(results[library], fmt.Sprintf("%s: %s", odd[i], outcome(line, ok)))
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for _, library := range peers.Libraries {
		t.Logf("%-12s %s", library, strings.Join(results[library], "; "))
	}
	for _, result := range results[peers.Zklock] {
		if !strings.HasSuffix(result, ": ok") {
			t.Errorf("zklock beside %s", result)
		}
	}
}
