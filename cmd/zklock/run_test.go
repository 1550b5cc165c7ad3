//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-zklock/zklock/internal/boottime"
	"github.com/go-zklock/zklock/zktest"
)

// runArgs is zklock run with a command.
func runArgs(flags []string, argv ...string) []string {
	return append(append(append([]string{"run"}, flags...), "--"), argv...)
}

func TestRunExitsWithTheStatusOfTheCommand(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	dir := t.TempDir()
	plain, noLine := filepath.Join(dir, "plain"), filepath.Join(dir, "noline")
	if err := os.WriteFile(plain, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(noLine, []byte("exit 9"), 0o700); err != nil { //nolint:gosec // a script
		t.Fatal(err)
	}
	for _, tc := range []struct {
		code int
		says string
		argv []string
	}{
		{0, "", []string{"true"}},
		{7, "", []string{"sh", "-c", "exit 7"}},
		{9, "", []string{noLine}}, // as execvp does
		{128 + 15, "", []string{"sh", "-c", "kill $$"}},
		{128 + 9, "", []string{"sh", "-c", "kill -9 $$"}},
		{127, "not found", []string{"no-such-program"}},
		{127, "not found", []string{filepath.Join(dir, "none")}},
		{126, "cannot be run", []string{plain}},
		{126, "cannot be run", []string{dir}},
	} {
		p := zklockOn(t, srv, runArgs([]string{"--key", "status"}, tc.argv...)...)
		p.exits(t, tc.code, tc.says)
		if got := nodes(srv, "status"); len(got) > 0 {
			t.Errorf("%v left %v", tc.argv, got)
		}
	}
}

// A program may vanish between the look and the start.
func TestRunOfAProgramThatIsGoneByThen(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o700); err != nil { //nolint:gosec // a script
		t.Fatal(err)
	}
	holder := newScript(t)
	first := zklockOn(t, srv, runArgs([]string{"--key", "gone"}, holder.argv()...)...)
	holder.running(t)
	second := zklockOn(t, srv, runArgs([]string{"--key", "gone"}, program)...)
	eventually(t, "the second waits", func() bool { return len(nodes(srv, "gone")) == 2 })
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	holder.end(t)
	first.exits(t, 5, "")
	second.exits(t, 127, "not found")
	noNodes(t, srv, "gone")
}

func TestRunTellsTheCommand(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	cmd := command(runArgs([]string{"--key", "a b/c", "--servers", srv.Addr()},
		"sh", "-c", `echo "$ZKLOCK_TOKEN|$ZKLOCK_KEY|$ZKLOCK_PATH|$(cat "$ZKLOCK_DEADLINE_FILE")|$ZKLOCK_DEADLINE_FILE"`)...)
	p := start(t, cmd)
	before := boottime.Reading()
	p.exits(t, 0, "")
	f := strings.Split(strings.TrimSpace(p.out.String()), "|")
	if len(f) != 5 {
		t.Fatalf("%q", p.out)
	}
	if token, err := strconv.ParseInt(f[0], 10, 64); err != nil || token <= 0 {
		t.Errorf("token %q", f[0])
	}
	if f[1] != "a b/c" {
		t.Errorf("key %q", f[1])
	}
	if !strings.HasPrefix(f[2], "/dedup/a b%2Fc/_c_") {
		t.Errorf("path %q", f[2])
	}
	wall, boot, _ := strings.Cut(f[3], " ")
	at, err := time.Parse(time.RFC3339Nano, wall)
	if err != nil {
		t.Error(err)
	}
	ns, err := strconv.ParseInt(boot, 10, 64)
	if err != nil {
		t.Error(err)
	}
	// Both are the same moment, on two clocks.
	if d := time.Until(at) - (time.Duration(ns) - boottime.Reading()); d.Abs() > time.Second {
		t.Errorf("deadlines %v apart", d)
	}
	if time.Duration(ns) < before || time.Duration(ns) > before+4*time.Second+patience {
		t.Errorf("deadline %v, read at %v", time.Duration(ns), before)
	}
	if _, err := os.Stat(filepath.Dir(f[4])); !os.IsNotExist(err) {
		t.Errorf("the deadline's directory is left: %v", err)
	}

	bare := command(runArgs([]string{"--key", "k", "--no-env", "--servers", srv.Addr()}, "sh", "-c", `env | grep -c ZKLOCK_[TKPD][OEA]`)...)
	bare.Env = append(os.Environ(), "ZKLOCK_T=") // asProgram left out of what grep counts
	bare.Env = append(bare.Env, asProgram+"=1")
	q := start(t, bare)
	q.code(t)
	if n := strings.TrimSpace(q.out.String()); n != "1" { // asProgram itself
		t.Errorf("--no-env: %s variables of ours", n)
	}
}

