// Worker charges payments exactly once, however often their events are delivered and however many workers read them.
//
// It reads payment events, one JSON object a line, takes the lock of each event's idempotency key, and charges the
// key if nobody has. Charges go to a ledger file that takes part in fencing. Run it with -h for its flags, or just
//
//	go run ./examples/worker
//
// which starts a ZooKeeper server for tests in its own process and three workers. With -servers, any number of
// processes share the work:
//
//	go run ./examples/worker -servers zk1:2181,zk2:2181,zk3:2181 -ledger /var/tmp/ledger.jsonl
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/examples/worker/payments"
	"github.com/go-zklock/zklock/zktest"
)

// Exit codes.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2   // bad flags or bad events; nothing was charged
	exitInterrupted = 130 // by SIGINT or SIGTERM; what was charged is in the ledger
)

const usage = `Usage: worker [flags]

Charges payment events, each idempotency key once. An event is a line with one JSON object:

  {"key":"pay-7007","account":"acct-11","amount":5093,"currency":"USD"}

Log lines go to standard error and a summary to standard output.
Exit codes: 0 all keys are charged; 1 something failed; 2 bad flags or events, nothing was charged;
130 interrupted by SIGINT or SIGTERM, after what was under way had ended.

Flags:
`

type options struct {
	servers, ledger, events, metrics, name, root, logFormat string

	workers              int
	timeout, tick        time.Duration
	step, wire, linger   time.Duration
	skipMalformed, fence bool
}

func parseFlags(args []string, stderr io.Writer) (options, error) {
	var o options
	host, err := os.Hostname()
	if err != nil {
		host = "worker"
	}
	fs := flag.NewFlagSet("worker", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprint(stderr, usage)
		fs.PrintDefaults()
	}
	fs.StringVar(&o.servers, "servers", "", "the `ensemble`, zk1:2181,zk2:2181/chroot; empty: a server for tests in this process")
	fs.StringVar(&o.events, "events", "", "`file` with the events, - for standard input; empty: the file that ships with this program")
	fs.StringVar(&o.ledger, "ledger", "", "`file` that charges go to, shared by all processes; needed with -servers; empty: a new temporary file")
	fs.IntVar(&o.workers, "workers", 3, "workers in this process, each with a session of its own")
	fs.StringVar(&o.name, "name", fmt.Sprintf("%s-%d", host, os.Getpid()), "`name` of this process in logs, lock nodes and the ledger")
	fs.StringVar(&o.root, "root", "/dedup", "parent `path` of the locks")
	fs.StringVar(&o.metrics, "metrics", "127.0.0.1:0", "`address` to serve /metrics on; port 0: any free one; off: none")
	fs.DurationVar(&o.linger, "linger", 0, "go on serving /metrics for so long after the last event")
	fs.DurationVar(&o.timeout, "session-timeout", 6*time.Second, "session timeout to ask for")
	fs.DurationVar(&o.tick, "tick", 0, "the ensemble's tickTime; 0: the library's default")
	fs.DurationVar(&o.step, "step", 30*time.Millisecond, "how long authorising a payment takes")
	fs.DurationVar(&o.wire, "wire", 30*time.Millisecond, "how long a charge is on its way to the ledger")
	fs.BoolVar(&o.skipMalformed, "skip-malformed", false, "log bad event lines and go on without them; otherwise they are fatal")
	fs.BoolVar(&o.fence, "fence", true, "have the ledger refuse stale tokens; off shows what happens without")
	fs.StringVar(&o.logFormat, "log", "text", "log `format`, text or json")
	if err := fs.Parse(args); err != nil {
		return o, err
	}

	bad := func(format string, args ...any) error {
		err := fmt.Errorf(format, args...)
		fmt.Fprintf(stderr, "worker: %v; see worker -h\n", err)
		return err
	}
	switch {
	case fs.NArg() > 0:
		return o, bad("unexpected argument %q", fs.Arg(0))
	case o.workers < 1:
		return o, bad("-workers %d: at least 1", o.workers)
	case o.servers != "" && o.ledger == "":
		return o, bad("-servers without -ledger: processes that share the locks have to share the ledger")
	case o.logFormat != "text" && o.logFormat != "json":
		return o, bad("-log %q: text or json", o.logFormat)
	case o.step < 0 || o.wire < 0 || o.linger < 0:
		return o, bad("-step, -wire and -linger: not negative")
	case o.name == "":
		return o, bad("-name: not empty")
	}
	return o, nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parseFlags(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return exitUsage
	}
	var handler slog.Handler = slog.NewTextHandler(stderr, nil)
	if o.logFormat == "json" {
		handler = slog.NewJSONHandler(stderr, nil)
	}
	log := slog.New(handler)

	events, err := payments.Open(o.events)
	switch {
	case errors.Is(err, payments.ErrBadLine) && o.skipMalformed:
		log.Warn("bad event lines are left out", "error", err)
	case errors.Is(err, payments.ErrBadLine):
		fmt.Fprintf(stderr, "worker: nothing was charged, because of bad events (-skip-malformed leaves them out):\n%v\n", err)
		return exitUsage
	case err != nil:
		fmt.Fprintf(stderr, "worker: events: %v\n", err)
		return exitUsage
	}

	err = work(ctx, o, events, log, stdout)
	switch {
	case err == nil:
		return exitOK
	case ctx.Err() != nil:
		fmt.Fprintf(stderr, "worker: interrupted: %v\n", err)
		return exitInterrupted
	default:
		fmt.Fprintf(stderr, "worker: %v\n", err)
		return exitFailed
	}
}

