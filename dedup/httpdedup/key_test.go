package httpdedup_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/dedup/httpdedup"
)

func TestKeyIsAStringOrBare(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		for _, same := range [][]string{
			{`8e03978e-40d5-43dd-bc93-6894a57f9324`, `"8e03978e-40d5-43dd-bc93-6894a57f9324"`, "  8e03978e-40d5-43dd-bc93-6894a57f9324\t"},
			{`"with blank, comma; and \" and \\"`},
			{`a/b+c==`, `"a/b+c=="`},
			{strings.Repeat("k", 255), `"` + strings.Repeat("k", 255) + `"`},
			{`'`}, {`..`}, {`%2F`},
		} {
			h := &says{s: "one"}
			g := b.guarded(h.ServeHTTP)
			for i, key := range same {
				wantAnswer(t, send(g, request(t.Context(), key, "{}")), http.StatusCreated, "one", i > 0)
			}
			h.wantRuns(t, 1)
		}
	})
}

func TestMissingAndMalformedKeysAreRefused(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		g := b.guarded(mustNotRun(t))
		wantProblem(t, send(g, request(t.Context(), "", "{}")), httpdedup.KeyMissing, http.StatusBadRequest, "")
		for _, tc := range []struct{ key, why string }{
			{`""`, "empty"},
			{` `, "empty"},
			{`"`, "closing quote"},
			{`"abc`, "closing quote"},
			{`"abc\"`, "closing quote"},
			{`"a\b"`, "backslash"},
			{`"a";p=1`, "closing quote"},
			{`"a", "b"`, "closing quote"},
			{`a,b`, `","`},
			{`a;b`, `";"`},
			{`a b`, "0x20"},
			{`a"b`, `"\""`},
			{"a\tb", "0x09"},
			{"\"a\tb\"", "0x09"},
			{"caf\u00e9", "0xc3"},
			{"\"caf\u00e9\"", "0xc3"},
			{"a\x00b", "0x00"},
			{"a\x7f", "0x7f"},
			{strings.Repeat("k", 256), "256 bytes; at most 255"},
		} {
			r := request(t.Context(), "", "{}")
			r.Header["Idempotency-Key"] = []string{tc.key}
			p := wantProblem(t, send(g, r), httpdedup.KeyMalformed, http.StatusBadRequest, "")
			if detail, _ := p["detail"].(string); !strings.Contains(detail, tc.why) {
				t.Errorf("%q: %q, want %q in it", tc.key, detail, tc.why)
			}
		}
		r := request(t.Context(), "", "{}")
		r.Header["Idempotency-Key"] = []string{"a", "a"}
		wantProblem(t, send(g, r), httpdedup.KeyMalformed, http.StatusBadRequest, "")
	})
}

func TestOptionalKeyAndOtherMethodsGoStraightThrough(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		h := &says{s: "one"}
		through := func(w http.ResponseWriter, r *http.Request) {
			if httpdedup.ClaimFromContext(r.Context()) != nil {
				t.Error("an unguarded request has a claim")
			}
			h.ServeHTTP(w, r)
		}
		optional := b.guarded(through, func(c *httpdedup.Config) { c.Optional = true })
		for range 2 {
			wantAnswer(t, send(optional, request(t.Context(), "", "{}")), http.StatusCreated, "one", false)
		}
		wantProblem(t, send(optional, request(t.Context(), "a b", "{}")), httpdedup.KeyMalformed, http.StatusBadRequest, "")
		required := b.guarded(through)
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodDelete} {
			for range 2 {
				r := request(t.Context(), "key", "{}")
				r.Method = method
				wantAnswer(t, send(required, r), http.StatusCreated, "one", false)
			}
		}
		h.wantRuns(t, 10)
		put := b.guarded(h.ServeHTTP, func(c *httpdedup.Config) { c.Methods = []string{http.MethodPut} })
		for i := range 2 {
			r := request(t.Context(), "key", "{}")
			r.Method = http.MethodPut
			wantAnswer(t, send(put, r), http.StatusCreated, "one", i > 0)
		}
	})
}

