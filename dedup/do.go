package dedup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup/driver"
)

// Result is the outcome of a key.
type Result[T any] struct {
	Value    T            // what fn returned, or what was stored of it
	Replayed bool         // from the store: this call did not run fn, or its run does not count
	Token    zklock.Token // of the claim under which the outcome was made
	Attempt  int          // which run of fn made it, from 1
}

// Do runs fn once for a key and stores its outcome; further calls with the key get the
// stored outcome instead of a run. The package comment has the table of cases.
//
// fn's ctx is a child of ctx that also ends when the claim is lost; context.Cause says
// which. fn has to return then: nobody else begins before the claim's node is gone,
// which is at the latest when the session ends. What fn returns after a loss is not
// stored.
//
// ctx bounds the call up to fn, and after fn: once ctx is over, the commit has one
// second to be answered, and goes on in the background after that.
//
// Errors: what fn returned, as it is; *FailedError; ErrKeyReused, ErrInProgress,
// ErrIndeterminate, ErrOutcomeTooLarge, ErrNested, ErrUnavailable, ErrKeyExpired,
// ErrInvalidKey, ErrInvalidConfig, ErrNewerFormat, ErrCorrupt, ErrClosed; the cause of
// ctx's end; and what the codec says of a stored outcome that it cannot decode into a T,
// wrapped. With ErrOutcomeTooLarge the Result of the call that ran fn has the value. A
// replay that cannot be decoded has none: its Result says Replayed, Token and Attempt, and
// dedup_requests_total counts it as unusable. The outcome stays stored as it is.
func Do[T any](ctx context.Context, g *Guard, k Key, fp Fingerprint, fn func(ctx context.Context, c *Claim) (T, error), opts ...Option) (Result[T], error) {
	var res Result[T]
	if g == nil {
		return res, fmt.Errorf("%w: Do: the guard is nil", ErrInvalidConfig)
	}
	c := &call{g: g, ctx: ctx, key: k, fp: fp}
	if fn != nil {
		c.fn = func(ctx context.Context, cl *Claim) (func() ([]byte, error), error) {
			v, err := fn(ctx, cl)
			if err != nil {
				return nil, err
			}
			res.Value = v
			return func() ([]byte, error) { return g.cfg.marshal(v) }, nil
		}
	}
	a, err := c.do(opts)
	outcome := label(a, err)
	defer func() { g.met.request(outcome) }()
	if err == nil && a.replayed {
		var v T
		replayed := outcome
		outcome = "unusable" // also for a codec that panics
		if err = decode(g, k, a.rec, &v); err == nil {
			outcome = replayed
		}
		res.Value = v
	}
	if err != nil && !(errors.Is(err, ErrOutcomeTooLarge) && !a.replayed) {
		var zero T
		res.Value = zero
	}
	if a.rec.State.Final() {
		res.Replayed, res.Token, res.Attempt = a.replayed, zklock.Token(a.rec.Token), a.rec.Attempt
	}
	return res, err
}

func decode(g *Guard, k Key, r driver.Record, v any) error {
	if err := g.cfg.unmarshal(r.Outcome, v); err != nil {
		return fmt.Errorf("dedup: decode the outcome of %s: %w", k, err)
	}
	return nil
}

// answer is what a call comes to, besides its error.
type answer struct {
	rec      driver.Record // the final record, if there is one
	replayed bool
}

// call is one call of Do.
type call struct {
	g    *Guard
	ctx  context.Context
	key  Key
	name string // key.String()
	fp   Fingerprint
	opts callOptions
	fn   func(ctx context.Context, c *Claim) (encode func() ([]byte, error), err error)
}

func (c *call) do(opts []Option) (answer, error) {
	if err := c.prepare(opts); err != nil {
		return answer{}, err
	}
	if err := c.g.store.Available(); err != nil {
		return answer{}, unavailable(err) // fail closed, and at once
	}
	f, w, err := c.g.join(c)
	if err != nil {
		return answer{}, err
	}
	limit := time.NewTimer(c.opts.waitLimit)
	defer limit.Stop()
	var o offer
	for {
		if o, err = c.wait(f, w, limit.C); err != nil {
			return answer{}, err
		}
		if o.work == nil {
			break
		}
		if c.ctx.Err() != nil {
			f.giveBack(o.work)
			return answer{}, context.Cause(c.ctx)
		}
		if o.work.claim.Err() == nil {
			return c.execute(f, o.work)
		}
		// Lost before anything ran under it.
		f.putBack(w)
		f.giveBack(o.work)
	}
	if o.err != nil {
		return answer{}, o.err
	}
	c.g.logKey(slog.LevelInfo, "duplicate_detected", c.name, o.rec)
	return answer{rec: o.rec, replayed: true}, replayError(o.rec)
}

