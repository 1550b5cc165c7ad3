//go:build linux

package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/go-zklock/zklock/zktest"
)

// person is somebody at a terminal.
type person struct {
	*process
	keys   *os.File
	slave  *os.File
	screen *buffer
}

// atTerminal starts a program with a terminal of its own.
func atTerminal(t *testing.T, srv *zktest.Server, cmd *exec.Cmd) *person {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var n int
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0)
		if failed == nil {
			n, failed = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
		if failed == nil {
			failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 100})
		}
	})
	if err := errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(cmd.Env, "ZKLOCK_SERVERS="+srv.Addr())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	p := &person{process: &process{cmd: cmd, ended: make(chan struct{}), out: &buffer{}, err: &buffer{}}, keys: master, slave: slave, screen: &buffer{}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(p.screen, master) // ends with an error when the terminal is closed
	}()
	go func() {
		_ = cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.ended
		_ = slave.Close()
		_ = master.SetReadDeadline(time.Now())
		_ = master.Close()
		<-read
		if t.Failed() {
			t.Logf("%v\n%q", cmd.Args, p.screen)
		}
	})
	return p
}

func (p *person) types(t *testing.T, text string) {
	t.Helper()
	if _, err := io.WriteString(p.keys, text); err != nil {
		t.Fatal(err)
	}
}

const ctrlC, ctrlZ, ctrlS, ctrlQ = "\x03", "\x1a", "\x13", "\x11"

// The command has the terminal: it reads from it, and Ctrl-C ends it and nothing else.
func TestTerminalIsTheCommands(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	p := atTerminal(t, srv, command(runArgs([]string{"--key", "k"}, "sh", "-c", `echo ready; read x; echo "got $x"; echo again; read y`)...))
	says(t, p.screen, "ready")
	p.types(t, ctrlZ) // does nothing
	p.types(t, "hello\n")
	says(t, p.screen, "got hello")
	says(t, p.screen, "again")
	p.types(t, ctrlC)
	if code := p.code(t); code != 128+2 {
		t.Errorf("exit code %d", code)
	}
	noNodes(t, srv, "k")
}