// work is run with everything parsed.
func work(ctx context.Context, o options, events []payments.Event, log *slog.Logger, stdout io.Writer) (err error) {
	ledger, err := openLedger(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ledger.Close()) }()

	servers := o.servers
	if servers == "" {
		srv, err := embedded(o, ledger)
		if err != nil {
			return err
		}
		defer srv.Close()
		servers = srv.Addr()
		log.Info("no -servers: a ZooKeeper server for tests runs in this process", "address", servers)
	}

	reg := prometheus.NewRegistry()
	if o.metrics != "off" {
		stop, err := serveMetrics(ctx, o.metrics, reg, log)
		if err != nil {
			return err
		}
		defer stop()
	}

	workers := make([]*worker, o.workers)
	defer func() {
		for _, w := range workers {
			if w != nil {
				err = errors.Join(err, w.client.Close())
			}
		}
	}()
	for i := range workers {
		name := o.name
		if o.workers > 1 {
			name = fmt.Sprintf("%s/%d", o.name, i+1)
		}
		log := log.With("worker", name)
		client, err := zklock.Connect(ctx, zklock.Config{
			Servers:        []string{servers},
			SessionTimeout: o.timeout,
			TickTime:       o.tick,
			Root:           o.root,
			Identifier:     name,
			Logger:         log,
			Registerer:     reg,
		})
		if err != nil {
			return err
		}
		workers[i] = &worker{
			name: name, client: client, root: o.root, ledger: ledger, log: log,
			authorise: func(ctx context.Context, _ payments.Event) error { return sleep(ctx, o.step) },
			wire:      func(payments.Event) { time.Sleep(o.wire) },
		}
	}

	tallies, err := runAll(ctx, workers, events)
	err = errors.Join(err, summary(stdout, workers, tallies, events, ledger))
	if err == nil && o.linger > 0 {
		log.Info("done; serving /metrics a little longer", "linger", o.linger)
		_ = sleep(ctx, o.linger)
	}
	return err
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// runAll runs the workers until all are done, or until one fails, which ends the others.
func runAll(ctx context.Context, workers []*worker, events []payments.Event) ([]tally, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tallies := make([]tally, len(workers))
	errs := make([]error, len(workers))
	var wg sync.WaitGroup
	for i, w := range workers {
		wg.Go(func() {
			if tallies[i], errs[i] = w.run(ctx, events); errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	return tallies, errors.Join(errs...)
}

func openLedger(o options) (*payments.Ledger, error) {
	if o.ledger != "" {
		return payments.OpenLedger(o.ledger, o.fence)
	}
	f, err := os.CreateTemp("", "zklock-ledger-*.jsonl")
	if err != nil {
		return nil, err
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	return payments.OpenLedger(f.Name(), o.fence)
}

// embedded starts a server for tests. Its tokens start anew, so it cannot go on with a ledger that has some.
func embedded(o options, ledger *payments.Ledger) (*zktest.Server, error) {
	book, err := ledger.Book()
	if err != nil {
		return nil, err
	}
	if len(book.Begun) > 0 {
		return nil, fmt.Errorf("-ledger %s has entries already: an embedded server starts its tokens anew, "+
			"and the ledger would refuse them; take a new file, or -servers", ledger.Path())
	}
	return zktest.Start(zktest.Config{Listen: "127.0.0.1:0", TickTime: o.tick})
}

// serveMetrics serves /metrics until stop is called.
func serveMetrics(ctx context.Context, address string, reg *prometheus.Registry, log *slog.Logger) (stop func(), err error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("-metrics %s: %w", address, err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			log.Error("metrics are not served any more", "error", err)
		}
	}()
	log.Info("metrics", "url", fmt.Sprintf("http://%s/metrics", ln.Addr()))
	return func() { _ = srv.Close() }, nil
}

// summary prints who did what.
func summary(out io.Writer, workers []*worker, tallies []tally, events []payments.Event, ledger *payments.Ledger) error {
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "worker\tcharged\talready charged\tabandoned\t")
	for i, w := range workers {
		t := tallies[i]
		fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t\n", w.name, t.charged, t.already, t.abandoned)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	book, err := ledger.Book()
	if err != nil {
		return err
	}
	charged := 0
	for _, key := range payments.Keys(events) {
		if len(book.Charges[key]) > 0 {
			charged++
		}
	}
	_, err = fmt.Fprintf(out, "%d events with %d keys; %d of these keys are charged in %s\n",
		len(events), len(payments.Keys(events)), charged, ledger.Path())
	return err
}