// replayError is what a stored outcome comes to besides its value.
func replayError(r driver.Record) error {
	switch {
	case r.State == driver.Failed:
		return &FailedError{Message: r.Message, Replayed: true}
	case r.Omitted != "":
		return fmt.Errorf("%w: %s", ErrOutcomeTooLarge, r.Omitted)
	}
	return nil
}

func (c *call) prepare(opts []Option) error {
	if c.fn == nil {
		return fmt.Errorf("%w: Do: fn is nil", ErrInvalidConfig)
	}
	if err := c.key.validate(); err != nil {
		return err
	}
	if err := c.fp.validate(); err != nil {
		return err
	}
	cfg := c.g.cfg
	c.opts = callOptions{waitLimit: cfg.WaitLimit, policy: cfg.Policy, retention: cfg.Retention}
	for _, opt := range opts {
		if err := opt(&c.opts); err != nil {
			return err
		}
	}
	c.name = c.key.String()
	if c.g.store.Nested(c.ctx, c.name) {
		return fmt.Errorf("%w: %s", ErrNested, c.name)
	}
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	return nil
}

// wait waits for the flight's offer, for the time that this caller has.
func (c *call) wait(f *flight, w *waiter, limit <-chan time.Time) (offer, error) {
	var why error
	select {
	case o := <-w.offers:
		return o, nil
	case <-limit:
	case <-c.ctx.Done():
		why = context.Cause(c.ctx)
	case <-c.g.closing.Done():
		why = ErrClosed
	case <-c.g.store.Closing():
		why = ErrClosed
	}
	if f.leave(w) {
		if why == nil {
			why = f.waitedFor()
		}
		return offer{}, why
	}
	// It came in the same moment.
	o := <-w.offers
	if o.work != nil && (why != nil || o.work.claim.Err() != nil) {
		f.giveBack(o.work)
		if why == nil {
			why = f.waitedFor()
		}
		return offer{}, why
	}
	return o, nil
}

// execute runs fn under the claim and stores what comes of it.
func (c *call) execute(f *flight, w *work) (a answer, err error) {
	g, cl := c.g, w.claim
	said := report{}
	returned := false
	defer func() {
		// fn, the codec or the text of an error panicked, or fn ended its goroutine: nobody
		// knows what it did.
		if !returned {
			said.ended = cl.GiveUp(nil)
			g.met.indeterminate()
			g.met.request("panic")
			g.logKey(slog.LevelError, "indeterminate", c.name, cl.Record(), "error", "the function did not return")
		}
		f.report(said)
	}()
	ctx, cancel := cl.Bind(c.ctx)
	defer cancel()
	encode, fnErr := c.fn(ctx, &Claim{key: c.key, c: cl, ctx: ctx, prior: w.prior})
	var open *indeterminateError
	if errors.As(fnErr, &open) {
		returned = true
		said.ended, err = c.indeterminate(cl, fnErr)
		return answer{}, err
	}
	rec, tooLarge := c.record(cl.Record(), encode, fnErr)
	returned = true
	if lost := cl.Err(); lost != nil {
		said.ended, err = c.lost(cl, rec, fnErr, lost)
		return answer{}, err
	}
	if !rec.State.Final() {
		said.ended = cl.GiveUp(&rec)
		c.awaitEnd(said.ended)
		return answer{}, fnErr
	}
	if err := c.commit(cl, rec); err != nil {
		return c.notStored(cl, err)
	}
	rec.Token = cl.Token()
	said.stored, said.rec = true, rec
	g.logKey(slog.LevelInfo, "committed", c.name, rec)
	a = answer{rec: rec}
	switch {
	case tooLarge != nil:
		return a, tooLarge
	case rec.State == driver.Failed:
		return a, &FailedError{Message: rec.Message, Err: unmark(fnErr)}
	}
	return a, nil
}

// record is what is to be written after fn has returned: Done, Failed or Open.
func (c *call) record(was driver.Record, encode func() ([]byte, error), fnErr error) (r driver.Record, tooLarge error) {
	var p *permanentError
	switch {
	case errors.As(fnErr, &p):
		r = was.Next(driver.Failed)
		r.Message = message(fnErr)
		return r, nil
	case fnErr != nil:
		r = was.Next(driver.Open)
		r.Message = message(fnErr)
		return r, nil
	}
	r = was.Next(driver.Done)
	outcome, err := encode()
	limit := min(c.g.cfg.MaxOutcome, c.g.store.MaxOutcome(c.name))
	switch {
	case err != nil:
		r.Omitted = message(fmt.Errorf("it cannot be encoded: %w", err))
	case len(outcome) > limit:
		r.Omitted = fmt.Sprintf("it has %d bytes, the limit is %d", len(outcome), limit)
	default:
		r.Outcome = outcome
		return r, nil
	}
	return r, fmt.Errorf("%w: %s: %s", ErrOutcomeTooLarge, c.name, r.Omitted)
}

