package httpdedup_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/dedup/httpdedup"
	"github.com/go-zklock/zklock/zktest"
)

// asked sends a request from a goroutine of its own.
func asked(h http.Handler, r *http.Request) <-chan reply {
	ch := make(chan reply, 1)
	go func() { ch <- send(h, r) }()
	return ch
}

func TestDuplicateWaitsAndIsThenToldToRetry(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		other := start(t, b.srv) // another instance
		release := make(chan struct{})
		slow := func(w http.ResponseWriter, _ *http.Request) {
			<-release
			_, _ = io.WriteString(w, "one")
		}
		first := asked(b.guarded(slow), request(t.Context(), "key", "{}"))
		synctest.Wait()
		time.Sleep(time.Second)
		for _, p := range []*bundle{b, other} {
			began := time.Now()
			noWait := p.guarded(mustNotRun(t), func(c *httpdedup.Config) { c.Wait = -1 })
			wantProblem(t, send(noWait, request(t.Context(), "key", "{}")), httpdedup.InProgress, http.StatusConflict, "1")
			if took := time.Since(began); took > 20*time.Millisecond {
				t.Errorf("without a wait it took %v", took)
			}
			began = time.Now()
			short := p.guarded(mustNotRun(t), func(c *httpdedup.Config) { c.Wait, c.RetryAfter = 3*time.Second, 1500*time.Millisecond })
			wantProblem(t, send(short, request(t.Context(), "key", "{}")), httpdedup.InProgress, http.StatusConflict, "2")
			if took := time.Since(began); took != 3*time.Second {
				t.Errorf("it waited %v, want 3s", took)
			}
		}
		waits := asked(other.guarded(mustNotRun(t)), request(t.Context(), "key", "{}"))
		synctest.Wait()
		close(release)
		wantAnswer(t, <-first, http.StatusOK, "one", false)
		wantAnswer(t, <-waits, http.StatusOK, "one", true)
	})
}

// Without the ensemble nothing runs.
func TestUnavailableFailsClosed(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		h := &says{s: "one"}
		g := b.guarded(h.ServeHTTP)
		wantAnswer(t, send(g, request(t.Context(), "done", "{}")), http.StatusCreated, "one", false)
		b.srv.Refuse(true)
		b.srv.CutConnections()
		time.Sleep(time.Second)
		for _, key := range []string{"done", "fresh"} {
			wantUnavailable(t, send(g, request(t.Context(), key, "{}")))
		}
		h.wantRuns(t, 1)
		b.srv.Refuse(false)
		time.Sleep(10 * time.Second)
		wantAnswer(t, send(g, request(t.Context(), "done", "{}")), http.StatusCreated, "one", true)
		wantAnswer(t, send(g, request(t.Context(), "fresh", "{}")), http.StatusCreated, "one", false)

		if err := b.guard.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantUnavailable(t, send(g, request(t.Context(), "closed", "{}")))
		h.wantRuns(t, 2)
	})
}

// wantUnavailable checks a 503. It comes to clients whose first request with the key was
// carried out, and must not talk them into taking another key.
func wantUnavailable(t *testing.T, got reply) {
	t.Helper()
	p := wantProblem(t, got, httpdedup.Unavailable, http.StatusServiceUnavailable, "1")
	detail, _ := p["detail"].(string)
	for _, says := range []string{"for this request.", "may have been carried out", "Retry with the same key"} {
		if !strings.Contains(detail, says) {
			t.Errorf("%q does not say %q", detail, says)
		}
	}
}

// The same while the handler runs for another request with the key in this process.
func TestUnavailableBesideARunningRequest(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		release := make(chan struct{})
		first := asked(b.guarded(func(w http.ResponseWriter, _ *http.Request) {
			<-release
			_, _ = io.WriteString(w, "one")
		}), request(t.Context(), "key", "{}"))
		synctest.Wait()
		time.Sleep(time.Second)
		g := b.guarded(mustNotRun(t), func(c *httpdedup.Config) { c.Wait = time.Second })
		waits := asked(g, request(t.Context(), "key", "{}"))
		synctest.Wait()
		b.srv.Refuse(true)
		b.srv.CutConnections()
		wantUnavailable(t, <-waits)
		wantUnavailable(t, send(g, request(t.Context(), "key", "{}")))
		b.srv.Refuse(false)
		close(release)
		wantAnswer(t, <-first, http.StatusOK, "one", false)
		wantAnswer(t, send(g, request(t.Context(), "key", "{}")), http.StatusOK, "one", true)
	})
}

