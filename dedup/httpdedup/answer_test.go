package httpdedup_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zklock/zklock/dedup/httpdedup"
)

func TestAnswerRoundTrip(t *testing.T) {
	for _, a := range []*httpdedup.Answer{
		{Status: 200, Header: http.Header{}, Body: []byte{}},
		{Status: 999, Header: http.Header{}, Body: []byte("\n\nx: y\n\x00\xff")},
		{Status: 201, Header: http.Header{"Link": {"<a>", "<b>"}, "Content-Type": {""}}, Body: []byte("b")},
		{Status: 201, Header: http.Header{}, Body: []byte{}, Omitted: 1 << 30},
	} {
		data, err := a.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		got, err := httpdedup.ParseAnswer(data)
		if err != nil || !reflect.DeepEqual(got, a) {
			t.Errorf("%q: %+v, %v, want %+v", data, got, err, a)
		}
	}
}

func TestAnswerOnlyHasOneLineHeadersThatMayBeReplayed(t *testing.T) {
	a := &httpdedup.Answer{Status: 200, Header: http.Header{
		"X": {"a\r\nSet-Cookie: b"}, "Set-Cookie": {"a"}, "set-cookie": {"a"}, "Date": {"now"}, "Connection": {"close"},
	}}
	data, err := a.MarshalBinary()
	if want := "zklock-http/1 200\nX: a  Set-Cookie: b\n\n"; err != nil || string(data) != want {
		t.Errorf("%q, %v, want %q", data, err, want)
	}
	got, err := httpdedup.ParseAnswer([]byte("zklock-http/1 200 new=word\nset-cookie: a\nDate: now\nx: y\n\n"))
	if err != nil || len(got.Header) != 1 || got.Header.Get("X") != "y" {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []*httpdedup.Answer{{Status: 100}, {Status: 1000}, {Status: 200, Header: http.Header{"a b": {"c"}}}} {
		if data, err := bad.MarshalBinary(); err == nil {
			t.Errorf("%+v: %q", bad, data)
		}
	}
}

func TestBadAnswersAreRefused(t *testing.T) {
	for _, data := range []string{
		"", "\n", "HTTP/1.1 200 OK\n\n", "zklock-http/1", "zklock-http/1\n\n", "zklock-http/1 200", "zklock-http/0 200\n\n",
		"zklock-http/2 200\n\n", "zklock-http/x 200\n\n", "zklock-http/1 \n\n", "zklock-http/1 100\n\n", "zklock-http/1 1000\n\n",
		"zklock-http/1 abc\n\n", "zklock-http/1 200\n", "zklock-http/1 200\na: b\n", "zklock-http/1 200\nab\n\n",
		"zklock-http/1 200\na b: c\n\n", "zklock-http/1 200\n: c\n\n", "zklock-http/1 200 omitted=x\n\n", "zklock-http/1 200 omitted=-1\n\n",
	} {
		if a, err := httpdedup.ParseAnswer([]byte(data)); err == nil {
			t.Errorf("%q: %+v", data, a)
		}
	}
}

func FuzzParseAnswer(f *testing.F) {
	f.Add([]byte("zklock-http/1 201 omitted=3\nContent-Type: a\n\nbody"))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := httpdedup.ParseAnswer(data)
		if err != nil {
			return
		}
		again, err := a.MarshalBinary()
		if err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		b, err := httpdedup.ParseAnswer(again)
		if err != nil || a.Status != b.Status || a.Omitted != b.Omitted || !bytes.Equal(a.Body, b.Body) || len(a.Header) != len(b.Header) {
			t.Fatalf("%q: %+v became %+v, %v", data, a, b, err)
		}
	})
}

// The first client gets all headers, duplicates those of the list.
func TestReplayHasTheHeadersOfTheList(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		inner := b.guarded(func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			if h.Get("X-Request-ID") != "1" {
				t.Errorf("the handler sees %v", h)
			}
			h.Del("X-Removed")
			h.Set("Content-Type", "application/json")
			h.Set("Location", "/charges/1")
			h.Set("Set-Cookie", "a=b")
			h.Set("Date", "Sat, 01 Jan 2000 00:00:00 GMT")
			h.Set("X-Own", "x")
			h.Set("Trailer", "X-Trailer")
			h.Set(http.TrailerPrefix+"X-Other", "x")
			h.Set("Content-Length", "99")
			h.Set("bad name", "x")
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusCreated)
			w.WriteHeader(http.StatusTeapot) // too late
			h.Set("Location", "/too/late")
			h.Set("X-Trailer", "x")
			_, _ = io.WriteString(w, "one")
		}, func(c *httpdedup.Config) { c.ReplayHeaders = append(httpdedup.DefaultReplayHeaders(), "x-kept") })
		n := 0
		g := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n++
			w.Header().Set("X-Request-ID", string(rune('0'+n)))
			w.Header().Set("X-Removed", "x")
			w.Header().Set("X-Kept", "k")
			inner.ServeHTTP(w, r)
		})
		want := []http.Header{
			{
				"Content-Length": {"3"}, "Content-Type": {"application/json"}, "Date": {"Sat, 01 Jan 2000 00:00:00 GMT"},
				"Location": {"/charges/1"}, "Set-Cookie": {"a=b"}, "X-Kept": {"k"}, "X-Own": {"x"}, "X-Request-Id": {"1"},
			},
			{
				"Content-Length": {"3"}, "Content-Type": {"application/json"}, "Idempotent-Replayed": {"true"},
				"Location": {"/charges/1"}, "X-Kept": {"k"}, "X-Removed": {"x"}, "X-Request-Id": {"2"},
			},
		}
		for i := range 2 {
			resp := send(g, request(t.Context(), "key", "{}"))
			wantAnswer(t, resp, http.StatusCreated, "one", i > 0)
			if !maps.EqualFunc(resp.header, want[i], slices.Equal) {
				t.Errorf("%v\nwant %v", resp.header, want[i])
			}
		}
	})
}

