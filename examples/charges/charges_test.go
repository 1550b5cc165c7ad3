package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	keysAtOnce = 10
	callers    = 50 // for each key
)

// shop is two instances behind one address.
type shop struct {
	t       *testing.T
	args    []string
	proxy   *proxy
	url     string
	log     *buffer
	started int
}

func newShop(t *testing.T, s settings) (*shop, [2]*instance) {
	t.Helper()
	p := &shop{t: t, args: storesOf(t).args(s), log: &buffer{}}
	instances := [2]*instance{p.start(), p.start()}
	p.proxy = newProxy(instances[0].address, instances[1].address)
	server := httptest.NewServer(p.proxy)
	p.url = server.URL
	t.Cleanup(func() {
		server.Close()
		if tr, ok := p.proxy.Transport.(*http.Transport); ok {
			tr.CloseIdleConnections()
		}
	})
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the instances:\n%s", p.log)
		}
	})
	return p, instances
}

// start starts an instance that ends with the test.
func (p *shop) start() *instance {
	p.t.Helper()
	p.started++
	in, err := startInstance(bounded(p.t), string(rune('A'+p.started-1)), p.log, p.args...)
	if err != nil {
		p.t.Fatalf("start an instance: %v\n%s", err, p.log)
	}
	p.t.Cleanup(func() {
		_ = in.cmd.Process.Kill() // fails if it has ended
		<-in.ended
	})
	return in
}

// sale is what all callers of some keys got.
type sale struct {
	keys []string
	wg   sync.WaitGroup

	mu       sync.Mutex
	bodies   map[string]map[string]int // key, then body
	statuses map[string]int            // of all tries
}

// sell sends the same request for each key, many times at once, until each has its receipt. The first try of each key's
// first caller goes to an instance of its own.
func (p *shop) sell(name string, first *instance) *sale {
	s := &sale{bodies: make(map[string]map[string]int), statuses: make(map[string]int)}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: keysAtOnce * callers}}
	p.t.Cleanup(client.CloseIdleConnections)
	for range keysAtOnce {
		key := uniqueKey(name)
		s.keys = append(s.keys, key)
		s.bodies[key] = make(map[string]int)
		for i := range callers {
			url := p.url
			if i == 0 {
				url = "http://" + first.address
			}
			s.wg.Go(func() { s.call(p, client, url, key) })
		}
	}
	return s
}

// call is one caller: it retries whatever says so, with the same key.
func (s *sale) call(p *shop, client *http.Client, url, key string) {
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	for {
		status, body, err := post(ctx, client, url, key, `{"account":"1041","amount":1999}`)
		if err != nil && url != p.url {
			url = p.url // the instance that it asked itself was killed
			continue
		}
		if err != nil {
			p.t.Errorf("%s: %v", key, err)
			return
		}
		s.mu.Lock()
		s.statuses[status]++
		if strings.HasPrefix(status, "201") {
			s.bodies[key][body]++
		}
		s.mu.Unlock()
		switch {
		case strings.HasPrefix(status, "201"):
			return
		case !strings.Contains(status, "retry"):
			p.t.Errorf("%s: %s %s: that is no status to retry on", key, status, body)
			return
		}
		url = p.url
		select {
		case <-time.After(100 * time.Millisecond): // less than Retry-After, to be done sooner
		case <-ctx.Done():
		}
	}
}