func TestUnknownOutcomeIsAConflictUntilItIsResolved(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		other := start(t, b.srv)
		running := make(chan struct{})
		lost := b.guarded(func(w http.ResponseWriter, r *http.Request) {
			close(running)
			<-r.Context().Done() // the claim is lost
			_, _ = io.WriteString(w, "too late")
		})
		first := asked(lost, request(t.Context(), "key", "{}"))
		<-running
		b.srv.Expire(b.client.SessionID())
		wantProblem(t, <-first, httpdedup.OutcomeUnknown, http.StatusConflict, "60")
		g := other.guarded(mustNotRun(t))
		wantProblem(t, send(g, request(t.Context(), "key", "{}")), httpdedup.OutcomeUnknown, http.StatusConflict, "60")
		soon := other.guarded(mustNotRun(t), func(c *httpdedup.Config) { c.UnknownRetryAfter = 2 * time.Second })
		wantProblem(t, send(soon, request(t.Context(), "key", "{}")), httpdedup.OutcomeUnknown, http.StatusConflict, "2")

		for i, err := range other.guard.Unresolved(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			answer := &httpdedup.Answer{Status: http.StatusCreated, Header: http.Header{"Content-Type": {"text/plain"}, "Set-Cookie": {"no"}}, Body: []byte("by hand")}
			data, err := answer.MarshalBinary()
			if err != nil {
				t.Fatal(err)
			}
			if err := other.guard.Resolve(t.Context(), i.Key, dedup.CompletedBytes(data)); err != nil {
				t.Fatal(err)
			}
		}
		resp := send(g, request(t.Context(), "key", "{}"))
		if resp.header.Get("Content-Type") != "text/plain" || resp.header["Set-Cookie"] != nil {
			t.Errorf("headers %v", resp.header)
		}
		wantAnswer(t, resp, http.StatusCreated, "by hand", true)
	})
}

func TestReexecuteRunsTheHandlerAgain(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		other := start(t, b.srv, func(c *dedup.Config) { c.Policy = dedup.Reexecute })
		running := make(chan struct{})
		first := asked(b.guarded(func(_ http.ResponseWriter, r *http.Request) {
			close(running)
			<-r.Context().Done()
		}), request(t.Context(), "key", "{}"))
		<-running
		b.srv.Expire(b.client.SessionID())
		<-first
		g := other.guarded(func(w http.ResponseWriter, r *http.Request) {
			c := httpdedup.ClaimFromContext(r.Context())
			if c == nil || c.Attempt() != 2 || c.Prior() == nil || !c.Prior().Unknown || c.Token() <= c.Prior().Token {
				t.Errorf("claim %+v", c)
			}
			_, _ = io.WriteString(w, "two")
		})
		wantAnswer(t, send(g, request(t.Context(), "key", "{}")), http.StatusOK, "two", false)
		wantAnswer(t, send(g, request(t.Context(), "key", "{}")), http.StatusOK, "two", true)
	})
}

func TestResolvedFailureIsFinal(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		g := b.guarded(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGatewayTimeout) },
			func(c *httpdedup.Config) {
				c.Verdict = func(*http.Request, *httpdedup.Answer) httpdedup.Verdict { return httpdedup.Unknown }
			})
		wantAnswer(t, send(g, request(t.Context(), "key", "{}")), http.StatusGatewayTimeout, "", false)
		wantProblem(t, send(g, request(t.Context(), "key", "{}")), httpdedup.OutcomeUnknown, http.StatusConflict, "60")
		for i, err := range b.guard.Unresolved(t.Context()) {
			if err == nil {
				err = b.guard.Resolve(t.Context(), i.Key, dedup.FailedWith("the card was refused"))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		resp := send(g, request(t.Context(), "key", "{}"))
		if resp.header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("headers %v", resp.header)
		}
		if p := wantProblem(t, resp, httpdedup.Failed, http.StatusInternalServerError, ""); p["detail"] != "the card was refused" {
			t.Errorf("%v", p)
		}
	})
}

// Which answers are stored is the verdict's to say.
func TestDefaultVerdict(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		for status, kept := range map[int]bool{
			200: true, 201: true, 204: true, 303: true, 400: true, 402: true, 403: true, 404: true, 409: true, 422: true,
			401: false, 408: false, 421: false, 425: false, 429: false,
			500: false, 501: false, 502: false, 503: false, 504: false, 599: false,
		} {
			h := &says{s: "one"}
			g := b.guarded(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(status)
				h.ServeHTTP(w, r)
			})
			key := http.StatusText(status)
			if key == "" {
				key = "none"
			}
			body := "one"
			if status == http.StatusNoContent {
				body = ""
			}
			wantAnswer(t, send(g, request(t.Context(), `"`+key+`"`, "{}")), status, body, false)
			wantAnswer(t, send(g, request(t.Context(), `"`+key+`"`, "{}")), status, body, kept)
			if kept {
				h.wantRuns(t, 1)
			} else {
				h.wantRuns(t, 2)
			}
		}
	})
}

