package dedup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup/driver"
)

// flightKey is what callers in one process have to have in common to share a wait.
// Callers with another fingerprint fly by themselves, and are refused.
type flightKey struct {
	key    string
	print  string
	policy Policy
	noWait bool
}

// flight is the shared wait of callers of one key in this process. One goroutine looks
// the record up and queues for the claim. A claim goes to the first caller, whose
// function then runs; the others get what it stores, or the next claim.
type flight struct {
	g      *Guard
	id     flightKey
	key    Key
	fp     Fingerprint
	ctx    context.Context // ends when nobody waits any more
	cancel context.CancelFunc
	said   chan report // from the caller who runs

	// Guarded by g.mu.
	waiters []*waiter
	running bool
	queued  bool  // somebody else works on the key, as far as is known
	lastErr error // of the store, since it last answered

	// mine are claims of this flight that may stand in a record that says running,
	// though nothing has run under them. Only the flight's goroutine touches it.
	// The value is what the attempt before them left.
	mine map[string]*Prior
	// endings are of claims given up in the background. Close waits for them: a client
	// that is closed before would leave records that say running. Only the flight's
	// goroutine touches it.
	endings []<-chan struct{}
}

// waiter is a caller that waits. It gets one offer.
type waiter struct{ offers chan offer }

// offer is a claim to work under, a final record, or why there is neither.
type offer struct {
	work *work
	rec  driver.Record
	err  error
}

// work is a claim on a record that says running, by us.
type work struct {
	claim driver.Claim
	rec   driver.Record
	prior *Prior
}

// report is what became of work.
type report struct {
	stored bool
	rec    driver.Record
	unused *work           // nothing ran under it
	ended  <-chan struct{} // of the claim, if it was given up
}

// join adds a caller to the flight of its key, or starts one.
func (g *Guard) join(c *call) (*flight, *waiter, error) {
	id := flightKey{c.name, string(c.fp.sum), c.opts.policy, c.opts.noWait}
	w := &waiter{offers: make(chan offer, 1)}
	g.mu.Lock()
	defer g.mu.Unlock()
	f := g.flights[id]
	switch {
	case g.closed:
		return nil, nil, ErrClosed
	case f != nil && f.id.noWait && f.running:
		return nil, nil, ErrInProgress
	case f == nil:
		f = &flight{g: g, id: id, key: c.key, fp: c.fp, said: make(chan report, 1), mine: make(map[string]*Prior)}
		f.ctx, f.cancel = context.WithCancel(context.Background())
		g.flights[id] = f
		g.active++
		go f.fly()
	}
	f.waiters = append(f.waiters, w)
	return f, w, nil
}

// leave takes a caller out, unless it has its offer already.
func (f *flight) leave(w *waiter) bool {
	f.g.mu.Lock()
	defer f.g.mu.Unlock()
	i := slices.Index(f.waiters, w)
	if i < 0 {
		return false
	}
	f.waiters = slices.Delete(f.waiters, i, i+1)
	if len(f.waiters) == 0 && !f.running {
		f.overLocked()
	}
	return true
}

// overLocked lets the next caller start another flight.
func (f *flight) overLocked() {
	f.cancel()
	if f.g.flights[f.id] == f {
		delete(f.g.flights, f.id)
	}
}

// waitedFor says why a wait came to nothing when its limit was over.
func (f *flight) waitedFor() error {
	f.g.mu.Lock()
	queued, lastErr := f.queued || f.running, f.lastErr
	f.g.mu.Unlock()
	if err := f.g.store.Available(); err != nil {
		return unavailable(errors.Join(err, lastErr))
	}
	if queued {
		return fmt.Errorf("%w: %s", ErrInProgress, f.id.key)
	}
	if lastErr == nil {
		lastErr = errors.New("no answer in time")
	}
	return unavailable(lastErr)
}

// report tells the flight what became of the work. It is called once for each.
func (f *flight) report(r report) { f.said <- r }

// giveBack gives work up that nobody began.
func (f *flight) giveBack(w *work) {
	f.report(report{unused: w, ended: w.giveBack()})
}

// putBack makes a caller the next again who could not begin.
func (f *flight) putBack(w *waiter) {
	f.g.mu.Lock()
	defer f.g.mu.Unlock()
	f.waiters = slices.Insert(f.waiters, 0, w)
}

