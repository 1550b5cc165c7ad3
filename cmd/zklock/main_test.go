//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-zklock/zklock/internal/testlog"
	"github.com/go-zklock/zklock/zktest"
)

// asProgram in the environment makes the test binary be zklock.
const asProgram = "ZKLOCK_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if code, hidden := hiddenMain(os.Args[1:]); hidden {
		os.Exit(code)
	}
	if os.Getenv(asProgram) != "" {
		os.Exit(realMain(os.Args[1:], &streams{os.Stdin, os.Stdout, os.Stderr}))
	}
	for _, name := range []string{"ZKLOCK_SERVERS", configEnv, "ZKLOCK_PATH"} {
		_ = os.Unsetenv(name)
	}
	_ = os.Setenv("HOME", os.DevNull) // nobody's settings
	heedSignals()
	// The race detector lets a program that ends wait for a second.
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0")
	os.Exit(m.Run())
}

// heedSignals has the programs that tests start take signals as a shell's do. What the tests were
// started with ignored (SIGHUP by nohup, SIGINT and SIGQUIT by a script in the background) those
// would ignore as well, and zklock would leave it at that. What is caught is not inherited.
func heedSignals() {
	for _, s := range []os.Signal{
		syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGPIPE, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGCONT, syscall.SIGWINCH,
	} {
		if ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
}

// patience bounds each wait for an event.
const patience = 20 * time.Second

// steady is the tick of the ensembles on which nothing expires: zklock asks for a session of
// 12 s there, which outlives a machine that stands still for seconds.
const steady = 2 * time.Second

// server is a server with a tick on a port.
func server(t *testing.T, tick time.Duration, opts ...zktest.Option) *zktest.Server {
	t.Helper()
	return zktest.NewServer(t, append([]zktest.Option{zktest.WithListen("127.0.0.1:0"), zktest.WithTickTime(tick)}, opts...)...)
}

// buffer takes what a process writes.
type buffer = testlog.Buffer

// process is a running zklock.
type process struct {
	cmd      *exec.Cmd
	out, err *buffer
	ended    chan struct{}
}

// command is zklock with arguments, not yet started.
func command(args ...string) *exec.Cmd {
	cmd := exec.Command(self, args...)
	cmd.Args[0] = "zklock"
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

func start(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, out: &buffer{}, err: &buffer{}, ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.out, p.err
	// A process that a test leaves behind must not keep Wait from returning.
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = cmd.Wait() // the exit code tells
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // fails if it has ended
		<-p.ended
		if t.Failed() {
			t.Logf("%v\nout: %s\nerr: %s", cmd.Args, p.out, p.err)
		}
	})
	return p
}

// zklock starts it on a server.
func zklockOn(t *testing.T, srv *zktest.Server, args ...string) *process {
	t.Helper()
	cmd := command(args...)
	cmd.Env = append(cmd.Env, "ZKLOCK_SERVERS="+srv.Addr())
	return start(t, cmd)
}

// code waits for the end.
func (p *process) code(t *testing.T) int {
	t.Helper()
	select {
	case <-p.ended:
		return exitSaid(p.cmd.ProcessState)
	case <-time.After(patience):
		t.Fatalf("%v has not ended", p.cmd.Args)
		return 0
	}
}

// exitSaid is what a shell would say of the end of a process.
func exitSaid(state *os.ProcessState) int {
	if status := state.Sys().(syscall.WaitStatus); status.Signaled() {
		return -int(status.Signal())
	}
	return state.ExitCode()
}

// exits checks how it ends.
func (p *process) exits(t *testing.T, code int, says string) {
	t.Helper()
	if got := p.code(t); got != code {
		t.Errorf("exit code %d, want %d", got, code)
	}
	if !strings.Contains(p.err.String(), says) {
		t.Errorf("does not say %q", says)
	}
}

func (p *process) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// says waits for a text on a stream.
func says(t *testing.T, stream *buffer, text string) {
	t.Helper()
	eventually(t, fmt.Sprintf("the output has %q", text), func() bool { return strings.Contains(stream.String(), text) })
}

// eventually looks until ok says so.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// script is a shell command that says the pids of itself and of a child in the
// background, and lives on until its file is there. Both write to beats all the time.
type script struct {
	dir           string
	parent, child int
}

const scriptText = `beat() { while [ -d "$1" ] && ! [ -e "$1/end" ]; do echo x >> "$1/beats"; sleep 0.02; done; }
trap 'echo asked >> "$1/asked"' TERM USR1 INT
beat "$1" & echo $! > "$1/child.next"; mv "$1/child.next" "$1/child"
echo $$ > "$1/parent.next"; mv "$1/parent.next" "$1/parent"
beat "$1"; wait; exit 5`

func newScript(t *testing.T) *script {
	t.Helper()
	s := &script{dir: t.TempDir()}
	t.Cleanup(func() {
		if s.parent > 0 {
			_ = syscall.Kill(-s.parent, syscall.SIGKILL) // what a failed test has left
		}
	})
	return s
}

