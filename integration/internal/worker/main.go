// Worker is a process that uses zklock, for tests that stop it, kill it, or run several of it. It reports on
// standard output and ends when its standard input does.
//
//	worker -mode hold    takes all locks, keeps them, and writes to stores when a line comes in
//	worker -mode contend takes the locks in turn with others
//	worker -mode guard   claims a key of package dedup, and finishes the work when a line comes in
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"go.uber.org/goleak"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/integration/internal/report"
)

type worker struct {
	client     *zklock.Client
	paths      []string
	out        *report.Writer
	in         *bufio.Scanner
	store      string
	work       time.Duration
	goroutines int
	grants     int
	hold       time.Duration
}

func main() {
	w := &worker{out: report.NewWriter(os.Stdout), in: bufio.NewScanner(os.Stdin)}
	mode := flag.String("mode", "", "hold, contend or guard")
	servers := flag.String("servers", "", "connect string")
	paths := flag.String("paths", "", "lock paths, separated by commas")
	timeout := flag.Duration("timeout", 0, "session timeout")
	tick := flag.Duration("tick", 2*time.Second, "the ensemble's tick")
	flag.StringVar(&w.store, "store", "", "hold: URL of the stores")
	flag.DurationVar(&w.work, "work", 0, "hold: how long the work between gate and write takes")
	flag.IntVar(&w.goroutines, "goroutines", 1, "contend: how many take locks")
	flag.IntVar(&w.grants, "grants", 1, "contend: how many acquisitions to make")
	flag.DurationVar(&w.hold, "hold", 0, "contend: how long a lock is held at most")
	patience := flag.Duration("patience", 3*time.Minute, "bound of every wait that should end long before")
	flag.Parse()
	w.paths = strings.Split(*paths, ",")

	ctx, cancel := context.WithTimeout(context.Background(), *patience)
	defer cancel()
	run := map[string]func(context.Context) error{"hold": w.holdAll, "contend": w.contend, "guard": w.guard}[*mode]
	if run == nil {
		w.fail(fmt.Errorf("unknown mode %q", *mode))
	}
	var err error
	w.client, err = zklock.Connect(ctx, zklock.Config{
		Servers: []string{*servers}, SessionTimeout: *timeout, TickTime: *tick,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		w.fail(err)
	}
	if err := run(ctx); err != nil {
		w.fail(err)
	}
	w.out.Line(report.Line{Event: report.Finished})
	for w.in.Scan() { // until the test has looked at what is left at the ensemble
	}
	if err := w.client.Close(); err != nil {
		w.fail(err)
	}
	if err := goleak.Find(); err != nil {
		w.fail(err)
	}
	w.out.Line(report.Line{Event: report.Closed})
}

// fail reports err and ends the process.
func (w *worker) fail(err error) {
	w.out.Line(report.Line{Event: report.Failed, Error: err.Error()})
	fmt.Fprintln(os.Stderr, "worker:", err)
	os.Exit(1)
}

// command waits for a line; it returns io.EOF at the end of the input.
func (w *worker) command() (string, error) {
	if w.in.Scan() {
		return w.in.Text(), nil
	}
	if err := w.in.Err(); err != nil {
		return "", err
	}
	return "", io.EOF
}
