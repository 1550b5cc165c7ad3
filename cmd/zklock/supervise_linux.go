package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/go-zklock/zklock"
)

// passedSignals are given on to the command. Before it is there they end the wait, but
// for resized.
var passedSignals = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, resized,
}

// unheardSignals do nothing. Whoever read what we say may have gone away, which is no reason
// to end the command, and a job that Ctrl-Z stops would lose the lock. They are caught, and
// not ignored, so that the command does not inherit it.
var unheardSignals = []os.Signal{syscall.SIGPIPE, syscall.SIGTSTP}

// ignored says whether a signal is ignored, as it has been since we were started: by nohup,
// or by a shell for what it runs in the background. Go's runtime leaves SIGHUP, SIGINT and
// those of the terminal alone, and takes over the others before anybody can look.
func ignored(s os.Signal) bool {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return signal.Ignored(s)
	}
	_, rest, _ := strings.Cut(string(status), "\nSigIgn:\t")
	mask, _, _ := strings.Cut(rest, "\n")
	set, err := strconv.ParseUint(mask, 16, 64)
	return err == nil && set>>(s.(syscall.Signal)-1)&1 == 1
}

const (
	resized = syscall.SIGWINCH
	sigStop = syscall.SIGSTOP
	sigCont = syscall.SIGCONT
)

// supervisor runs one command under one lease: it tells the watcher what the lease says.
type supervisor struct {
	lease   *zklock.Lease
	term    bool          // --on-lost term
	grace   time.Duration // for term
	files   [3]*os.File   // the command's standard ones
	signals <-chan os.Signal
	log     io.Writer

	group    *group
	deadline *deadlineFile // nil without --env
	until    time.Duration // the deadline last told, on the boot clock
	fg       *foreground
	told     bool // that the group may run
	started  bool
	gone     bool // the watcher has said so
	stopped  bool
	over     bool             // the lock is lost, and the group is being ended
	lost     error            // why
	killedBy syscall.Signal   // a signal that came before it was known to be started
	passed   []syscall.Signal // what was given on to it
	failed   error            // why it could not be started
	result   unix.WaitStatus
	late     <-chan time.Time // the watcher should have said long ago that the group is gone
}

// goneWithin is how long a killed group may take to be gone before zklock takes it from
// the watcher, which may have been stopped.
const goneWithin = 3 * time.Second

// runs says that zklock run can be used on this system.
const runs = true

