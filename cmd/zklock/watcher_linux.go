package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/go-zklock/zklock/internal/boottime"
)

// The watcher is the parent of the command. It does what has to be done when zklock
// cannot: it kills the command's process group when zklock is gone, and stops it when the
// deadline passes that zklock had told it last. It is a process of its own, so that it runs
// on when zklock is stopped, and as small as it can be.
//
//	zklock ──── control ───► watcher ──── gate ───► starter, then the command
//	       ◄─── status ─────         ◄─── errno ───
//
// It lives in a session of its own. No signal of the terminal reaches it there, and the
// kernel, which continues the stopped groups of a session when their parent dies, lets
// the command stay stopped if the watcher is killed. It goes by another name than zklock,
// so that whoever kills zklock by its name does not kill both: then nobody would be left
// to kill what the command has started.

const (
	watcherCommand = "_watch" // zklock _watch CONTROL STATUS DIR PATH ARGV0 [ARG…]
	starterCommand = "_start" // zklock _start GO ERRNO PATH ARGV0 [ARG…]

	demoWorker = "_worker" // zklock _worker JOURNAL NAME
	demoCharge = "_charge" // zklock _charge FILE

	watcherName = "zk-watcher"

	// self runs this very program, also when its file has been replaced since.
	self = "/proc/self/exe"

	// lookForRest is how often the watcher looks whether processes that the command has
	// left behind are gone. Most of them it hears of as their last ancestor.
	lookForRest = 200 * time.Millisecond
)

// hiddenMain runs the program as a watcher, a starter, or a part of zklock demo, if its
// arguments say so.
func hiddenMain(args []string) (code int, hidden bool) {
	if len(args) < 1 {
		return 0, false
	}
	switch {
	case args[0] == watcherCommand && len(args) >= 6:
		return watcherMain(args[1:]), true
	case args[0] == starterCommand && len(args) >= 5:
		starterMain(args[1:])
		return exitFailed, true
	case args[0] == demoWorker && len(args) == 3:
		demoWork(args[1], args[2])
		return exitFailed, true
	case args[0] == demoCharge && len(args) == 2:
		return demoChargeOnce(args[1]), true
	default:
		return 0, false
	}
}

// passedFile takes over a descriptor that was passed on under its number.
func passedFile(number string) (*os.File, error) {
	fd, err := strconv.Atoi(number)
	if err != nil {
		return nil, err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
		return nil, fmt.Errorf("descriptor %d: %w", fd, err)
	}
	return os.NewFile(uintptr(fd), "pipe "+number), nil
}

// passOn lets the next program that is started inherit files under their own numbers;
// the descriptors that a user has opened for the command keep theirs. It returns the
// numbers as arguments.
func passOn(files ...*os.File) ([]string, error) {
	var numbers []string
	for _, f := range files {
		raw, err := f.SyscallConn()
		if err != nil {
			return nil, err
		}
		var failed error
		err = raw.Control(func(fd uintptr) {
			_, failed = unix.FcntlInt(fd, unix.F_SETFD, 0)
			numbers = append(numbers, strconv.Itoa(int(fd)))
		})
		if err := errors.Join(err, failed); err != nil {
			return nil, err
		}
	}
	return numbers, nil
}

// starterMain becomes the command once the watcher says so, and returns if it cannot. Until then it is a member of
// the group like any other, to be stopped and killed.
func starterMain(args []string) {
	gate, err := passedFile(args[0])
	if err != nil {
		return
	}
	failure, err := passedFile(args[1])
	if err != nil {
		return
	}
	if n, _ := gate.Read(make([]byte, 1)); n == 0 {
		return // the watcher is gone
	}
	path, argv := args[2], args[3:]
	err = syscall.Exec(path, argv, os.Environ()) //nolint:gosec // running commands is what zklock is for
	if errors.Is(err, syscall.ENOEXEC) {         // a script without a first line that says for what: as execvp(3) does
		err = syscall.Exec("/bin/sh", append([]string{"sh", path}, argv[1:]...), os.Environ()) //nolint:gosec // as above
	}
	var errno syscall.Errno
	errors.As(err, &errno)
	_, _ = failure.Write(binary.NativeEndian.AppendUint32(nil, uint32(errno)))
}

