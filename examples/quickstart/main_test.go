package main

import (
	"testing"

	"github.com/go-zklock/zklock/zktest"
)

func TestRun(t *testing.T) {
	srv := zktest.NewServer(t, zktest.WithListen("127.0.0.1:0"))
	if err := run(t.Context(), srv.Addr()); err != nil {
		t.Fatal(err)
	}
	if nodes := srv.Children("/dedup/order%2F1041"); len(nodes) != 0 {
		t.Errorf("left: %v", nodes)
	}
}
