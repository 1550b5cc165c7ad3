package httpdedup_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/dedup/httpdedup"
	"github.com/go-zklock/zklock/zktest"
)

// guardForExamples is a guard on a server in this process.
func guardForExamples() (guard *dedup.Guard, stop func()) {
	srv, err := zktest.Start(zktest.Config{})
	if err != nil {
		log.Fatal(err)
	}
	client, err := zklock.Connect(context.Background(), zklock.Config{Servers: []string{srv.Addr()}, Dial: srv.Dial})
	if err != nil {
		log.Fatal(err)
	}
	guard, err = dedup.New(client, dedup.Config{})
	if err != nil {
		log.Fatal(err)
	}
	return guard, func() {
		_ = guard.Close(context.Background())
		_ = client.Close()
		srv.Close()
	}
}

// A service that charges once for each key.
func Example() {
	guard, stop := guardForExamples()
	defer stop()

	charge := func(w http.ResponseWriter, r *http.Request) {
		claim := httpdedup.ClaimFromContext(r.Context())
		if err := claim.Await(r.Context()); err != nil { // the gate before the effect
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Println("the card is charged, attempt", claim.Attempt())
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "receipt 1")
	}
	guarded, err := httpdedup.New(guard, httpdedup.Config{Principal: httpdedup.Everyone})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /charge", guarded(http.HandlerFunc(charge)))

	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/charge", strings.NewReader(`{"amount":1041}`))
		r.Header.Set("Idempotency-Key", "8e03978e-40d5-43dd-bc93-6894a57f9324")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Printf("%d %s %q\n", w.Code, w.Body, w.Header().Get("Idempotent-Replayed"))
	}
	// Output:
	// the card is charged, attempt 1
	// 201 receipt 1 ""
	// 201 receipt 1 "true"
}

// user is what authentication has put into the context of a request.
type user struct{ id string }

type userKey struct{}

// Keys belong to users, and a bank that does not answer in time leaves the outcome
// unknown.
func ExampleNew() {
	guard, stop := guardForExamples()
	defer stop()

	guarded, err := httpdedup.New(guard, httpdedup.Config{
		Principal: func(r *http.Request) (string, error) {
			u, ok := r.Context().Value(userKey{}).(user)
			if !ok {
				return "", fmt.Errorf("nobody is logged in")
			}
			return u.id, nil
		},
		Verdict: func(r *http.Request, answer *httpdedup.Answer) httpdedup.Verdict {
			if answer.Status == http.StatusGatewayTimeout {
				return httpdedup.Unknown
			}
			return httpdedup.DefaultVerdict(r, answer)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	h := guarded(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGatewayTimeout) }))
	for range 2 {
		ctx := context.WithValue(context.Background(), userKey{}, user{"1041"})
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/charge", strings.NewReader(`{"amount":1041}`))
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		fmt.Printf("%d %q%s\n", w.Code, w.Header().Get("Retry-After"), strings.ReplaceAll(w.Body.String(), ",", "\n\t"))
	}
	// Output:
	// 504 ""
	// 409 "60"{"type":"https://pkg.go.dev/github.com/go-zklock/zklock/dedup/httpdedup#OutcomeUnknown"
	// 	"title":"The outcome of the request with this Idempotency-Key is unknown"
	// 	"status":409
	// 	"detail":"It may have been carried out. Retry with the same key
	// 	 later; another key could carry it out twice."}
}

// An answer that a person or a reconciler gives to a request whose outcome is unknown.
func ExampleAnswer() {
	guard, stop := guardForExamples()
	defer stop()
	ctx := context.Background()

	answer := httpdedup.Answer{
		Status: http.StatusCreated,
		Header: http.Header{"Content-Type": {"text/plain"}},
		Body:   []byte("receipt 1"),
	}
	data, err := answer.MarshalBinary()
	if err != nil {
		log.Fatal(err)
	}
	for info, err := range guard.Unresolved(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		if err := guard.Resolve(ctx, info.Key, dedup.CompletedBytes(data)); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Printf("%s\n", data)
	// Output:
	// zklock-http/1 201
	// Content-Type: text/plain
	//
	// receipt 1
}
