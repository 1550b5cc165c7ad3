package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
)

// onceCmd is zklock once.
type onceCmd struct {
	recordFlags

	Retention time.Duration `group:"record" default:"24h" placeholder:"24h" help:"How long the outcome is kept; after that the key runs again. Default ${default}."`
	Payload   string        `group:"record" placeholder:"TEXT" help:"What the command works on: the key is refused, with exit code 65, when it comes again with another TEXT. Default: nothing is compared."`
	OnUnknown string        `group:"record" enum:"refuse,rerun" default:"refuse" placeholder:"refuse" help:"When an earlier run was cut short and nobody knows what it did: refuse (exit code 70, until zklock resolve) or rerun, for a command that can be repeated or compares tokens."`
	Success   []int         `group:"record" default:"0" placeholder:"0" help:"The exit codes that count as success. Default ${default}."`
	MaxOutput int           `group:"record" default:"65536" placeholder:"BYTES" help:"How much of the output is kept. Default ${default}."`
	Replay    bool          `group:"record" default:"true" negatable:"" help:"Print the output of the first run when this is not it. On by default."`

	commandFlags
	ensembleFlags
}

// recordFlags name a record.
type recordFlags struct {
	Key   string `short:"k" group:"record" required:"" placeholder:"KEY" help:"What is to be done once: the id of an order, of a migration, of a day."`
	Scope string `group:"record" placeholder:"SCOPE" help:"Keeps the keys of different jobs apart."`
}

func (f *recordFlags) key() dedup.Key { return dedup.Key{Scope: f.Scope, ID: f.Key} }

// validate finds bad keys before anything is connected.
func (f *recordFlags) validate() error {
	if f.Key == "" {
		return errors.New("what is to be done once? Give --key")
	}
	_, err := dedup.ParseKey(f.key().String())
	return err
}

// Help is what zklock once --help says at length.
func (*onceCmd) Help() string {
	return `Runs the command once for a key, on all hosts together. The first success is kept with
its exit code and output; every further call prints that output and exits with that
code, without running anything. While one runs, the others wait for it.

    zklock once --key migration-42 -- ./migrate.sh 42
    zklock once --key "report-$(date +%F)" --retention 48h -- ./report.sh

A command that fails (an exit code that is not in --success) may run again: the next
call does. If a run is cut short, because its host died, the lock was lost, or a signal
ended the command, nobody knows what it did. Then the next call does not run it, but
exits with 70: look, and say so with zklock resolve. --on-unknown rerun runs it again.

The command runs as under zklock run: stopped while the lock is in doubt, killed when it
is lost. It finds the same in its environment, and in ZKLOCK_ATTEMPT which run this is.
Its output goes through a pipe, not to a terminal.

Exit codes: those of zklock run, and 65 the key was used with another --payload, 70 what
an earlier run did is not known.`
}

// Validate is called by kong.
func (c *onceCmd) Validate() error {
	switch {
	case c.Retention < time.Second:
		return fmt.Errorf("--retention %v: has to be at least 1s", c.Retention)
	case c.Wait != nil && *c.Wait > c.Retention:
		return fmt.Errorf("--wait %v: is longer than --retention %v", *c.Wait, c.Retention)
	case c.MaxOutput < 0 || c.MaxOutput > maxKept:
		return fmt.Errorf("--max-output %d: has to be from 0 to %d", c.MaxOutput, maxKept)
	case len(c.Success) == 0 || slices.Min(c.Success) < 0 || slices.Max(c.Success) > 255:
		return fmt.Errorf("--success %v: has to be exit codes from 0 to 255", c.Success)
	}
	if err := c.recordFlags.validate(); err != nil {
		return err
	}
	return c.commandFlags.validate("once")
}

// maxKept is the most output that fits into a node with ZooKeeper's usual limits, as
// JSON writes bytes.
const maxKept = 640 << 10

// outcome is what is kept of a run.
type outcome struct {
	Status    int    `json:"status"`
	Stdout    []byte `json:"stdout,omitempty"`
	Stderr    []byte `json:"stderr,omitempty"`
	Truncated bool   `json:"truncated,omitempty"` // there was more output
}

// failure is a run that does not count.
type failure struct{ code int }

func (f *failure) Error() string { return fmt.Sprintf("exit code %d", f.code) }

