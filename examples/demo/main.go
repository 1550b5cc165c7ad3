//go:build unix

// Demo shows three workers that share payment events, while one of them is killed and one is suspended:
//
//	go run ./examples/demo
//
// It runs a ZooKeeper server for tests in its own process and three worker programs (examples/worker) as processes
// of their own. When half of the keys are charged it
//
//   - kills worker-1 (SIGKILL) while a charge of its is on its way to the ledger, and
//   - suspends worker-2 (SIGSTOP) at the same place: after the last gate, where only the ledger's fence helps. It
//     goes on (SIGCONT) once another worker has its lock.
//
// At the end it reads the ledger. The exit code is 0 if every key was charged exactly once, and worker-2's late
// charge was refused. With -fence=false the ledger takes stale tokens, and the demo ends with a key charged twice
// and exit code 1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/go-zklock/zklock/examples/worker/payments"
	"github.com/go-zklock/zklock/zktest"
)

const (
	sessionTimeout = 2 * time.Second
	tick           = 500 * time.Millisecond
	wire           = 150 * time.Millisecond // how long a charge is on its way: the time to hit a worker there
	step           = 50 * time.Millisecond
	patience       = time.Minute           // for the whole demo
	pollLedger     = 20 * time.Millisecond // a file does not say when it grows
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := 0
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "demo: FAILED: %v\n", err)
		code = 1
	}
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	program := flags.String("worker", "", "the worker `program`; empty: build it from this module with go build")
	fence := flags.Bool("fence", true, "have the ledger refuse stale tokens; off shows what happens without")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}

	dir, err := os.MkdirTemp("", "zklock-demo-*")
	if err != nil {
		return err
	}
	keep := false // the ledger, for a look after a failure
	defer func() {
		if !keep {
			_ = os.RemoveAll(dir)
		}
	}()
	if *program == "" {
		*program = filepath.Join(dir, "worker")
		build := exec.CommandContext(ctx, "go", "build", "-o", *program, "github.com/go-zklock/zklock/examples/worker")
		if text, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("building the worker (run the demo inside the module, or with -worker): %w\n%s", err, text)
		}
	}
	ledgerPath := filepath.Join(dir, "ledger.jsonl")
	ledger, err := payments.OpenLedger(ledgerPath, *fence)
	if err != nil {
		return err
	}
	defer ledger.Close()
	events, err := payments.Open("")
	if err != nil {
		return err
	}
	srv, err := zktest.Start(zktest.Config{Listen: "127.0.0.1:0", TickTime: tick})
	if err != nil {
		return err
	}
	defer srv.Close()

	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the demo takes longer than %v", patience))
	defer cancel()
	d := &demo{out: out, begun: time.Now(), ledger: ledger, keys: payments.Keys(events), fence: *fence}
	fmt.Fprintf(out, "A ZooKeeper server for tests runs in this process at %s; sessions time out after %v.\n", srv.Addr(), sessionTimeout)
	fmt.Fprintf(out, "%d events with %d distinct keys; three workers, each a process of its own.\n", len(events), len(d.keys))
	defer d.killAll()
	for i := range 3 {
		p, err := startWorker(*program, []string{
			"-name", fmt.Sprintf("worker-%d", i+1), "-workers", "1", "-servers", srv.Addr(), "-ledger", ledgerPath,
			"-session-timeout", sessionTimeout.String(), "-tick", tick.String(),
			"-step", step.String(), "-wire", wire.String(), "-log", "json", "-metrics", "off",
			fmt.Sprintf("-fence=%v", *fence),
		})
		if err != nil {
			return err
		}
		d.workers = append(d.workers, p)
		d.sayf("%s is process %d", p.name, p.pid())
	}
	if err := d.play(ctx); err != nil {
		for _, p := range d.workers {
			err = fmt.Errorf("%w\nlast lines of %s:\n  %s", err, p.name, strings.Join(p.lastLines(), "\n  "))
		}
		keep = true
		return fmt.Errorf("%w\nledger: %s", err, ledgerPath)
	}
	if err := d.verdict(); err != nil {
		keep = true
		return fmt.Errorf("%w\nledger: %s", err, ledgerPath)
	}
	return nil
}

// demo is one run.
type demo struct {
	out     io.Writer
	begun   time.Time
	ledger  *payments.Ledger
	keys    []string
	fence   bool
	workers []*process
	doomed  logLine // the charge that was on its way when worker-1 was killed
	late    logLine // the same of worker-2, when it was suspended
}

func (d *demo) sayf(format string, args ...any) {
	fmt.Fprintf(d.out, "%6.2fs  %s\n", time.Since(d.begun).Seconds(), fmt.Sprintf(format, args...))
}

// killAll ends every worker that is still there, stopped ones too.
func (d *demo) killAll() {
	for _, p := range d.workers {
		p.kill()
	}
}

