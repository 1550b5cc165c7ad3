package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/integration/internal/report"
	"github.com/go-zklock/zklock/integration/zkcluster"
)

// serverName is a name that only the worker in the container knows.
const serverName = "zk.zklock.test"

// hostsAge is how old what Go's resolver knows of the file may get before it looks again. A client that loses its
// connection earlier may go by the old names once more.
const hostsAge = 5500 * time.Millisecond

// others are the servers but one.
func others(cluster *zkcluster.Cluster, but *zkcluster.Server) []*zkcluster.Server {
	return slices.DeleteFunc(cluster.Servers(), func(s *zkcluster.Server) bool { return s == but })
}

// writeHosts makes serverName mean these servers. The file keeps its identity, since the container has it by that.
func writeHosts(t *testing.T, file string, servers ...*zkcluster.Server) {
	t.Helper()
	text := "127.0.0.1 localhost\n"
	for _, s := range servers {
		host, _, err := net.SplitHostPort(s.Addr())
		must(t, "address", err)
		text += host + " " + serverName + "\n"
	}
	must(t, "hosts", os.WriteFile(file, []byte(text), 0o644)) //nolint:gosec // read in a container
}

// A client whose servers are found by a name holds 100 locks while all servers are restarted, the leader last, and
// then while the name comes to mean one server after the other. It is never away for longer than its trust window, so
// it loses nothing.
func TestHundredLocksOutliveRestartsAndANewServerList(t *testing.T) {
	const (
		locks   = 100
		timeout = 40 * time.Second
	)
	cluster := ensemble.Get(t)
	folder := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(folder, "worker"), "./internal/worker")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // it runs in a container, and resolves names by itself
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the worker: %v\n%s", err, out)
	}
	hosts := filepath.Join(t.TempDir(), "hosts")
	writeHosts(t, hosts, cluster.Servers()...)
	var paths []string
	for range locks {
		paths = append(paths, uniquePath(t))
	}
	log := &logBuffer{}
	program, err := zkcluster.StartProgram(bounded(t), zkcluster.ProgramOptions{
		Image: cluster.Image(), Stderr: log,
		Command: []string{
			"/worker/worker", "-mode", "hold", "-servers", serverName + ":2181", "-timeout", timeout.String(),
			"-paths", strings.Join(paths, ","), "-patience", "10m",
		},
		Folders: map[string]string{"/worker": folder, "/etc/hosts": hosts},
	})
	must(t, "start the worker", err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := program.Close(ctx); err != nil {
			t.Errorf("end of the worker: %v", err)
		}
		if t.Failed() {
			t.Logf("worker:\n%s", log)
		}
	})
	lines := make(chan report.Line, 4*locks)
	go func() {
		defer close(lines)
		for in := bufio.NewScanner(program.Stdout); in.Scan(); {
			var l report.Line
			if json.Unmarshal(bytes.TrimSpace(in.Bytes()), &l) == nil {
				lines <- l
			}
		}
	}()
	next := func(event report.Event) report.Line {
		t.Helper()
		deadline := time.After(patience)
		for {
			select {
			case l, ok := <-lines:
				if !ok || l.Event == report.Failed {
					t.Fatalf("the worker ended or failed before it said %q: %s", event, l.Error)
				}
				if l.Event == event {
					return l
				}
			case <-deadline:
				t.Fatalf("the worker did not say %q within %v", event, patience)
			}
		}
	}
	was := make(map[string]report.Line)
	for range locks {
		l := next(report.Acquired)
		was[l.Path] = l
	}
	check := func(when string) {
		t.Helper()
		begun := time.Now()
		_, err := io.WriteString(program.Stdin, "check\n")
		must(t, "command", err)
		bad := 0
		for range locks {
			l := next(report.Checked)
			if before := was[l.Path]; l.Error != "" || l.Node != before.Node || l.Token != before.Token {
				bad++
				t.Errorf("%s: %s with token %v was %s with token %v: %s", when, l.Node, zklock.Token(l.Token), before.Node, zklock.Token(before.Token), l.Error)
			}
		}
		t.Logf("%s: %d of %d leases are what they were; asked for in %v", when, locks-bad, locks, ms(time.Since(begun)))
	}
	check("at the beginning")
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	must(t, "rolling restart", cluster.RollingRestart(ctx))
	check("after a rolling restart")

	for i, only := range cluster.Servers()[:2] {
		writeHosts(t, hosts, only)
		// The first of them may be the one that the client is connected to.
		time.Sleep(hostsAge)
		for _, s := range others(cluster, only) {
			must(t, "restart", s.Restart(ctx))
			must(t, "quorum", cluster.WaitQuorum(ctx))
		}
		check(fmt.Sprintf("with the name for server %d only, and the others restarted", only.ID()))
		connected := 0
		for _, s := range cluster.Servers() {
			cons, err := s.FourLetter(ctx, "cons")
			must(t, "cons", err)
			if strings.Contains(cons, fmt.Sprintf("to=%d", timeout.Milliseconds())) {
				connected = s.ID()
			}
		}
		if connected != only.ID() {
			t.Errorf("step %d: the client is connected to server %d, and its name means server %d", i, connected, only.ID())
		}
	}
	must(t, "end of input", program.CloseStdin())
	next(report.Closed)
}