// watcher is the state of one.
type watcher struct {
	status *os.File
	group  int      // the process group's id, which is the command's pid
	gate   *os.File // a byte lets the command start
	gateR  *os.File // where the starter takes it

	timer    *bootTimer
	deadline time.Duration    // on the boot clock; the group must not run after it
	suspend  bool             // zklock says that the lease is suspended
	lost     bool             // by sayTerm or sayKill: the deadline has no meaning any more
	started  bool             // the gate is open
	executed bool             // the command runs
	early    []syscall.Signal // came in between
	stopped  bool             // by us

	ended  bool // the command has
	result unix.WaitStatus
}

func watcherMain(args []string) int {
	// The command is killed when the thread that started it ends.
	runtime.LockOSThread()
	unheard := make(chan os.Signal, 1)
	for _, s := range []os.Signal{
		syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGPIPE,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGTSTP,
	} { // meant for the command, or for nobody
		if !ignored(s) { // what is caught here would not be ignored in the command
			signal.Notify(unheard, s)
		}
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	setName(watcherName)

	control, err := passedFile(args[0])
	if err != nil {
		return exitFailed
	}
	w := &watcher{}
	if w.status, err = passedFile(args[1]); err != nil {
		return exitFailed
	}
	defer func() { _ = os.RemoveAll(args[2]) }() //nolint:gosec // its own; zklock does too, if it can
	failure, err := w.prepare(args[3], args[4:])
	if err != nil {
		w.tell(tellFailed, int64(errnoOf(err)))
		return exitFailed
	}
	w.tell(tellReady, int64(w.group))
	said := readLines(control)
	w.watch(said, children, failure)
	// Until zklock has heard that the group is gone it goes on with its file in the
	// directory that goes next.
	for range said {
	}
	return 0
}

// prepare starts the process that becomes the command.
func (w *watcher) prepare(path string, argv []string) (failure <-chan syscall.Errno, err error) {
	// What the command leaves behind becomes ours, so that we hear of its end.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, err
	}
	if w.timer, err = newBootTimer(); err != nil {
		return nil, err
	}
	gateR, gateW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	failR, failW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	numbers, err := passOn(gateR, failW)
	if err != nil {
		return nil, err
	}
	args := append([]string{watcherName, starterCommand, numbers[0], numbers[1], path}, argv...)
	w.group, err = syscall.ForkExec(self, args, &syscall.ProcAttr{ //nolint:gosec // our own program
		Env:   os.Environ(),
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	})
	_ = failW.Close()
	if err != nil {
		return nil, err
	}
	w.gate, w.gateR = gateW, gateR
	// Only now: the command stays in the session that has the terminal.
	if _, err := unix.Setsid(); err != nil {
		w.kill()
		return nil, err
	}
	return readErrno(failR), nil
}

// readErrno sends what the starter says: 0 if it has become the command, or is gone.
func readErrno(r *os.File) <-chan syscall.Errno {
	ch := make(chan syscall.Errno, 1)
	go func() {
		b := make([]byte, 4)
		if n, _ := r.Read(b); n == len(b) {
			ch <- syscall.Errno(binary.NativeEndian.Uint32(b))
		} else {
			ch <- 0
		}
		_ = r.Close()
	}()
	return ch
}

// watch is the watcher's life. It returns when the group is gone.
func (w *watcher) watch(control <-chan line, children <-chan os.Signal, failure <-chan syscall.Errno) {
	rest := time.NewTicker(lookForRest)
	rest.Stop()
	defer rest.Stop()
	var grace <-chan time.Time
	for {
		select {
		case l, ok := <-control:
			if !ok { // zklock is gone
				control = nil
				w.kill()
				break
			}
			if l.word == sayTerm {
				grace = time.After(time.Duration(l.n))
			}
			w.obey(l)
		case <-w.timer.C:
			if w.apply() {
				w.tell(tellOverdue, 0)
			}
		case <-grace:
			w.kill()
		case errno := <-failure:
			failure = nil
			w.tellStart(errno)
		case <-children:
		case <-rest.C:
		}
		before := w.ended
		w.reap()
		if !w.ended {
			continue
		}
		if w.groupGone() {
			if failure != nil { // the starter's end of it is closed
				w.tellStart(<-failure)
			}
			w.tell(tellGone, int64(w.result))
			return
		}
		if !before {
			w.tell(tellLeft, int64(w.result))
			rest.Reset(lookForRest)
		}
	}
}

