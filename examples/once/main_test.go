package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/zktest"
)

func TestRun(t *testing.T) {
	srv := zktest.NewServer(t)
	var out bytes.Buffer
	for range 2 { // the second process finds what the first has stored
		if err := run(t.Context(), zklock.Config{Servers: []string{srv.Addr()}, Dial: srv.Dial}, &out); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(out.String(), "charging"); n != 1 {
		t.Errorf("charged %d times, want once:\n%s", n, out.String())
	}
	if n := strings.Count(out.String(), "replayed: true"); n != 5 {
		t.Errorf("%d replays, want 5:\n%s", n, out.String())
	}
}
