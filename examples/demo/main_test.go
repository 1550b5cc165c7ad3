//go:build unix

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// build makes the worker program once for all tests.
func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "worker")
	if text, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../worker").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return program
}

func TestDemo(t *testing.T) {
	t.Parallel()
	program := build(t)

	t.Run("fence", func(t *testing.T) {
		t.Parallel()
		var out bytes.Buffer
		err := run(t.Context(), []string{"-worker", program}, &out)
		t.Logf("\n%s", &out)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			"worker-1 killed (SIGKILL)", "worker-2 goes on (SIGCONT)",
			"worker-2: refused by the ledger: the token is stale",
			"worker-2: the next gate says: zklock: lost /dedup/",
			"Every one of the 41 keys was charged exactly once",
		} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("output lacks %q", want)
			}
		}
	})

	// The control: without the fence the late charge goes through, and the demo has to see that.
	t.Run("no fence", func(t *testing.T) {
		t.Parallel()
		var out bytes.Buffer
		err := run(t.Context(), []string{"-worker", program, "-fence=false"}, &out)
		t.Logf("\n%s%v", &out, err)
		if err == nil || !strings.Contains(err.Error(), "was charged 2 times: by worker-3 with token") {
			t.Fatalf("%v", err)
		}
		_, ledger, _ := strings.Cut(err.Error(), "\nledger: ")
		if err := os.RemoveAll(filepath.Dir(ledger)); err != nil {
			t.Error(err)
		}
	})
}

func TestBadFlags(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		`unexpected argument "x"`: {"x"},
		"no such file":            {"-worker", filepath.Join(t.TempDir(), "none")},
	} {
		if err := run(t.Context(), args, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", args, err)
		}
	}
}