// lost gives up a claim that was lost while fn ran. A record is written only if it says
// that fn failed, and only if the claim's node is still there.
func (c *call) lost(cl driver.Claim, rec driver.Record, fnErr, lost error) (ended <-chan struct{}, err error) {
	c.g.met.claimLost()
	if rec.State == driver.Open {
		return cl.GiveUp(&rec), errors.Join(unmark(fnErr), lost)
	}
	ended = cl.GiveUp(nil)
	c.g.met.indeterminate()
	c.g.logKey(slog.LevelError, "indeterminate", c.name, cl.Record(), "error", lost)
	return ended, errors.Join(fmt.Errorf("%w: the claim on %s was lost while the function ran, so its outcome was not stored", ErrIndeterminate, c.name), lost, unmark(fnErr))
}

// indeterminate gives up a claim whose fn does not know what it has done. The record
// stays as it is: running, and soon without a claim.
func (c *call) indeterminate(cl driver.Claim, fnErr error) (ended <-chan struct{}, err error) {
	err = errors.Join(fmt.Errorf("%w: the function does not know what came of %s", ErrIndeterminate, c.name), unmark(fnErr))
	if lost := cl.Err(); lost != nil {
		c.g.met.claimLost()
		err = errors.Join(err, lost)
	}
	c.g.met.indeterminate()
	c.g.logKey(slog.LevelError, "indeterminate", c.name, cl.Record(), "error", fnErr)
	ended = cl.GiveUp(nil)
	c.awaitEnd(ended)
	return ended, err
}

// commitGrace is how long a commit may take after the call's ctx has ended.
const commitGrace = time.Second

// grace derives a ctx that goes on for commitGrace after the call's.
func (c *call) grace() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(c.ctx))
	stop := context.AfterFunc(c.ctx, func() {
		time.AfterFunc(commitGrace, func() { cancel(context.Cause(c.ctx)) })
	})
	return ctx, func() { stop(); cancel(nil) }
}

func (c *call) commit(cl driver.Claim, rec driver.Record) error {
	ctx, cancel := c.grace()
	defer cancel()
	start := time.Now()
	err := cl.Complete(ctx, rec)
	c.g.met.committed(time.Since(start))
	return err
}

// awaitEnd waits for a claim to end, so that the next call finds it gone.
func (c *call) awaitEnd(ended <-chan struct{}) {
	ctx, cancel := c.grace()
	defer cancel()
	select {
	case <-ended:
	case <-ctx.Done():
	case <-c.g.store.Closing():
	}
}

// notStored tells the truth about a commit that failed: the outcome of whoever came
// after, or that nobody knows.
func (c *call) notStored(cl driver.Claim, err error) (answer, error) {
	if errors.Is(err, driver.ErrClaimLost) {
		c.g.met.claimLost()
	}
	if errors.Is(err, driver.ErrClaimLost) || errors.Is(err, driver.ErrConflict) {
		ctx, cancel := c.grace()
		r, lookErr := c.g.store.Lookup(ctx, c.name, true)
		cancel()
		if lookErr == nil && r.State.Final() {
			c.g.logKey(slog.LevelWarn, "duplicate_detected", c.name, r, "error", err)
			return answer{rec: r, replayed: true}, replayError(r)
		}
	}
	c.g.met.indeterminate()
	c.g.logKey(slog.LevelError, "indeterminate", c.name, cl.Record(), "error", err)
	return answer{}, fmt.Errorf("%w: the function has run and its outcome for %s was not stored: %w", ErrIndeterminate, c.name, err)
}

// label is the outcome label of dedup_requests_total.
func label(a answer, err error) string {
	var failed *FailedError
	switch {
	case err == nil && a.replayed:
		return "replayed"
	case err == nil:
		return "executed"
	case errors.As(err, &failed) && failed.Replayed:
		return "failed_replayed"
	case errors.As(err, &failed):
		return "failed"
	}
	for _, known := range []struct {
		err   error
		label string
	}{
		{ErrKeyReused, "key_reused"}, {ErrInProgress, "in_progress"}, {ErrIndeterminate, "indeterminate"},
		{ErrOutcomeTooLarge, "too_large"}, {ErrNested, "nested"}, {ErrUnavailable, "unavailable"},
		{ErrKeyExpired, "key_expired"}, {ErrInvalidKey, "invalid"}, {ErrInvalidConfig, "invalid"},
		{ErrNewerFormat, "unusable"}, {ErrCorrupt, "unusable"}, {ErrClosed, "closed"},
	} {
		if errors.Is(err, known.err) {
			return known.label
		}
	}
	return "error" // fn's, or the end of ctx
}
