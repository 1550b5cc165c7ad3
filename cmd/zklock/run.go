package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock"
)

// runCmd is zklock run.
type runCmd struct {
	lockFlags
	commandFlags
	ensembleFlags
}

// commandFlags are those of all subcommands that run a command.
type commandFlags struct {
	Wait   *time.Duration `group:"lock" xor:"wait" placeholder:"30s" help:"Give up with exit code 75 after this long. Connecting comes before, and is bounded by --connect-timeout. Default: wait for as long as it takes."`
	NoWait bool           `group:"lock" xor:"wait" help:"Give up at once if somebody else is at it. Connecting comes before, and is bounded by --connect-timeout."`
	OnLost string         `group:"lock" enum:"kill,term" default:"kill" placeholder:"kill" help:"What happens to the command when the lock is lost: kill (it is killed while it is stopped) or term (it is continued and asked to end, so that it runs beside the next holder for a moment)."`
	Grace  time.Duration  `group:"lock" default:"10s" placeholder:"10s" help:"With --on-lost term: kill the command if it has not ended after this long. Default ${default}."`
	Env    bool           `group:"lock" default:"true" negatable:"" help:"Give the command ZKLOCK_TOKEN, ZKLOCK_KEY, ZKLOCK_PATH and ZKLOCK_DEADLINE_FILE. On by default."`

	Command []string `arg:"" passthrough:"partial" help:"The command and its arguments, after --."`
}

// Help is what zklock run --help says at length.
func (*runCmd) Help() string {
	return `Waits for the lock, runs the command, releases the lock and exits with the command's
status. The command runs in a process group of its own; signals are passed on to it.

    zklock run --key nightly -- ./nightly.sh
    zklock run --key deploy --wait 10m -- make deploy
    zklock run --key tick --no-wait -- ./tick || [ $? = 75 ]     # somebody else does it

While the ensemble does not answer, the lock is in doubt: every process of the group is
stopped (SIGSTOP). If the lock turns out to be still ours they go on (SIGCONT). If it is
lost they are killed, still stopped, and zklock exits with 76; --on-lost term is kinder
and less safe. A small second process of zklock sees to it also when zklock itself is
killed (the group is killed) or stopped (the group is stopped at the deadline).

The command finds in its environment

    ZKLOCK_TOKEN           the fencing token, a number that grows from holder to holder: a
                           store that refuses a smaller one than the largest it has seen
                           is safe from late writes
    ZKLOCK_KEY             the key; with --path, the last element of the path
    ZKLOCK_PATH            the lock node at the ensemble
    ZKLOCK_DEADLINE_FILE   a file of one line, replaced whenever it changes: until when the
                           lock is certain, as RFC 3339 and in nanoseconds of CLOCK_BOOTTIME

On a terminal the command has the keyboard, also behind a pipe, so Ctrl-C goes to it;
Ctrl-Z does nothing, since a job that stands still would keep the lock. A pager has to be
part of the command: zklock run -k K -- sh -c './report | less'.

What escapes: a process that leaves the group (setsid, a daemon, the jobs of an
interactive shell) or that changes its user (sudo) is neither stopped nor killed. A
process that is stopped inside a system call finishes that call. If both processes of
zklock are killed (kill -9) at the same time, the command is killed too, and what it has
started runs on. What the command left running in its group when it ended keeps the lock
until it ends too.

Exit codes: the command's own; 2 wrong usage; 69 no server is ready; 75 not acquired;
76 the lock was lost; 77 no permission; 126, 127 the command cannot be run, is not
there; 128+n ended by signal n, while waiting too.`
}

// Validate is called by kong.
func (c *runCmd) Validate() error { return c.validate("run") }

func (c *commandFlags) validate(subcommand string) error {
	switch {
	case !runs:
		return errors.New("needs Linux; the other commands run here too")
	case len(c.argv()) == 0 || c.argv()[0] == "":
		return fmt.Errorf("no command: put it behind --, as in zklock %s --key K -- ./script.sh", subcommand)
	case c.Wait != nil && *c.Wait <= 0:
		return fmt.Errorf("--wait %v: has to be more than 0; --no-wait does not wait at all", *c.Wait)
	case c.Grace < 0:
		return fmt.Errorf("--grace %v: is negative", c.Grace)
	}
	return nil
}

// argv is the command without the -- before it, which kong leaves there.
func (c *commandFlags) argv() []string {
	if len(c.Command) > 0 && c.Command[0] == "--" {
		return c.Command[1:]
	}
	return c.Command
}

// Run is called by kong.
func (c *runCmd) Run(std *streams) error {
	signals, stop := catchSignals()
	defer stop()
	path, err := c.path(c.Root)
	if err != nil {
		return err
	}
	program, err := lookPath(c.argv()[0])
	if err != nil {
		return err
	}
	client, lease, err := c.acquire(std, signals, path)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	how, err := c.underLease(client, lease, c.key(), std, [3]*os.File{std.in, std.out, std.err}, signals, program)
	lost := lease.Err() // as of the end of the command
	if err := release(lease, client); err != nil {
		fmt.Fprintf(std.err, "%v\n", err)
		var gone *zklock.LostError
		if lost == nil && errors.As(err, &gone) && gone.Reason == zklock.NodeDeleted {
			lost = gone // at some time while the command ran
		}
	}
	switch {
	case err != nil:
		return err
	case lost != nil:
		return exitf(exitLost, "the lock was lost before the command ended")
	case how.code != 0:
		return &exitError{code: how.code}
	}
	return nil
}