// The command may run as somebody else, who has to be able to read the file.
func TestDeadlineFileIsForEverybody(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := command("-c", `umask 077; exec "$0" run --key k -- sh -c 'stat -c %a "$ZKLOCK_DEADLINE_FILE" "$(dirname "$ZKLOCK_DEADLINE_FILE")"'`, exe)
	cmd.Path, cmd.Args[0] = "/bin/sh", "sh"
	cmd.Env = append(cmd.Env, "ZKLOCK_SERVERS="+srv.Addr())
	p := start(t, cmd)
	p.exits(t, 0, "")
	if p.out.String() != "644\n755\n" {
		t.Errorf("modes %q", p.out)
	}
}

// The deadline moves on while the command runs.
func TestRunRenewsTheDeadlineFile(t *testing.T) {
	t.Parallel()
	srv := server(t, 200*time.Millisecond)
	// A session this long, so that the lease outlives a machine that stands still for a second.
	p := zklockOn(t, srv, runArgs([]string{"--key", "d", "--session-timeout", "4s", "--tick-time", "200ms"}, "sh", "-c",
		`n=0; while [ $n -lt 3 ]; do l=$(cat "$ZKLOCK_DEADLINE_FILE"); [ "$l" = "$last" ] || { echo "$l"; n=$((n+1)); last=$l; }; sleep 0.02; done`)...)
	p.exits(t, 0, "")
	last := int64(0)
	lines := strings.Split(strings.TrimSpace(p.out.String()), "\n")
	for _, l := range lines {
		_, boot, _ := strings.Cut(l, " ")
		ns, err := strconv.ParseInt(boot, 10, 64)
		if err != nil || ns <= last {
			t.Errorf("%q after %d: %v", l, last, err)
		}
		last = ns
	}
	if len(lines) != 3 {
		t.Errorf("%d deadlines", len(lines))
	}
}

// A command that reads its deadline while it is renewed sees one whole line, the old or the new.
func TestDeadlineFileIsNeverSeenHalfWritten(t *testing.T) {
	t.Parallel()
	f, err := newDeadlineFile()
	if err != nil {
		t.Fatal(err)
	}
	defer f.remove()
	if err := f.write(time.Hour); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() {
		for i := range 1000 {
			// Of very different lengths, so that what is left of another one shows.
			if err := f.write(time.Duration(1+i%2*int(time.Hour)) * time.Nanosecond); err != nil {
				written <- err
				return
			}
		}
		written <- nil
	}()
	for {
		text, err := os.ReadFile(f.name)
		if err != nil {
			t.Fatal(err)
		}
		line, whole := strings.CutSuffix(string(text), "\n")
		wall, boot, _ := strings.Cut(line, " ")
		_, wallErr := time.Parse(time.RFC3339Nano, wall)
		if _, bootErr := strconv.ParseInt(boot, 10, 64); !whole || wallErr != nil || bootErr != nil {
			t.Fatalf("%q: %v, %v", text, wallErr, bootErr)
		}
		select {
		case err := <-written:
			if err != nil {
				t.Error(err)
			}
			return
		default:
		}
	}
}

func TestRunThatDoesNotGetTheLock(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	holder, never := newScript(t), newScript(t)
	zklockOn(t, srv, runArgs([]string{"--key", "k"}, holder.argv()...)...)
	holder.running(t)
	zklockOn(t, srv, runArgs([]string{"--key", "k", "--no-wait"}, never.argv()...)...).exits(t, 75, "k is taken; zklock show k says by whom")
	zklockOn(t, srv, runArgs([]string{"--key", "k", "--wait", "1s"}, never.argv()...)...).exits(t, 75, "--wait 1s is over")
	if got := nodes(srv, "k"); len(got) != 1 {
		t.Errorf("nodes %v", got)
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1} {
		p := zklockOn(t, srv, runArgs([]string{"--key", "k"}, never.argv()...)...)
		eventually(t, "it waits", func() bool { return len(nodes(srv, "k")) == 2 })
		p.signal(t, sig)
		p.exits(t, 128+int(sig), "")
		if got := nodes(srv, "k"); len(got) != 1 {
			t.Errorf("%v: nodes %v", sig, got)
		}
	}
	if never.started() {
		t.Error("a command without a lock was started")
	}
}

