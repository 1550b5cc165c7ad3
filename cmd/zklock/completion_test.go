//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// shellProgram finds a shell. Only CI has to have them all.
func shellProgram(t *testing.T, name string) (program string, ok bool) {
	t.Helper()
	program, err := exec.LookPath(name)
	switch {
	case err == nil:
		return program, true
	case os.Getenv("CI") == "true":
		t.Errorf("there is no %s; .ci/shells installs it", name)
	default:
		t.Logf("NOT TRIED: there is no %s", name)
	}
	return "", false
}

// completed is what real shells make of a line.
var completed = []struct{ line, want string }{
	{"zklock sh", "show"},
	{"zklock once --key k --no-rep", "--no-replay"},
	{"zklock run --on-lost=k", "--on-lost=kill"},
	{"zklock run --key k -- zklock-test-pro", "zklock-test-program"},
	{"zklock once --key k -- zklock-test-pro", "zklock-test-program"},
	{"zklock run --key k zklock-test-pro", "zklock-test-program"},
	{"zklock run --key k -- zklock-test-program zklock-test-fi", "zklock-test-file"},
	{"zklock run --no-wait -- zklock-test-program -- zklock-test-fi", "zklock-test-file"},
}

// completionDir has a program, a file and the script of a shell.
func completionDir(t *testing.T, shell string) (dir string, env []string) {
	t.Helper()
	script, err := command("completion", shell).Output()
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for name, text := range map[string]string{"script": string(script), "zklock-test-file": "", "bin/zklock-test-program": "", "bin/zklock": ""} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o700); err != nil { //nolint:gosec // programs
			t.Fatal(err)
		}
	}
	// No shell reads or writes anybody's files.
	return dir, append(os.Environ(), "HOME="+dir, "ZDOTDIR="+dir, "XDG_CONFIG_HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CACHE_HOME="+dir,
		"XDG_RUNTIME_DIR="+dir, "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "TERM=xterm")
}

// A person at a zsh types a line and the tabulator, and enters it.
func TestTerminalCompletesInZsh(t *testing.T) {
	t.Parallel()
	program, ok := shellProgram(t, "zsh")
	if !ok {
		return
	}
	dir, env := completionDir(t, "zsh")
	zsh := exec.Command(program, "-f", "-i")
	zsh.Dir, zsh.Env = dir, env
	p := atTerminal(t, server(t, steady), zsh)
	// What is typed is shown, so the answer must not be in it.
	p.types(t, `autoload -U compinit; compinit -u -D; source ./script; zklock() { print -r "<"got:"${@[-1]}>" }; print rea""dy`+"\n")
	says(t, p.screen, "ready")
	for _, tc := range completed {
		before := len(p.screen.String())
		p.types(t, tc.line+"\t")
		p.types(t, "\n")
		eventually(t, "the line is entered: "+tc.line, func() bool {
			_, got, entered := strings.Cut(p.screen.String()[before:], "<got:")
			return entered && strings.Contains(got, ">")
		})
		if after := p.screen.String()[before:]; !strings.Contains(after, "<got:"+tc.want) {
			t.Errorf("%q is not completed to %q: %q", tc.line, tc.want, after)
		}
	}
}

func TestCompletesInFish(t *testing.T) {
	t.Parallel()
	program, ok := shellProgram(t, "fish")
	if !ok {
		return
	}
	dir, env := completionDir(t, "fish")
	for _, tc := range completed {
		fish := exec.Command(program, "--no-config", "-c", "source ./script; complete -C $argv", tc.line)
		fish.Dir, fish.Env = dir, env
		text, err := fish.CombinedOutput()
		if first, _, _ := strings.Cut(string(text), "\n"); err != nil || !strings.HasPrefix(first+"\t", tc.want+"\t") {
			t.Errorf("%q is completed to %q, want %q: %v", tc.line, text, tc.want, err)
		}
	}
}

// The scripts are complete, and the shells that are here take them.
func TestCompletion(t *testing.T) {
	t.Parallel()
	for shell, check := range map[string][]string{"bash": {"-n"}, "zsh": {"-n"}, "fish": {"--no-execute"}} {
		p := start(t, command("completion", shell))
		p.exits(t, 0, "")
		script := p.out.String()
		for _, want := range []string{"run", "once", "doctor", "on-lost", "kill", "session-timeout", "no-env"} {
			if !strings.Contains(script, want) {
				t.Errorf("%s: no %s", shell, want)
			}
		}
		if strings.Contains(script, watcherCommand) {
			t.Errorf("%s: it has what is hidden", shell)
		}
		program, ok := shellProgram(t, shell)
		if !ok {
			continue
		}
		file := filepath.Join(t.TempDir(), "script")
		if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
			t.Fatal(err)
		}
		if text, err := exec.Command(program, append(check, file)...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", shell, err, text)
		}
		if shell != "bash" {
			continue
		}
		for words, want := range map[string]string{
			"zklock sh":                  "show",
			"zklock run --on-lost ":      "kill term",
			"zklock run --on-l":          "--on-lost",
			"zklock completion ":         "bash zsh fish",
			"zklock once --key k --no-r": "--no-replay",
		} {
			ask := `source "$1"; IFS=' ' read -ra COMP_WORDS <<< "$2"; case $2 in *' ') COMP_WORDS+=("");; esac
				COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _zklock; echo "${COMPREPLY[*]}"`
			text, err := exec.Command(program, "-c", ask, "bash", file, words).CombinedOutput()
			if err != nil || !strings.HasSuffix(strings.TrimSpace(string(text)), want) {
				t.Errorf("%q completes to %q, want %q: %v", words, text, want, err)
			}
		}
	}
}