// lookPath finds the program before any lock is asked for.
func lookPath(name string) (string, error) {
	program, err := exec.LookPath(name)
	if err != nil && !errors.Is(err, exec.ErrDot) { // who has . in his PATH means it
		return "", cannotRun(name, err)
	}
	return program, nil
}

// acquire connects and takes the lock. Signals end the wait.
func (c *runCmd) acquire(std *streams, signals <-chan os.Signal, path string) (*zklock.Client, *zklock.Lease, error) {
	ctx, stop := untilSignal(context.Background(), signals)
	defer stop()
	client, err := c.connect(ctx, std.err)
	if err != nil {
		return nil, nil, interrupted(ctx, err)
	}
	mutex, err := zklock.NewInterProcessMutex(client, path)
	if err == nil {
		var lease *zklock.Lease
		lease, err = c.wait(ctx, client, mutex, std)
		stop()
		if err == nil && ctx.Err() == nil {
			return client, lease, nil
		}
	}
	_ = client.Close() // takes our node with it; that of a lock, too, that came together with a signal
	return nil, nil, interrupted(ctx, err)
}

// interrupted is the signal that has ended ctx, or err.
func interrupted(ctx context.Context, err error) error {
	var sig *signalError
	if errors.As(context.Cause(ctx), &sig) {
		return &exitError{exitSignal + int(sig.sig), nil}
	}
	return err
}

// wait takes the lock of mutex, in the way that the flags say.
func (c *runCmd) wait(ctx context.Context, client *zklock.Client, mutex *zklock.InterProcessMutex, std *streams) (*zklock.Lease, error) {
	if c.NoWait {
		ctx, cancel := context.WithTimeout(ctx, c.ConnectTimeout)
		defer cancel()
		lease, err := mutex.TryAcquire(ctx)
		return lease, c.notAcquired(client, err)
	}
	if c.Wait != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, *c.Wait, expired(fmt.Sprintf("--wait %v is over", *c.Wait)))
		defer cancel()
	}
	if underItself(mutex.Path()) {
		fmt.Fprintf(std.err, "zklock: this already runs under the lock of %s, for which it is going to wait\n", mutex.Path())
	}
	progress := showWaiting(ctx, client, mutex, std.err)
	lease, err := mutex.Acquire(ctx)
	progress.stop()
	return lease, c.notAcquired(client, err)
}

// underItself says whether the environment is that of a command under the same lock.
func underItself(path string) bool {
	node := os.Getenv("ZKLOCK_PATH")
	return strings.HasSuffix(node[:max(strings.LastIndexByte(node, '/'), 0)], path)
}

// notAcquired gives an error of an acquisition its exit code and a next step.
func (c *runCmd) notAcquired(client *zklock.Client, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, zklock.ErrHeld):
		return exitf(exitNotAcquired, "%s is taken; zklock show %s says by whom", c.key(), c.shown())
	case errors.Is(err, zk.ErrNoAuth), errors.Is(err, zklock.ErrAuthFailed):
		return refused(err)
	case errors.Is(err, context.DeadlineExceeded) && client.State() != zklock.Connected && client.State() != zklock.Reconnected:
		return exitf(exitUnavailable, "%w; %s says more", err, c.hint("doctor"))
	case errors.Is(err, context.DeadlineExceeded):
		return exitf(exitNotAcquired, "%w; zklock show %s says who has it", err, c.shown())
	default:
		return exitf(exitUnavailable, "%w", err)
	}
}

// ending is how a command has ended.
type ending struct {
	code     int  // its exit code, or 128 and the signal's number as shells say it
	signaled bool // a signal ended it; a code over 128 alone does not say so
}

// underLease runs the command while the lease lasts.
func (c *commandFlags) underLease(client *zklock.Client, lease *zklock.Lease, key string, std *streams, files [3]*os.File, signals <-chan os.Signal, program string, env ...string) (how ending, err error) {
	s := &supervisor{lease: lease, term: c.OnLost == "term", grace: c.Grace, files: files, signals: signals, log: std.err}
	all := os.Environ()
	if c.Env {
		if s.deadline, err = newDeadlineFile(); err != nil {
			return ending{}, fmt.Errorf("the deadline file: %w; %w (TMPDIR chooses another directory, --no-env does without)", err, errNotStarted)
		}
		defer s.deadline.remove()
		all = append(withoutOurs(all),
			"ZKLOCK_TOKEN="+strconv.FormatInt(int64(lease.Token()), 10),
			"ZKLOCK_KEY="+key,
			"ZKLOCK_PATH="+lease.Path(),
			"ZKLOCK_DEADLINE_FILE="+s.deadline.name)
		all = append(all, env...)
	}
	return superviseRun(client, s, program, c.argv(), all)
}

// release gives the lock up. It waits for the node to go, but no longer than the session
// would last anyway.
func release(lease *zklock.Lease, client *zklock.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), client.SessionTimeout())
	defer cancel()
	err := lease.Release(ctx)
	if errors.Is(err, zklock.ErrPending) {
		return fmt.Errorf("%w; others wait until the session is over", err)
	}
	if lost := new(zklock.LostError); errors.As(err, &lost) && lost.Reason != zklock.NodeDeleted {
		return nil // said before
	}
	return err
}

// withoutOurs is an environment without the variables of an outer zklock run.
func withoutOurs(env []string) []string {
	var kept []string
	for _, v := range env {
		switch name, _, _ := strings.Cut(v, "="); name {
		case "ZKLOCK_TOKEN", "ZKLOCK_KEY", "ZKLOCK_PATH", "ZKLOCK_DEADLINE_FILE", "ZKLOCK_ATTEMPT":
		default:
			kept = append(kept, v)
		}
	}
	return kept
}
