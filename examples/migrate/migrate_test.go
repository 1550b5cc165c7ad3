// Package migrate has one program four times: as it was with other libraries' locks, and as it is with zklock.
package migrate

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/go-zklock/zklock/zktest"
)

// The programs of go-zookeeper and zklock take turns, as while one replaces the other.
func TestBothTakeTurns(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"gozk", "zklock"} {
		if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, name), "./"+name).CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", name, err, out)
		}
	}
	srv := zktest.NewServer(t, zktest.WithListen("127.0.0.1:0"))
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	var running []*exec.Cmd
	for range 3 {
		for _, name := range []string{"gozk", "zklock"} {
			cmd := exec.Command(filepath.Join(dir, name), srv.Addr(), name+"-1", name+"-2", name+"-3")
			cmd.Stdout = log // line by line, in the order in which they are written
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			running = append(running, cmd)
		}
	}
	for _, cmd := range running {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", cmd.Path, err)
		}
	}
	text, err := os.ReadFile(log.Name())
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) != len(running)*3*2 {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), len(running)*3*2, text)
	}
	for i := 0; i < len(lines); i += 2 {
		begin, end := strings.Fields(lines[i]), strings.Fields(lines[i+1])
		if begin[0] != "begin" || end[0] != "end" || begin[1] != end[1] {
			t.Fatalf("two at once:\n%s", text)
		}
	}
	if left := srv.Children("/locks/settlement"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// The other programs are written without a mistake of syntax. That they do what they should was tried with the
// libraries at hand; to need those, and Java and Python, is too much for every run of the tests.
func TestOtherLanguages(t *testing.T) {
	if python, err := exec.LookPath("python3"); err != nil {
		t.Logf("%v: settle.py is not looked at", err)
	} else if out, err := exec.Command(python, "-c", "import ast; ast.parse(open('kazoo/settle.py').read())").CombinedOutput(); err != nil {
		t.Errorf("settle.py: %v\n%s", err, out)
	}
	javac, err := exec.LookPath("javac")
	if err != nil {
		t.Logf("%v: Settle.java is not looked at", err)
		return
	}
	// Without Curator its classes are missing, which is all that may be wrong.
	out, _ := exec.Command(javac, "-XDrawDiagnostics", "-d", t.TempDir(), "curator/Settle.java").CombinedOutput()
	for _, m := range regexp.MustCompile(`(?m)^\S+\.java:\d+:\d+: (compiler\.err\.\S+).*$`).FindAllStringSubmatch(string(out), -1) {
		if code := strings.TrimSuffix(m[1], ":"); code != "compiler.err.doesnt.exist" && !strings.HasPrefix(code, "compiler.err.cant.resolve") {
			t.Errorf("Settle.java: %s", m[0])
		}
	}
}
