package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/integration/internal/figures"
	"github.com/go-zklock/zklock/integration/internal/report"
)

// buildWorker compiles the program that tests run as processes of their own.
func buildWorker(t testing.TB) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "worker")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./internal/worker").CombinedOutput()
	if err != nil {
		t.Fatalf("build the worker: %v\n%s", err, out)
	}
	return program
}

// process is a running worker.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan report.Line
	ended chan struct{} // closed when it has ended; err is set by then
	err   error
}

func startWorker(t testing.TB, program string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(program, args...), lines: make(chan report.Line, 4096), ended: make(chan struct{})}
	log := &logBuffer{}
	p.cmd.Stderr = log
	stdout, err := p.cmd.StdoutPipe()
	must(t, "worker's output", err)
	p.stdin, err = p.cmd.StdinPipe()
	must(t, "worker's input", err)
	must(t, "start the worker", p.cmd.Start())
	go func() {
		defer close(p.ended)
		for in := bufio.NewScanner(stdout); in.Scan(); {
			var l report.Line
			if json.Unmarshal(in.Bytes(), &l) == nil {
				p.lines <- l
			}
		}
		close(p.lines)
		p.err = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // fails when it has ended
		go func() {
			for range p.lines {
			}
		}()
		<-p.ended
		if t.Failed() {
			t.Logf("worker %d:\n%s", p.cmd.Process.Pid, log)
		}
	})
	return p
}

// next waits for a line about event; a line that says Failed ends the test.
func (p *process) next(t testing.TB, event report.Event) report.Line {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case l, ok := <-p.lines:
			switch {
			case !ok:
				t.Fatalf("worker %d ended before it said %q", p.cmd.Process.Pid, event)
			case l.Event == report.Failed:
				t.Fatalf("worker %d: %s", p.cmd.Process.Pid, l.Error)
			case l.Event == event:
				return l
			}
		case <-deadline:
			t.Fatalf("worker %d did not say %q within %v", p.cmd.Process.Pid, event, patience)
		}
	}
}

func (p *process) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	must(t, "signal "+s.String(), p.cmd.Process.Signal(s))
}

// finish closes the worker's input and waits for its good end.
func (p *process) finish(t testing.TB) {
	t.Helper()
	must(t, "close the worker's input", p.stdin.Close())
	p.next(t, report.Closed)
	await(t, "end of the worker", p.ended)
	must(t, "worker", p.err)
}

// stores are two stores of a program that lives outside: one keeps the largest token
// of each key and refuses a smaller one, the other takes everything and counts what
// it should have refused.
type stores struct {
	mu      sync.Mutex
	largest map[string]int64
	refused int // by the store that compares tokens
	stale   int // accepted by the one that does not
}

func (s *stores) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	token, err := strconv.ParseInt(r.URL.Query().Get("token"), 10, 64)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	key := r.URL.Path + " " + r.URL.Query().Get("key")
	s.mu.Lock()
	defer s.mu.Unlock()
	if token >= s.largest[key] {
		s.largest[key] = token
		return
	}
	if r.URL.Path == "/open" {
		s.stale++
		return
	}
	s.refused++
	http.Error(w, "a larger token was seen", http.StatusConflict)
}