// fly serves the callers until none is left.
func (f *flight) fly() {
	defer f.g.end()
	defer func() {
		for _, ended := range f.endings {
			<-ended
		}
	}()
	defer f.cancel()
	for {
		o := f.obtain()
		if o.work == nil {
			f.broadcast(o)
			return
		}
		w := f.first()
		if w == nil { // everybody left in the meantime
			f.ending(o.work.giveBack())
			return
		}
		w.offers <- o
		r := <-f.said
		f.ending(r.ended)
		if r.stored {
			f.broadcast(offer{rec: r.rec})
			return
		}
		if w := r.unused; w != nil {
			f.mine[w.claim.ID()] = w.prior
		}
		f.g.mu.Lock()
		f.running = false
		left := len(f.waiters)
		if left == 0 {
			f.overLocked()
		}
		f.g.mu.Unlock()
		if left == 0 {
			return
		}
	}
}

// ending notes a claim that is given up in the background.
func (f *flight) ending(ended <-chan struct{}) {
	f.endings = slices.DeleteFunc(f.endings, func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	})
	if ended != nil {
		f.endings = append(f.endings, ended)
	}
}

// broadcast ends the flight with one offer for all.
func (f *flight) broadcast(o offer) {
	f.g.mu.Lock()
	waiters := f.waiters
	f.waiters = nil
	f.overLocked()
	f.g.mu.Unlock()
	for _, w := range waiters {
		w.offers <- o
	}
}

// first takes the caller out who is to work. Callers who do not want to wait for
// that are sent away.
func (f *flight) first() *waiter {
	f.g.mu.Lock()
	defer f.g.mu.Unlock()
	if len(f.waiters) == 0 {
		return nil
	}
	w := f.waiters[0]
	f.waiters = f.waiters[1:]
	f.running = true
	if f.id.noWait {
		for _, other := range f.waiters {
			other.offers <- offer{err: ErrInProgress}
		}
		f.waiters = nil
	}
	return w
}

// note keeps what the flight knows for callers whose wait ends.
func (f *flight) note(queued bool, err error) {
	f.g.mu.Lock()
	defer f.g.mu.Unlock()
	f.queued, f.lastErr = queued, err
}

// obtain gets a claim to work under, or a final record, or a reason why not.
func (f *flight) obtain() offer {
	g, key := f.g, f.id.key
	// A key that was seen has a record, most likely: a look is cheaper than a write that
	// fails.
	seen := g.hasSeen(key)
	made, dated := f.key.made()
	late := dated && g.cfg.Now().Sub(made) > g.cfg.Retention
	look, latest := seen || !g.cfg.ClaimFirst || late, len(f.mine) > 0
	var rec driver.Record
	have := false
	var pause backoff.BackOff // nil: nothing has failed
	for {
		if f.ctx.Err() != nil {
			return offer{err: context.Cause(f.ctx)}
		}
		var err error
		switch {
		case have:
			var o offer
			if o, err = f.claim(rec); o.work != nil || o.err != nil || o.rec.State != "" {
				return o
			}
			have = false
			if errors.Is(err, driver.ErrNotFound) {
				f.missed(rec)
				look, err = false, nil
			} else {
				look, latest = true, true
			}
		case look:
			rec, err = g.store.Lookup(f.ctx, key, latest)
			look, have = err != nil, err == nil
			if errors.Is(err, driver.ErrNotFound) {
				// A late retry is refused only if there is no record for certain.
				look, latest, err = late && !latest, late, nil
			}
		default:
			var o offer
			if late {
				g.met.lateRetry()
				return offer{err: fmt.Errorf("%w: %s was made at %v", ErrKeyExpired, key, made.UTC().Format(time.RFC3339))}
			}
			o, err = f.fresh()
			if o.work != nil || o.err != nil {
				return o
			}
			var exists *driver.ExistsError
			if errors.As(err, &exists) {
				rec, have, err = exists.Record, true, nil
			} else {
				look, latest = true, true
			}
		}
		if err == nil {
			continue
		}
		if o := f.final(err); o.err != nil {
			return o
		}
		f.note(false, err)
		if pause == nil {
			pause = newPause()
		}
		f.sleep(pause.NextBackOff())
	}
}

// final makes an offer of an error that asking again does not change.
func (f *flight) final(err error) offer {
	switch {
	case driver.Unusable(err):
		return offer{err: fmt.Errorf("dedup: %s: %w", f.id.key, err)}
	case errors.Is(err, driver.ErrClaimed):
		return offer{err: fmt.Errorf("%w: %s", ErrInProgress, f.id.key)}
	case errors.Is(err, driver.ErrNested):
		return offer{err: fmt.Errorf("%w: %s", ErrNested, f.id.key)}
	case errors.Is(err, driver.ErrRefused), errors.Is(err, driver.ErrTooLarge):
		return offer{err: unavailable(err)}
	case closed(err):
		return offer{err: fmt.Errorf("%w: %w", ErrClosed, err)}
	}
	return offer{}
}

