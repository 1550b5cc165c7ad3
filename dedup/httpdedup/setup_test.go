package httpdedup_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/dedup/httpdedup"
	"github.com/go-zklock/zklock/internal/testlog"
	"github.com/go-zklock/zklock/zktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bundle is what a test works with: a server, one process, and what its middleware logs.
type bundle struct {
	t      *testing.T
	srv    *zktest.Server
	client *zklock.Client
	guard  *dedup.Guard
	log    *logBuffer
}

// inBubble runs f in virtual time.
func inBubble(t *testing.T, f func(b *bundle), opts ...func(*dedup.Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		srv := zktest.NewServer(t, func(c *zktest.Config) { c.Latency = time.Millisecond })
		f(start(t, srv, opts...))
	})
}

// start starts a process that is closed with the test.
func start(t *testing.T, srv *zktest.Server, opts ...func(*dedup.Config)) *bundle {
	t.Helper()
	c, err := zklock.Connect(t.Context(), zklock.Config{
		Servers: []string{srv.Addr()}, Dial: srv.Dial, Clock: zktest.Clock{}, Seed: 1, TickTime: 2 * time.Second,
	})
	if err != nil {
		t.Fatalf("Connect: %v", err)
	}
	cfg := dedup.Config{SweepInterval: -1}
	for _, o := range opts {
		o(&cfg)
	}
	g, err := dedup.New(c, cfg)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = g.Close(ctx)
		_ = c.Close()
	})
	return &bundle{t: t, srv: srv, client: c, guard: g, log: &logBuffer{}}
}

// guarded puts a handler behind the middleware.
func (b *bundle) guarded(next http.HandlerFunc, opts ...func(*httpdedup.Config)) http.Handler {
	b.t.Helper()
	cfg := httpdedup.Config{Principal: callers, Logger: slog.New(slog.NewTextHandler(b.log, nil))}
	for _, o := range opts {
		o(&cfg)
	}
	mw, err := httpdedup.New(b.guard, cfg)
	if err != nil {
		b.t.Fatalf("httpdedup.New: %v", err)
	}
	return mw(next)
}

// request is a POST with the key.
func request(ctx context.Context, key, body string, opts ...func(*http.Request)) *http.Request {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/charge", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	for _, o := range opts {
		o(r)
	}
	return r
}

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// reply is what a client gets.
type reply struct {
	status int
	header http.Header
	body   string
}

// send gives a request to a handler.
func send(h http.Handler, r *http.Request) reply {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return received(w)
}

func received(w *httptest.ResponseRecorder) reply {
	return reply{w.Code, w.Header(), w.Body.String()}
}

// wantAnswer checks status, body and whether it is a replay.
func wantAnswer(t *testing.T, got reply, status int, body string, replayed bool) {
	t.Helper()
	if got.status != status || got.body != body || (got.header.Get("Idempotent-Replayed") == "true") != replayed {
		t.Errorf("%d %q replayed %q, want %d %q %v", got.status, got.body, got.header.Get("Idempotent-Replayed"), status, body, replayed)
	}
}

// wantProblem checks a problem. retryAfter is the header, empty for none.
func wantProblem(t *testing.T, got reply, kind string, status int, retryAfter string) map[string]any {
	t.Helper()
	var p map[string]any
	if err := json.Unmarshal([]byte(got.body), &p); err != nil {
		t.Errorf("%d %q is no problem: %v", got.status, got.body, err)
		return nil
	}
	switch {
	case got.status != status || p["status"] != float64(status) || p["type"] != kind:
		t.Errorf("%d %s, want %d %s", got.status, got.body, status, kind)
	case got.header.Get("Content-Type") != "application/problem+json" || got.header.Get("Cache-Control") != "no-store":
		t.Errorf("headers %v", got.header)
	case got.header.Get("Retry-After") != retryAfter:
		t.Errorf("%s: Retry-After %q, want %q", kind, got.header.Get("Retry-After"), retryAfter)
	case p["title"] == "" || p["title"] == nil:
		t.Errorf("%s has no title", got.body)
	}
	return p
}

// says is a handler that answers 201 with s, and counts.
type says struct {
	s string

	mu  sync.Mutex
	ran int
}

func (h *says) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	h.mu.Lock()
	h.ran++
	h.mu.Unlock()
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, h.s)
}

func (h *says) wantRuns(t *testing.T, want int) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ran != want {
		t.Errorf("the handler ran %d times, want %d", h.ran, want)
	}
}

// mustNotRun fails the test if it is called.
func mustNotRun(t *testing.T) http.HandlerFunc {
	return func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") }
}

type logBuffer = testlog.Buffer

// callers is ByAuthorization, with one principal for all who have none.
func callers(r *http.Request) (string, error) {
	if r.Header.Get("Authorization") == "" {
		return httpdedup.Everyone(r)
	}
	return httpdedup.ByAuthorization(r)
}
