package httpdedup

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// The types of the problems. They do not change.
const (
	// KeyMissing (400): the request needs an Idempotency-Key header.
	KeyMissing = typeBase + "KeyMissing"
	// KeyMalformed (400): the header is not one key; the detail says why. Nothing has run.
	KeyMalformed = typeBase + "KeyMalformed"
	// KeyReused (422): the key was used with another payload. Nothing has run for this
	// one.
	KeyReused = typeBase + "KeyReused"
	// KeyExpired (410): the key says that it was made longer ago than answers are kept,
	// and there is none. Whether it was done has to be looked up elsewhere.
	KeyExpired = typeBase + "KeyExpired"
	// BodyTooLarge (413): the request body is larger than is accepted. Nothing has run.
	BodyTooLarge = typeBase + "BodyTooLarge"
	// BodyUnreadable (400): the request body did not arrive. Nothing has run.
	BodyUnreadable = typeBase + "BodyUnreadable"
	// InProgress (409): a request with this key is being worked on. Retry with the same
	// key.
	InProgress = typeBase + "InProgress"
	// OutcomeUnknown (409): a request with this key was worked on, and nobody knows what
	// came of it. A retry with the same key gets the answer once that is settled; another
	// key could do it twice.
	OutcomeUnknown = typeBase + "OutcomeUnknown"
	// AnswerNotStored (409): the request was answered, and the answer was too large to
	// be kept. The member original_status is its status, if that was kept.
	AnswerNotStored = typeBase + "AnswerNotStored"
	// Failed (500): somebody has settled the outcome of this key as a failure. Final.
	Failed = typeBase + "Failed"
	// Unavailable (503): the store of answers cannot be asked, so nothing was run for this
	// request. An earlier one with this key may have been carried out, or be in progress:
	// retry with the same key.
	Unavailable = typeBase + "Unavailable"
	// Unusable (500): the record of this key cannot be read, so nothing was run
	// for this request.
	Unusable = typeBase + "Unusable"
	// Misconfigured (500): the server cannot tell who asks, or what. Nothing was run for
	// this request.
	Misconfigured = typeBase + "Misconfigured"
)

const typeBase = "https://pkg.go.dev/github.com/go-zklock/zklock/dedup/httpdedup#"

// Problem is a problem of RFC 9457.
type Problem struct {
	Type   string `json:"type"` // one of the constants
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	// OriginalStatus is the status of an answer that was not kept: AnswerNotStored.
	OriginalStatus int `json:"original_status,omitempty"`
	// Replayed says that the problem is the stored outcome: Failed.
	Replayed bool `json:"-"`
	// RetryAfter is sent as Retry-After, in whole seconds, rounded up; 0: it is not.
	RetryAfter time.Duration `json:"-"`
}

// Write sends the problem as application/problem+json, not to be cached.
func (p *Problem) Write(w http.ResponseWriter) {
	body, err := json.Marshal(p)
	if err != nil {
		body = nil // strings and numbers always have a JSON
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	if p.Replayed {
		h.Set(ReplayedHeader, "true")
	}
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64((p.RetryAfter+time.Second-1)/time.Second), 10))
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // a client that is gone does not need it
}

func problem(kind string, status int, title, detail string) *Problem {
	return &Problem{Type: kind, Title: title, Status: status, Detail: detail}
}
