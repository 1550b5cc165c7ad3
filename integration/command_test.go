package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-zklock/zklock/integration/zkcluster"
	"github.com/go-zklock/zklock/integration/zkproxy"
)

// programs are the command and what it runs in these tests.
type programs struct{ zklock, beat string }

func buildPrograms(t testing.TB) programs {
	t.Helper()
	dir := t.TempDir()
	p := programs{filepath.Join(dir, "zklock"), filepath.Join(dir, "beat")}
	for _, build := range []struct{ dir, out, pkg string }{{"..", p.zklock, "./cmd/zklock"}, {".", p.beat, "./internal/beat"}} {
		cmd := exec.CommandContext(t.Context(), "go", "build", "-o", build.out, build.pkg)
		cmd.Dir = build.dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", build.pkg, err, out)
		}
	}
	return p
}

// zkrun is a running zklock.
type zkrun struct {
	cmd   *exec.Cmd
	said  *logBuffer
	ended chan struct{}
}

// start runs zklock; servers is a connect string.
func (p programs) start(t testing.TB, servers string, args ...string) *zkrun {
	t.Helper()
	r := &zkrun{cmd: exec.Command(p.zklock, args...), said: &logBuffer{}, ended: make(chan struct{})}
	r.cmd.Env = append(os.Environ(), "ZKLOCK_SERVERS="+servers)
	r.cmd.Stdout, r.cmd.Stderr = r.said, r.said
	r.cmd.WaitDelay = 5 * time.Second
	must(t, "start zklock", r.cmd.Start())
	go func() {
		_ = r.cmd.Wait()
		close(r.ended)
	}()
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill() // fails when it has ended
		<-r.ended
		if t.Failed() {
			t.Logf("%v:\n%s", r.cmd.Args, r.said)
		}
	})
	return r
}

// exits waits for the end and checks the code.
func (r *zkrun) exits(t testing.TB, code int) {
	t.Helper()
	await(t, fmt.Sprint(r.cmd.Args), r.ended)
	if got := r.cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("%v: exit code %d, want %d", r.cmd.Args, got, code)
	}
}

// beats are the times that a beat has written.
func beats(t testing.TB, file string) []time.Time {
	t.Helper()
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	must(t, "beats", err)
	var times []time.Time
	for line := range strings.Lines(string(text)) {
		if n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64); err == nil && strings.HasSuffix(line, "\n") {
			times = append(times, time.Unix(0, n))
		}
	}
	return times
}

// awaitBeats waits until there are more than n.
func awaitBeats(t testing.TB, file string, n int) {
	t.Helper()
	eventually(t, "beats of the command", func() bool { return len(beats(t, file)) > n })
}

// awaitStill waits until a beat cannot write any more: it is stopped, or gone.
func (p programs) awaitStill(t testing.TB, file string) {
	t.Helper()
	eventually(t, "the command stands still", func() bool {
		names, err := filepath.Glob("/proc/[0-9]*/cmdline")
		must(t, "processes", err)
		for _, name := range names {
			line, err := os.ReadFile(name)
			if err != nil || !strings.HasPrefix(string(line), p.beat+"\x00"+file) {
				continue
			}
			stat, err := os.ReadFile(filepath.Join(filepath.Dir(name), "stat"))
			if _, rest, ok := strings.Cut(string(stat), ") "); err == nil && ok && !strings.ContainsRune("TZX", rune(rest[0])) {
				return false
			}
		}
		return true
	})
}

// A run whose server is cut off from the others stops its command before the next run
// starts its own, and kills it when the lock is lost.
func TestCutOffRunStopsItsCommandBeforeTheNextOneStarts(t *testing.T) {
	const (
		rounds = 2
		pairs  = 5
	)
	program := buildPrograms(t)
	for round := range rounds * zkcluster.Repeat(t) {
		t.Run(strconv.Itoa(round), func(t *testing.T) {
			cluster := ensemble.Get(t)
			follower, leader := roles(t, cluster)
			flags := func(path string) []string {
				return []string{"run", "--path", path, "--session-timeout", "6s", "--tick-time", "2s", "--"}
			}
			dir := t.TempDir()
			var holders, rivals []*zkrun
			old, next := make([]string, pairs), make([]string, pairs)
			for i := range pairs {
				path := uniquePath(t)
				old[i], next[i] = filepath.Join(dir, fmt.Sprint("old", i)), filepath.Join(dir, fmt.Sprint("next", i))
				holders = append(holders, program.start(t, follower.Addr(), append(flags(path), program.beat, old[i])...))
				awaitBeats(t, old[i], 0)
				rivals = append(rivals, program.start(t, leader.Addr(), append(flags(path), program.beat, next[i], "1")...))
			}
			for i := range pairs {
				awaitBeats(t, old[i], len(beats(t, old[i]))+10)
			}
			must(t, "cut", follower.CutPeers(bounded(t)))
			cut := time.Now()
			for i := range pairs {
				rivals[i].exits(t, 0)
				holders[i].exits(t, 76)
				ran := beats(t, old[i])
				last, first := ran[len(ran)-1], beats(t, next[i])[0]
				t.Logf("the last step of the old command %v after the cut, the first of the next %v: lead %v",
					ms(last.Sub(cut)), ms(first.Sub(cut)), ms(first.Sub(last)))
				if !last.Before(first) {
					t.Error("both ran at the same time")
				}
			}
		})
	}
}

