// Package result writes what was measured down.
package result

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/go-zklock/zklock/bench/internal/cases"
	"github.com/go-zklock/zklock/bench/internal/stat"
	"github.com/go-zklock/zklock/integration/peers"
)

// Report is a whole run.
type Report struct {
	Command  string
	Begun    time.Time
	Took     time.Duration
	Loads    [2]string // at the beginning and at the end
	Machine  string
	Go       string
	Server   string
	Versions map[peers.Library]string
	Size     cases.Size

	Results  []cases.Result
	Counted  map[string][]cases.Crowd // by the ID of the case
	Crowds   []cases.Crowd
	Idle     []cases.Idle
	Keys     []string
	Requests string // the table of package requests
	Picture  string // file name
}

// Write writes the report as Markdown.
func (r *Report) Write(w io.Writer) error {
	p := &printer{w: w}
	p.printf("# Results\n\n")
	p.printf("Written by `%s` on %s in %s. Numbers compare within this run only.\n\n", r.Command, r.Begun.UTC().Format("2006-01-02"), r.Took.Round(time.Second))
	p.printf("- Machine: %s; everything ran on it, the servers too. Load: %s at the beginning, %s at the end.\n", r.Machine, r.Loads[0], r.Loads[1])
	p.printf("- ZooKeeper %s, three servers in containers, which do not wait for the disk (forceSync=no). So a write is cheap here and what a client adds to it shows.\n", r.Server)
	p.printf("- Curator %s (Java 17), kazoo %s, go-zookeeper's Lock %s, zklock as in this repository; %s.\n", r.Versions[peers.Curator], r.Versions[peers.Kazoo], r.Versions[peers.GoZooKeeper], r.Go)
	p.printf("- One process of each library, all on one follower, unless there are more; rounds alternate between the libraries and the limit. The first round of each is left out.\n")
	p.printf("- The limit is what a committed write (`multi{check}`) and a local read take through go-zookeeper's client on the same server, with no recipe around them.\n")
	p.printf("- Bare is what zklock sends, one request after the other through the same client as the limit, with nothing around it: what a recipe of these requests costs, and what is left is zklock's own.\n")
	p.printf("- CPU each is the processor time of the library's processes for one operation, without that of the servers.\n\n")

	p.printf("## Budgets\n\n")
	p.printf("| case | requests | against the best peer | against the limit |\n|---|---|---|---|\n")
	for _, b := range Budgets(r) {
		p.printf("| %s | %s | %s | %s |\n", b.Case, cell(b.Requests), cell(b.Peer), cell(b.Limit))
	}
	p.printf("\nIn bold: not met. Against a peer, a time is better if it is less, and a rate if it is more. Ratios are of medians, within each round, and of those the median, since a machine does not stay as it is from round to round.\n")

	for _, res := range r.Results {
		r.writeCase(p, res)
	}
	r.writeCrowds(p)
	r.writeIdle(p)
	p.printf("\n## Keys of dedup\n\nThe keys of one day, one after the other, then their sweep, against the server of package zktest in virtual time. What is given is processor time of client and server together; the sweep has up to 16 buckets for each quarter of an hour of the day, which weighs on few keys.\n\n")
	for _, line := range r.Keys {
		p.printf("- %s\n", line)
	}
	p.printf("\n## Requests by kind\n\nExact, counted by the server of package zktest; a test holds this table fixed.\n\n%s", r.Requests)
	return p.err
}

func (r *Report) writeCase(p *printer, res cases.Result) {
	p.printf("\n## %s\n\n", res.Title)
	if res.Note != "" {
		p.printf("%s\n\n", res.Note)
	}
	counted := r.Counted[res.ID]
	p.printf("| | p50 | p99 |%s × limit | × best peer | CPU each |%s\n|---|---|---|%s---|---|---|%s\n", when(res.ByRate, " a second |"),
		when(counted != nil, " writes, reads each | nodes |"), when(res.ByRate, "---|"), when(counted != nil, "---|---|"))
	for _, who := range res.Participants() {
		f := res.Of[who]
		name := string(who)
		against := ""
		if who != cases.Limit && who != cases.Bare || !res.ByRate || f.Rate > 0 {
			against = stat.Times(res.AgainstBest(who))
		}
		if who == cases.Limit {
			name = "limit: " + res.LimitIs
		} else if who == cases.Bare {
			name = "bare: " + res.BareIs
		}
		rate := ""
		if f.Rate > 0 {
			rate = fmt.Sprintf(" %.0f", f.Rate)
		}
		p.printf("| %s | %s | %s |%s %s | %s | %s |", name, stat.Milliseconds(f.P50), stat.Milliseconds(f.P99),
			when(res.ByRate, rate+" |"), stat.Times(res.AgainstLimit(who)), against, stat.Milliseconds(f.CPU))
		if counted != nil {
			text := " | |"
			for _, c := range counted {
				if c.Library == who {
					text = fmt.Sprintf(" %.2f, %.2f | %d |", c.Writes, c.Reads, c.Nodes)
				}
			}
			p.printf("%s", text)
		}
		p.printf("\n")
	}
}

func (r *Report) writeCrowds(p *printer) {
	p.printf("\n## Many waiters on one path, in one process\n\n")
	if r.Picture != "" {
		p.printf("![Hand-over time and requests against the number of waiters](%s)\n\n", r.Picture)
	}
	p.printf("Memory is what a waiter adds: of a Go program its heap and stacks after a collection, of the others what is resident. The peers were tried with up to %d waiters.\n\n",
		r.Size.Crowds[len(r.Size.Crowds)-1])
	p.printf("| waiters | | hand-over p50 | p99 | writes each | reads each | watch events each | most nodes | memory a waiter |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, c := range r.Crowds {
		p.printf("| %d | %s | %s | %s | %.2f | %.2f | %.2f | %d | %.1f KiB |\n", c.Waiters, c.Library, stat.Milliseconds(c.P50), stat.Milliseconds(c.P99),
			c.Writes, c.Reads, c.Events, c.Nodes, float64(c.Memory)/1024)
	}
}

func (r *Report) writeIdle(p *printer) {
	p.printf("\n## Leases held by an idle process\n\nFor %d s, all processes at the same time. Others are the client's reads, syncs and pings.\n\n", r.Size.IdleFor)
	p.printf("| leases | proofs a second | other requests a second | of a core |\n|---|---|---|---|\n")
	for _, i := range r.Idle {
		p.printf("| %d | %.2f | %.2f | %.2f %% |\n", i.Leases, i.Proofs, i.Others, 100*i.CPU)
	}
}

func when(yes bool, text string) string {
	if yes {
		return text
	}
	return ""
}

// printer keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

// cell is one entry of the table of budgets.
func cell(v Verdict) string {
	switch {
	case v.Asked == "":
		return ""
	case v.Met:
		return v.Asked + ": " + v.Found
	default:
		return "**" + v.Asked + ": " + strings.TrimSpace(v.Found) + "**"
	}
}

// Cases writes the tables of the cases only.
func Cases(w io.Writer, r *Report) error {
	p := &printer{w: w}
	for _, res := range r.Results {
		r.writeCase(p, res)
	}
	return p.err
}
