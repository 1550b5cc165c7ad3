package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// systemd takes the units as they are, with programs that are there.
func TestSystemdUnits(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%v; Debian has it in the package systemd", err)
		}
		t.Logf("%v: the units are not verified", err)
		return
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	verify := func(edit func(string) string) (string, error) {
		args := []string{"verify"}
		for _, unit := range []string{"zklock-nightly.service", "zklock-nightly.timer"} {
			copied := filepath.Join(dir, unit)
			text := strings.ReplaceAll(edit(read(t, unit)), "=/usr/local/bin/zklock ", "="+program+" ")
			if err := os.WriteFile(copied, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			args = append(args, copied)
		}
		out, err := exec.Command(analyze, args...).CombinedOutput()
		return string(out), err
	}
	out, err := verify(func(text string) string { return text })
	if err != nil || strings.Contains(out, "zklock-nightly") {
		t.Errorf("systemd-analyze: %v\n%s", err, out)
	}
	// It does look.
	out, err = verify(func(text string) string { return strings.Replace(text, "Type=exec", "Type=oneshot", 1) })
	if err == nil {
		t.Errorf("a restart by exit status of a oneshot service passed:\n%s", out)
	}
}
