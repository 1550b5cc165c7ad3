package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kong"

	"github.com/go-zklock/zklock/zktest"
)

// demoCmd is zklock demo.
type demoCmd struct{}

// Help is what zklock demo --help says at length.
func (*demoCmd) Help() string {
	return `Shows in about ten seconds what zklock run and zklock once do when things go wrong, on a
server in its own process: three workers want one lock; the server goes away for a
moment; a zklock is stopped, another is killed; and a charge is asked for three times.
At the end it reads what the workers wrote, and exits with 1 if two of them ever ran at
the same time, or something was charged twice.`
}

const (
	demoTimeout = 2 * time.Second
	demoTick    = 200 * time.Millisecond
	demoStep    = 20 * time.Millisecond // a worker writes a line this often
	demoLimit   = time.Minute           // for all of it
)

// Run is called by kong.
func (*demoCmd) Run(app *kong.Kong, std *streams) error {
	if !runs {
		return usagef("zklock demo shows zklock run, which needs Linux")
	}
	ctx, stop := interactive()
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, demoLimit, expired(fmt.Sprintf("the demonstration takes longer than %v", demoLimit)))
	defer cancel()
	dir, err := os.MkdirTemp("", "zklock-demo-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	srv, err := zktest.Start(zktest.Config{Listen: "127.0.0.1:0", TickTime: demoTick})
	if err != nil {
		return err
	}
	defer srv.Close()
	d := &demo{
		ctx: ctx, out: std.out, begun: time.Now(), srv: srv, env: withoutSettings(os.Environ(), app.Model.Node), settings: filepath.Join(dir, "settings"),
		journal: filepath.Join(dir, "journal"), charges: filepath.Join(dir, "charges"),
	}
	if err := os.WriteFile(d.settings, []byte("{}"), 0o600); err != nil {
		return err
	}
	defer d.end()
	d.sayf("a ZooKeeper server for trying things out runs in this process; a session lasts for %v", demoTimeout)
	for _, act := range []func() error{d.queueUp, d.suspend, d.stop, d.kill, d.duplicates} {
		if err := act(); err != nil {
			return fmt.Errorf("the demonstration FAILED: %w%s", err, d.said())
		}
	}
	return d.verdict()
}

// demo is one run of it.
type demo struct {
	ctx      context.Context
	out      io.Writer
	begun    time.Time
	srv      *zktest.Server
	env      []string
	settings string // a file without any, instead of the user's
	journal  string // a line for every step of every worker
	charges  string // a line for every charge
	workers  []*actor
	answers  []string
}

// actor is one zklock that takes part.
type actor struct {
	name  string
	cmd   *exec.Cmd
	said  saying
	ended chan struct{}
	fate  string
}

// saying is what an actor writes.
type saying struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *saying) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *saying) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func (d *demo) sayf(format string, args ...any) {
	fmt.Fprintf(d.out, "%6.2fs  %s\n", time.Since(d.begun).Seconds(), fmt.Sprintf(format, args...))
}

// start starts a zklock on the demonstration's server.
func (d *demo) start(name string, args ...string) (*actor, error) {
	a := &actor{name: name, cmd: exec.CommandContext(d.ctx, self, args...), ended: make(chan struct{})}
	a.cmd.Args[0] = "zklock"
	a.cmd.Env = append(slices.Clone(d.env), "ZKLOCK_SERVERS="+d.srv.Addr(), "ZKLOCK_SESSION_TIMEOUT="+demoTimeout.String(),
		"ZKLOCK_TICK_TIME="+demoTick.String(), "ZKLOCK_IDENTIFIER="+name, configEnv+"="+d.settings)
	a.cmd.Stdout, a.cmd.Stderr = &a.said, &a.said
	a.cmd.WaitDelay = time.Second
	if err := a.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = a.cmd.Wait() // the exit code is looked at
		close(a.ended)
	}()
	return a, nil
}

// withoutSettings is an environment without what sets a flag: that is for other servers.
func withoutSettings(env []string, node *kong.Node) []string {
	var names []string
	for _, child := range visible(node) {
		for _, f := range flagsOf(child) {
			names = append(names, f.Envs...)
		}
	}
	return slices.DeleteFunc(withoutOurs(env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(names, name)
	})
}