// fresh makes the record of a key that has none.
func (f *flight) fresh() (offer, error) {
	g := f.g
	r := driver.Record{
		State: driver.Running, Attempt: 1, Fingerprint: f.fp.sum, Retention: g.cfg.Retention, Owner: g.cfg.Owner,
	}
	cl, err := g.store.Begin(f.ctx, f.id.key, r, false)
	if errors.Is(err, driver.ErrClaimed) && !f.id.noWait {
		f.note(true, nil) // a plain lock on the path
		cl, err = g.store.Begin(f.ctx, f.id.key, r, true)
		f.note(false, nil)
	}
	if err == nil {
		return offer{work: &work{claim: cl, rec: r}}, nil
	}
	var unknown *driver.UnknownError
	if errors.As(err, &unknown) {
		f.mine[unknown.Claim] = nil
		f.ending(unknown.Undone)
	}
	return offer{}, err
}

// missed counts a record that is gone though its time is not over.
func (f *flight) missed(r driver.Record) {
	if !r.Updated.IsZero() && f.g.cfg.Now().Before(r.Updated.Add(r.Retention)) {
		f.g.met.premature(1)
		f.g.logKey(slog.LevelWarn, "evicted", f.id.key, r, "error", "the record was removed before its retention was over")
	}
}

// claim does what a record asks for: an answer, or the queue. An empty offer with a nil
// error means: look again.
func (f *flight) claim(r driver.Record) (offer, error) {
	if !f.fp.matches(r.Fingerprint) {
		return offer{err: fmt.Errorf("%w: %s", ErrKeyReused, f.id.key)}, nil
	}
	if r.State.Final() {
		return offer{rec: r}, nil
	}
	f.note(true, nil)
	cl, err := f.g.store.Queue(f.ctx, f.id.key, !f.id.noWait)
	if err != nil {
		return offer{}, err
	}
	f.note(false, nil)
	return f.take(cl)
}

// take decides what a claim on a record is for.
func (f *flight) take(cl driver.Claim) (offer, error) {
	r := cl.Record()
	prior, mine := f.mine[r.Claim]
	unknown := r.State == driver.Running && !mine
	switch {
	case !f.fp.matches(r.Fingerprint):
		f.ending(cl.GiveUp(nil))
		return offer{err: fmt.Errorf("%w: %s", ErrKeyReused, f.id.key)}, nil
	case r.State.Final():
		f.ending(cl.GiveUp(nil))
		return offer{rec: r}, nil
	case unknown && f.id.policy == Refuse:
		ended := cl.GiveUp(nil)
		f.ending(ended)
		select {
		case <-ended:
		case <-f.ctx.Done():
		}
		f.g.met.indeterminate()
		f.g.logKey(slog.LevelWarn, "indeterminate", f.id.key, r)
		return offer{err: fmt.Errorf("%w: %s: attempt %d by %s, last heard of at %v; Resolve settles it", ErrIndeterminate, f.id.key, r.Attempt, r.Owner, r.Updated.UTC().Format(time.RFC3339))}, nil
	}
	next := r.Next(driver.Running)
	next.Owner = f.g.cfg.Owner
	if r.State != driver.Running || unknown {
		next.Attempt++
	}
	if len(next.Fingerprint) == 0 {
		next.Fingerprint = f.fp.sum
	}
	w := &work{claim: cl, rec: next, prior: prior}
	if r.Attempt > 0 && !(mine && r.State == driver.Running) {
		w.prior = &Prior{Attempt: r.Attempt, Token: zklock.Token(r.Token), Unknown: unknown, Message: r.Message, At: r.Updated}
	}
	if err := cl.Renew(f.ctx, next); err != nil {
		f.mine[cl.ID()] = w.prior
		if errors.Is(err, driver.ErrUnknown) || errors.Is(err, driver.ErrClaimLost) {
			f.ending(w.giveBack())
		} else {
			f.ending(cl.GiveUp(nil))
		}
		return offer{}, err
	}
	return offer{work: w}, nil
}

// giveBack gives a claim up under which nothing has run.
func (w *work) giveBack() <-chan struct{} {
	if w.prior != nil && w.prior.Unknown {
		return w.claim.GiveUp(nil) // as unknown as it was
	}
	open := w.rec.Next(driver.Open)
	open.Attempt = w.rec.Attempt - 1
	open.Message = "the claim was given up before anything ran"
	if w.prior != nil {
		open.Message = w.prior.Message
	}
	return w.claim.GiveUp(&open)
}

// newPause spaces out requests that fail though there seems to be a connection.
func newPause() backoff.BackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(5*time.Millisecond),
		backoff.WithMaxInterval(time.Second),
		backoff.WithMaxElapsedTime(0),
		backoff.WithRandomizationFactor(0),
	)
}

func (f *flight) sleep(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-f.ctx.Done():
	}
}