func TestRunWithoutAnEnsemble(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	srv.Refuse(true)
	s := newScript(t)
	zklockOn(t, srv, runArgs([]string{"--key", "k", "--connect-timeout", "300ms"}, s.argv()...)...).
		exits(t, 69, "no server was ready within --connect-timeout 300ms")
	p := zklockOn(t, srv, runArgs([]string{"--key", "k"}, s.argv()...)...)
	p.signal(t, syscall.SIGTERM)
	if code := p.code(t); code != 128+15 && code != -15 { // -15: before it could catch signals
		t.Errorf("exit code %d", code)
	}
	if s.started() {
		t.Error("the command was started")
	}
}

func TestRunWithCredentialsThatAreRefused(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	zklockOn(t, srv, runArgs([]string{"--key", "k", "--auth", "none:x"}, "true")...).exits(t, 77, "refused the credentials")
	p := zklockOn(t, srv, runArgs([]string{"--key", "k", "--auth", "digest:u:p", "--acl", "creator"}, "true")...)
	p.exits(t, 0, "")
	zklockOn(t, srv, runArgs([]string{"--key", "k"}, "true")...).exits(t, 77, "--auth gives credentials")
}

// The group is stopped long before its deadline when the connection is gone, and goes on
// with the same lock.
func TestRunStopsTheGroupWhileSuspended(t *testing.T) {
	t.Parallel()
	srv := server(t, 3*time.Second)
	s := newScript(t)
	p := zklockOn(t, srv, runArgs([]string{"--key", "k", "--session-timeout", "60s", "--tick-time", "3s"}, s.argv()...)...)
	s.running(t)
	s.goesOn(t)
	was := nodes(srv, "k")
	srv.Refuse(true)
	srv.CutConnections()
	s.stopped(t)
	says(t, p.err, "the command is stopped")
	srv.Refuse(false)
	s.goesOn(t)
	says(t, p.err, "the command goes on")
	if got := nodes(srv, "k"); len(got) != 1 || got[0] != was[0] {
		t.Errorf("nodes %v, before %v", got, was)
	}
	s.end(t)
	p.exits(t, 5, "")
	noNodes(t, srv, "k")
}

// Silence: the group is stopped, and killed when the lock is lost, without another step.
func TestRunKillsTheStoppedGroupWhenTheLockIsLost(t *testing.T) {
	t.Parallel()
	srv := server(t, 150*time.Millisecond)
	s := newScript(t)
	p := zklockOn(t, srv, runArgs([]string{"--key", "k", "--session-timeout", "3s", "--tick-time", "150ms"}, s.argv()...)...)
	s.running(t)
	s.goesOn(t)
	hole := srv.Inject(zktest.Blackhole(zktest.BothWays))
	s.stopped(t)
	was := s.beats(t)
	p.exits(t, 76, "the lock was lost while the command ran")
	s.gone(t)
	if got := s.beats(t); got != was {
		t.Errorf("%d beats after the stop", got-was)
	}
	hole.Heal()
}

func TestRunOnLostTerm(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		obeys bool
		grace string
	}{{"obeys", true, "1m"}, {"ignores", false, "2s"}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			srv := server(t, 200*time.Millisecond)
			s := newScript(t)
			p := zklockOn(t, srv, runArgs([]string{"--key", "k", "--on-lost", "term", "--grace", tc.grace}, s.argv()...)...)
			s.running(t)
			srv.Expire(srv.Sessions()[0].ID)
			if tc.obeys {
				eventually(t, "it is asked to end", s.asked)
				s.end(t)
			}
			p.exits(t, 76, "asked to end (SIGTERM)")
			s.gone(t)
			if !s.asked() {
				t.Error("it was not asked")
			}
		})
	}
}