// A disconnect for less than the trust window stops the command and continues it.
func TestShortDisconnectStopsAndContinuesTheCommand(t *testing.T) {
	cluster := ensemble.Get(t)
	program := buildPrograms(t)
	p := zkproxy.New(t, cluster.Server(0).Addr())
	file := filepath.Join(t.TempDir(), "beats")
	r := program.start(t, p.Addr(), "run", "--path", uniquePath(t), "--session-timeout", "30s", "--tick-time", "2s", "--", program.beat, file)
	awaitBeats(t, file, 10)
	back := cutOff(p)
	program.awaitStill(t, file)
	stood := len(beats(t, file))
	back()
	awaitBeats(t, file, stood)
	ran := beats(t, file)
	t.Logf("stood still for %v", ms(ran[stood].Sub(ran[stood-1])))
	must(t, "SIGTERM", r.cmd.Process.Signal(syscall.SIGTERM))
	r.exits(t, 128+15)
	if said := r.said.String(); !strings.Contains(said, "the command is stopped") || !strings.Contains(said, "the command goes on") {
		t.Errorf("it does not say so: %s", said)
	}
}

// kill -9 of zklock takes the command with it within a second, and the lock is free once
// the session is over.
func TestKillOfRunTakesTheCommandWithIt(t *testing.T) {
	cluster := ensemble.Get(t)
	program := buildPrograms(t)
	path, dir := uniquePath(t), t.TempDir()
	file, next := filepath.Join(dir, "beats"), filepath.Join(dir, "next")
	flags := []string{"run", "--path", path, "--session-timeout", "6s", "--tick-time", "2s", "--"}
	r := program.start(t, cluster.ConnectString(), append(flags, program.beat, file)...)
	awaitBeats(t, file, 10)
	rival := program.start(t, cluster.ConnectString(), append(flags, program.beat, next, "1")...)
	must(t, "kill", r.cmd.Process.Kill())
	killed := time.Now()
	program.awaitStill(t, file)
	ran := beats(t, file)
	after := ran[len(ran)-1].Sub(killed)
	t.Logf("the last step was %v after the kill", ms(after))
	if after > time.Second {
		t.Errorf("the command ran for %v after the kill", after)
	}
	rival.exits(t, 0)
	t.Logf("the next run started %v after the kill", ms(beats(t, next)[0].Sub(killed)))
}

// A stop of zklock stops the command at the deadline, before the next run starts its own.
func TestStopOfRunStopsTheCommandBeforeTheNextOneStarts(t *testing.T) {
	cluster := ensemble.Get(t)
	program := buildPrograms(t)
	path, dir := uniquePath(t), t.TempDir()
	file, next := filepath.Join(dir, "beats"), filepath.Join(dir, "next")
	flags := []string{"run", "--path", path, "--session-timeout", "6s", "--tick-time", "2s", "--"}
	r := program.start(t, cluster.ConnectString(), append(flags, program.beat, file)...)
	awaitBeats(t, file, 10)
	rival := program.start(t, cluster.ConnectString(), append(flags, program.beat, next, "1")...)
	must(t, "SIGSTOP", r.cmd.Process.Signal(syscall.SIGSTOP))
	stopped := time.Now()
	rival.exits(t, 0)
	ran := beats(t, file)
	last, first := ran[len(ran)-1], beats(t, next)[0]
	t.Logf("the last step %v after the stop, the first of the next %v", ms(last.Sub(stopped)), ms(first.Sub(stopped)))
	if !last.Before(first) {
		t.Error("both ran at the same time")
	}
	must(t, "SIGCONT", r.cmd.Process.Signal(syscall.SIGCONT))
	r.exits(t, 76)
	if again := beats(t, file); len(again) != len(ran) {
		t.Errorf("%d steps after that", len(again)-len(ran))
	}
}