func TestAnswerOverTheLimitIsSentOnce(t *testing.T) {
	for name, limit := range map[string]struct {
		guard, answer int
		original      any
	}{
		"of the middleware": {0, 100, float64(http.StatusCreated)},
		"of the guard":      {100, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bundle) {
				t := b.t
				big := &says{s: strings.Repeat("x", 101)}
				g := b.guarded(big.ServeHTTP, func(c *httpdedup.Config) { c.MaxAnswer = limit.answer })
				wantAnswer(t, send(g, request(t.Context(), "key", "{}")), http.StatusCreated, big.s, false)
				for range 2 {
					p := wantProblem(t, send(g, request(t.Context(), "key", "{}")), httpdedup.AnswerNotStored, http.StatusConflict, "")
					if p["original_status"] != limit.original {
						t.Errorf("%v, want original_status %v", p, limit.original)
					}
				}
				big.wantRuns(t, 1)
			}, func(c *dedup.Config) { c.MaxOutcome = limit.guard })
		})
	}
	inBubble(t, func(b *bundle) { // exactly the limit
		t := b.t
		h := &says{s: strings.Repeat("x", 100)}
		g := b.guarded(h.ServeHTTP, func(c *httpdedup.Config) { c.MaxAnswer = 100 })
		for i := range 2 {
			wantAnswer(t, send(g, request(t.Context(), "key", "{}")), http.StatusCreated, h.s, i > 0)
		}
	})
}

func TestExpiredKeyIsGone(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		g := b.guarded(mustNotRun(t))
		// A UUIDv7 of 1999-12-30, two days before a bubble begins.
		wantProblem(t, send(g, request(t.Context(), "00dc6082-f400-7000-8000-000000000000", "{}")), httpdedup.KeyExpired, http.StatusGone, "")
	})
}

func TestRecordThatCannotBeReadIsLeftAlone(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		g := b.guarded((&says{s: "one"}).ServeHTTP)
		wantAnswer(t, send(g, request(t.Context(), "key", "{}")), http.StatusCreated, "one", false)
		var key dedup.Key
		for i, err := range b.guard.Records(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			key = i.Key
		}
		path := "/dedup/" + key.String()
		for _, data := range []string{
			"garbage",
			"zklock-dedup/2 {}\n",
			"zklock-dedup/1 {\"state\":\"done\",\"attempt\":1,\"size\":5}\n\"one\"",
			"zklock-dedup/1 {\"state\":\"done\",\"attempt\":1,\"size\":20}\nzklock-http/2 200\n\nx",
		} {
			if err := b.srv.Set(path, []byte(data)); err != nil {
				t.Fatal(err)
			}
			wantProblem(t, send(b.guarded(mustNotRun(t)), request(t.Context(), "key", "{}")), httpdedup.Unusable, http.StatusInternalServerError, "")
			if got, err := b.srv.Get(path); err != nil || string(got) != data {
				t.Errorf("the record is %q, %v", got, err)
			}
		}
	})
}

func TestBodyIsBoundedAndHandedOn(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		limit := func(c *httpdedup.Config) { c.MaxBody = 10 }
		g := b.guarded(mustNotRun(t), limit)
		wantProblem(t, send(g, request(t.Context(), "key", "12345678901")), httpdedup.BodyTooLarge, http.StatusRequestEntityTooLarge, "")
		chunked := func(body io.Reader) *http.Request {
			r := request(t.Context(), "key", "")
			r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(body), -1, []string{"chunked"}
			return r
		}
		wantProblem(t, send(g, chunked(strings.NewReader("12345678901"))), httpdedup.BodyTooLarge, http.StatusRequestEntityTooLarge, "")
		wantProblem(t, send(g, chunked(io.MultiReader(strings.NewReader("123"), broken{}))), httpdedup.BodyUnreadable, http.StatusBadRequest, "")

		echo := b.guarded(func(w http.ResponseWriter, r *http.Request) {
			if r.ContentLength != 10 || r.TransferEncoding != nil {
				t.Errorf("length %d, encoding %v", r.ContentLength, r.TransferEncoding)
			}
			_, _ = io.Copy(w, r.Body)
		}, limit)
		wantAnswer(t, send(echo, chunked(strings.NewReader("1234567890"))), http.StatusOK, "1234567890", false)
		wantAnswer(t, send(echo, request(t.Context(), "key", "1234567890")), http.StatusOK, "1234567890", true)

		empty := b.guarded(func(_ http.ResponseWriter, r *http.Request) {
			if r.Body == nil || r.ContentLength != 0 {
				t.Errorf("body %v, length %d", r.Body, r.ContentLength)
			}
		}, limit)
		none := request(t.Context(), "none", "")
		none.Body = nil
		wantAnswer(t, send(empty, none), http.StatusOK, "", false)
	})
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("broken") }

