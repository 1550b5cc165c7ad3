//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/zktest"
)

// onceArgs is zklock once with a shell script.
func onceArgs(key, script string, flags ...string) []string {
	return append(append([]string{"once", "--key", key}, flags...), "--", "sh", "-c", script)
}

// The first success is kept with its exit code and output; what comes later runs nothing.
func TestOnceReplaysTheFirstSuccess(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	again := newScript(t)
	for range 2 {
		p := zklockOn(t, srv, onceArgs("k", `printf 'out\0\377'; echo err >&2; exit 4`, "--success", "0,4")...)
		p.exits(t, 4, "err\n")
		if got := p.out.String(); got != "out\x00\xff" {
			t.Errorf("output %q", got)
		}
	}
	p := zklockOn(t, srv, append([]string{"once", "--key", "k", "--no-replay", "--"}, again.argv()...)...)
	p.exits(t, 4, "")
	if p.out.String()+p.err.String() != "" || again.started() {
		t.Errorf("not silent: %q %q", p.out, p.err)
	}
	// Another scope is another key.
	if text := prints(t, srv, 0, onceArgs("k", "echo other", "--scope", "s")...); text != "other\n" {
		t.Errorf("%q", text)
	}
	// The key may be used for one payload only.
	prints(t, srv, 0, onceArgs("p", "true", "--payload", "1")...)
	prints(t, srv, 0, onceArgs("p", "true", "--payload", "1")...)
	zklockOn(t, srv, onceArgs("p", "true", "--payload", "2")...).exits(t, 65, "another payload")
}

func TestOnceKeepsTheBeginningOfTheOutput(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	for _, want := range []string{"12345678", "1234"} {
		p := zklockOn(t, srv, onceArgs("k", "printf 12345678", "--max-output", "4")...)
		p.exits(t, 0, "")
		if got := p.out.String(); got != want {
			t.Errorf("output %q, want %q", got, want)
		}
		if strings.Contains(p.err.String(), "the beginning of the output") != (want == "1234") {
			t.Errorf("says %q", p.err)
		}
	}
}

// slowReader takes nothing until it is let.
type slowReader struct {
	buffer

	let chan struct{}
}

func (r *slowReader) Write(p []byte) (int, error) {
	<-r.let
	return r.buffer.Write(p)
}

// Whoever reads the output may take their time: nothing is dropped, or kept as if it were all.
func TestOnceWithASlowReader(t *testing.T) {
	t.Parallel()
	kept := &recorder{room: 1 << 20}
	reader := &slowReader{let: make(chan struct{})}
	out, err := kept.tee(reader)
	if err != nil {
		t.Fatal(err)
	}
	text := bytes.Repeat([]byte("0123456789abcdef"), 6000) // the pipe, and what the reader keeps waiting
	if _, err := out.w.Write(text); err != nil {
		t.Fatal(err)
	}
	// Somebody outside the group still has the pipe, or it would be at its end.
	other, err := syscall.Dup(int(out.w.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Close(other) }()
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		out.finish()
	}()
	<-out.ended
	time.Sleep(lingering + lingering/2) // is to go by unseen: the limit is for others
	close(reader.let)
	<-finished
	if got := reader.String(); got != string(text) || string(out.kept) != got || kept.truncated {
		t.Errorf("passed on %d bytes, kept %d of %d, more: %v", len(got), len(out.kept), len(text), kept.truncated)
	}
}

