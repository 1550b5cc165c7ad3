//go:build linux

package main

import (
	"debug/elf"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"testing"
)

// As the README says to build it, the program needs no library of the machine it runs on.
func TestProgramIsStatic(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "zklock")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", name, ".")
	me, err := user.Current() // the tests have another HOME, and go keeps what it has built there
	if err != nil {
		t.Fatal(err)
	}
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "HOME="+me.HomeDir)
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	f, err := elf.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("it asks for a dynamic linker")
		}
	}
	if libs, err := f.ImportedLibraries(); err != nil || len(libs) > 0 {
		t.Errorf("it needs %v, %v", libs, err)
	}
	if text, err := exec.CommandContext(t.Context(), name, "--help").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
}