// After the command the terminal goes back, with the modes that it had if the command
// had no chance to set them back.
func TestTerminalGoesBack(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	p := atShell(t, srv, `"$0" run --key k -- sh -c 'stty -echo; kill -9 $$'; echo "code $?"; read y; echo "after $y"`)
	says(t, p.screen, "code 137")
	p.types(t, "word\n")
	says(t, p.screen, "after word")
	if n := strings.Count(p.screen.String(), "word"); n != 2 {
		t.Errorf("the terminal does not echo: %q", p.screen)
	}
	if code := p.code(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// atShell is a person at a shell script that finds zklock as its $0.
func atShell(t *testing.T, srv *zktest.Server, text string) *person {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	shell := command("-c", text, exe)
	shell.Path, shell.Args[0] = "/bin/sh", "sh"
	return atTerminal(t, srv, shell)
}

// What reads from the terminal in spite of its standard input, as ssh does for a password,
// gets its keys, Ctrl-Z does nothing, and the terminal goes back. In a job of its own, as
// from an interactive shell, zklock can be stopped.
func TestTerminalIsTheCommandsBehindAPipe(t *testing.T) {
	t.Parallel()
	for _, jobs := range []string{"", "set -m; "} {
		srv := server(t, steady)
		p := atShell(t, srv, jobs+`echo piped | "$0" run --key k -- sh -c 'read x; echo "piped: $x"; read y </dev/tty; echo "typed: $y"; read z </dev/tty'; echo "code $?"; read y; echo "after: $y"`)
		says(t, p.screen, "piped: piped")
		p.types(t, ctrlZ)
		p.types(t, "hello\n")
		says(t, p.screen, "typed: hello")
		p.types(t, ctrlC)
		says(t, p.screen, "code 130")
		p.types(t, "word\n")
		says(t, p.screen, "after: word")
		if code := p.code(t); code != 0 {
			t.Errorf("exit code %d", code)
		}
		noNodes(t, srv, "k")
	}
}

// What a script runs in the background does not take the keyboard from the script.
func TestTerminalStaysWithAScript(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	dir := t.TempDir()
	p := atShell(t, srv, `cd '`+dir+`'; until_there() { until [ -e "$1" ]; do sleep 0.02; done; }
"$0" run --key k -- sh -c 'touch ready; while [ -e ready ] && ! [ -e end ]; do sleep 0.02; done' & until_there ready
read x; echo "got: $x"; touch end; wait; echo over`)
	eventually(t, "the command runs", func() bool {
		_, err := os.Stat(filepath.Join(dir, "ready"))
		return err == nil
	})
	p.types(t, "hello\n")
	says(t, p.screen, "got: hello")
	says(t, p.screen, "over")
	if code := p.code(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// A person who waits sees the place in the queue and who has the lock; Ctrl-C ends it.
func TestTerminalShowsTheWait(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	s := newScript(t)
	holder := zklockOn(t, srv, runArgs([]string{"--key", "k", "--identifier", "host-7"}, s.argv()...)...)
	s.running(t)
	first := atTerminal(t, srv, command("once", "--key", "k", "--", "true"))
	says(t, first.screen, "\r\x1b[Kwaiting for k: 1st in the queue; held by host-7 since ")
	second := atTerminal(t, srv, command(runArgs([]string{"--key", "k"}, "true")...))
	says(t, second.screen, "waiting for k: 2nd in the queue; held by host-7 since ")
	first.types(t, ctrlC)
	if code := first.code(t); code != 128+2 {
		t.Errorf("exit code %d", code)
	}
	says(t, second.screen, "waiting for k: 1st in the queue")
	s.end(t)
	holder.exits(t, 5, "")
	if code := second.code(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	eventually(t, "the line is gone", func() bool { return strings.HasSuffix(second.screen.String(), "\r\x1b[K") })

	// Without a terminal nothing is shown.
	again := newScript(t)
	holder = zklockOn(t, srv, runArgs([]string{"--key", "k"}, again.argv()...)...)
	again.running(t)
	piped := zklockOn(t, srv, runArgs([]string{"--key", "k", "--wait", "1500ms"}, "true")...)
	piped.code(t)
	if strings.Contains(piped.err.String(), "in the queue") {
		t.Errorf("into a pipe: %q", piped.err)
	}
	again.end(t)
	holder.exits(t, 5, "")
}

// A signal that comes when the lock has been granted and nothing is started yet: nothing is,
// and the lock is given back. The moment is made long: zklock is about to remove its line
// from a terminal that stands still.
func TestSignalAtTheGrant(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"run", "once"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			srv := server(t, steady)
			s := newScript(t)
			holder := zklockOn(t, srv, runArgs([]string{"--key", "k"}, s.argv()...)...)
			s.running(t)
			p := atTerminal(t, srv, command(how, "--key", "k", "--", "echo", "it ran"))
			says(t, p.screen, "waiting for k: 1st in the queue")
			p.types(t, ctrlS)
			eventually(t, "it writes to the terminal", func() bool { return rests(p.cmd.Process.Pid, syscall.SYS_WRITE) })
			s.end(t)
			holder.exits(t, 5, "")
			// That it has heard of the lock is no event for others. It has nothing left to do
			// then; now and then it rests before that, as for an answer.
			for range 20 {
				time.Sleep(10 * time.Millisecond)
				eventually(t, "it has the lock", func() bool { return rests(p.cmd.Process.Pid, syscall.SYS_WRITE) })
			}
			p.signal(t, syscall.SIGTERM)
			eventually(t, "the signal is taken", func() bool {
				return taken(p.cmd.Process.Pid, syscall.SIGTERM) && rests(p.cmd.Process.Pid, syscall.SYS_WRITE)
			})
			p.types(t, ctrlQ)
			if code := p.code(t); code != 128+15 {
				t.Errorf("exit code %d", code)
			}
			if strings.Contains(p.screen.String(), "it ran") {
				t.Error("the command was started")
			}
			noNodes(t, srv, "k")
			prints(t, srv, 0, onceArgs("k", "true")...)
		})
	}
}

func TestOrdinal(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{1: "1st", 2: "2nd", 3: "3rd", 4: "4th", 11: "11th", 12: "12th", 13: "13th", 21: "21st", 111: "111th"} {
		if got := ordinal(n); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
}

func TestCut(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		text    string
		columns int
		want    string
	}{{"abc", 3, "abc"}, {"abcd", 3, "ab…"}, {"äöüß", 3, "äö…"}, {"abc", 0, "abc"}} {
		if got := cut(tc.text, tc.columns); got != tc.want {
			t.Errorf("%q %d: %q", tc.text, tc.columns, got)
		}
	}
}
