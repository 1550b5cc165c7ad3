package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/examples/worker/payments"
	"github.com/go-zklock/zklock/zktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// output is a buffer that a test reads while the program writes.
type output struct {
	mu      sync.Mutex
	b       bytes.Buffer
	changed chan struct{}
}

func newOutput() *output { return &output{changed: make(chan struct{})} }

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.changed)
	o.changed = make(chan struct{})
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// await waits for a match of pattern and returns its first group.
func (o *output) await(t *testing.T, pattern string) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	timeout := time.After(20 * time.Second)
	for {
		o.mu.Lock()
		text, changed := o.b.String(), o.changed
		o.mu.Unlock()
		if m := re.FindStringSubmatch(text); m != nil {
			return m[len(m)-1]
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("no %s in:\n%s", pattern, text)
		}
	}
}

func shippedKeys(t *testing.T) []string {
	t.Helper()
	events, err := payments.Open("")
	if err != nil {
		t.Fatal(err)
	}
	return payments.Keys(events)
}

func readBook(t *testing.T, path string) *payments.Book {
	t.Helper()
	l, err := payments.OpenLedger(path, true)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	b, err := l.Book()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// listen starts a server that takes TCP, as separate processes need it.
func listen(t *testing.T) *zktest.Server {
	t.Helper()
	return zktest.NewServer(t, zktest.WithListen("127.0.0.1:0"), func(c *zktest.Config) { c.Logf = nil })
}

func TestEmbedded(t *testing.T) {
	ledger := filepath.Join(t.TempDir(), "ledger")
	stdout, stderr := newOutput(), newOutput()
	if code := run(t.Context(), []string{"-ledger", ledger, "-step", "1ms", "-wire", "1ms"}, stdout, stderr); code != exitOK {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	if err := readBook(t, ledger).Check(shippedKeys(t)); err != nil {
		t.Error(err)
	}
	if want := "63 events with 41 keys; 41 of these keys are charged in " + ledger; !strings.Contains(stdout.String(), want) {
		t.Errorf("summary lacks %q:\n%s", want, stdout)
	}
	if n := strings.Count(stderr.String(), "a ZooKeeper server for tests runs in this process"); n != 1 {
		t.Errorf("it says %d times that it runs a server", n)
	}

	// Another server's tokens start anew: going on with that ledger must not look like work.
	stderr = newOutput()
	if code := run(t.Context(), []string{"-ledger", ledger}, io.Discard, stderr); code != exitFailed || !strings.Contains(stderr.String(), "take a new file, or -servers") {
		t.Errorf("a used ledger: exit code %d\n%s", code, stderr)
	}
}

// Three programs share the events, as three processes would.
func TestShared(t *testing.T) {
	srv := listen(t)
	ledger := filepath.Join(t.TempDir(), "ledger")
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			stderr := newOutput()
			code := run(t.Context(), []string{
				"-servers", srv.Addr(), "-ledger", ledger, "-workers", "1", "-name", fmt.Sprintf("w%d", i),
				"-step", "1ms", "-wire", "1ms", "-metrics", "off",
			}, io.Discard, stderr)
			if code != exitOK {
				t.Errorf("exit code %d\n%s", code, stderr)
			}
		})
	}
	wg.Wait()
	if err := readBook(t, ledger).Check(shippedKeys(t)); err != nil {
		t.Error(err)
	}
	if n := len(srv.Sessions()); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
}

func TestBadInput(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir) // for the ledgers of runs that name none
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const good = `{"key":"k","account":"a","amount":5,"currency":"EUR"}` + "\n"
	bad := file("bad.jsonl", good+"pay me\n")

	for name, tt := range map[string]struct {
		args []string
		code int
		want string
	}{
		"help":              {[]string{"-h"}, exitOK, "Usage: worker [flags]"},
		"unknown flag":      {[]string{"-server", "x"}, exitUsage, "flag provided but not defined: -server"},
		"argument":          {[]string{"x"}, exitUsage, `unexpected argument "x"`},
		"no workers":        {[]string{"-workers", "0"}, exitUsage, "-workers 0: at least 1"},
		"no shared ledger":  {[]string{"-servers", "zk1:2181"}, exitUsage, "-servers without -ledger"},
		"log format":        {[]string{"-log", "xml"}, exitUsage, `-log "xml"`},
		"negative":          {[]string{"-step", "-1s"}, exitUsage, "not negative"},
		"no name":           {[]string{"-name", ""}, exitUsage, "-name: not empty"},
		"no such file":      {[]string{"-events", filepath.Join(dir, "none")}, exitUsage, "no such file"},
		"bad line":          {[]string{"-events", bad}, exitUsage, bad + ":2: not a payment event"},
		"metrics address":   {[]string{"-metrics", "nowhere"}, exitFailed, "-metrics nowhere: "},
		"ledger in nowhere": {[]string{"-ledger", filepath.Join(dir, "none", "l")}, exitFailed, "no such file"},
		"root":              {[]string{"-root", "dedup"}, exitFailed, `"dedup"`},
		"no ensemble":       {[]string{"-servers", "127.0.0.1:1", "-ledger", filepath.Join(dir, "l"), "-session-timeout", "300ms"}, exitFailed, "127.0.0.1:1"},
	} {
		t.Run(name, func(t *testing.T) {
			stderr := newOutput()
			if code := run(t.Context(), tt.args, io.Discard, stderr); code != tt.code || !strings.Contains(stderr.String(), tt.want) {
				t.Errorf("exit code %d, want %d with %q:\n%s", code, tt.code, tt.want, stderr)
			}
		})
	}

	stdout, stderr := newOutput(), newOutput()
	args := []string{"-events", bad, "-skip-malformed", "-ledger", filepath.Join(dir, "skipped")}
	if code := run(t.Context(), args, stdout, stderr); code != exitOK ||
		!strings.Contains(stderr.String(), ":2: not a payment event") || !strings.Contains(stdout.String(), "1 events with 1 keys; 1 of") {
		t.Errorf("-skip-malformed: exit code %d\n%s%s", code, stdout, stderr)
	}
}