// A node that somebody deletes by hand is a lost lock.
func TestRunWhoseNodeIsDeleted(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	s := newScript(t)
	p := zklockOn(t, srv, runArgs([]string{"--key", "k"}, s.argv()...)...)
	s.running(t)
	if err := srv.Delete("/dedup/k/" + nodes(srv, "k")[0]); err != nil {
		t.Fatal(err)
	}
	p.exits(t, 76, "node_deleted")
	s.gone(t)
}

func TestRunPassesSignalsOn(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGUSR1} {
		s := newScript(t)
		p := zklockOn(t, srv, runArgs([]string{"--key", "k"}, s.argv()...)...)
		s.running(t)
		p.signal(t, sig)
		eventually(t, sig.String(), s.asked)
		s.end(t)
		p.code(t)
		noNodes(t, srv, "k")
	}
	// One that the command does not catch ends it.
	s := newScript(t)
	p := zklockOn(t, srv, runArgs([]string{"--key", "k"}, s.argv()...)...)
	s.running(t)
	p.signal(t, syscall.SIGHUP)
	p.exits(t, 128+1, "")
	s.gone(t)
}

// What is ignored where zklock is started is ignored in the command, as by nohup, and only
// that: zklock itself catches some signals.
func TestRunPassesOnWhatIsIgnored(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const show = "grep SigIgn: /proc/self/status; kill -HUP $$; exit 3"
	for _, tc := range []struct {
		trap string
		code int
	}{{":", 128 + 1}, {`trap "" HUP INT TSTP`, 3}} {
		without, _ := exec.Command("sh", "-c", tc.trap+"; exec sh -c '"+show+"'").Output() // its status is of no interest
		if !strings.Contains(string(without), "SigIgn:") {
			t.Fatalf("%q", without)
		}
		cmd := command("-c", tc.trap+`; exec "$0" run --key k -- sh -c '`+show+`'`, exe)
		cmd.Path, cmd.Args[0] = "/bin/sh", "sh"
		cmd.Env = append(cmd.Env, "ZKLOCK_SERVERS="+srv.Addr())
		p := start(t, cmd)
		p.exits(t, tc.code, "")
		if p.out.String() != string(without) {
			t.Errorf("%s: the command has %q, without zklock %q", tc.trap, p.out, without)
		}
	}
}

// A stop by Ctrl-Z, as by a shell, does not stop zklock while it waits for the lock.
func TestRunThatWaitsIsNotStopped(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	s := newScript(t)
	holder := zklockOn(t, srv, runArgs([]string{"--key", "k"}, s.argv()...)...)
	s.running(t)
	cmd := command(runArgs([]string{"--key", "k", "--servers", srv.Addr()}, "true")...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // or this test would have to be stopped as well
	p := start(t, cmd)
	eventually(t, "it waits", func() bool { return len(nodes(srv, "k")) == 2 })
	p.signal(t, syscall.SIGTSTP)
	eventually(t, "the signal is taken", func() bool { return taken(p.cmd.Process.Pid, syscall.SIGTSTP) })
	if st := state(p.cmd.Process.Pid); st == 'T' {
		t.Error("it is stopped")
	}
	s.end(t)
	holder.exits(t, 5, "")
	p.exits(t, 0, "")
}

// The lock is held for as long as anything of the group runs.
func TestRunWaitsForWhatTheCommandLeaves(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	dir := t.TempDir()
	p := zklockOn(t, srv, runArgs([]string{"--key", "k"}, "sh", "-c",
		`(while [ -d "$1" ] && ! [ -e "$1/end" ]; do sleep 0.02; done; echo done > "$1/done") & exit 3`, "sh", dir)...)
	t.Cleanup(func() { _ = os.WriteFile(filepath.Join(dir, "end"), nil, 0o600) }) // if this fails
	says(t, p.err, "left processes")
	if got := nodes(srv, "k"); len(got) != 1 {
		t.Errorf("nodes %v", got)
	}
	if err := os.WriteFile(filepath.Join(dir, "end"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p.exits(t, 3, "")
	if _, err := os.Stat(filepath.Join(dir, "done")); err != nil {
		t.Error("zklock ended first")
	}
	noNodes(t, srv, "k")
}