// Run is called by kong.
func (c *onceCmd) Run(std *streams) error {
	signals, stop := catchSignals()
	defer stop()
	program, err := lookPath(c.argv()[0])
	if err != nil {
		return err
	}
	ctx, deaf := untilSignal(context.Background(), signals)
	defer deaf()
	client, err := c.connect(ctx, std.err)
	if err != nil {
		return interrupted(ctx, err)
	}
	defer func() { _ = client.Close() }()
	guard, err := dedup.New(client, c.guardConfig())
	if err != nil {
		return usagef("%w", err)
	}
	defer closeGuard(guard)

	progress, err := c.showWaiting(ctx, client, std)
	if err != nil {
		return err
	}
	ran := false
	res, err := dedup.Do(ctx, guard, c.key(), c.fingerprint(), func(claimed context.Context, claim *dedup.Claim) (outcome, error) {
		progress.stop()
		deaf() // from now on signals are the command's
		if ctx.Err() != nil {
			return outcome{}, context.Cause(ctx) // the claim came together with a signal, and is given back
		}
		ran = true
		return c.execute(claimed, claim, client, std, signals, program)
	}, c.options()...)
	progress.stop()
	if ran {
		sweep(guard)
	}
	if err != nil {
		return interrupted(ctx, c.verdict(err, ran))
	}
	if res.Replayed && c.Replay {
		_, _ = std.out.Write(res.Value.Stdout)
		_, _ = std.err.Write(res.Value.Stderr)
		if res.Value.Truncated {
			fmt.Fprintf(std.err, "zklock: that was the beginning of the output of the first run; the rest was not kept\n")
		}
	}
	if res.Value.Status != 0 {
		return &exitError{code: res.Value.Status}
	}
	return nil
}

// showWaiting shows who works on the key, on a terminal.
func (c *onceCmd) showWaiting(ctx context.Context, client *zklock.Client, std *streams) (*waiting, error) {
	mutex, err := zklock.NewInterProcessMutex(client, strings.TrimRight(c.Root, "/")+"/"+c.key().String())
	if err != nil {
		return nil, err
	}
	return showWaiting(ctx, client, mutex, std.err), nil
}

// onceOwner begins the owner of every record that zklock once makes: zklock resolve
// tells them from those of programs by it.
const onceOwner = "zklock once on "

// identifier is --identifier, or its default.
func (c *onceCmd) identifier() string {
	if c.Identifier != "" {
		return c.Identifier
	}
	host, _ := os.Hostname()
	return fmt.Sprintf("%s-%d", host, os.Getpid())
}

func (c *onceCmd) guardConfig() dedup.Config {
	cfg := dedup.Config{
		Root: c.Root, Retention: c.Retention, WaitLimit: min(dedup.DefaultWaitLimit, c.Retention),
		MaxOutcome: 2*maxKept + 1<<10, SweepInterval: -1, Owner: onceOwner + c.identifier(),
	}
	if c.OnUnknown == "rerun" {
		cfg.Policy = dedup.Reexecute
	}
	return cfg
}

func (c *onceCmd) fingerprint() dedup.Fingerprint {
	if c.Payload == "" {
		return dedup.NoFingerprint
	}
	return dedup.Payload([]byte(c.Payload))
}

func (c *onceCmd) options() []dedup.Option {
	switch {
	case c.NoWait:
		return []dedup.Option{dedup.NoWait()}
	case c.Wait != nil:
		return []dedup.Option{dedup.WaitLimit(*c.Wait)}
	default:
		return []dedup.Option{dedup.WaitLimit(c.Retention)}
	}
}

// closeGuard ends a guard, which has nothing left to do.
func closeGuard(g *dedup.Guard) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = g.Close(ctx)
}

// sweep removes what is due. Nobody else does where only this command is used.
func sweep(g *dedup.Guard) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, _ = g.Sweep(ctx) // the next run tries again
}

// execute runs the command under the claim.
func (c *onceCmd) execute(ctx context.Context, claim *dedup.Claim, client *zklock.Client, std *streams, signals <-chan os.Signal, program string) (outcome, error) {
	lease, ok := zklock.LeaseFromContext(ctx)
	if !ok {
		return outcome{}, errors.New("the claim has no lease")
	}
	kept := &recorder{room: c.MaxOutput}
	out, err := kept.tee(std.out)
	if err != nil {
		return outcome{}, err
	}
	errs, err := kept.tee(std.err)
	if err != nil {
		return outcome{}, err
	}
	how, err := c.underLease(client, lease, c.Key, std, [3]*os.File{std.in, out.w, errs.w}, signals, program,
		"ZKLOCK_ATTEMPT="+strconv.Itoa(claim.Attempt()))
	out.finish()
	errs.finish()
	switch {
	case err == nil && slices.Contains(c.Success, how.code):
		return outcome{Status: how.code, Stdout: out.kept, Stderr: errs.kept, Truncated: kept.truncated}, nil
	case err != nil && !started(err):
		return outcome{}, err
	case err != nil:
		return outcome{}, dedup.Indeterminate(err)
	case how.signaled:
		return outcome{}, dedup.Indeterminate(&failure{how.code})
	default:
		return outcome{}, &failure{how.code}
	}
}