// A body that somebody has read before would make all payloads the same.
func TestBodyThatWasReadBeforeIsNoticed(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		g := b.guarded(mustNotRun(t))
		form := request(t.Context(), "key", "amount=1", header("Content-Type", "application/x-www-form-urlencoded"))
		form.ContentLength = -1
		if err := form.ParseForm(); err != nil {
			t.Fatal(err)
		}
		wantProblem(t, send(g, form), httpdedup.Misconfigured, http.StatusInternalServerError, "")
		read := request(t.Context(), "key", "{}")
		_, _ = io.Copy(io.Discard, read.Body)
		wantProblem(t, send(g, read), httpdedup.Misconfigured, http.StatusInternalServerError, "")
	})
}

func TestProblemsCanBeWrittenByTheService(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		g := b.guarded(mustNotRun(t), func(c *httpdedup.Config) {
			c.WriteProblem = func(w http.ResponseWriter, _ *http.Request, p *httpdedup.Problem) {
				http.Error(w, p.Title, p.Status)
			}
		})
		wantAnswer(t, send(g, request(t.Context(), "", "{}")), http.StatusBadRequest, "Idempotency-Key is missing\n", false)
	})
}

// A client that hangs up while it waits gets out of the way.
func TestClientThatGoesWhileItWaitsDoesNotRun(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		release := make(chan struct{})
		first := asked(b.guarded(func(http.ResponseWriter, *http.Request) { <-release }), request(t.Context(), "key", "{}"))
		synctest.Wait()
		ctx, hangUp := context.WithCancel(t.Context())
		second := asked(b.guarded(mustNotRun(t)), request(ctx, "key", "{}"))
		synctest.Wait()
		hangUp()
		wantProblem(t, <-second, httpdedup.Unavailable, http.StatusServiceUnavailable, "1")
		close(release)
		wantAnswer(t, <-first, http.StatusOK, "", false)
	})
}

// A client that hangs up while the handler runs finds the answer when it comes back.
func TestClientThatGoesDoesNotStopTheHandler(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		ctx, hangUp := context.WithTimeout(t.Context(), time.Second)
		defer hangUp()
		g := b.guarded(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(3 * time.Second) // longer than the grace of a commit
			if err := r.Context().Err(); err != nil {
				t.Errorf("the handler's context ended with the client: %v", err)
			}
			_, _ = io.WriteString(w, "one")
		})
		send(g, request(ctx, "key", "{}"))
		wantAnswer(t, send(g, request(t.Context(), "key", "{}")), http.StatusOK, "one", true)
	})
}

func TestTimeoutEndsTheHandlersContext(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		g := b.guarded(func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			w.WriteHeader(http.StatusServiceUnavailable)
		}, func(c *httpdedup.Config) { c.Timeout = 5 * time.Second })
		began := time.Now()
		wantAnswer(t, send(g, request(t.Context(), "key", "{}")), http.StatusServiceUnavailable, "", false)
		if took := time.Since(began); took < 5*time.Second || took > 6*time.Second {
			t.Errorf("it took %v, want 5s", took)
		}
	})
}

// A store that does not answer does not keep the client for ever. The answer is stored
// when it can be.
func TestStoreThatDoesNotAnswerTheCommit(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		var hole *zktest.Fault
		g := b.guarded(func(w http.ResponseWriter, _ *http.Request) {
			hole = b.srv.Inject(zktest.Blackhole(zktest.ServerToClient))
			_, _ = io.WriteString(w, "one")
		})
		began := time.Now()
		wantProblem(t, send(g, request(t.Context(), "key", "{}")), httpdedup.OutcomeUnknown, http.StatusConflict, "60")
		if took := time.Since(began); took > 12*time.Second {
			t.Errorf("it took %v, want about 10s", took)
		}
		hole.Heal()
		time.Sleep(time.Minute)
		wantAnswer(t, send(b.guarded(mustNotRun(t)), request(t.Context(), "key", "{}")), http.StatusOK, "one", true)
	})
}

// A handler that calls itself with its own key does not wait for itself.
func TestNestedRequestIsRefused(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		var g http.Handler
		g = b.guarded(func(w http.ResponseWriter, r *http.Request) {
			wantProblem(t, send(g, request(r.Context(), "key", "{}")), httpdedup.Misconfigured, http.StatusInternalServerError, "")
			_, _ = io.WriteString(w, "one")
		})
		wantAnswer(t, send(g, request(t.Context(), "key", "{}")), http.StatusOK, "one", false)
	})
}