// post returns the status, with what says that it may be tried again or was tried before.
func post(ctx context.Context, client *http.Client, url, key, body string) (status, text string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/charge", strings.NewReader(body))
	if err != nil {
		return "", "", err
	}
	req.Header.Set("Authorization", "Bearer shop-1")
	req.Header.Set("Idempotency-Key", key)
	resp, err := client.Do(req)
	if err != nil {
		return "", "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	status = fmt.Sprint(resp.StatusCode)
	switch resp.StatusCode {
	case http.StatusConflict, http.StatusServiceUnavailable, http.StatusBadGateway:
		status += " retry"
	}
	if resp.Header.Get("Idempotent-Replayed") != "" {
		status += " replayed"
	}
	return status, string(b), err
}

// check says what has to be true in the end: a row for each key, and the same receipt for all callers.
func (s *sale) check(t *testing.T, l *ledger) {
	t.Helper()
	s.wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range s.keys {
		if n := charges(t, l, key); n != 1 {
			t.Errorf("%s: %d rows, want 1", key, n)
		}
		got := 0
		for _, n := range s.bodies[key] {
			got += n
		}
		if len(s.bodies[key]) != 1 || got != callers {
			t.Errorf("%s: the %d callers got %v", key, callers, s.bodies[key])
		}
	}
	t.Logf("%d keys, %d callers each: %v", len(s.keys), callers, s.statuses)
}

// count is how many lines an instance has logged, by message.
func count(in *instance, msg string) (n int) {
	lines, _ := in.logged()
	for _, l := range lines {
		if l.Msg == msg {
			n++
		}
	}
	return n
}

// keysOf are those of the lines with a message.
func keysOf(in *instance, msgs ...string) map[string]bool {
	keys := make(map[string]bool)
	lines, _ := in.logged()
	for _, l := range lines {
		for _, msg := range msgs {
			if l.Msg == msg {
				keys[l.Key] = true
			}
		}
	}
	return keys
}

// The whole of it, with real processes: the same requests from many callers, one instance killed in the middle, the
// other stopped past its session and continued.
func TestOneChargeForEachKeyWhateverHappens(t *testing.T) {
	const session = 4 * time.Second
	l := ledgerOf(t)
	p, in := newShop(t, settings{session: session, before: 500 * time.Millisecond, after: 500 * time.Millisecond})
	a, b := in[0], in[1]

	// A is killed between its first row and the answer that would have been stored.
	sale := p.sell("kill", a)
	if _, err := a.await(bounded(t), func(l line) bool { return l.Msg == "charged" }); err != nil {
		t.Fatal(err)
	}
	if err := a.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-a.ended
	c := p.start()
	p.proxy.replace(a.address, c.address)
	sale.check(t, l)
	booked := keysOf(a, "charged")
	found := keysOf(b, "found")
	maps.Copy(found, keysOf(c, "found"))
	t.Logf("A was killed with %d keys begun and %d booked; a second attempt found %d booked", count(a, "charging"), len(booked), len(found))
	if len(found) == 0 {
		t.Error("no second attempt met the row of the first: the kill shows nothing")
	}

	// B is stopped between its gate and its rows, until C has charged all its keys with larger tokens.
	before := count(b, "charging")
	sale = p.sell("stop", b)
	if _, err := b.await(bounded(t), func(l line) bool { return l.Msg == "charging" && strings.HasPrefix(l.Key, "stop") }); err != nil {
		t.Fatal(err)
	}
	if err := b.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.cmd.Process.Signal(syscall.SIGCONT) }) // fails if it has ended
	stopped := time.Now()
	takenOver := func() bool {
		done := keysOf(c, "charged", "found")
		for key := range keysOf(b, "charging") {
			if strings.HasPrefix(key, "stop") && !done[key] {
				return false
			}
		}
		return true
	}
	ctx := bounded(t)
	for !takenOver() {
		_, changed := c.logged()
		if takenOver() {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatal("nobody takes over the keys of the stopped instance")
		}
	}
	t.Logf("B was stopped with %d keys in hand; C had charged them after %v", count(b, "charging")-before, time.Since(stopped).Round(time.Millisecond))
	if err := b.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if _, err := b.await(bounded(t), func(l line) bool { return l.Msg == "refused" }); err != nil {
		t.Fatalf("no late write was refused: %v", err)
	}
	sale.check(t, l)
	t.Logf("B's late writes: %d refused by their token", count(b, "refused"))
}

// What is wrong with a request is said, and stored like any answer below 500.
func TestBadOrders(t *testing.T) {
	p, in := newShop(t, settings{session: 10 * time.Second})
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	for _, body := range []string{"", "{}", "[]", `{"account":"1041"}`, `{"account":" ","amount":1}`, `{"account":"1041","amount":-1}`, `{"account":"1041","amount":1,"x":1}`} {
		key := uniqueKey("bad")
		for _, want := range []string{"400", "400 replayed"} {
			status, text, err := post(t.Context(), client, p.url, key, body)
			if err != nil || status != want || !strings.Contains(text, "has to be like") {
				t.Errorf("%q: %s %q, %v, want %s", body, status, text, err, want)
			}
		}
	}
	for _, i := range in { // without an answer to any request, they end when they are asked to
		i.stop()
		if !i.cmd.ProcessState.Success() {
			t.Errorf("%s: %v", i.name, i.cmd.ProcessState)
		}
	}
	status, text, err := post(t.Context(), client, p.url, uniqueKey("none"), "{}")
	if err != nil || status != "502 retry" {
		t.Errorf("without instances: %s %q, %v", status, text, err)
	}
}

// The program as it is started by hand.
func TestDemo(t *testing.T) {
	st := storesOf(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	address := "127.0.0.1:" + freePort(t)
	go func() {
		ended <- run(ctx, []string{"-listen", address, "-database", st.database, "-zookeeper", st.zookeeper})
	}()
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	key := uniqueKey("demo")
	var first string
	for wait := bounded(t); ; {
		status, body, err := post(wait, client, "http://"+address, key, `{"account":"1041","amount":1999}`)
		if err == nil && status == "201" {
			first = body
			break
		}
		select {
		case <-time.After(20 * time.Millisecond): // not listening yet
		case err := <-ended:
			t.Fatal(err)
		case <-wait.Done():
			t.Fatalf("%s, %v", status, err)
		}
	}
	status, body, err := post(t.Context(), client, "http://"+address, key, `{"account":"1041","amount":1999}`)
	if err != nil || status != "201 replayed" || body != first || !strings.Contains(body, `"amount":1999`) {
		t.Errorf("%s %q, %v, want %q again", status, body, err, first)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	return s.URL[strings.LastIndexByte(s.URL, ':')+1:]
}