func TestMetrics(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stderr := newOutput()
	done := make(chan int, 1)
	ledger := filepath.Join(t.TempDir(), "ledger")
	go func() {
		done <- run(ctx, []string{"-ledger", ledger, "-step", "0", "-wire", "0", "-linger", "1h"}, io.Discard, stderr)
	}()
	url := stderr.await(t, `url=(\S+)`)
	stderr.await(t, `serving /metrics a little longer`)

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v", resp.Status, err)
	}
	for _, want := range []string{`zklock_acquire_seconds_count{outcome="acquired"}`, `zk_ephemeral_nodes_total{prefix="/dedup"} 0`} {
		if !strings.Contains(string(body), want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	cancel()
	if code := <-done; code != exitOK {
		t.Errorf("exit code %d after a signal while it lingers: all work is done", code)
	}
}

// A signal ends the program at the next gate, with every lock node gone.
func TestInterrupt(t *testing.T) {
	srv := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ledger := filepath.Join(t.TempDir(), "ledger")
	stderr := newOutput()
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, []string{"-servers", srv.Addr(), "-ledger", ledger, "-step", "1h", "-metrics", "off"}, io.Discard, stderr)
	}()
	stderr.await(t, `(?s)(event=created.*){3}`) // each worker holds or waits
	cancel()
	select {
	case code := <-done:
		if code != exitInterrupted || !strings.Contains(stderr.String(), "worker: interrupted: ") {
			t.Errorf("exit code %d\n%s", code, stderr)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it goes on")
	}
	for _, key := range srv.Children("/dedup") {
		if nodes := srv.Children("/dedup/" + key); len(nodes) > 0 {
			t.Errorf("/dedup/%s has %v", key, nodes)
		}
	}
	if n := len(srv.Sessions()); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
	if b := readBook(t, ledger); len(b.Charges) != 0 {
		t.Errorf("charged without an authorisation: %v", b.Charges)
	}
}

var payment = payments.Event{Key: "k", Account: "a", Amount: 5, Currency: "EUR"}

// pair is two workers with a session and a handle on the ledger each.
type pair struct {
	srv    *zktest.Server
	ledger string
	first  *worker
	second *worker
}

func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{srv: listen(t), ledger: filepath.Join(t.TempDir(), "ledger")}
	p.first, p.second = p.worker(t, "first"), p.worker(t, "second")
	return p
}

func (p *pair) worker(t *testing.T, name string) *worker {
	t.Helper()
	client, err := zklock.Connect(t.Context(), zklock.Config{Servers: []string{p.srv.Addr()}})
	if err != nil {
		t.Fatal(err)
	}
	ledger, err := payments.OpenLedger(p.ledger, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(); _ = ledger.Close() })
	return &worker{
		name: name, client: client, root: "/dedup", ledger: ledger, log: slog.New(slog.DiscardHandler),
		authorise: func(context.Context, payments.Event) error { return nil },
		wire:      func(payments.Event) {},
	}
}

// start has w settle the payment and returns what comes of it.
func start(t *testing.T, w *worker) func() tally {
	t.Helper()
	type result struct {
		t   tally
		err error
	}
	done := make(chan result, 1)
	go func() {
		var r result
		r.err = w.settle(t.Context(), payment, &r.t)
		done <- r
	}()
	return func() tally {
		t.Helper()
		select {
		case r := <-done:
			if r.err != nil {
				t.Fatalf("%s: %v", w.name, r.err)
			}
			return r.t
		case <-time.After(20 * time.Second):
			t.Fatalf("%s does not come to an end", w.name)
			return tally{}
		}
	}
}