// A program that has left the group and writes all the time does not keep once from its end.
func TestOnceBesideAWriterWithoutEnd(t *testing.T) {
	t.Parallel()
	kept := &recorder{room: 1 << 10}
	out, err := kept.tee(io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.Dup(int(out.w.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	other := os.NewFile(uintptr(fd), "other")
	go func() {
		for {
			if _, err := other.WriteString("x"); err != nil { // nobody reads any more
				_ = other.Close()
				return
			}
			time.Sleep(10 * time.Millisecond) // its pace, not a wait: it never ends by itself
		}
	}()
	out.finish()
	if !kept.truncated {
		t.Error("what was kept is said to be all")
	}
}

// Duplicates wait for the one that runs, and all get its answer.
func TestOnceAtTheSameTime(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	file := filepath.Join(t.TempDir(), "runs")
	var ps []*process
	for range 4 {
		ps = append(ps, zklockOn(t, srv, "once", "--key", "k", "--", "sh", "-c", `echo x >> "$1"; sleep 0.3; echo "$ZKLOCK_TOKEN $ZKLOCK_ATTEMPT $ZKLOCK_KEY"`, "sh", file))
	}
	for _, p := range ps {
		p.exits(t, 0, "")
		if p.out.String() != ps[0].out.String() || !strings.HasSuffix(p.out.String(), " 1 k\n") {
			t.Errorf("%q and %q", p.out, ps[0].out)
		}
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "x\n" {
		t.Errorf("runs: %q, %v", text, err)
	}
}

// A failure is no outcome: the next call runs.
func TestOnceRunsAgainAfterAFailure(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	prints(t, srv, 3, onceArgs("k", "exit 3")...)
	zklockOn(t, srv, "once", "--key", "k", "--", "no-such-program").exits(t, 127, "not found")
	if text := prints(t, srv, 0, onceArgs("k", `echo "attempt $ZKLOCK_ATTEMPT"`)...); text != "attempt 2\n" {
		t.Errorf("%q", text)
	}
	if text := prints(t, srv, 0, onceArgs("k", "echo no")...); text != "attempt 2\n" {
		t.Errorf("replay %q", text)
	}
}

// A run that was cut short leaves an unknown outcome, until somebody resolves it.
func TestOnceThatWasCutShort(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		cut  func(t *testing.T, srv *zktest.Server, p *process)
		code int
	}{
		{"lost", func(_ *testing.T, srv *zktest.Server, _ *process) { srv.Expire(srv.Sessions()[0].ID) }, 76},
		{"signal", func(t *testing.T, _ *zktest.Server, p *process) { t.Helper(); p.signal(t, syscall.SIGHUP) }, 128 + 1},
		{"kill", func(t *testing.T, srv *zktest.Server, p *process) {
			t.Helper()
			p.signal(t, syscall.SIGKILL)
			<-p.ended
			srv.Expire(srv.Sessions()[0].ID)
		}, -9},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			srv := server(t, 200*time.Millisecond)
			s := newScript(t)
			p := zklockOn(t, srv, append([]string{"once", "--key", "k", "--"}, s.argv()...)...)
			s.running(t)
			tc.cut(t, srv, p)
			p.exits(t, tc.code, "")
			s.gone(t)
			zklockOn(t, srv, onceArgs("k", "echo no")...).exits(t, 70, "tell zklock resolve")
			if text := prints(t, srv, 0, "ls"); !strings.Contains(text, "unknown, attempt 1") {
				t.Errorf("ls:\n%s", text)
			}
			prints(t, srv, 0, "resolve", "k", "--not-done")
			zklockOn(t, srv, "resolve", "k", "--done").exits(t, 1, "nothing was changed")
			if text := prints(t, srv, 0, onceArgs("k", `echo "attempt $ZKLOCK_ATTEMPT"`)...); text != "attempt 2\n" {
				t.Errorf("%q", text)
			}
		})
	}
}

// A large exit code is one like any other; that a signal ended the command is known of the
// signal, or of a command that exits as shells say it after it got one.
func TestOnceTellsExitCodesFromSignals(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	for _, code := range []int{255, 128 + 9} {
		prints(t, srv, code, onceArgs("code", fmt.Sprintf("exit %d", code))...)
	}
	if text := prints(t, srv, 0, onceArgs("code", `echo "attempt $ZKLOCK_ATTEMPT"`)...); text != "attempt 3\n" {
		t.Errorf("%q", text)
	}
	zklockOn(t, srv, onceArgs("signal", "kill $$")...).exits(t, 128+15, "a signal ended the command")
	zklockOn(t, srv, onceArgs("signal", "true")...).exits(t, 70, "tell zklock resolve")
	p := zklockOn(t, srv, onceArgs("passed", `trap "exit 143" TERM; echo ready; while :; do sleep 0.02; done`)...)
	says(t, p.out, "ready")
	p.signal(t, syscall.SIGTERM)
	p.exits(t, 128+15, "a signal ended the command")
	zklockOn(t, srv, onceArgs("passed", "true")...).exits(t, 70, "tell zklock resolve")
}

func TestResolve(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	cutShort := func(key string, flags ...string) {
		t.Helper()
		prints(t, srv, 128+9, onceArgs(key, "kill -9 $$", flags...)...)
	}
	cutShort("done", "--scope", "s")
	prints(t, srv, 0, "resolve", "s:done", "--done", "--status", "4", "--output", "it was\n")
	if text := prints(t, srv, 4, onceArgs("done", "echo no", "--scope", "s")...); text != "it was\n" {
		t.Errorf("%q", text)
	}
	cutShort("failed")
	prints(t, srv, 0, "resolve", "failed", "--failed", "no such account")
	zklockOn(t, srv, onceArgs("failed", "true")...).exits(t, 1, "no such account")
	zklockOn(t, srv, "resolve", "failed", "--done", "--raw").exits(t, 1, "nothing was changed")
	unknownOfAProgram(t, srv, "raw")
	zklockOn(t, srv, "resolve", "raw", "--done").exits(t, 1, "give --raw and --output")
	prints(t, srv, 0, "resolve", "raw", "--done", "--raw", "--output", `{"a":1}`)
	if data, err := srv.Get("/dedup/raw"); err != nil || !strings.HasSuffix(string(data), "\n{\"a\":1}") {
		t.Errorf("%q, %v", data, err)
	}
	cutShort("again")
	if text := prints(t, srv, 0, onceArgs("again", `echo "attempt $ZKLOCK_ATTEMPT"`, "--on-unknown", "rerun")...); text != "attempt 2\n" {
		t.Errorf("%q", text)
	}
	zklockOn(t, srv, "resolve", "none", "--done").exits(t, 1, "nothing was changed")
}

// unknownOfAProgram leaves a record whose outcome is unknown, as a program does that
// uses package dedup.
func unknownOfAProgram(t *testing.T, srv *zktest.Server, id string) {
	t.Helper()
	c, err := zklock.Connect(t.Context(), zklock.Config{Servers: []string{srv.Addr()}, SessionTimeout: 4 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	g, err := dedup.New(c, dedup.Config{SweepInterval: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Close(t.Context()) }()
	_, err = dedup.Do(t.Context(), g, dedup.Key{ID: id}, dedup.NoFingerprint, func(context.Context, *dedup.Claim) (int, error) {
		return 0, dedup.Indeterminate(errors.New("no answer"))
	})
	if !errors.Is(err, dedup.ErrIndeterminate) {
		t.Fatal(err)
	}
}

func TestOnceThatDoesNotGetTheKey(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	s := newScript(t)
	p := zklockOn(t, srv, append([]string{"once", "--key", "k", "--"}, s.argv()...)...)
	s.running(t)
	zklockOn(t, srv, onceArgs("k", "echo no", "--no-wait")...).exits(t, 75, "zklock show k says by whom")
	zklockOn(t, srv, onceArgs("k", "echo no", "--wait", "2s")...).exits(t, 75, "zklock show k says by whom")
	zklockOn(t, srv, "resolve", "k", "--done", "--wait", "1s").exits(t, 75, "--wait 1s is over")
	waits := zklockOn(t, srv, onceArgs("k", "echo no")...)
	eventually(t, "it waits", func() bool { return len(nodes(srv, "k")) == 2 })
	waits.signal(t, syscall.SIGTERM)
	waits.exits(t, 128+15, "")
	s.end(t)
	p.exits(t, 5, "")
	srv.Refuse(true)
	zklockOn(t, srv, onceArgs("k", "echo no", "--connect-timeout", "200ms")...).exits(t, 69, "no server was ready")
}

// The record goes when its retention is over, swept by the runs of other keys.
func TestOnceSweeps(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	prints(t, srv, 0, onceArgs("old", "true", "--retention", "1s")...)
	n := 0
	eventually(t, "the old record is swept", func() bool {
		n++
		prints(t, srv, 0, onceArgs("new-"+strings.Repeat("x", n), "true")...)
		return !srv.Exists("/dedup/old")
	})
}
