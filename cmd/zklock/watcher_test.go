//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/internal/boottime"
	"github.com/go-zklock/zklock/zktest"
)

// kill -9 of zklock: the watcher kills the group at the end of its pipe.
func TestKillOfZklockTakesTheGroupWithIt(t *testing.T) {
	t.Parallel()
	srv := server(t, 200*time.Millisecond)
	s := newScript(t)
	p := zklockOn(t, srv, runArgs([]string{"--key", "k"}, s.argv()...)...)
	s.running(t)
	p.signal(t, syscall.SIGKILL)
	killed := time.Now()
	s.gone(t)
	t.Logf("gone %v after the kill", time.Since(killed))
}

// SIGSTOP of zklock, and of all that a shell takes for its job: the watcher stops the
// group at the deadline. When zklock goes on it finds the lock lost.
func TestStopOfZklockStopsTheGroupAtTheDeadline(t *testing.T) {
	t.Parallel()
	srv := server(t, 150*time.Millisecond)
	s := newScript(t)
	cmd := command(runArgs([]string{"--key", "k", "--session-timeout", "3s", "--tick-time", "150ms", "--servers", srv.Addr()}, s.argv()...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p := start(t, cmd)
	s.running(t)
	s.goesOn(t)
	if err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	s.stopped(t)
	t.Logf("stopped %v after zklock", time.Since(stopped))
	was := s.beats(t)
	noNodes(t, srv, "k") // the session is over: somebody else may have the lock
	if got := s.beats(t); got != was {
		t.Error("the group ran after its deadline")
	}
	p.signal(t, syscall.SIGCONT)
	p.exits(t, 76, "lost")
	s.gone(t)
}

// kill -9 of the watcher: zklock kills the group.
func TestKillOfTheWatcherTakesTheGroupWithIt(t *testing.T) {
	t.Parallel()
	srv := server(t, 200*time.Millisecond)
	s := newScript(t)
	p := zklockOn(t, srv, runArgs([]string{"--key", "k"}, s.argv()...)...)
	s.running(t)
	watcher := parentOf(t, s.parent)
	if watcher == p.cmd.Process.Pid || parentOf(t, watcher) != p.cmd.Process.Pid {
		t.Fatalf("the command's parent is %d, which is no watcher", watcher)
	}
	if err := syscall.Kill(watcher, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.exits(t, 128+9, "the watcher process is gone")
	s.gone(t)
	noNodes(t, srv, "k")
}

// SIGSTOP of the watcher: zklock stops and kills the group by itself.
func TestStopOfTheWatcherDoesNotKeepTheGroupRunning(t *testing.T) {
	t.Parallel()
	srv := server(t, 150*time.Millisecond)
	s := newScript(t)
	p := zklockOn(t, srv, runArgs([]string{"--key", "k", "--session-timeout", "3s", "--tick-time", "150ms"}, s.argv()...)...)
	s.running(t)
	watcher := parentOf(t, s.parent)
	if err := syscall.Kill(watcher, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	srv.Inject(zktest.Blackhole(zktest.BothWays))
	s.stopped(t)
	p.exits(t, 76, "lost")
	s.gone(t)
	if state(watcher) != 0 {
		t.Error("the watcher is left")
	}
}

// watched is a group that the test itself leads.
type watched struct {
	*group
	t *testing.T
}

func newWatched(t *testing.T, argv []string) *watched {
	t.Helper()
	return newWatchedIn(t, "", argv)
}

// newWatchedIn gives the watcher a directory to remove.
func newWatchedIn(t *testing.T, dir string, argv []string) *watched {
	t.Helper()
	path, err := lookPath(argv[0])
	if err != nil {
		t.Fatal(err)
	}
	g, err := startGroup(path, argv, os.Environ(), [3]*os.File{os.Stdin, os.Stdout, os.Stderr}, dir)
	if err != nil {
		t.Fatal(err)
	}
	w := &watched{g, t}
	w.id = int(w.hears(tellReady).n)
	return w
}

// hears waits for a line.
func (w *watched) hears(word string) line {
	w.t.Helper()
	for {
		select {
		case l, ok := <-w.status:
			if !ok {
				w.t.Fatalf("the watcher ended before it said %q", word)
			}
			if l.word == word {
				return l
			}
		case <-time.After(patience):
			w.t.Fatalf("the watcher does not say %q", word)
		}
	}
}

func (w *watched) says(word string, n time.Duration) {
	w.t.Helper()
	if err := w.say(word, n.Nanoseconds()); err != nil {
		w.t.Fatal(err)
	}
}

// A deadline stops the group, a newer one continues it, and nobody else can.
func TestWatcherKeepsToTheDeadline(t *testing.T) {
	t.Parallel()
	s := newScript(t)
	w := newWatched(t, s.argv())
	w.says(sayRun, boottime.Reading()+time.Hour)
	w.hears(tellStarted)
	s.running(t)
	w.says(sayRun, boottime.Reading()+300*time.Millisecond)
	w.hears(tellOverdue)
	s.stopped(t)
	w.says(sayRun, boottime.Reading()+time.Hour)
	s.goesOn(t)
	w.says(sayStop, 0)
	s.stopped(t)
	// Somebody who continues the command finds it stopped again.
	for range 3 {
		if err := syscall.Kill(s.parent, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		s.stopped(t)
	}
	// A deadline that has passed does not let it run.
	w.says(sayRun, boottime.Reading()-time.Second)
	w.says(saySignal, time.Duration(syscall.SIGWINCH))
	s.stopped(t)
	w.says(sayKill, 0)
	w.hears(tellGone)
	s.gone(t)
	w.reap()
}

// Neither a deadline in the past nor the loss of the lock starts the command.
func TestWatcherStartsNothingTooLate(t *testing.T) {
	t.Parallel()
	for _, how := range []string{sayTerm, sayKill, saySignal, "end"} {
		s := newScript(t)
		w := newWatched(t, s.argv())
		eventually(t, "the starter waits at its gate, or does not", func() bool { return waits(w.id) || s.started() })
		w.says(sayRun, boottime.Reading()-time.Second)
		if how == "end" {
			if err := w.control.Close(); err != nil {
				t.Fatal(err)
			}
		} else {
			w.says(how, time.Duration(syscall.SIGUSR1)) // a grace that is over at once, too
		}
		w.hears(tellGone)
		w.reap()
		if s.started() {
			t.Errorf("%s: the command was started", how)
		}
	}
}

// gated is a watcher's view of a process in the place of the starter, whose end of the gate
// is r.
func gated(t *testing.T) (w *watcher, r *os.File) {
	t.Helper()
	r, gate, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	timer, err := newBootTimer()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w = &watcher{group: cmd.Process.Pid, gate: gate, gateR: r, timer: timer}
	t.Cleanup(func() {
		w.kill()
		_ = cmd.Wait() // it was killed
		_ = errors.Join(gate.Close(), r.Close())
	})
	return w, r
}

// opened says whether something can be taken at the gate.
func opened(r *os.File) bool { return unread(r) == 1 }

// What a signal has ended at the gate is not started by a later deadline.
func TestWatcherStartsNothingAfterASignal(t *testing.T) {
	t.Parallel()
	for _, how := range []string{saySignal, sayTerm, sayKill, ""} {
		w, r := gated(t)
		w.obey(line{sayRun, 1})
		if how != "" {
			w.obey(line{how, int64(syscall.SIGTERM)})
		}
		w.obey(line{sayRun, (boottime.Reading() + time.Hour).Nanoseconds()})
		if want := how == ""; opened(r) != want || w.started != want {
			t.Errorf("after %q: the gate is open: %v, said to be: %v", how, opened(r), w.started)
		}
	}
}

// The gate is shut again for a starter that has not gone through. One that has is about to be
// the command, which gets the signal.
func TestWatcherShutsTheGateAgain(t *testing.T) {
	t.Parallel()
	for _, how := range []string{saySignal, sayTerm, sayKill} {
		for _, through := range []bool{false, true} {
			w, r := gated(t)
			w.obey(line{sayRun, (boottime.Reading() + time.Hour).Nanoseconds()})
			w.obey(line{saySignal, int64(resized)}) // does not count
			if !opened(r) {
				t.Fatal("the gate is shut")
			}
			if through {
				if _, err := r.Read(make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
			}
			w.obey(line{how, int64(syscall.SIGTERM)})
			if opened(r) || w.started != through {
				t.Errorf("%s, gone through %v: said to be %v", how, through, w.started)
			}
		}
	}
}

// The command has not run, and that is what zklock says, when a signal comes before it is
// there: to zklock, or, from the terminal, to what waits to become the command.
func TestRunEndedBeforeTheStart(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	client, lease := leaseOf(t, srv)
	s := newScript(t)
	signals := make(chan os.Signal, 1)
	signals <- syscall.SIGTERM
	sup := &supervisor{lease: lease, log: &buffer{}, signals: signals, files: [3]*os.File{os.Stdin, os.Stdout, os.Stderr}}
	_, err := superviseRun(client, sup, "/bin/sh", s.argv(), os.Environ())
	if exitCode(err) != 128+15 || started(err) {
		t.Errorf("%v", err)
	}
	if s.started() {
		t.Error("the command was started")
	}
	// Ctrl-C ends a watcher that is not ready to catch it, too.
	sup = &supervisor{}
	sup.blame(unix.WaitStatus(syscall.SIGINT))
	sup.result = unix.WaitStatus(syscall.SIGKILL)
	if _, err := sup.verdict("sh"); exitCode(err) != 128+2 || started(err) {
		t.Errorf("%v", err)
	}
	for _, tc := range []struct {
		name    string
		sup     supervisor
		code    int
		started bool
	}{
		{"a signal of the terminal", supervisor{gone: true, told: true, result: unix.WaitStatus(syscall.SIGINT)}, 128 + 2, false},
		{"the starter fails", supervisor{gone: true, told: true, result: 1 << 8}, 1, false},
		{"the watcher is killed before it was told to start", supervisor{result: unix.WaitStatus(syscall.SIGKILL)}, 128 + 9, false},
		{"the watcher is killed, and may have started it", supervisor{told: true, result: unix.WaitStatus(syscall.SIGKILL)}, 128 + 9, true},
		{"the lock is lost and the watcher does not answer", supervisor{told: true, over: true}, 76, true},
	} {
		how, err := tc.sup.verdict("sh")
		code := how.code
		if err != nil {
			code = exitCode(err)
		}
		if code != tc.code || started(err) != tc.started {
			t.Errorf("%s: %d, %v", tc.name, code, err)
		}
	}
}

// zklock renews its deadline until it has heard that the group is gone, so the directory
// stays for as long, and goes then, or with zklock.
func TestWatcherRemovesTheDirectoryAfterZklock(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "deadline")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	w := newWatchedIn(t, dir, []string{"true"})
	w.says(sayKill, 0)
	w.hears(tellGone)
	eventually(t, "the watcher waits, or has ended", func() bool { return waits(w.watcher) || state(w.watcher) == 0 })
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
	w.reap()
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the directory is left: %v", err)
	}
}

// What is ended without the watcher is reaped, and other children of the process are left
// to those who wait for them.
func TestEndReapsOnlyTheGroup(t *testing.T) {
	t.Parallel()
	other := exec.Command("sh", "-c", "exit 7")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other child has ended", func() bool { return state(other.Process.Pid) == 0 })
	s := newScript(t)
	w := newWatched(t, s.argv())
	w.says(sayRun, boottime.Reading()+time.Hour)
	s.running(t)
	if status := w.end(); status.Signal() != syscall.SIGKILL {
		t.Errorf("the watcher's status is %#x", status)
	}
	if err := syscall.Kill(-w.id, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("somebody of the group is left: %v", err)
	}
	if err := other.Wait(); other.ProcessState.ExitCode() != 7 {
		t.Errorf("another child's status is lost: %v", err)
	}
}

// Processes that the command has left keep the lock, but not one that is lost.
func TestRunDoesNotSayThatALostLockIsHeld(t *testing.T) {
	t.Parallel()
	for _, over := range []bool{false, true} {
		log := &buffer{}
		s := &supervisor{group: &group{id: 7}, over: over, log: log}
		if err := s.hear(line{tellLeft, 0}); err != nil {
			t.Error(err)
		}
		if got := strings.Contains(log.String(), "the lock is held"); got == over {
			t.Errorf("lost %v: %q", over, log)
		}
	}
}

// acted notes for every text whether there was something in a pipe by then.
type acted struct {
	r     *os.File
	texts []string
}

func (a *acted) Write(p []byte) (int, error) {
	a.texts = append(a.texts, fmt.Sprintf("%v: %s", unread(a.r) > 0, p))
	return len(p), nil
}

// The group is stopped and killed before that is said: whoever reads it may take their time.
func TestRunActsBeforeItSpeaks(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	client, lease := leaseOf(t, srv)
	srv.Expire(client.SessionID())
	<-lease.Lost()
	for _, act := range []func(s *supervisor) error{
		(*supervisor).suspend,
		(*supervisor).lose,
		func(s *supervisor) error { s.term = true; return s.lose() },
	} {
		r, control, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		log := &acted{r: r}
		if err := act(&supervisor{lease: lease, started: true, log: log, group: &group{control: control}}); err != nil {
			t.Error(err)
		}
		if len(log.texts) != 1 || !strings.HasPrefix(log.texts[0], "true: ") {
			t.Errorf("%q", log.texts)
		}
		_ = errors.Join(control.Close(), r.Close())
	}
}

// leaseOf takes a lock in this process.
func leaseOf(t *testing.T, srv *zktest.Server) (*zklock.Client, *zklock.Lease) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	client, err := zklock.Connect(ctx, zklock.Config{Servers: []string{srv.Addr()}, TickTime: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	mutex, err := zklock.NewInterProcessMutex(client, "/dedup/k")
	if err != nil {
		t.Fatal(err)
	}
	lease, err := mutex.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return client, lease
}

// A lock that is lost between grant and start starts nothing.
func TestRunWhoseLockIsLostBeforeTheStart(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	client, lease := leaseOf(t, srv)
	srv.Expire(client.SessionID())
	<-lease.Lost()
	s := newScript(t)
	log := &buffer{}
	_, err := superviseRun(client, &supervisor{lease: lease, log: log, files: [3]*os.File{os.Stdin, os.Stdout, os.Stderr}}, "/bin/sh", s.argv(), os.Environ())
	if exitCode(err) != 76 {
		t.Errorf("%v", err)
	}
	if s.started() {
		t.Error("the command was started")
	}
}

// A lock that is in doubt at the start is waited for.
func TestRunWhoseLockIsSuspendedAtTheStart(t *testing.T) {
	t.Parallel()
	srv := server(t, time.Second)
	client, lease := leaseOf(t, srv)
	srv.Refuse(true)
	srv.CutConnections()
	eventually(t, "suspended", func() bool { return lease.State() == zklock.LeaseSuspended })
	s := newScript(t)
	log := &buffer{}
	type result struct {
		how ending
		err error
	}
	done := make(chan result, 1)
	sup := &supervisor{lease: lease, log: log, files: [3]*os.File{os.Stdin, os.Stdout, os.Stderr}}
	go func() {
		how, err := superviseRun(client, sup, "/bin/sh", s.argv(), os.Environ())
		done <- result{how, err}
	}()
	// What is stopped here is what waits to become the command.
	eventually(t, "the starter is stopped", s.starterStopped)
	if s.started() {
		t.Error("the command was started while the lock was in doubt")
	}
	srv.Refuse(false)
	s.running(t)
	s.end(t)
	if r := <-done; r.how.code != 5 || r.err != nil {
		t.Errorf("%d, %v", r.how.code, r.err)
	}
}

// A program that is gone by the time of the start.
func TestRunThatCannotBeExecuted(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	client, lease := leaseOf(t, srv)
	for path, code := range map[string]int{"/no/such/program": 127, "/etc/passwd": 126} {
		_, err := superviseRun(client, &supervisor{lease: lease, log: &buffer{}, files: [3]*os.File{os.Stdin, os.Stdout, os.Stderr}}, path, []string{path}, os.Environ())
		if exitCode(err) != code {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestLines(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(w, "%v%vnonsense\n%v", line{sayRun, 1}, line{sayStop, -2}, line{sayRun, 3})
	var got []line
	for l := range readLines(r) {
		got = append(got, l)
	}
	if len(got) != 2 || got[0] != (line{sayRun, 1}) || got[1] != (line{sayStop, -2}) {
		t.Errorf("%v", got)
	}
}

// What zklock says has no reader any more: the command goes on all the same.
func TestRunWhoseErrorsNobodyReads(t *testing.T) {
	t.Parallel()
	srv := server(t, 3*time.Second)
	s := newScript(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := command(runArgs([]string{"--key", "k", "--session-timeout", "60s", "--tick-time", "3s"}, s.argv()...)...)
	cmd.Env = append(cmd.Env, "ZKLOCK_SERVERS="+srv.Addr())
	cmd.Stderr = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), r.Close()); err != nil {
		t.Fatal(err)
	}
	s.running(t)
	srv.Refuse(true)
	srv.CutConnections()
	s.stopped(t)
	srv.Refuse(false)
	s.goesOn(t)
	s.end(t)
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 5 {
		t.Error(err)
	}
}

// A stopped zklock and a killed watcher: what the command has started stays stopped, and
// zklock kills it once it goes on.
func TestKillOfTheWatcherOfAStoppedZklock(t *testing.T) {
	t.Parallel()
	srv := server(t, 150*time.Millisecond)
	s := newScript(t)
	p := zklockOn(t, srv, runArgs([]string{"--key", "k", "--session-timeout", "3s", "--tick-time", "150ms"}, s.argv()...)...)
	s.running(t)
	p.signal(t, syscall.SIGSTOP)
	s.stopped(t)
	was := s.beats(t)
	if err := syscall.Kill(parentOf(t, s.parent), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command is killed", func() bool { return state(s.parent) == 0 })
	// A stopped process makes no step; whether it did later is looked at in the end.
	// D: it waits for a child of its own, as in stands.
	if st := state(s.child); st != 'T' && st != 'D' || s.beats(t) != was {
		t.Errorf("the child is %q, and made %d steps", st, s.beats(t)-was)
	}
	p.signal(t, syscall.SIGCONT)
	p.exits(t, 76, "lost")
	s.gone(t)
	if s.beats(t) != was {
		t.Error("the child made a step")
	}
}