// S4 and F15: a holder is stopped between its gate and its write, and goes on after
// another has had the lock.
func TestStoppedHolderIsToldAtItsFirstGateAndFencedByItsToken(t *testing.T) {
	const timeout = 6 * time.Second
	cluster := ensemble.Get(t)
	version := versionOf(t, cluster)
	ctx := bounded(t)
	store := &stores{largest: make(map[string]int64)}
	server := httptest.NewServer(store)
	defer server.Close()
	var paths []string
	for range 4 {
		paths = append(paths, uniquePath(t))
	}
	holder := startWorker(t, buildWorker(t), "-mode", "hold", "-servers", cluster.ConnectString(), "-timeout", timeout.String(),
		"-paths", strings.Join(paths, ","), "-store", server.URL, "-work", "2s")
	for range paths {
		holder.next(t, report.Acquired)
	}
	rival := clientOf(t, cluster.Addrs(), timeout)
	var waits []<-chan result
	for _, path := range paths {
		waits = append(waits, acquireAsync(ctx, mutexOf(t, rival, path)))
	}

	_, err := io.WriteString(holder.stdin, "write\n")
	must(t, "command", err)
	for range paths {
		holder.next(t, report.Gated)
	}
	holder.signal(t, syscall.SIGSTOP)
	stopped := time.Now()
	for i, w := range waits {
		l := granted(t, "rival", w)
		for _, which := range []string{"fenced", "open"} {
			url := fmt.Sprintf("%s/%s?key=%s&token=%d", server.URL, which, paths[i], int64(l.Token()))
			resp, err := server.Client().Get(url)
			must(t, "write of the rival", err)
			must(t, "close", resp.Body.Close())
			if resp.StatusCode != http.StatusOK {
				t.Errorf("the rival's write was refused: %s", resp.Status)
			}
		}
		if i == 0 {
			figures.Record(t, "holder stopped, T = 6 s", version, figures.HandOver, time.Since(stopped))
			t.Logf("T = %v: the rival held %v after the stop", timeout, ms(time.Since(stopped)))
		}
	}
	time.Sleep(time.Until(stopped.Add(timeout + 3*time.Second)))
	holder.signal(t, syscall.SIGCONT)

	var woke, wrote []report.Line
	for len(woke) < len(paths) || len(wrote) < len(paths) {
		select {
		case l, ok := <-holder.lines:
			switch {
			case !ok || l.Event == report.Failed:
				t.Fatalf("the holder ended: %s", l.Error)
			case l.Event == report.Woke:
				woke = append(woke, l)
			case l.Event == report.Wrote:
				wrote = append(wrote, l)
			}
		case <-time.After(patience):
			t.Fatal("the holder says nothing after it was continued")
		}
	}
	for _, l := range woke {
		if !l.Lost {
			t.Errorf("%s: the first gate after the stop said %q, not lost", l.Path, l.Error)
		}
	}
	t.Logf("first gate: %s", woke[0].Error)
	for _, l := range wrote {
		if l.Fenced != http.StatusConflict {
			t.Errorf("%s: the store that compares tokens answered %d to the late write", l.Path, l.Fenced)
		}
		if l.Open != http.StatusOK {
			t.Errorf("%s: the other store answered %d", l.Path, l.Open)
		}
	}
	t.Logf("%d late writes: %d refused by token; %d overlaps in the store without that check", len(wrote), store.refused, store.stale)
	if store.stale != len(paths) {
		t.Errorf("%d stale writes went through, want %d: the control shows nothing", store.stale, len(paths))
	}
	holder.finish(t)
}

// F5: the next one holds once the killed one's session has expired; the same program,
// started again at once, queues behind with a node of its own.
func TestKilledHolderIsFollowedAndItsSuccessorQueuesAnew(t *testing.T) {
	const (
		timeout = 6 * time.Second
		tick    = 2 * time.Second
		slack   = 15 * time.Second // of a busy machine
	)
	cluster := ensemble.Get(t)
	version := versionOf(t, cluster)
	path := uniquePath(t)
	program := buildWorker(t)
	args := []string{"-mode", "hold", "-servers", cluster.ConnectString(), "-timeout", timeout.String(), "-paths", path}
	first := startWorker(t, program, args...)
	was := first.next(t, report.Acquired)
	client := clientOf(t, cluster.Addrs(), timeout)
	next := acquireAsync(bounded(t), mutexOf(t, client, path))
	participants(t, mutexOf(t, client, path), 2)

	first.signal(t, syscall.SIGKILL)
	killed := time.Now()
	await(t, "the kill", first.ended)
	second := startWorker(t, program, args...)

	r := returned(t, "next worker", next)
	must(t, "next worker", r.err)
	took, limit := r.at.Sub(killed), timeout+3*tick/2
	figures.Record(t, "holder killed, T = 6 s", version, figures.HandOver, took)
	t.Logf("T = %v: the next worker holds %v after the kill; T + 1.5 tick = %v", timeout, ms(took), limit)
	if took > limit+slack {
		t.Errorf("that is later than %v", limit+slack)
	}
	if int64(r.lease.Token()) <= was.Token {
		t.Errorf("token %v after %v", r.lease.Token(), zklock.Token(was.Token))
	}
	queue := participants(t, mutexOf(t, client, path), 2)
	if queue[1] == was.Node {
		t.Errorf("the new process stands with the old one's node %s", was.Node)
	}
	release(t, r.lease)
	again := second.next(t, report.Acquired)
	if again.Node != queue[1] || again.Node == was.Node || again.Token <= int64(r.lease.Token()) {
		t.Errorf("the new process holds %s with token %v; it queued with %s; the killed one had %s", again.Node, zklock.Token(again.Token), queue[1], was.Node)
	}
	second.finish(t)
}
