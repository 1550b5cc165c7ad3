package httpdedup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/go-zklock/zklock/dedup"
)

// New makes middleware on a guard; one guard may serve any number, and other work.
// Close the guard after the HTTP server: handlers that run store their answers with
// it. dedup.ErrInvalidConfig.
func New(g *dedup.Guard, cfg Config) (func(http.Handler) http.Handler, error) {
	if g == nil {
		return nil, fmt.Errorf("%w: httpdedup: the guard is nil", dedup.ErrInvalidConfig)
	}
	cfg, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	if most := g.Retention(); cfg.Wait > most {
		// The guard would refuse every request.
		return nil, fmt.Errorf("%w: httpdedup: Wait %v: it is longer than the guard's retention of %v", dedup.ErrInvalidConfig, cfg.Wait, most)
	}
	return func(next http.Handler) http.Handler { return &guarded{g: g, cfg: cfg, next: next} }, nil
}

// guarded is a handler behind the middleware.
type guarded struct {
	g    *dedup.Guard
	cfg  Config
	next http.Handler
}

type claimKey struct{}

// ClaimFromContext is the claim under which a handler runs, and nil outside of one and
// for requests that are not guarded.
func ClaimFromContext(ctx context.Context) *dedup.Claim {
	c, _ := ctx.Value(claimKey{}).(*dedup.Claim)
	return c
}

// ServeHTTP implements http.Handler.
func (h *guarded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !slices.Contains(h.cfg.Methods, r.Method) {
		h.next.ServeHTTP(w, r)
		return
	}
	id, err := parseKey(r.Header, h.cfg.MaxKey)
	switch {
	case errors.Is(err, errMissing) && h.cfg.Optional:
		h.next.ServeHTTP(w, r)
		return
	case errors.Is(err, errMissing):
		h.refuse(w, r, problem(KeyMissing, http.StatusBadRequest, "Idempotency-Key is missing",
			"This operation needs an Idempotency-Key header, the same for every attempt of one request."), nil)
		return
	case err != nil:
		h.refuse(w, r, problem(KeyMalformed, http.StatusBadRequest, "Idempotency-Key is malformed", upper(err.Error())+"."), nil)
		return
	}
	principal, err := h.cfg.Principal(r)
	if err != nil {
		h.refuse(w, r, misconfigured(), fmt.Errorf("principal: %w", err))
		return
	}
	body, p, err := h.readBody(w, r)
	if p != nil {
		h.refuse(w, r, p, err)
		return
	}
	fp := h.print(r, body)
	key := dedup.Key{Scope: scope(r.Method, h.cfg.Route(r), principal), ID: id}
	run := &run{h: h, w: w, r: r, body: body}
	res, err := run.do(key, fp)
	h.reply(w, r, run, res, err)
}

func (h *guarded) print(r *http.Request, body []byte) dedup.Fingerprint {
	if h.cfg.Fingerprint != nil {
		return h.cfg.Fingerprint(r, body)
	}
	return fingerprint(r, h.cfg.FingerprintHeaders, body)
}

// readBody reads the whole body, up to the limit.
func (h *guarded) readBody(w http.ResponseWriter, r *http.Request) ([]byte, *Problem, error) {
	tooLarge := problem(BodyTooLarge, http.StatusRequestEntityTooLarge, "The request body is too large",
		fmt.Sprintf("At most %d bytes are accepted.", h.cfg.MaxBody))
	if r.ContentLength > h.cfg.MaxBody {
		w.Header().Set("Connection", "close") // instead of reading what is not wanted
		return nil, tooLarge, nil
	}
	if r.Body == nil {
		return nil, nil, nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.cfg.MaxBody))
	var limit *http.MaxBytesError
	switch {
	case errors.As(err, &limit):
		return nil, tooLarge, nil
	case err != nil:
		return nil, problem(BodyUnreadable, http.StatusBadRequest, "The request body cannot be read",
			"It did not arrive as announced. Nothing was done for this request."), err
	case r.PostForm != nil || r.MultipartForm != nil || int64(len(body)) < r.ContentLength:
		// All payloads would look the same.
		return nil, misconfigured(), errors.New("the request body was read before the middleware got it")
	}
	return body, nil, nil
}

