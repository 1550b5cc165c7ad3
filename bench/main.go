// Bench measures zklock side by side with Curator's InterProcessMutex, kazoo's Lock and go-zookeeper's Lock on the same
// three real servers, writes RESULTS.md and a picture, and says which budgets are met. It needs Docker and, since it
// compiles the programs that it measures, Go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-zklock/zklock/bench/internal/cases"
	"github.com/go-zklock/zklock/bench/internal/figure"
	"github.com/go-zklock/zklock/bench/internal/result"
	"github.com/go-zklock/zklock/bench/internal/rig"
	"github.com/go-zklock/zklock/bench/requests"
	"github.com/go-zklock/zklock/integration/peers"
)

const picture = "waiters.png"

func main() {
	short := flag.Bool("short", false, "one short round of everything, whose figures mean nothing; fails if one is missing")
	out := flag.String("out", ".", "folder for RESULTS.md and the picture")
	command := flag.String("command", "go run .", "what RESULTS.md says that it was written by")
	only := flag.String("only", "", "the IDs of the only cases to measure, separated by commas; then nothing is written")
	flag.Parse()
	log.SetFlags(log.Ltime)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	size := cases.Full
	if *short {
		size = cases.Short
	}
	if err := bench(ctx, size, *out, *command, *only); err != nil {
		log.Print(err)
		stop()
		os.Exit(1) //nolint:gocritic // stop was called
	}
}

func bench(ctx context.Context, size cases.Size, out, command, only string) (err error) {
	report := &result.Report{
		Command: command, Begun: time.Now(), Machine: result.Machine(), Go: runtime.Version(), Size: size,
		Counted: make(map[string][]cases.Crowd), Requests: requests.Table, Picture: picture,
	}
	report.Loads[0] = result.Load()
	log.Print("starting the servers")
	r, err := rig.New(ctx, log.Printf)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if report.Server, err = r.Version(ctx); err != nil {
		return err
	}
	if report.Versions, err = r.Kit.Versions(ctx); err != nil {
		return err
	}
	if err := sideBySide(ctx, r, size, report, only); err != nil {
		return err
	}
	if only != "" {
		return result.Cases(os.Stdout, report)
	}
	if err := alone(ctx, r, size, report); err != nil {
		return err
	}
	report.Took, report.Loads[1] = time.Since(report.Begun), result.Load()
	if err := report.Complete(); err != nil {
		return err
	}
	if err := figure.Write(filepath.Join(out, picture), report.Crowds); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(out, "RESULTS.md"))
	if err != nil {
		return err
	}
	if err := errors.Join(report.Write(f), f.Close()); err != nil {
		return err
	}
	log.Printf("wrote %s in %s", f.Name(), report.Took.Round(time.Second))
	if size.Rounds == cases.Short.Rounds {
		return nil // they would say nothing
	}
	for _, b := range result.Budgets(report) {
		for _, v := range []result.Verdict{b.Requests, b.Peer, b.Limit} {
			if v.Asked != "" && !v.Met {
				log.Printf("not met: %s: %s: %s", b.Case, v.Asked, v.Found)
			}
		}
	}
	return nil
}

// sideBySide measures what all libraries do in turns.
func sideBySide(ctx context.Context, r *rig.Rig, size cases.Size, report *result.Report, only string) error {
	fresh, replay := cases.Dedup(size)
	freshTogether, replayTogether := cases.DedupTogether(size)
	all := []*cases.Case{
		cases.Warm(size), cases.Fresh(size), cases.Try(size),
		cases.HandOver(size, 1), cases.HandOver(size, size.Processes),
		cases.Workers(size, size.Workers), cases.Workers(size, size.ManyKeys),
		fresh, replay, freshTogether, replayTogether, cases.Duplicates(size),
	}
	groups := make(map[int]map[peers.Library]*rig.Group)
	for _, c := range all {
		if only != "" && !slices.Contains(strings.Split(only, ","), c.ID) {
			continue
		}
		processes := max(c.Processes, 1)
		if groups[processes] == nil {
			log.Printf("starting %d process(es) of each library", processes)
			groups[processes] = make(map[peers.Library]*rig.Group)
			for _, library := range peers.Libraries {
				g, err := r.Start(ctx, library, processes)
				if err != nil {
					return fmt.Errorf("starting %s: %w", library, err)
				}
				groups[processes][library] = g
			}
		}
		res, err := c.Run(ctx, r, groups[processes])
		if err != nil {
			return err
		}
		log.Printf("%s: done; zklock is at %.2f of %s, and at %.2f of the limit", c.Title, res.AgainstBest(peers.Zklock), res.Best(), res.AgainstLimit(peers.Zklock))
		report.Results = append(report.Results, res)
		if processes > 1 { // they are not needed again
			for library, g := range groups[processes] {
				if err := g.Close(); err != nil {
					return fmt.Errorf("ending %s: %w", library, err)
				}
			}
			delete(groups, processes)
		}
	}
	for _, processes := range []int{1, size.Processes} {
		id := "handover-1"
		if processes > 1 {
			id = "handover-many"
		}
		if only != "" && !slices.Contains(strings.Split(only, ","), id) {
			continue
		}
		counted, err := cases.CountedHandOvers(ctx, r, size, processes)
		if err != nil {
			return err
		}
		report.Counted[id] = counted
		log.Printf("counted the requests of hand-overs in %d process(es)", processes)
	}
	return nil
}

// alone measures what is not done in turns.
func alone(ctx context.Context, r *rig.Rig, size cases.Size, report *result.Report) (err error) {
	if report.Crowds, err = cases.Crowds(ctx, r, size, log.Printf); err != nil {
		return err
	}
	if report.Idle, err = cases.IdleLeases(ctx, r, size); err != nil {
		return err
	}
	log.Print("idle processes: done")
	report.Keys, err = cases.ManyKeys(ctx, size)
	return err
}