// end ends what is still there; killed zklocks take their workers with them.
func (d *demo) end() {
	for _, a := range d.workers {
		_ = a.cmd.Process.Kill() // fails if it has ended
		<-a.ended
	}
}

// said is what everybody said, for a failure.
func (d *demo) said() string {
	var b strings.Builder
	for _, a := range d.workers {
		fmt.Fprintf(&b, "\n%s said:\n%s", a.name, a.said.String())
	}
	return b.String()
}

// await waits until ok says so.
func (d *demo) await(what string, ok func() bool) error {
	for !ok() {
		if !pause(d.ctx, demoStep) {
			return fmt.Errorf("waiting until %s: %w", what, context.Cause(d.ctx))
		}
	}
	return nil
}

// awaitExit waits for the end of a zklock, and returns its exit code.
func (d *demo) awaitExit(a *actor) (int, error) {
	select {
	case <-a.ended:
		return a.cmd.ProcessState.ExitCode(), nil
	case <-d.ctx.Done():
		return 0, fmt.Errorf("waiting for the end of %s: %w", a.name, context.Cause(d.ctx))
	}
}

// steps are what the workers have written so far.
func (d *demo) steps() []step {
	text, err := os.ReadFile(d.journal)
	if err != nil {
		return nil // nobody has written yet
	}
	var steps []step
	for l := range strings.Lines(string(text)) {
		var s step
		if _, err := fmt.Sscan(l, &s.worker, &s.token); err == nil {
			steps = append(steps, s)
		}
	}
	return steps
}

// step is a line of the journal.
type step struct {
	worker string
	token  int64
}

// works waits until a worker has made some steps.
func (d *demo) works(name string, after int) (s step, err error) {
	const some = 10
	err = d.await(name+" works", func() bool {
		n := 0
		for _, made := range d.steps()[after:] {
			if made.worker == name {
				s = made
				n++
			}
		}
		return n >= some
	})
	return s, err
}

// queueUp starts three workers for one lock.
func (d *demo) queueUp() error {
	for i := range 3 {
		name := fmt.Sprintf("worker-%d", i+1)
		a, err := d.start(name, "run", "--key", "shop", "--", self, demoWorker, d.journal, name)
		if err != nil {
			return err
		}
		d.workers = append(d.workers, a)
		if err := d.await(name+" is in the queue", func() bool { return len(d.srv.Children("/dedup/shop")) == i+1 }); err != nil {
			return err
		}
	}
	s, err := d.works("worker-1", 0)
	if err != nil {
		return err
	}
	d.sayf("three times: zklock run --key shop -- worker")
	d.sayf("worker-1 has the lock, with token %d, and works; worker-2 and worker-3 wait", s.token)
	return nil
}

// suspend takes the server away for a moment.
func (d *demo) suspend() error {
	first := d.workers[0]
	d.srv.Refuse(true)
	d.srv.CutConnections()
	d.sayf("the server goes away: all connections break")
	if err := d.await("worker-1 is stopped", func() bool { return strings.Contains(first.said.String(), "the command is stopped") }); err != nil {
		return err
	}
	d.sayf("the lock is in doubt, so zklock has stopped worker-1 (SIGSTOP)")
	was := len(d.steps())
	if !pause(d.ctx, 300*time.Millisecond) {
		return context.Cause(d.ctx)
	}
	if n := len(d.steps()); n != was {
		return fmt.Errorf("worker-1 made %d steps while it was stopped", n-was)
	}
	d.srv.Refuse(false)
	if _, err := d.works("worker-1", was); err != nil {
		return err
	}
	d.sayf("the server is back, and the lock is still worker-1's: it goes on (SIGCONT)")
	return nil
}

// stop stops the zklock of the holder.
func (d *demo) stop() error {
	first := d.workers[0]
	if err := first.cmd.Process.Signal(sigStop); err != nil {
		return err
	}
	d.sayf("the zklock of worker-1 is stopped (kill -STOP): it cannot keep its lock any more")
	s, err := d.works("worker-2", 0)
	if err != nil {
		return err
	}
	d.sayf("the watcher has stopped worker-1 at the deadline; its session ran out, and worker-2 has the lock, with token %d", s.token)
	if err := first.cmd.Process.Signal(sigCont); err != nil {
		return err
	}
	code, err := d.awaitExit(first)
	if err != nil {
		return err
	}
	if code != exitLost {
		return fmt.Errorf("the zklock of worker-1 exited with %d, not %d", code, exitLost)
	}
	first.fate = "its zklock was stopped; exit code 76"
	d.sayf("the zklock of worker-1 goes on, finds the lock lost, kills worker-1 and exits with 76")
	return nil
}