// superviseRun starts a command under a lease and says how it ended once its process group
// is gone.
func superviseRun(client *zklock.Client, s *supervisor, path string, argv, env []string) (how ending, err error) {
	dir := ""
	if s.deadline != nil {
		dir = s.deadline.dir
	}
	if s.group, err = startGroup(path, argv, env, s.files, dir); err != nil {
		return ending{}, fmt.Errorf("%w; %w", err, errNotStarted)
	}
	changed := make(chan struct{}, 1)
	stop := client.OnStateChange(func(zklock.StateChange) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	defer stop()
	// Proofs move the deadline every sixth of the session timeout, without an event.
	renew := time.NewTicker(max(client.SessionTimeout()/24, 5*time.Millisecond))
	defer renew.Stop()
	killed := !s.watch(changed, renew.C)
	s.fg.takeBack(killed || s.result.Signaled() || s.over)
	return s.verdict(argv[0])
}

// watch is the life of the command. It returns false if the watcher was lost and the
// group had to be killed.
func (s *supervisor) watch(changed <-chan struct{}, renew <-chan time.Time) bool {
	ended := s.lease.Lost()
	for {
		var err error
		select {
		case l, ok := <-s.group.status:
			switch {
			case !ok:
				return s.abandon("the watcher process is gone")
			case l.word == tellGone:
				s.gone, s.result = true, unix.WaitStatus(l.n)
				s.group.reap()
				return true
			}
			err = s.hear(l)
		case sig := <-s.signals:
			err = s.pass(sig.(syscall.Signal))
		case <-ended:
			ended = nil
			err = s.look()
		case <-changed:
			err = s.look()
		case <-renew:
			err = s.look()
		case <-s.late:
			return s.abandon("the watcher process does not say that the command is gone")
		}
		if err != nil {
			return s.abandon(fmt.Sprintf("the watcher process does not listen (%v)", err))
		}
	}
}

// abandon ends everything without the watcher.
func (s *supervisor) abandon(why string) bool {
	silent := s.failed != nil || !s.mayHaveRun()
	if !silent {
		fmt.Fprintf(s.log, "zklock: %s; the command is killed\n", why)
	}
	s.blame(s.group.end())
	if silent && s.failed == nil && s.killedBy == 0 {
		fmt.Fprintf(s.log, "zklock: %s\n", why)
	}
	s.result = unix.WaitStatus(syscall.SIGKILL)
	return false
}

// blame finds the signal that has ended a watcher which was not yet ready to catch it: one to
// our whole process group, as by Ctrl-C.
func (s *supervisor) blame(watcher unix.WaitStatus) {
	if s.killedBy == 0 && watcher.Signaled() && watcher.Signal() != syscall.SIGKILL {
		s.killedBy = watcher.Signal()
	}
}

// hear takes in what the watcher says.
func (s *supervisor) hear(l line) error {
	switch l.word {
	case tellReady:
		s.group.id = int(l.n)
		s.fg = lend(s.group.id)
		return s.look()
	case tellStarted:
		s.started = true
		if s.stopped && !s.over {
			fmt.Fprintln(s.log, saidStopped) // before this was heard
		}
	case tellFailed:
		s.failed = syscall.Errno(l.n)
	case tellOverdue:
		if !s.stopped && !s.over {
			s.stopped = true
			s.until = 0 // the next deadline has to be told, whatever it is
			fmt.Fprintln(s.log, "zklock: the deadline has passed without a new proof; the command is stopped")
		}
	case tellLeft:
		if !s.over { // or there is no lock, and they are being ended
			fmt.Fprintf(s.log, "zklock: the command has ended and left processes of its group %d running; the lock is held until they end\n", s.group.id)
		}
	}
	return nil
}

// look asks the lease and has the group run, stop or end accordingly.
func (s *supervisor) look() error {
	if s.group.id == 0 || s.over {
		return nil // not there yet, or over
	}
	switch s.lease.State() {
	case zklock.LeaseHeld:
		return s.run()
	case zklock.LeaseSuspended:
		return s.suspend()
	default:
		return s.lose()
	}
}

// run lets the group run until the lease's deadline as of now.
func (s *supervisor) run() error {
	until := trustedUntil(s.lease)
	moved := until - s.until
	// The same deadline is computed a few microseconds earlier or later each time.
	if !s.stopped && moved > -time.Millisecond && moved < time.Millisecond {
		return nil
	}
	s.until = until
	s.tellDeadline()
	if s.stopped {
		s.stopped = false
		fmt.Fprintln(s.log, "zklock: the lock is still ours; the command goes on")
	}
	s.told = true
	return s.group.say(sayRun, until.Nanoseconds())
}

const saidStopped = "zklock: the ensemble does not answer, so the lock is in doubt; the command is stopped"

func (s *supervisor) suspend() error {
	if s.stopped {
		return nil
	}
	s.stopped = true
	err := s.group.stop() // first: whoever reads what we say may keep us waiting
	if s.started {
		fmt.Fprintln(s.log, saidStopped)
	}
	return err
}

// lose ends the group because the lock is lost.
func (s *supervisor) lose() error {
	s.over, s.lost = true, s.lease.Err()
	if s.term {
		s.late = time.After(s.grace + goneWithin)
		err := s.group.say(sayTerm, s.grace.Nanoseconds())
		fmt.Fprintf(s.log, "%v; the command is asked to end (SIGTERM), and killed after %v\n", s.lost, s.grace)
		return err
	}
	s.late = time.After(goneWithin)
	err := s.group.kill()
	fmt.Fprintf(s.log, "%v; the command is killed\n", s.lost)
	return err
}

// tellDeadline renews the command's deadline file.
func (s *supervisor) tellDeadline() {
	if s.deadline == nil {
		return
	}
	if err := s.deadline.write(s.until); err != nil {
		// The old line stays, which is earlier: nobody is misled into running on.
		fmt.Fprintf(s.log, "zklock: the deadline file is not renewed: %v\n", err)
	}
}

// pass gives a signal on to the command. One that comes before the command is there
// ends it before it begins.
func (s *supervisor) pass(sig syscall.Signal) error {
	if sig != resized {
		s.passed = append(s.passed, sig)
		if !s.started {
			s.killedBy = sig // unless it turns out to be there
		}
	}
	return s.group.say(saySignal, int64(sig))
}

// mayHaveRun says whether the command ran, or nobody can say that it did not: a watcher
// that is asked to start it says so before it says that the group is gone, but may itself
// be gone first.
func (s *supervisor) mayHaveRun() bool { return s.started || s.told && !s.gone }

// verdict is how the command ended, or why that is not its own doing.
func (s *supervisor) verdict(name string) (ending, error) {
	if s.killedBy == 0 && s.result.Signaled() {
		s.killedBy = s.result.Signal() // from the terminal, which is the group's before the command is there
	}
	switch {
	case s.over && !s.mayHaveRun():
		return ending{}, exitf(exitLost, "the lock was lost before the command was started; %w", errNotStarted)
	case s.over:
		return ending{}, exitf(exitLost, "the lock was lost while the command ran; what it did last may be unfinished")
	case s.failed != nil:
		return ending{}, cannotRun(name, s.failed)
	case !s.mayHaveRun() && s.killedBy != 0:
		return ending{}, exitf(exitSignal+int(s.killedBy), "ended by a signal (%v) before the command was started; %w", s.killedBy, errNotStarted)
	case !s.mayHaveRun():
		return ending{}, exitf(exitFailed, "the command could not be started; %w", errNotStarted)
	case s.result.Signaled():
		return ending{exitSignal + int(s.result.Signal()), true}, nil
	default:
		code := s.result.ExitStatus()
		// Some catch a signal, and exit with what a shell would have said of it.
		return ending{code, slices.Contains(s.passed, syscall.Signal(code-exitSignal))}, nil
	}
}