func TestPrincipalsMethodsAndRoutesAreApart(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		h := &says{s: "one"}
		g := b.guarded(h.ServeHTTP)
		path := func(p string) func(*http.Request) { return func(r *http.Request) { r.URL.Path = p } }
		long := "/" + strings.Repeat("x", 400)
		different := [][]func(*http.Request){
			nil,
			{header("Authorization", "Bearer a")},
			{header("Authorization", "Bearer b")},
			{func(r *http.Request) { r.Method = http.MethodPatch }},
			{path("/refund")},
			{path("/charge ")},
			{path(long)},
			{path(long + "y")},
			{path("/a\x00b")},
			{path("/a\xffb")},
		}
		for i, opts := range different {
			wantAnswer(t, send(g, request(t.Context(), "key", "{}", opts...)), http.StatusCreated, "one", false)
			h.wantRuns(t, i+1)
		}
		for _, opts := range different {
			wantAnswer(t, send(g, request(t.Context(), "key", "{}", opts...)), http.StatusCreated, "one", true)
		}
	})
}

func TestPrincipalThatCannotBeToldIsRefused(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		g := b.guarded(mustNotRun(t), func(c *httpdedup.Config) { c.Principal = nil })
		for _, r := range []*http.Request{
			request(t.Context(), "key", "{}"), // it could be anybody's
			request(t.Context(), "key", "{}", header("Cookie", "session=1")),
			request(t.Context(), "key", "{}", header("X-Api-Key", "secret")),
		} {
			wantProblem(t, send(g, r), httpdedup.Misconfigured, http.StatusInternalServerError, "")
		}
		twice := request(t.Context(), "key", "{}")
		twice.Header["Authorization"] = []string{"Bearer a", "Bearer b"}
		wantProblem(t, send(g, twice), httpdedup.Misconfigured, http.StatusInternalServerError, "")
		failing := b.guarded(mustNotRun(t), func(c *httpdedup.Config) {
			c.Principal = func(*http.Request) (string, error) { return "", errors.New("nobody is logged in") }
		})
		wantProblem(t, send(failing, request(t.Context(), "key", "{}")), httpdedup.Misconfigured, http.StatusInternalServerError, "")
		for _, why := range []string{"Config.Principal", "nobody is logged in"} {
			if !strings.Contains(b.log.String(), why) {
				t.Errorf("the log lacks %q:\n%s", why, b.log)
			}
		}
	})
}

// No credentials and no principal stand in what is stored.
func TestCredentialsAreNotStored(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		h := &says{s: "one"}
		g := b.guarded(h.ServeHTTP)
		wantAnswer(t, send(g, request(t.Context(), "key", "{}", header("Authorization", "Bearer s3cr3t"))), http.StatusCreated, "one", false)
		n := 0
		for i, err := range b.guard.Records(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			n++
			if !strings.HasPrefix(i.Key.Scope, "POST /charge ") || i.Key.ID != "key" || strings.Contains(i.Key.Scope+string(i.Outcome), "s3cr3t") {
				t.Errorf("%+v", i)
			}
		}
		if n != 1 {
			t.Errorf("%d records, want 1", n)
		}
	})
}

func TestOtherPayloadIsRefused(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		h := &says{s: "one"}
		g := b.guarded(h.ServeHTTP, func(c *httpdedup.Config) {
			c.FingerprintHeaders = []string{"content-type", "x-tenant"}
			c.Route = func(*http.Request) string { return "/charge" }
		})
		wantAnswer(t, send(g, request(t.Context(), "key", `{"amount":1}`)), http.StatusCreated, "one", false)
		for _, opts := range [][]func(*http.Request){
			{func(r *http.Request) { r.URL.RawQuery = "dry=1" }},
			{func(r *http.Request) { r.URL.Path = "/charge/2" }},
			{header("Content-Type", "text/plain")},
			{header("X-Tenant", "2")},
		} {
			wantProblem(t, send(g, request(t.Context(), "key", `{"amount":1}`, opts...)), httpdedup.KeyReused, http.StatusUnprocessableEntity, "")
		}
		wantProblem(t, send(g, request(t.Context(), "key", `{"amount":2}`)), httpdedup.KeyReused, http.StatusUnprocessableEntity, "")
		wantAnswer(t, send(g, request(t.Context(), "key", `{"amount":1}`, header("User-Agent", "other"))), http.StatusCreated, "one", true)
		h.wantRuns(t, 1)
	})
}