func (s *script) argv() []string { return []string{"sh", "-c", scriptText, "script", s.dir} }

// running waits until it has said its pids.
func (s *script) running(t *testing.T) {
	t.Helper()
	s.parent, s.child = s.pid(t, "parent"), s.pid(t, "child")
}

func (s *script) pid(t *testing.T, name string) (pid int) {
	t.Helper()
	eventually(t, name+" runs", func() bool {
		text, err := os.ReadFile(filepath.Join(s.dir, name))
		if err != nil {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil
	})
	return pid
}

// started says whether it ever ran.
func (s *script) started() bool {
	_, err := os.Stat(filepath.Join(s.dir, "parent"))
	return err == nil
}

// asked says whether it was asked to end.
func (s *script) asked() bool {
	_, err := os.Stat(filepath.Join(s.dir, "asked"))
	return err == nil
}

// end lets it end.
func (s *script) end(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, "end"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// beats is how much it has written.
func (s *script) beats(t *testing.T) int64 {
	t.Helper()
	info, err := os.Stat(filepath.Join(s.dir, "beats"))
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// state is a process's state as ps shows it, 0 if there is none of that pid, or only
// what is left of one that has ended.
func state(pid int) byte {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, ok := strings.Cut(string(text), ") ")
	if !ok || rest[0] == 'Z' || rest[0] == 'X' {
		return 0
	}
	return rest[0]
}

// waits says whether a Go program has nothing to do until something can be read, as the
// starter at its gate. That the process sleeps does not say so: it does, now and then, while
// it starts.
func waits(pid int) bool { return rests(pid, syscall.SYS_EPOLL_PWAIT) }

// rests says whether no thread of a process runs, and one is in a system call.
func rests(pid int, call int) bool {
	names, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
	found := false
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil || bytes.HasPrefix(text, []byte("running")) {
			return false
		}
		found = found || bytes.HasPrefix(text, fmt.Appendf(nil, "%d ", call))
	}
	return found
}

// taken says whether a signal that was sent to a process does not wait for it any more.
func taken(pid int, sig syscall.Signal) bool {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := strings.Cut(string(text), "\nShdPnd:\t")
	mask, _, _ := strings.Cut(rest, "\n")
	waiting, err := strconv.ParseUint(mask, 16, 64)
	return err == nil && waiting>>(sig-1)&1 == 0
}

// starterStopped says whether what waits to become the script is stopped: a process
// whose command line has the script's folder.
func (s *script) starterStopped() bool {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil || !bytes.Contains(text, []byte(s.dir)) {
			continue
		}
		if pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name))); state(pid) == 'T' {
			return true
		}
	}
	return false
}

// stands says whether the whole group is stopped. A shell that has just forked, as vfork
// does, shows D while its stopped child has not become a program yet.
func (s *script) stands() bool {
	stopped := 0
	for _, st := range groupStates(s.parent) {
		switch st {
		case 'T':
			stopped++
		case 'D', 'Z':
		default:
			return false
		}
	}
	return stopped > 0
}

// stopped waits until the group is, and not only for a moment.
func (s *script) stopped(t *testing.T) {
	t.Helper()
	eventually(t, "the group is stopped", func() bool {
		if !s.stands() {
			return false
		}
		was := s.beats(t)
		// The group is stopped by two, and a process that forks in that moment shows it
		// late. That nothing follows is no event.
		time.Sleep(50 * time.Millisecond)
		return s.stands() && s.beats(t) == was
	})
}

// goesOn waits until the group runs and writes.
func (s *script) goesOn(t *testing.T) {
	t.Helper()
	was := s.beats(t)
	eventually(t, "the group goes on", func() bool { return !s.stands() && s.beats(t) > was })
}

// groupStates are the states of the processes of a group.
func groupStates(group int) []byte {
	var states []byte
	names, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		if f := strings.Fields(rest); len(f) > 3 && f[2] == strconv.Itoa(group) {
			states = append(states, f[0][0])
		}
	}
	return states
}

// gone waits until there is neither.
func (s *script) gone(t *testing.T) {
	t.Helper()
	eventually(t, "the group is gone", func() bool { return state(s.parent) == 0 && state(s.child) == 0 })
}

// parentOf is the pid of a process's parent.
func parentOf(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	parent, err := strconv.Atoi(strings.Fields(rest)[1])
	if err != nil {
		t.Fatal(err)
	}
	return parent
}

// nodes are the lock nodes of a key.
func nodes(srv *zktest.Server, key string) []string {
	path, err := keyPath("/dedup", key)
	if err != nil {
		panic(err)
	}
	return srv.Children(path)
}

// noNodes waits until there are none.
func noNodes(t *testing.T, srv *zktest.Server, key string) {
	t.Helper()
	eventually(t, "no lock node is left", func() bool { return len(nodes(srv, key)) == 0 })
}