// Ten loops of runs of a script that reads a number and writes the next one.
func TestRunsOfACounterLoseNoIncrement(t *testing.T) {
	const (
		loops = 10
		each  = 100
	)
	cluster := ensemble.Get(t)
	program := buildPrograms(t)
	path, file := uniquePath(t), filepath.Join(t.TempDir(), "n")
	must(t, "counter", os.WriteFile(file, []byte("0\n"), 0o600))
	begun := time.Now()
	var wg sync.WaitGroup
	for range loops {
		wg.Go(func() {
			for range each {
				cmd := exec.CommandContext(t.Context(), program.zklock, "run", "--path", path, "--", "sh", "-c", `read n < "$1"; echo $((n + 1)) > "$1"`, "sh", file)
				cmd.Env = append(os.Environ(), "ZKLOCK_SERVERS="+cluster.ConnectString())
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%v: %s", err, out)
					return
				}
			}
		})
	}
	wg.Wait()
	text, err := os.ReadFile(file)
	must(t, "counter", err)
	if got, want := strings.TrimSpace(string(text)), strconv.Itoa(loops*each); got != want {
		t.Errorf("the counter is at %s after %s increments", got, want)
	}
	t.Logf("%d runs took %v", loops*each, ms(time.Since(begun)))
}

func TestExitCodesOfRun(t *testing.T) {
	cluster := ensemble.Get(t)
	program := buildPrograms(t)
	path, file := uniquePath(t), filepath.Join(t.TempDir(), "beats")
	run := func(args ...string) *zkrun {
		return program.start(t, cluster.ConnectString(), append([]string{"run", "--path", path}, args...)...)
	}
	run("--", "sh", "-c", "exit 7").exits(t, 7)
	run("--", "sh", "-c", "kill -INT $$").exits(t, 128+2)
	run("--", "no-such-program").exits(t, 127)
	run("--", "/").exits(t, 126)
	run("--grace", "x", "--", "true").exits(t, 2)
	run("--servers", "127.0.0.1:1", "--connect-timeout", "1s", "--", "true").exits(t, 69)

	holder := run("--", program.beat, file)
	awaitBeats(t, file, 0)
	run("--no-wait", "--", "true").exits(t, 75)
	run("--wait", "1s", "--", "true").exits(t, 75)
	waiter := run("--", "true")
	conn := observe(t, cluster.Server(0))
	awaitNodes(t, conn, path, 2)
	must(t, "SIGTERM", waiter.cmd.Process.Signal(syscall.SIGTERM))
	waiter.exits(t, 128+15)
	held := awaitNodes(t, conn, path, 1)
	must(t, "delete", conn.Delete(path+"/"+held[0], -1))
	holder.exits(t, 76)
}

// The commands for operators, on real servers.
func TestToolsOnAnEnsemble(t *testing.T) {
	cluster := ensemble.Get(t)
	program := buildPrograms(t)
	key := strings.TrimPrefix(uniquePath(t), "/dedup/")
	file := filepath.Join(t.TempDir(), "beats")
	zklock := func(code int, args ...string) string {
		t.Helper()
		r := program.start(t, cluster.ConnectString(), args...)
		r.exits(t, code)
		return r.said.String()
	}
	says := func(text string, wants ...string) {
		t.Helper()
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("it does not say %q:\n%s", want, text)
			}
		}
	}
	says(zklock(0, "doctor"), "ok    quorum: 3 of 3 servers in it", "ok    four-letter words: 3 of 3", "ok    session timeout: 12s, as asked",
		"ok    tick: 2s; 3s is assumed", "ok    containers: known", "ok    clock: ", "proofs took")

	holder := program.start(t, cluster.ConnectString(), "run", "--key", key, "--identifier", "somebody", "--", program.beat, file)
	awaitBeats(t, file, 0)
	says(zklock(0, "ls", key), key+"  somebody")
	says(zklock(0, "show", key), "holder  somebody (host ", fmt.Sprintf("pid %d)", holder.cmd.Process.Pid))
	says(zklock(75, "rm", key), "is held by somebody; nothing was removed")
	must(t, "SIGTERM", holder.cmd.Process.Signal(syscall.SIGTERM))
	holder.exits(t, 128+15)

	once := []string{"once", "--key", key + "-once", "--", "sh", "-c"}
	says(zklock(0, append(once, "echo first")...), "first")
	says(zklock(0, append(once, "echo second")...), "first")
	says(zklock(0, "show", key+"-once"), `exit code 0, stdout "first\n"`)
	zklock(0, "rm", key+"-once")
	zklock(128+9, append(once, "kill -9 $$")...)
	says(zklock(70, append(once, "echo third")...), "zklock resolve")
	zklock(0, "resolve", key+"-once", "--done", "--output", "fourth")
	says(zklock(0, append(once, "echo third")...), "fourth")
}
