package peers_test

import (
	"context"
	"errors"
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

// place is where a scene is made.
type place struct {
	cluster *zkcluster.Cluster
	at      *zkcluster.Server // the holders are connected to it, and may go to any other
	rivals  *zkcluster.Server // the rivals have only this one; neither it nor at is the leader
	trials  []*trial
}

// begin makes a fault. What it returns ends it.
type begin func(ctx context.Context, p place) (end func(context.Context) error, err error)

// scene is one kind of fault, made under the holders of all libraries at the same moment.
type scene struct {
	name   string
	figure string // the name of its time line; "" for none
	long   time.Duration
	is     expectation
	stops  bool // the holder's process is stopped
	extra  bool // only with -everything
	begin  begin
}

// expectation is what zklock is to make of a fault.
type expectation int

const (
	told   expectation = iota // it loses its lock, and is told before the rival has it
	keeps                     // it keeps its lock
	either                    // it keeps its lock, or is told before the rival has it
	late                      // it loses its lock, and can be told only afterwards
)

// lines does something to every line between the holders and the servers, and something else to end it.
func lines(begin, end func(*zkproxy.Proxy)) begin {
	return func(_ context.Context, p place) (func(context.Context) error, error) {
		for _, tr := range p.trials {
			tr.each(begin)
		}
		return func(context.Context) error {
			for _, tr := range p.trials {
				tr.each(end)
			}
			return nil
		}, nil
	}
}

// server does something to the holders' server, which Heal ends.
func server(f func(*zkcluster.Server, context.Context) error) begin {
	return func(ctx context.Context, p place) (func(context.Context) error, error) {
		return p.at.Heal, f(p.at, ctx)
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

func over(context.Context) error { return nil }

// expired ends the holders' sessions from elsewhere.
func expired(ctx context.Context, p place) (func(context.Context) error, error) {
	var wg sync.WaitGroup
	errs := make([]error, len(p.trials))
	for i, tr := range p.trials {
		wg.Go(func() {
			for _, line := range tr.proxies {
				for _, c := range line.Snapshot().Conns {
					if c.Open && c.Session != 0 {
						errs[i] = expire.Session(ctx, p.rivals.Addr(), c.Greeting)
					}
				}
			}
		})
	}
	wg.Wait()
	for i, tr := range p.trials {
		if errs[i] != nil {
			return nil, fmt.Errorf("%s: %w", tr.library, errs[i])
		}
	}
	return over, nil
}

// slowWrites is how long a write to a disk takes at most where disks are slow.
const slowWrites = 3 * time.Second

// slowDisks slows the leader and the holders' server, so that a quorum has one of them.
func slowDisks(ctx context.Context, p place) (func(context.Context) error, error) {
	leader, err := p.cluster.Leader(ctx)
	if err != nil {
		return nil, err
	}
	first, err := leader.SlowDisk(ctx, slowWrites)
	if err != nil {
		return nil, err
	}
	second, err := p.at.SlowDisk(ctx, slowWrites)
	if err != nil {
		return nil, errors.Join(err, first())
	}
	return func(context.Context) error { return errors.Join(first(), second()) }, nil
}

var scenes = []scene{
	{
		name: "The holder's server is cut off from the other servers for 17 s", figure: "server-cut-off", long: 17 * time.Second, is: either,
		begin: server((*zkcluster.Server).CutPeers),
	},
	{
		name: "The holder's server does not hear the other servers for 17 s", figure: "server-deaf", long: 17 * time.Second, is: either, extra: true,
		begin: server((*zkcluster.Server).DeafenPeers),
	},
	{
		name: "The holder's server is stopped for 17 s", figure: "server-stopped", long: 17 * time.Second, is: either, extra: true,
		begin: server((*zkcluster.Server).Pause),
	},
	{
		name: "The holder's server is killed, and started after 17 s", figure: "server-killed", long: 17 * time.Second, is: keeps, extra: true,
		begin: server((*zkcluster.Server).Kill),
	},
	{
		name: "The leader, which is another server, is killed, and started after 17 s", figure: "leader-killed", long: 17 * time.Second, is: either, extra: true,
		begin: func(ctx context.Context, p place) (func(context.Context) error, error) {
			leader, err := p.cluster.Leader(ctx)
			if err != nil {
				return nil, err
			}
			return leader.Heal, leader.Kill(ctx)
		},
	},
	{
		name: "One server after the other is restarted, the leader last", figure: "rolling-restart", is: either, extra: true,
		begin: func(ctx context.Context, p place) (func(context.Context) error, error) {
			return over, p.cluster.RollingRestart(ctx)
		},
	},
	{
		name: "Writes take up to 3 s on the disks of two servers, for 17 s", figure: "slow-disks", long: 17 * time.Second, is: either, extra: true,
		begin: slowDisks,
	},
	{
		name: "The holder is cut off from all servers for 17 s, without a word", figure: "client-cut-off", long: 17 * time.Second,
		begin: lines(func(p *zkproxy.Proxy) { p.Hold(zkproxy.ToServer); p.Hold(zkproxy.ToClient) },
			func(p *zkproxy.Proxy) { p.Pass(zkproxy.ToServer); p.Pass(zkproxy.ToClient) }),
	},
	{
		name: "Only what the holder sends is lost, for 17 s", figure: "uplink-stalled", long: 17 * time.Second,
		begin: lines(func(p *zkproxy.Proxy) { p.Hold(zkproxy.ToServer) }, func(p *zkproxy.Proxy) { p.Pass(zkproxy.ToServer) }),
	},
	{
		name: "Only what the holder is sent is lost, for 17 s", figure: "downlink-stalled", long: 17 * time.Second, extra: true,
		begin: lines(func(p *zkproxy.Proxy) { p.Hold(zkproxy.ToClient) }, func(p *zkproxy.Proxy) { p.Pass(zkproxy.ToClient) }),
	},
	{
		name: "The holder's session is ended by another connection", long: 8 * time.Second, is: late, extra: true,
		begin: expired,
	},
	{
		name: "The holder's process is stopped for 15 s", long: 15 * time.Second, is: late, stops: true, extra: true,
		begin: func(ctx context.Context, p place) (func(context.Context) error, error) {
			return func(ctx context.Context) error { return signal(ctx, p.trials, syscall.SIGCONT) }, signal(ctx, p.trials, syscall.SIGSTOP)
		},
	},
	{
		name: "The holder's connection is lost for 0.5 s", long: 500 * time.Millisecond, is: keeps,
		begin: lines(func(p *zkproxy.Proxy) { p.Refuse(true); p.Cut() }, func(p *zkproxy.Proxy) { p.Refuse(false) }),
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
	p := place{cluster: cluster, at: followers[0], rivals: followers[1]}
	for _, library := range peers.Libraries {
		tr := newTrial(t, library, cluster, p.at, p.rivals)
		tr.stopped = sc.stops
		p.trials = append(p.trials, tr)
	}
	awaitQueues(ctx, t, cluster, p.trials)
	time.Sleep(2 * time.Second) // a heartbeat of each: other libraries tell nobody of theirs

	begun := report.Now()
	for _, tr := range p.trials {
		tr.begun = begun
	}
	end, err := sc.begin(ctx, p)
	must(t, sc.name, err)
	healAt := time.Now().Add(sc.long)
	var asking sync.WaitGroup
	for _, tr := range p.trials {
		asking.Go(func() { tr.askWhenTaken(sc.long) })
	}
	time.Sleep(time.Until(healAt))
	ended := report.Now()
	must(t, "heal", end(ctx))
	for _, tr := range p.trials {
		tr.ended = ended
	}
	asking.Wait()
	must(t, "quorum", cluster.WaitQuorum(ctx))
	time.Sleep(settle)
	for _, tr := range p.trials {
		tr.collect()
		tr.goOn(t)
	}
	return p.trials
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
			long := time.Duration(trials[0].ended - trials[0].begun)
			for i, tr := range trials {
				t.Logf("%-12s %v; believed then: %q; %s", tr.library, tr, tr.believed, tr.afterwards)
				cells += fmt.Sprintf(" %v |", tr)
				after += " " + strings.ReplaceAll(tr.afterwards, "|", `\|`) + " |"
				rows = append(rows, string(tr.library)+": holder", "rival")
				bars = append(bars, tr.bars(i, long)...)
				if tr.library != peers.Zklock && tr.overlap() > 0 {
					overlaps++
				}
			}
			table.WriteString(cells + "\n" + after + "\n")
			ours := trials[len(trials)-1]
			sc.demand(t, ours, server)
			if sc.figure != "" {
				bars = append(bars, figures.Bar{Till: long, State: figures.Faulted})
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
	kept := ours.taken == 0 && ours.lost == 0
	switch {
	case kept && (sc.is == keeps || sc.is == either):
	case sc.is == keeps:
		t.Errorf("zklock did not keep its lock: %v", ours)
	case ours.lost == 0 || ours.taken == 0 && sc.is != either:
		t.Errorf("zklock: %v; the rival was to have the lock, and the holder to be told", ours)
	case ours.taken == 0: // it gave up what it could not be sure of, and the rival had to wait for more
	case sc.is == late:
	case ours.lost > ours.taken:
		t.Errorf("zklock: the rival had the lock before the holder was told: %v", ours)
	default:
		figures.Record(t, sc.name, version, figures.Lead, ours.taken-ours.lost)
	}
	if !strings.HasSuffix(ours.afterwards, "again: ok") {
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
