package httpdedup_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zklock/zklock/dedup/httpdedup"
	"github.com/go-zklock/zklock/zktest"
)

// serve puts a handler on a port of this machine.
func serve(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = nil
	s.Start()
	t.Cleanup(s.Close)
	return s
}

func post(ctx context.Context, url, key, body string) (reply, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/charge", strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	r.Header.Set("Idempotency-Key", key)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	return readReply(resp)
}

func readReply(resp *http.Response) (reply, error) {
	b, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(b)}, err
}

// Fifty identical requests at once, to two instances: the handler runs once, and all
// get the same.
func TestFiftyAtOnceRunOnce(t *testing.T) {
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	zk := zktest.NewServer(t)
	h := &says{s: "receipt"}
	slow := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", fmt.Sprint("/charges/", httpdedup.ClaimFromContext(r.Context()).Token()))
		h.ServeHTTP(w, r)
	}
	var urls []string
	for range 2 {
		urls = append(urls, serve(t, start(t, zk).guarded(slow)).URL)
	}
	var mu sync.Mutex
	seen := make(map[string]int)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			resp, err := post(t.Context(), urls[i%len(urls)], "key", "{}")
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			seen["replayed "+resp.header.Get("Idempotent-Replayed")]++
			seen[fmt.Sprint(resp.status, " ", resp.body, " ", resp.header.Get("Location"))]++
		})
	}
	wg.Wait()
	h.wantRuns(t, 1)
	if len(seen) != 3 || seen["replayed true"] != 49 || seen["replayed "] != 1 {
		t.Errorf("%v", seen)
	}
}

// What only a real server can show: nothing arrives before the end, a client that
// closes its connection does not stop the handler, and a panic closes the connection.
func TestOnARealServer(t *testing.T) {
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	b := start(t, zktest.NewServer(t))
	const half = 1 << 10

	wrote, hungUp := make(chan struct{}), make(chan struct{})
	handler := b.guarded(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		if err := rc.SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Errorf("SetWriteDeadline: %v", err)
		}
		if err := rc.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Errorf("SetReadDeadline: %v", err)
		}
		if _, _, err := rc.Hijack(); err == nil {
			t.Error("the connection was hijacked")
		}
		_, _ = io.WriteString(w, strings.Repeat("a", half))
		_ = rc.Flush()
		close(wrote)
		<-hungUp
		if err := r.Context().Err(); err != nil {
			t.Errorf("the context has ended: %v", err)
		}
		_, _ = io.WriteString(w, strings.Repeat("b", half))
	})
	stream := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Leaves") != "" {
			context.AfterFunc(r.Context(), func() { close(hungUp) })
		}
		handler.ServeHTTP(w, r)
	}))
	conn, err := net.Dial("tcp", strings.TrimPrefix(stream.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST /charge HTTP/1.1\r\nHost: a\r\nIdempotency-Key: stream\r\nX-Leaves: 1\r\nContent-Length: 2\r\n\r\n{}")
	<-wrote
	if err := conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Error("something arrived before the handler was done")
	}
	_ = conn.Close()
	resp, err := post(t.Context(), stream.URL, "stream", "{}")
	if err != nil {
		t.Fatal(err)
	}
	wantAnswer(t, resp, http.StatusOK, strings.Repeat("a", half)+strings.Repeat("b", half), true)

	broken := serve(t, b.guarded(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half")
		panic(http.ErrAbortHandler)
	}))
	if resp, err := post(t.Context(), broken.URL, "panic", "{}"); err == nil {
		t.Errorf("an answer to a handler that panicked: %+v", resp)
	}
	resp, err = post(t.Context(), broken.URL, "panic", "{}")
	if err != nil {
		t.Fatal(err)
	}
	wantProblem(t, resp, httpdedup.OutcomeUnknown, http.StatusConflict, "60")
}

// A body that is announced as too large is refused before it is sent.
func TestLargeBodyIsNotAskedFor(t *testing.T) {
	b := start(t, zktest.NewServer(t))
	s := serve(t, b.guarded(mustNotRun(t), func(c *httpdedup.Config) { c.MaxBody = 10 }))
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	fmt.Fprintf(conn, "POST /charge HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nExpect: 100-continue\r\nContent-Length: 11\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if !resp.Close {
		t.Error("the connection stays open for the body")
	}
	got, err := readReply(resp)
	if err != nil {
		t.Fatal(err)
	}
	wantProblem(t, got, httpdedup.BodyTooLarge, http.StatusRequestEntityTooLarge, "")
}
