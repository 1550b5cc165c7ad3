//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// settingsFile writes a file with settings.
func settingsFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "zklock.json")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// echoPath is a command that says where its lock is.
var echoPath = []string{"sh", "-c", `echo "$ZKLOCK_PATH"`}

// A flag puts aside what the file says for the flags that it excludes.
func TestFlagsGoBeforeTheFileWhereTheyExclude(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	for _, tc := range []struct {
		file  string
		flags []string
		want  string // where the lock is
	}{
		{`{"wait": "10s"}`, []string{"--key", "k", "--no-wait"}, "/dedup/k/"},
		{`{"no-wait": true}`, []string{"--key", "k", "--wait", "10s"}, "/dedup/k/"},
		{`{"no-wait": false}`, []string{"--key", "k", "--wait", "10s"}, "/dedup/k/"},
		{`{"key": "a"}`, []string{"--path", "/x"}, "/x/"},
		{`{"path": "/x"}`, []string{"--key", "a"}, "/dedup/a/"},
		{`{"path": "/x", "wait": "10s"}`, nil, "/x/"},
	} {
		p := zklockOn(t, srv, runArgs(append([]string{"--config", settingsFile(t, tc.file)}, tc.flags...), echoPath...)...)
		p.exits(t, 0, "")
		if !strings.HasPrefix(p.out.String(), tc.want) {
			t.Errorf("%s and %q: the lock is at %q, want %s", tc.file, tc.flags, p.out, tc.want)
		}
	}
	// Within the file they exclude one another.
	p := zklockOn(t, srv, runArgs([]string{"--config", settingsFile(t, `{"key": "a", "path": "/x"}`)}, "true")...)
	p.exits(t, 2, "--key and --path can't be used together")
}

// Without a home there are no settings: those of the working directory are somebody
// else's.
func TestSettingsAreNotReadFromTheWorkingDirectory(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	for _, tc := range []struct {
		env  []string
		want string
	}{
		{nil, "/dedup/k/"},
		{[]string{"HOME="}, "/dedup/k/"},
		{[]string{"HOME=."}, "/dedup/k/"},
		{[]string{"XDG_CONFIG_HOME=.config"}, "/dedup/k/"},
		{[]string{"HOME=$DIR"}, "/here/k/"},
		{[]string{"HOME=$DIR", "XDG_CONFIG_HOME=elsewhere"}, "/here/k/"}, // relative, so it does not count
	} {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, ".config"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, ".config", "zklock.json"), []byte(`{"root": "/here"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := command(runArgs([]string{"--key", "k"}, echoPath...)...)
		cmd.Dir = dir
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), asProgram + "=1", "ZKLOCK_SERVERS=" + srv.Addr()}
		for _, v := range tc.env {
			cmd.Env = append(cmd.Env, strings.ReplaceAll(v, "$DIR", dir))
		}
		p := start(t, cmd)
		p.exits(t, 0, "")
		if !strings.HasPrefix(p.out.String(), tc.want) {
			t.Errorf("%q: the lock is at %q, want %s", tc.env, p.out, tc.want)
		}
	}
}

// A variable that is set and empty counts as not set, for every flag that has one.
func TestEmptyVariablesAreNotSet(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	var cli commands
	parser, err := newParser(&cli, &streams{os.Stdin, os.Stdout, os.Stderr}, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	file := settingsFile(t, `{"root": "/file", "servers": "`+srv.Addr()+`"}`)
	cmd := command(runArgs([]string{"--key", "k"}, echoPath...)...)
	cmd.Env = append(cmd.Env, configEnv+"="+file)
	n := 0
	for _, f := range flagsOf(visible(parser.Model.Node)[0]) {
		for _, env := range f.Envs {
			cmd.Env = append(cmd.Env, env+"=")
			n++
		}
	}
	if n < 10 {
		t.Fatalf("only %d variables", n)
	}
	p := start(t, cmd)
	p.exits(t, 0, "")
	if !strings.HasPrefix(p.out.String(), "/file/k/") {
		t.Errorf("the lock is at %q, want /file/k/", p.out)
	}
}

// Locks of --path can be anywhere, also right below the ensemble's root.
func TestTheRootOfTheEnsemble(t *testing.T) {
	t.Parallel()
	for _, chroot := range []string{"", "/a/b"} {
		srv := server(t, steady)
		flags := []string{"--servers", srv.Addr() + chroot, "--root", "/"}
		s := newScript(t)
		holder := zklockOn(t, srv, runArgs(append(flags, "--key", "top"), s.argv()...)...)
		s.running(t)
		if !srv.Exists(chroot + "/top") {
			t.Errorf("the lock is not at %s/top", chroot)
		}
		if text := prints(t, srv, 0, append([]string{"ls"}, flags...)...); !strings.Contains(text, "\ntop ") {
			t.Errorf("%s", text)
		}
		if text := prints(t, srv, 0, append([]string{"show", "top"}, flags...)...); !strings.Contains(text, "/top\n") {
			t.Errorf("%s", text)
		}
		if text := prints(t, srv, 0, append([]string{"doctor"}, flags...)...); !strings.Contains(text, "ok    root: / has ") || strings.Contains(text, "fail") {
			t.Errorf("%s", text)
		}
		s.end(t)
		holder.exits(t, 5, "")
		zklockOn(t, srv, append([]string{"rm", "top"}, flags...)...).code(t) // 1 if the ensemble was quicker
		if srv.Exists(chroot + "/top") {
			t.Errorf("%s/top is left", chroot)
		}
		zklockOn(t, srv, append([]string{"once", "--key", "k"}, append(flags, "--", "true")...)...).exits(t, 2, "the root is not a lock")
	}
}

// The elements of a list can be written as strings and as numbers.
func TestListsInTheFile(t *testing.T) {
	t.Parallel()
	srv := server(t, steady)
	for i, list := range []string{`["0", "4"]`, `[0, 4]`, `["0", 4]`, `"0,4"`} {
		file := settingsFile(t, `{"success": `+list+`, "auth": ["digest:a:b", "digest:c:d,e"]}`)
		key := "k" + strconv.Itoa(i)
		prints(t, srv, 4, "once", "--config", file, "--key", key, "--", "sh", "-c", "exit 4")
		if text := prints(t, srv, 0, "show", key); !strings.Contains(text, "done, attempt 1") {
			t.Errorf("%s: exit code 4 is no success:\n%s", list, text)
		}
	}
}