func TestFingerprintOfOnesOwn(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		h := &says{s: "one"}
		g := b.guarded(h.ServeHTTP, func(c *httpdedup.Config) {
			c.Fingerprint = func(_ *http.Request, body []byte) dedup.Fingerprint {
				return dedup.Payload([]byte(strings.ReplaceAll(string(body), " ", "")))
			}
		})
		wantAnswer(t, send(g, request(t.Context(), "key", `{"amount":1}`)), http.StatusCreated, "one", false)
		wantAnswer(t, send(g, request(t.Context(), "key", `{"amount": 1}`)), http.StatusCreated, "one", true)
		wantProblem(t, send(g, request(t.Context(), "key", `{"amount":2}`)), httpdedup.KeyReused, http.StatusUnprocessableEntity, "")
		none := b.guarded(mustNotRun(t), func(c *httpdedup.Config) {
			c.Fingerprint = func(*http.Request, []byte) dedup.Fingerprint { return dedup.Fingerprint{} }
		})
		wantProblem(t, send(none, request(t.Context(), "other", "{}")), httpdedup.Misconfigured, http.StatusInternalServerError, "")
	})
}

func TestConfigIsChecked(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		if _, err := httpdedup.New(nil, httpdedup.Config{}); !errors.Is(err, dedup.ErrInvalidConfig) {
			t.Errorf("nil guard: %v", err)
		}
		for field, cfg := range map[string]httpdedup.Config{
			`Methods "GET"`:           {Methods: []string{"GET"}},
			`Methods "A B"`:           {Methods: []string{"A B"}},
			"Methods []":              {Methods: []string{}},
			"MaxKey -1":               {MaxKey: -1},
			"MaxKey 1025":             {MaxKey: 1025},
			"MaxBody -1":              {MaxBody: -1},
			"MaxAnswer -1":            {MaxAnswer: -1},
			"Timeout -1ns":            {Timeout: -1},
			"RetryAfter -1s":          {RetryAfter: -time.Second},
			"UnknownRetryAfter -1s":   {UnknownRetryAfter: -time.Second},
			`ReplayHeaders "Set-Co`:   {ReplayHeaders: []string{"set-cookie"}},
			`ReplayHeaders "Date"`:    {ReplayHeaders: []string{"Date"}},
			`ReplayHeaders "Connec`:   {ReplayHeaders: []string{"connection"}},
			`ReplayHeaders "a b"`:     {ReplayHeaders: []string{"a b"}},
			`FingerprintHeaders "a:"`: {FingerprintHeaders: []string{"a:"}},
		} {
			_, err := httpdedup.New(b.guard, cfg)
			if !errors.Is(err, dedup.ErrInvalidConfig) || !strings.Contains(err.Error(), field) {
				t.Errorf("%s: %v", field, err)
			}
		}
	})
}

// A wait that the guard refuses is refused before there is a request.
func TestWaitIsAtMostTheRetention(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		const most = time.Minute
		_, err := httpdedup.New(b.guard, httpdedup.Config{Wait: most + 1})
		if !errors.Is(err, dedup.ErrInvalidConfig) || !strings.Contains(err.Error(), "Wait 1m0.000000001s") || !strings.Contains(err.Error(), "retention of 1m0s") {
			t.Errorf("%v, want ErrInvalidConfig with the value and the rule", err)
		}
		g := b.guarded((&says{s: "one"}).ServeHTTP, func(c *httpdedup.Config) { c.Wait = most })
		wantAnswer(t, send(g, request(t.Context(), "key", "{}")), http.StatusCreated, "one", false)
	}, func(c *dedup.Config) { c.Retention = time.Minute })
}