// queued waits until n contenders are in line.
func (p *pair) queued(t *testing.T, n int) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); len(p.srv.Children("/dedup/k")) < n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d contenders, want %d", len(p.srv.Children("/dedup/k")), n)
		}
	}
}

func (p *pair) check(t *testing.T, by string, refused int) {
	t.Helper()
	b := readBook(t, p.ledger)
	if err := b.Check([]string{"k"}); err != nil {
		t.Fatal(err)
	}
	if c := b.Charges["k"][0]; c.Worker != by || len(b.Refused) != refused {
		t.Errorf("charged by %s with %d refused, want %s and %d", c.Worker, len(b.Refused), by, refused)
	}
}

// The lock is lost while a step is under way: its ctx ends, and the step after it is not taken.
func TestLostInAStep(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	authorising := make(chan struct{})
	p.first.authorise = func(ctx context.Context, _ payments.Event) error {
		close(authorising)
		<-ctx.Done()
		return context.Cause(ctx)
	}
	first := start(t, p.first)
	<-authorising
	second := start(t, p.second)
	p.queued(t, 2)
	p.srv.Expire(p.first.client.SessionID())

	if got, want := second(), (tally{charged: 1}); got != want {
		t.Errorf("second: %+v, want %+v", got, want)
	}
	if got, want := first(), (tally{already: 1, abandoned: 1}); got != want {
		t.Errorf("first: %+v, want %+v", got, want)
	}
	p.check(t, "second", 0)
}

// The lock is lost between the steps, which only a gate can see.
func TestLostBetweenSteps(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	authorising, goOn := make(chan struct{}), make(chan struct{})
	p.first.authorise = func(ctx context.Context, _ payments.Event) error {
		close(authorising)
		<-goOn
		<-ctx.Done() // the client knows; an expiry by force comes before its deadline
		return nil   // and this step does not care
	}
	first := start(t, p.first)
	<-authorising
	second := start(t, p.second)
	p.queued(t, 2)
	p.srv.Expire(p.first.client.SessionID())
	if got, want := second(), (tally{charged: 1}); got != want {
		t.Errorf("second: %+v, want %+v", got, want)
	}
	close(goOn)
	if got, want := first(), (tally{already: 1, abandoned: 1}); got != want {
		t.Errorf("first: %+v, want %+v", got, want)
	}
	p.check(t, "second", 0) // nothing was refused: nothing was sent
}

// The lock is lost after the last gate, with the charge on its way: the ledger refuses it. The successor has begun
// and not charged yet, so that only the token can tell.
func TestLostAfterTheLastGate(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	sent, arrive := make(chan struct{}), make(chan struct{})
	p.first.wire = func(payments.Event) { close(sent); <-arrive }
	begun, charge := make(chan struct{}), make(chan struct{})
	p.second.wire = func(payments.Event) { close(begun); <-charge }

	first := start(t, p.first)
	<-sent
	second := start(t, p.second)
	p.queued(t, 2)
	p.srv.Expire(p.first.client.SessionID())
	<-begun
	close(arrive)
	for deadline := time.Now().Add(20 * time.Second); len(readBook(t, p.ledger).Refused) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the late charge is not refused")
		}
	}
	close(charge)
	if got, want := second(), (tally{charged: 1}); got != want {
		t.Errorf("second: %+v, want %+v", got, want)
	}
	if got, want := first(), (tally{already: 1, abandoned: 1}); got != want {
		t.Errorf("first: %+v, want %+v", got, want)
	}
	p.check(t, "second", 1)
}

// Tokens of another ensemble in the ledger are an error to show, not one to retry.
func TestForeignLedger(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	if _, err := p.first.ledger.Begin("k", 1<<40, "elsewhere"); err != nil {
		t.Fatal(err)
	}
	var got tally
	err := p.second.settle(t.Context(), payment, &got)
	if !errors.Is(err, errForeignLedger) || !errors.Is(err, payments.ErrStale) || got.abandoned != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

// The ledger refuses a charge, and the ensemble's answer to whose lock it is gets lost: the next attempt asks again.
func TestRefusedAndNotVerified(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	var fault *zktest.Fault
	p.first.wire = func(payments.Event) {
		if _, err := p.second.ledger.Begin("k", 1<<40, "elsewhere"); err != nil {
			t.Error(err)
		}
		fault = p.srv.Inject(zktest.DropReply(zktest.OpMulti).Session(p.first.client.SessionID()))
	}
	var got tally
	err := p.first.settle(t.Context(), payment, &got)
	if !errors.Is(err, errForeignLedger) || got != (tally{abandoned: 1}) || fault.Hits() != 1 {
		t.Errorf("%+v, %d answers lost, %v", got, fault.Hits(), err)
	}
}