func TestContentTypeIsTheSameForAll(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		for name, tc := range map[string]struct {
			set  []string
			want string
		}{"guessed": {nil, "text/html; charset=utf-8"}, "none": {[]string{}, ""}, "said": {[]string{"a/b"}, "a/b"}} {
			g := b.guarded(func(w http.ResponseWriter, _ *http.Request) {
				if tc.set != nil {
					w.Header()["Content-Type"] = tc.set
				}
				_, _ = io.WriteString(w, "<html>")
			})
			for range 2 {
				if got := send(g, request(t.Context(), name, "{}")).header.Get("Content-Type"); got != tc.want {
					t.Errorf("%s: %q, want %q", name, got, tc.want)
				}
			}
		}
	})
}

// What a ResponseWriter promises holds, as far as an answer can be kept back.
func TestResponseWriter(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		sent := httptest.NewRecorder()
		g := b.guarded(func(w http.ResponseWriter, _ *http.Request) {
			rc := http.NewResponseController(w)
			if _, _, err := rc.Hijack(); !errors.Is(err, http.ErrNotSupported) {
				t.Errorf("Hijack: %v", err)
			}
			if err := rc.EnableFullDuplex(); !errors.Is(err, http.ErrNotSupported) {
				t.Errorf("EnableFullDuplex: %v", err)
			}
			if _, ok := w.(http.Hijacker); ok {
				t.Error("it is a Hijacker")
			}
			if err := rc.SetWriteDeadline(time.Time{}); !errors.Is(err, http.ErrNotSupported) { // of httptest
				t.Errorf("SetWriteDeadline: %v", err)
			}
			if err := rc.Flush(); err != nil {
				t.Errorf("Flush: %v", err)
			}
			w.WriteHeader(http.StatusTeapot) // flushing has sent 200
			for range 3 {
				_, _ = io.WriteString(w, "x")
				if err := rc.Flush(); err != nil {
					t.Errorf("Flush: %v", err)
				}
				if sent.Body.Len() > 0 || sent.Flushed {
					t.Error("something was sent before it was stored")
				}
			}
		})
		g.ServeHTTP(sent, request(t.Context(), "key", "{}"))
		wantAnswer(t, received(sent), http.StatusOK, "xxx", false)

		empty := b.guarded(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNoContent)
			if _, err := io.WriteString(w, "x"); !errors.Is(err, http.ErrBodyNotAllowed) {
				t.Errorf("a body with 204: %v", err)
			}
		})
		for i := range 2 {
			resp := send(empty, request(t.Context(), "empty", "{}"))
			if resp.header.Get("Content-Length") != "" {
				t.Errorf("headers %v", resp.header)
			}
			wantAnswer(t, resp, http.StatusNoContent, "", i > 0)
		}
	})
}

// The effect may have been had, so the outcome is unknown; the panic is net/http's.
func TestPanicGoesOnAndLeavesTheOutcomeUnknown(t *testing.T) {
	for name, value := range map[string]any{"abort": http.ErrAbortHandler, "own": "broken", "status": nil} {
		inBubble(t, func(b *bundle) {
			t := b.t
			g := b.guarded(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "half")
				if value == nil {
					w.WriteHeader(99)
				}
				panic(value)
			})
			w := httptest.NewRecorder()
			func() {
				defer func() {
					if got := recover(); got == nil || value != nil && got != value {
						t.Errorf("%s: recovered %v", name, got)
					}
				}()
				g.ServeHTTP(w, request(t.Context(), "key", "{}"))
			}()
			if w.Body.Len() > 0 {
				t.Errorf("%s: %q was sent", name, w.Body)
			}
			wantProblem(t, send(b.guarded(mustNotRun(t)), request(t.Context(), "key", "{}")), httpdedup.OutcomeUnknown, http.StatusConflict, "60")
		})
	}
}

// The handler has a copy of the request, so the files of its form are not net/http's to
// remove.
func TestFilesOfAFormAreRemoved(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		var form bytes.Buffer
		mw := multipart.NewWriter(&form)
		part, err := mw.CreateFormFile("file", "name")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(part, strings.Repeat("x", 1000))
		_ = mw.Close()
		var name string
		g := b.guarded(func(_ http.ResponseWriter, r *http.Request) {
			if err := r.ParseMultipartForm(1); err != nil { //nolint:gosec // the middleware bounds it
				t.Error(err)
				return
			}
			f, err := r.MultipartForm.File["file"][0].Open()
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = f.Close() }()
			if file, ok := f.(*os.File); ok {
				name = file.Name()
			}
		})
		send(g, request(context.Background(), "key", form.String(), header("Content-Type", mw.FormDataContentType())))
		if name == "" {
			t.Fatal("the form has no file on disk: the test shows nothing")
		}
		if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", name, err)
		}
	})
}