// kill kills the zklock of the holder.
func (d *demo) kill() error {
	second := d.workers[1]
	if err := second.cmd.Process.Kill(); err != nil {
		return err
	}
	d.sayf("the zklock of worker-2 is killed (kill -9); its watcher kills worker-2")
	second.fate = "its zklock was killed"
	s, err := d.works("worker-3", 0)
	if err != nil {
		return err
	}
	d.sayf("its session ran out, and worker-3 has the lock, with token %d", s.token)
	third := d.workers[2]
	if err := third.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	code, err := d.awaitExit(third)
	if err != nil {
		return err
	}
	third.fate = fmt.Sprintf("ended by SIGTERM; exit code %d", code)
	d.sayf("worker-3's zklock gets a SIGTERM, passes it on, and exits with %d, as its command did", code)
	return nil
}

// duplicates asks three times for one charge.
func (d *demo) duplicates() error {
	var asked []*actor
	for i := range 3 {
		a, err := d.start(fmt.Sprintf("caller-%d", i+1), "once", "--key", "invoice-7", "--", self, demoCharge, d.charges)
		if err != nil {
			return err
		}
		asked = append(asked, a)
		d.workers = append(d.workers, a)
	}
	for _, a := range asked {
		if code, err := d.awaitExit(a); err != nil || code != 0 {
			return errors.Join(fmt.Errorf("%s exited with %d", a.name, code), err)
		}
		d.answers = append(d.answers, strings.TrimSpace(a.said.String()))
	}
	d.workers = d.workers[:len(d.workers)-len(asked)]
	d.sayf("three times at once: zklock once --key invoice-7 -- charge")
	return nil
}

// verdict says what was seen, and checks it.
func (d *demo) verdict() error {
	steps := d.steps()
	made, tokens := map[string]int{}, map[string]int64{}
	mixed := 0
	for i, s := range steps {
		made[s.worker]++
		tokens[s.worker] = s.token
		if i > 0 && s.token < steps[i-1].token {
			mixed++
		}
	}
	fmt.Fprintln(d.out)
	tw := tabwriter.NewWriter(d.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "  worker\ttoken\tsteps\twhat happened to it")
	for _, a := range d.workers {
		fmt.Fprintf(tw, "  %s\t%d\t%d\t%s\n", a.name, tokens[a.name], made[a.name], a.fate)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	text, err := os.ReadFile(d.charges)
	if err != nil {
		return err
	}
	charged := strings.Count(string(text), "\n")
	fmt.Fprintln(d.out)
	switch {
	case mixed > 0:
		return exitf(exitFailed, "FAILED: %d of %d steps were made after somebody else had begun", mixed, len(steps))
	case charged != 1 || d.answers[0] == "" || d.answers[1] != d.answers[0] || d.answers[2] != d.answers[0]:
		return exitf(exitFailed, "FAILED: charged %d times, with the answers %q", charged, d.answers)
	}
	fmt.Fprintf(d.out, "%d steps under the lock, and never two workers at the same time.\n", len(steps))
	fmt.Fprintf(d.out, "Invoice 7 was charged once; all three callers were told %q.\n", d.answers[0])
	return nil
}

// demoWork is a worker: it writes a line for each step, until it is ended or cannot.
func demoWork(journal, name string) {
	f, err := os.OpenFile(journal, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) //nolint:gosec // the demonstration's own
	for ; err == nil; time.Sleep(demoStep) {
		_, err = fmt.Fprintf(f, "%s %s\n", name, os.Getenv("ZKLOCK_TOKEN"))
	}
}

// demoChargeOnce is a charge: it takes a moment, and cannot be taken back.
func demoChargeOnce(charges string) int {
	f, err := os.OpenFile(charges, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) //nolint:gosec // as above
	if err != nil {
		return exitFailed
	}
	time.Sleep(10 * demoStep)
	if _, err := fmt.Fprintf(f, "invoice 7, token %s\n", os.Getenv("ZKLOCK_TOKEN")); err != nil {
		return exitFailed
	}
	fmt.Printf("paid, receipt %s\n", os.Getenv("ZKLOCK_TOKEN"))
	return 0
}