// run is one guarded request.
type run struct {
	h    *guarded
	w    http.ResponseWriter
	r    *http.Request
	body []byte

	seen   *http.Request // what the handler got
	answer *Answer       // once the handler has returned
}

// commitLimit bounds the wait for the store once the handler has returned. After it the
// client is told that the outcome is unknown, and the guard goes on to store it.
const commitLimit = 10 * time.Second

// errClientGone ends a wait; errNotKept and errUnknown are answers that are not stored.
var (
	errClientGone = errors.New("httpdedup: the client has gone")
	errNotKept    = errors.New("httpdedup: the verdict on the answer is Retry")
	errUnknown    = errors.New("httpdedup: the verdict on the answer is Unknown")
)

// do runs the handler under the guard. The context of the call ends with the request's
// while it waits, not while the handler runs, and again while the answer is stored.
func (u *run) do(key dedup.Key, fp dedup.Fingerprint) (dedup.Result[dedup.Raw], error) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(u.r.Context()))
	defer cancel(nil)
	attach := func() (detach func() bool) {
		return context.AfterFunc(u.r.Context(), func() { cancel(context.Cause(u.r.Context())) })
	}
	detach := attach()
	defer func() { detach() }()
	var limit *time.Timer
	defer func() {
		if limit != nil {
			limit.Stop()
		}
	}()
	return dedup.Do(ctx, u.h.g, key, fp, func(ctx context.Context, claim *dedup.Claim) (dedup.Raw, error) {
		if !detach() {
			return nil, errClientGone
		}
		answer := u.serve(ctx, claim)
		detach = attach()
		limit = time.AfterFunc(commitLimit, func() { cancel(errors.New("the answer was not stored in time")) })
		switch u.h.cfg.Verdict(u.seen, answer) {
		case Retry:
			u.answer = answer
			return nil, fmt.Errorf("%w: status %d", errNotKept, answer.Status)
		case Unknown:
			u.answer = answer
			return nil, dedup.Indeterminate(fmt.Errorf("%w: status %d", errUnknown, answer.Status))
		case Keep:
		}
		kept, err := answer.kept(u.h.cfg.ReplayHeaders, u.h.cfg.MaxAnswer).MarshalBinary()
		if err != nil {
			return nil, dedup.Indeterminate(err)
		}
		u.answer = answer
		return kept, nil
	}, u.options()...)
}

func (u *run) options() []dedup.Option {
	switch wait := u.h.cfg.Wait; {
	case wait < 0:
		return []dedup.Option{dedup.NoWait()}
	case wait > 0:
		return []dedup.Option{dedup.WaitLimit(wait)}
	}
	return nil
}

// serve runs the handler.
func (u *run) serve(ctx context.Context, claim *dedup.Claim) *Answer {
	ctx = context.WithValue(ctx, claimKey{}, claim)
	if u.h.cfg.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, u.h.cfg.Timeout)
		defer cancel()
	}
	r := u.r.WithContext(ctx)
	u.seen = r
	r.ContentLength, r.TransferEncoding = int64(len(u.body)), nil
	r.Body = http.NoBody
	if len(u.body) > 0 {
		r.Body = io.NopCloser(bytes.NewReader(u.body))
	}
	// net/http removes the files of its own request, of which this is a copy.
	defer func() {
		if r.MultipartForm != nil {
			_ = r.MultipartForm.RemoveAll()
		}
	}()
	rec := newRecorder(u.w)
	u.h.next.ServeHTTP(rec, r)
	return rec.answer()
}

// reply answers the request.
func (h *guarded) reply(w http.ResponseWriter, r *http.Request, u *run, res dedup.Result[dedup.Raw], err error) {
	mine := u.answer != nil && !res.Replayed
	switch {
	case mine && (err == nil || errors.Is(err, errNotKept) || errors.Is(err, errUnknown)):
		h.first(w, u.answer)
	case mine && errors.Is(err, dedup.ErrOutcomeTooLarge):
		h.cfg.Logger.Warn("httpdedup: an answer is too large to be kept", "error", err)
		h.first(w, u.answer)
	case err != nil:
		h.refuse(w, r, h.problemFor(err), err)
	default:
		h.replay(w, r, res.Value)
	}
}