// tellStart says what has become of the start.
func (w *watcher) tellStart(errno syscall.Errno) {
	if errno != 0 {
		w.tell(tellFailed, int64(errno))
	} else if w.started {
		w.executed = true
		w.tell(tellStarted, 0)
		for _, sig := range w.early {
			w.signal(sig)
		}
	}
}

// obey does what zklock says.
func (w *watcher) obey(l line) {
	switch l.word {
	case sayRun:
		w.deadline, w.suspend = time.Duration(l.n), false
		w.timer.set(w.deadline)
		w.apply()
	case sayStop:
		w.suspend = true
		w.apply()
	case saySignal:
		w.pass(syscall.Signal(l.n))
	case sayTerm:
		w.retract()
		if !w.started {
			w.kill()
			break
		}
		w.lost = true
		w.apply()
		w.pass(syscall.SIGTERM)
	case sayKill:
		w.kill()
	}
}

// pass gives a signal to the command: to the command itself, and not to the starter that
// is about to become it. A command that has not been started never is.
func (w *watcher) pass(sig syscall.Signal) {
	if sig != resized {
		w.retract()
	}
	switch {
	case w.executed:
		w.signal(sig)
	case w.started:
		w.early = append(w.early, sig)
	case sig != resized:
		w.kill()
	}
}

// mayRun says whether the group may run now.
func (w *watcher) mayRun() bool {
	return w.lost || !w.suspend && boottime.Reading() < w.deadline
}

// apply starts, stops or continues the group. It says whether it has stopped it.
func (w *watcher) apply() (stopped bool) {
	// What was killed at the gate has ended, whatever is said after that: to open the gate
	// would pass it off as a command that had run.
	if w.lost && !w.started {
		return false
	}
	if !w.mayRun() {
		if w.stopped {
			return false
		}
		w.stopped = true
		w.signal(syscall.SIGSTOP)
		return true
	}
	if w.stopped {
		w.stopped = false
		w.signal(syscall.SIGCONT)
	}
	if !w.started {
		w.started = true
		_, _ = w.gate.Write([]byte{1})
	}
	return false
}

// retract shuts the gate again, if the starter has not gone through: who takes the byte can
// be one only. A starter that is a program yet to be loaded leaves time for that.
func (w *watcher) retract() {
	if !w.started || w.executed {
		return
	}
	raw, err := w.gateR.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool {
		n, err := unix.Read(int(fd), make([]byte, 1))
		w.started = n != 1 || err != nil
		return true // does not wait
	})
}

func (w *watcher) kill() {
	w.retract()
	w.lost = true
	w.signal(syscall.SIGKILL)
}

// signal sends to the whole group; it fails when nobody is left.
func (w *watcher) signal(s syscall.Signal) { _ = syscall.Kill(-w.group, s) }

// reap takes note of children that have ended, and of a command that somebody else has
// continued.
func (w *watcher) reap() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG|unix.WCONTINUED, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if pid <= 0 || err != nil {
			return
		}
		switch {
		case pid != w.group:
		case status.Continued():
			if w.stopped {
				w.signal(syscall.SIGSTOP)
			}
		default:
			w.ended, w.result = true, status
		}
	}
}

// groupGone says whether no process of the group is left, once the command has been
// reaped. Until then the group's id cannot be given to others.
func (w *watcher) groupGone() bool {
	return errors.Is(syscall.Kill(-w.group, 0), syscall.ESRCH)
}

// tell says something to zklock, which may be gone.
func (w *watcher) tell(word string, n int64) { _, _ = w.status.WriteString(line{word, n}.String()) }

func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return syscall.EIO
	}
	return errno
}
