package httpdedup

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/textproto"
	"slices"
	"time"

	"github.com/go-zklock/zklock/dedup"
)

// Defaults of Config.
const (
	DefaultMaxKey            = 255
	DefaultMaxBody           = 1 << 20
	DefaultMaxAnswer         = 128 << 10
	DefaultRetryAfter        = time.Second
	DefaultUnknownRetryAfter = time.Minute
)

// Config says what is guarded and how. The zero value of every field is the documented
// default.
type Config struct {
	// Methods are those that are guarded; requests with others go straight to the
	// handler. Safe methods (GET, HEAD, OPTIONS, TRACE) are refused. Default POST and
	// PATCH.
	Methods []string

	// Optional lets guarded requests without a key go straight to the handler. Default:
	// they are answered with 400.
	Optional bool

	// Principal says who asks, for instance the user's id that authentication has put
	// into the request's context. Principals never see each other's answers, and a key
	// of one is another key of the next. It has to be the same for every attempt of a
	// request. An error is answered with 500. Default ByAuthorization.
	Principal func(*http.Request) (string, error)

	// Route says what is asked for, the same for every attempt and in every instance.
	// Default: the path, r.URL.Path.
	Route func(*http.Request) string

	// MaxKey is the longest key, in bytes, at most dedup.MaxID. Default 255.
	MaxKey int

	// MaxBody is the largest request body, in bytes. It is read into memory. Default
	// 1 MiB.
	MaxBody int64

	// FingerprintHeaders are the request headers that are part of the payload. Default
	// Content-Type and Content-Encoding. Empty and not nil: none.
	FingerprintHeaders []string

	// Fingerprint replaces the fingerprint of method, path, headers and body. The body
	// must not be changed. Default: see FingerprintHeaders.
	Fingerprint func(r *http.Request, body []byte) dedup.Fingerprint

	// Wait is how long a duplicate waits for the answer of a request in progress, before
	// 409. Negative: not at all. Not longer than the guard's retention: New refuses that.
	// Default: the guard's WaitLimit.
	Wait time.Duration

	// Timeout is how long the handler has before its context ends. Default: no limit but
	// the claim.
	Timeout time.Duration

	// Verdict says what becomes of the handler's answer. r is what the handler got.
	// Default DefaultVerdict.
	Verdict func(r *http.Request, answer *Answer) Verdict

	// MaxAnswer is the largest body that is kept for duplicates, in bytes. What the guard
	// can store bounds it too. Default 128 KiB.
	MaxAnswer int

	// ReplayHeaders are the response headers that are kept for duplicates; the first
	// client gets all. Set-Cookie, Date, Content-Length and those that are about the
	// connection are refused. Default DefaultReplayHeaders.
	ReplayHeaders []string

	// RetryAfter is sent with InProgress and Unavailable, in whole seconds, rounded up.
	// Default 1 s.
	RetryAfter time.Duration

	// UnknownRetryAfter is sent with OutcomeUnknown. Under dedup.Refuse it takes a person
	// or a reconciler to get further; under dedup.Reexecute the next attempt does. Default
	// 1 min.
	UnknownRetryAfter time.Duration

	// WriteProblem writes the answer to a request that is refused. Default
	// Problem.Write.
	WriteProblem func(w http.ResponseWriter, r *http.Request, p *Problem)

	// Logger gets what the client is not told: why a request got a 5xx. Default: nothing
	// is logged.
	Logger *slog.Logger
}

// DefaultReplayHeaders are the headers that describe the body and what was made.
func DefaultReplayHeaders() []string {
	return []string{
		"Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Location",
		"Content-Type", "Etag", "Last-Modified", "Link", "Location", "Vary",
	}
}

// Verdict is what becomes of a handler's answer.
type Verdict int

const (
	// Keep stores the answer; every duplicate gets it.
	Keep Verdict = iota
	// Retry sends it to this client alone; the next request runs the handler again.
	Retry
	// Unknown sends it to this client alone and says that nobody knows whether the
	// handler had its effect. Duplicates are treated by the guard's Policy.
	Unknown
)

// String returns "Keep", "Retry" or "Unknown".
func (v Verdict) String() string {
	switch v {
	case Keep:
		return "Keep"
	case Retry:
		return "Retry"
	case Unknown:
		return "Unknown"
	default:
		return fmt.Sprintf("Verdict(%d)", int(v))
	}
}