// verdict turns an error of Do into an exit code and a next step.
func (c *onceCmd) verdict(err error, ran bool) error {
	var own *failure
	var coded *exitError
	var stored *dedup.FailedError
	switch {
	case errors.As(err, &own) && errors.Is(err, dedup.ErrIndeterminate):
		return exitf(own.code, "a signal ended the command, so nobody knows what it did; find out, and tell zklock resolve")
	case errors.As(err, &own):
		return &exitError{code: own.code}
	case errors.As(err, &coded):
		return coded
	case errors.As(err, &stored):
		return exitf(exitFailed, "%s failed for good: %s", c.Key, stored.Message)
	case errors.Is(err, dedup.ErrOutcomeTooLarge) && !ran:
		return nil // it is done; there is nothing to print
	case errors.Is(err, dedup.ErrInProgress):
		return exitf(exitNotAcquired, "%w; zklock show %s says by whom", err, c.shown())
	case errors.Is(err, dedup.ErrIndeterminate):
		return exitf(exitUnknown, "%w; see zklock show %s, find out what it did, and tell zklock resolve", err, c.shown())
	case errors.Is(err, dedup.ErrKeyReused), errors.Is(err, dedup.ErrKeyExpired):
		return exitf(exitData, "%w", err)
	case errors.Is(err, dedup.ErrUnavailable):
		return exitf(exitUnavailable, "%w; %s says more", err, c.hint("doctor"))
	case errors.Is(err, dedup.ErrInvalidKey), errors.Is(err, dedup.ErrInvalidConfig):
		return usagef("%w", err)
	default:
		return refused(err)
	}
}

// shown is the key as show and resolve take it.
func (f *recordFlags) shown() string {
	if f.Scope == "" {
		return f.Key
	}
	return f.Scope + ":" + f.Key
}

// recorder keeps the beginning of several outputs.
type recorder struct {
	mu        sync.Mutex
	room      int
	truncated bool
}

// output is one of them.
type output struct {
	r     *recorder
	w     *os.File // the command's end
	from  *os.File
	to    io.Writer
	kept  []byte
	ended chan struct{} // the command has
	done  chan struct{}
}

// tee makes a pipe whose content goes on to a file and is kept.
func (r *recorder) tee(to io.Writer) (*output, error) {
	from, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	o := &output{r: r, w: w, from: from, to: to, ended: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(o.done)
		if _, err := io.Copy(o, from); err != nil { // nil: the last writer is gone
			<-o.ended
			o.rest()
		}
	}()
	return o, nil
}

// Write takes what the command has written. A reader of ours who has gone away is no
// reason to end it.
func (o *output) Write(p []byte) (int, error) {
	_, _ = o.to.Write(p)
	o.r.mu.Lock()
	defer o.r.mu.Unlock()
	n := min(len(p), o.r.room)
	o.r.room -= n
	o.r.truncated = o.r.truncated || n < len(p)
	o.kept = append(o.kept, p[:n]...)
	return len(p), nil
}

// lingering is how long output is waited for that somebody outside the group may still
// write.
const lingering = time.Second

// finish waits for the rest.
func (o *output) finish() {
	_ = o.w.Close()
	_ = o.from.SetReadDeadline(time.Now()) // ends the copying
	close(o.ended)
	<-o.done
	_ = o.from.Close()
}

// rest passes on what is still to come when the command's group is gone. What the group has
// written is in the pipe, all of it. For others there is a limit, in which the time does not
// count that our own reader takes.
func (o *output) rest() {
	_ = o.from.SetReadDeadline(time.Time{})
	_, _ = io.CopyN(o, o.from, unread(o.from))
	buf := make([]byte, 32<<10)
	others := false
	for left := lingering; left > 0; {
		begun := time.Now()
		_ = o.from.SetReadDeadline(begun.Add(left))
		n, err := o.from.Read(buf)
		left -= time.Since(begun)
		if errors.Is(err, io.EOF) {
			return
		}
		others = others || n > 0
		_, _ = o.Write(buf[:n])
	}
	if others { // they may write more
		o.r.cut()
	}
}

// cut notes that there is more than what is kept.
func (r *recorder) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.truncated = true
}
