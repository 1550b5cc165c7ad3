//go:build linux

package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock/zktest"
)

// accessOf is the access list of a node, as a client sees it.
func accessOf(t *testing.T, srv *zktest.Server, auth, path string) []zk.ACL {
	t.Helper()
	conn, _, err := zk.Connect([]string{srv.Addr()}, 10*time.Second, zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.AddAuth("digest", []byte(auth)); err != nil {
		t.Fatal(err)
	}
	acl, _, err := conn.GetACL(path)
	if err != nil {
		t.Fatal(err)
	}
	return acl
}

// What doctor makes is gone at the end, and what has come to use in the meantime has the
// access list that was asked for.
func TestDoctorLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{
		"world":   nil,
		"creator": {"--auth", "digest:u:p", "--acl", "creator"},
	} {
		srv := server(t, steady)
		below := append(slices.Clone(flags), "--servers", srv.Addr()+"/a/b", "--root", "/c/d")
		text := prints(t, srv, 0, append([]string{"doctor"}, below...)...)
		for _, want := range []string{"ok    root: /c/d is not there yet", "ok    containers: known", "ok    writes: "} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: it does not say %q:\n%s", name, want, text)
			}
		}
		if srv.Exists("/a") {
			t.Errorf("%s: /a is left", name)
		}

		// A part that was there stays, and so does what somebody has begun to use.
		if err := srv.Create("/a", nil); err != nil {
			t.Fatal(err)
		}
		used := srv.Inject(zktest.Before(func() { _ = srv.Create("/a/b/c/other", nil) }, zktest.OpDelete).Path("/a/b/c/d"))
		prints(t, srv, 0, append([]string{"doctor"}, below...)...)
		if used.Hits() == 0 {
			t.Fatalf("%s: nothing was deleted", name)
		}
		if srv.Exists("/a/b/c/d") || !srv.Exists("/a/b/c/other") {
			t.Errorf("%s: below /a/b/c there is %v", name, srv.Children("/a/b/c"))
		}
		acl := accessOf(t, srv, "u:p", "/a/b/c")
		if world := acl[0].Scheme == "world"; len(acl) != 1 || world != (name == "world") {
			t.Errorf("%s: /a/b/c was made with %v", name, acl)
		}
	}
}