// DefaultVerdict is Retry for 500 and above and for 401, 408, 421, 425 and 429, by
// which the client is asked to send the request again; Keep for the rest.
func DefaultVerdict(_ *http.Request, answer *Answer) Verdict {
	switch answer.Status {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusMisdirectedRequest, http.StatusTooEarly, http.StatusTooManyRequests:
		return Retry
	}
	if answer.Status >= http.StatusInternalServerError {
		return Retry
	}
	return Keep
}

// neverReplayed are headers that belong to one response and not to its content.
var neverReplayed = []string{
	"Connection", "Content-Length", "Date", "Idempotent-Replayed", "Keep-Alive", "Proxy-Authenticate",
	"Proxy-Authentication-Info", "Proxy-Connection", "Set-Cookie", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

func (c Config) resolve() (Config, error) {
	bad := func(field string, value any, rule string) (Config, error) {
		return Config{}, fmt.Errorf("%w: httpdedup: %s %v: %s", dedup.ErrInvalidConfig, field, value, rule)
	}
	if c.Methods == nil {
		c.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	if c.Principal == nil {
		c.Principal = ByAuthorization
	}
	if c.Route == nil {
		c.Route = func(r *http.Request) string { return r.URL.Path }
	}
	if c.MaxKey == 0 {
		c.MaxKey = DefaultMaxKey
	}
	if c.MaxBody == 0 {
		c.MaxBody = DefaultMaxBody
	}
	if c.FingerprintHeaders == nil {
		c.FingerprintHeaders = []string{"Content-Type", "Content-Encoding"}
	}
	if c.Verdict == nil {
		c.Verdict = DefaultVerdict
	}
	if c.MaxAnswer == 0 {
		c.MaxAnswer = DefaultMaxAnswer
	}
	if c.ReplayHeaders == nil {
		c.ReplayHeaders = DefaultReplayHeaders()
	}
	if c.RetryAfter == 0 {
		c.RetryAfter = DefaultRetryAfter
	}
	if c.UnknownRetryAfter == 0 {
		c.UnknownRetryAfter = DefaultUnknownRetryAfter
	}
	if c.WriteProblem == nil {
		c.WriteProblem = func(w http.ResponseWriter, _ *http.Request, p *Problem) { p.Write(w) }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	safe := []string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodConnect}
	for _, m := range c.Methods {
		if !validToken(m) || slices.Contains(safe, m) {
			return bad("Methods", fmt.Sprintf("%q", m), "it has to be a method that is not safe, like POST")
		}
	}
	c.ReplayHeaders = canonical(c.ReplayHeaders)
	for _, h := range c.ReplayHeaders {
		if !validToken(h) || slices.Contains(neverReplayed, h) {
			return bad("ReplayHeaders", fmt.Sprintf("%q", h), "it has to be a header of the content; this one is never replayed")
		}
	}
	c.FingerprintHeaders = canonical(c.FingerprintHeaders)
	for _, h := range c.FingerprintHeaders {
		if !validToken(h) {
			return bad("FingerprintHeaders", fmt.Sprintf("%q", h), "it is no name of a header")
		}
	}
	switch {
	case len(c.Methods) == 0:
		return bad("Methods", c.Methods, "it is empty: nothing would be guarded")
	case c.MaxKey < 0 || c.MaxKey > dedup.MaxID:
		return bad("MaxKey", c.MaxKey, fmt.Sprintf("it has to be 1 to %d", dedup.MaxID))
	case c.MaxBody < 0:
		return bad("MaxBody", c.MaxBody, "it is negative")
	case c.Timeout < 0:
		return bad("Timeout", c.Timeout, "it is negative")
	case c.MaxAnswer < 0:
		return bad("MaxAnswer", c.MaxAnswer, "it is negative")
	case c.RetryAfter < 0:
		return bad("RetryAfter", c.RetryAfter, "it is negative")
	case c.UnknownRetryAfter < 0:
		return bad("UnknownRetryAfter", c.UnknownRetryAfter, "it is negative")
	}
	return c, nil
}

func canonical(names []string) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = textproto.CanonicalMIMEHeaderKey(n)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