// play is the story. Each step waits for what it needs to see, in a worker's log or in the ledger.
func (d *demo) play(ctx context.Context) error {
	victim, sleeper := d.workers[0], d.workers[1]
	half := len(d.keys) / 2
	if _, err := d.awaitLedger(ctx, "half of the keys are charged", func(b *payments.Book) bool { return len(b.Charges) >= half }); err != nil {
		return err
	}
	d.sayf("half of the keys are charged")

	var err error
	if d.doomed, err = victim.await(ctx, victim.logged(), "charging"); err != nil {
		return err
	}
	victim.kill()
	d.sayf("%s killed (SIGKILL): its charge of %s, token %s, was on its way", victim.name, d.doomed.Key, d.doomed.Token)

	resumed, err := d.suspend(ctx, sleeper)
	if err != nil {
		return err
	}
	if d.fence {
		line, err := sleeper.await(ctx, resumed, "the ledger refused a stale token")
		if err != nil {
			return err
		}
		d.sayf("%s: %s", sleeper.name, line.Error)
		d.sayf("%s: the next gate says: %s", sleeper.name, line.Gate)
	} else {
		line, err := sleeper.await(ctx, resumed, "charged")
		if err != nil {
			return err
		}
		d.sayf("%s: its late charge of %s, token %s, was taken, since there is no fence", sleeper.name, line.Key, line.Token)
	}
	for _, p := range d.workers[1:] {
		if err := p.awaitExit(ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	d.sayf("%s and %s are done", d.workers[1].name, d.workers[2].name)
	return nil
}

// suspend stops p between its last gate and its charge, and lets it go on once another worker has its lock. If the
// charge was faster than the signal, it tries again with the next one. It returns where p's log goes on.
func (d *demo) suspend(ctx context.Context, p *process) (resumed int, err error) {
	for {
		line, err := p.await(ctx, p.logged(), "charging")
		if err != nil {
			return 0, err
		}
		if err := p.signal(syscall.SIGSTOP); err != nil {
			return 0, err
		}
		stopped := time.Now()
		d.sayf("%s suspended (SIGSTOP): its charge of %s, token %s, is on its way", p.name, line.Key, line.Token)
		arrived := func(b *payments.Book) bool {
			charges := b.Charges[line.Key]
			return len(charges) > 0 && charges[0].Worker == p.name
		}
		book, err := d.awaitLedger(ctx, "another worker has the lock of "+line.Key, func(b *payments.Book) bool {
			return arrived(b) || b.Begun[line.Key].Worker != p.name
		})
		if err != nil {
			return 0, err
		}
		if arrived(book) {
			d.sayf("%s goes on (SIGCONT): that charge had arrived before; once more", p.name)
			if err := p.signal(syscall.SIGCONT); err != nil {
				return 0, err
			}
			continue
		}
		d.late = line
		heir := book.Begun[line.Key]
		d.sayf("%s gets the lock of %s, with token %s", heir.Worker, heir.Key, heir.Token)
		if !d.fence {
			// Otherwise the heir's charge could come second and look like the wrong one.
			if _, err := d.awaitLedger(ctx, heir.Worker+" has charged "+heir.Key, func(b *payments.Book) bool {
				return len(b.Charges[heir.Key]) > 0
			}); err != nil {
				return 0, err
			}
		}
		d.sayf("%s goes on (SIGCONT), after %.1fs", p.name, time.Since(stopped).Seconds())
		resumed = p.logged()
		return resumed, p.signal(syscall.SIGCONT)
	}
}

// awaitLedger waits until the ledger is as wanted.
func (d *demo) awaitLedger(ctx context.Context, what string, ok func(*payments.Book) bool) (*payments.Book, error) {
	ticker := time.NewTicker(pollLedger)
	defer ticker.Stop()
	for {
		book, err := d.ledger.Book()
		if err != nil || ok(book) {
			return book, err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting until %s: %w", what, context.Cause(ctx))
		}
	}
}

// verdict prints who did what, and checks it.
func (d *demo) verdict() error {
	book, err := d.ledger.Book()
	if err != nil {
		return err
	}
	charged, stale := make(map[string]int), make(map[string]int)
	total := 0
	for _, charges := range book.Charges {
		for _, c := range charges {
			charged[c.Worker]++
			total++
		}
	}
	for _, e := range book.Refused {
		stale[e.Worker]++
	}
	fmt.Fprintln(d.out)
	tw := tabwriter.NewWriter(d.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "  worker\tcharged\trefused\twhat happened to it  \t")
	for i, p := range d.workers {
		fmt.Fprintf(tw, "  %s\t%d\t%d\t%s  \t\n", p.name, charged[p.name], stale[p.name], [...]string{"killed", "suspended", "nothing"}[i])
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if charges := book.Charges[d.doomed.Key]; len(charges) > 0 && charges[0].Worker != d.workers[0].name {
		fmt.Fprintf(d.out, "  unfinished by %s: %s; charged by %s with token %s\n", d.workers[0].name, d.doomed.Key, charges[0].Worker, charges[0].Token)
	}
	for _, e := range book.Refused {
		fmt.Fprintf(d.out, "  refused: %s's charge of %s with token %s; charged by %s with token %s\n",
			e.Worker, e.Key, e.Token, book.Charges[e.Key][0].Worker, book.Charges[e.Key][0].Token)
	}
	fmt.Fprintln(d.out)
	if err := book.Check(d.keys); err != nil {
		return err
	}
	if d.fence && stale[d.workers[1].name] == 0 {
		return fmt.Errorf("the ledger shows no refused charge of %s by %s", d.late.Key, d.workers[1].name)
	}
	fmt.Fprintf(d.out, "Every one of the %d keys was charged exactly once (%d charges in the ledger; stale ones refused: %d).\n",
		len(d.keys), total, len(book.Refused))
	return nil
}