// first sends an answer to the client whose request was worked on.
func (h *guarded) first(w http.ResponseWriter, a *Answer) {
	clear(w.Header()) // the handler has seen what was set before, and may have removed some of it
	a.send(w)
}

// replay sends a stored answer.
func (h *guarded) replay(w http.ResponseWriter, r *http.Request, stored []byte) {
	a, err := ParseAnswer(stored)
	switch {
	case err != nil:
		h.refuse(w, r, unusable(), err)
	case a.Omitted > 0:
		p := notStored()
		p.OriginalStatus = a.Status
		h.refuse(w, r, p, nil)
	default:
		if _, typed := a.Header["Content-Type"]; !typed {
			w.Header()["Content-Type"] = nil // it had none, so net/http is not to guess one
		}
		w.Header().Set(ReplayedHeader, "true")
		a.send(w)
	}
}

// refuse answers with a problem. err is for the log.
func (h *guarded) refuse(w http.ResponseWriter, r *http.Request, p *Problem, err error) {
	if err != nil && (p.Status >= http.StatusInternalServerError || p.Type == OutcomeUnknown) {
		h.cfg.Logger.Error("httpdedup: the request was refused", "problem", p.Title, "status", p.Status, "error", err)
	}
	h.cfg.WriteProblem(w, r, p)
}

// problemFor says what an error of the guard means for the client.
func (h *guarded) problemFor(err error) *Problem {
	var failed *dedup.FailedError
	switch {
	case errors.Is(err, dedup.ErrKeyReused):
		return problem(KeyReused, http.StatusUnprocessableEntity, "Idempotency-Key was used for another request",
			"The key belongs to a request with another payload. Nothing was done for this one.")
	case errors.Is(err, dedup.ErrInProgress):
		p := problem(InProgress, http.StatusConflict, "A request with this Idempotency-Key is in progress",
			"Retry with the same key to get its answer.")
		p.RetryAfter = h.cfg.RetryAfter
		return p
	case errors.Is(err, dedup.ErrIndeterminate):
		p := problem(OutcomeUnknown, http.StatusConflict, "The outcome of the request with this Idempotency-Key is unknown",
			"It may have been carried out. Retry with the same key, later; another key could carry it out twice.")
		p.RetryAfter = h.cfg.UnknownRetryAfter
		return p
	case errors.Is(err, dedup.ErrOutcomeTooLarge):
		return notStored()
	case errors.Is(err, dedup.ErrKeyExpired):
		return problem(KeyExpired, http.StatusGone, "Idempotency-Key has expired",
			"The key is older than answers are kept, and there is none: the request may have been carried out long ago.")
	case errors.As(err, &failed):
		p := problem(Failed, http.StatusInternalServerError, "The request with this Idempotency-Key has failed", failed.Message)
		p.Replayed = failed.Replayed
		return p
	case errors.Is(err, dedup.ErrNewerFormat), errors.Is(err, dedup.ErrCorrupt):
		return unusable()
	case errors.Is(err, dedup.ErrInvalidKey), errors.Is(err, dedup.ErrInvalidConfig), errors.Is(err, dedup.ErrNested):
		return misconfigured()
	default: // ErrUnavailable, ErrClosed, and the end of the request's context
		p := problem(Unavailable, http.StatusServiceUnavailable, "The request cannot be carried out right now",
			"Nothing was done for this request. An earlier one with this key may have been carried out. Retry with the same key; another key could carry it out twice.")
		p.RetryAfter = h.cfg.RetryAfter
		return p
	}
}

func notStored() *Problem {
	return problem(AnswerNotStored, http.StatusConflict, "The answer to the request with this Idempotency-Key was not kept",
		"The request was carried out and answered; its answer was too large to be kept.")
}

func unusable() *Problem {
	return problem(Unusable, http.StatusInternalServerError, "The record of this Idempotency-Key cannot be read",
		"Nothing was done now. Whether it was carried out before cannot be told.")
}

func misconfigured() *Problem {
	return problem(Misconfigured, http.StatusInternalServerError, "The server is not set up for this request",
		"Nothing was done for it. An earlier request with this key may have been carried out.")
}

// upper makes a sentence of an error.
func upper(s string) string {
	if s != "" && s[0] >= 'a' && s[0] <= 'z' {
		return string(s[0]-'a'+'A') + s[1:]
	}
	return s
}
