//go:build linux

package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// A command that a message proposes works when it is typed.
func TestHintsWorkWhenTyped(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	elsewhere := []string{"--servers", srv.Addr() + "/a b"}
	for _, tc := range []struct {
		flags, also []string // of all, of those that find the lock taken only
		hint        string
	}{
		{[]string{"--key", "plain"}, nil, "zklock show plain"},
		{[]string{"--key", "it's $1"}, nil, `zklock show 'it'\''s $1'`},
		{[]string{"--key=-k"}, nil, "zklock show -- -k"},
		{[]string{"--root", "/other", "--key", "h"}, nil, "zklock show --root /other h"},
		{append(elsewhere, "--key", "c"), nil, "zklock show --servers '" + srv.Addr() + "/a b' c"},
		{[]string{"--path", "/top"}, nil, "zklock show --root / top"},
		{[]string{"--path", "/some/where/deep", "--root", "/other"}, nil, "zklock show --root /some/where deep"},
		{[]string{"--key", "f"}, []string{"--config", settingsFile(t, `{"grace": "1s"}`)}, "zklock show --config "},
	} {
		s := newScript(t)
		holder := zklockOn(t, srv, runArgs(append([]string{"--identifier", "it-is-me"}, tc.flags...), s.argv()...)...)
		s.running(t)
		refused := zklockOn(t, srv, runArgs(append(append([]string{"--no-wait"}, tc.also...), tc.flags...), "true")...)
		refused.exits(t, 75, tc.hint)
		typed(t, srv.Addr(), refused.err.String(), 0, "it-is-me")
		s.end(t)
		holder.exits(t, 5, "")
	}

	// Of the other commands.
	root := []string{"--root", "/r"}
	prints(t, srv, 128+9, append([]string{"once", "--key", "7", "--scope", "s"}, append(root, "--", "sh", "-c", "kill -9 $$")...)...)
	for _, tc := range []struct {
		code      int
		args      []string
		hint, out string
	}{
		{70, append([]string{"once", "--key", "7", "--scope", "s"}, append(root, "--", "true")...), "zklock show --root /r s:7", "unknown, attempt 1"},
		{75, append([]string{"rm", "s:7"}, root...), "zklock show --root /r s:7", "unknown, attempt 1"},
		{1, append([]string{"show", "none"}, root...), "zklock ls --root /r", "s:7"},
	} {
		p := zklockOn(t, srv, tc.args...)
		p.exits(t, tc.code, tc.hint)
		typed(t, srv.Addr(), p.err.String(), 0, tc.out)
	}
	gone := server(t, steady)
	vanish(gone)
	p := zklockOn(t, srv, "ls", "--servers", gone.Addr(), "--root", "/r", "--connect-timeout", "100ms")
	p.exits(t, 69, "\nzklock doctor --servers "+gone.Addr()+" --root /r says more")
}

// typed gives the command in a message to a shell.
func typed(t *testing.T, servers, message string, code int, out string) {
	t.Helper()
	found := regexp.MustCompile(`zklock ((?:show|ls) .*?)(?: says| lists|, find)`).FindStringSubmatch(message)
	if found == nil {
		t.Errorf("no command in %q", message)
		return
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", `exec "$0" `+found[1], exe)
	cmd.Env = append(os.Environ(), asProgram+"=1", "ZKLOCK_SERVERS="+servers)
	p := start(t, cmd)
	if got := p.code(t); got != code || !strings.Contains(p.out.String(), out) {
		t.Errorf("%s: exit code %d, and %q does not say %q: %s", found[1], got, p.out, out, p.err)
	}
}
