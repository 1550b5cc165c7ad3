package dedup

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup/driver"
)

// Info is what is stored of a key.
type Info struct {
	Key         Key
	State       string        // running, open, done or failed
	Unknown     bool          // running, and nobody has the claim: fn may have run
	Claimed     bool          // somebody has the claim, or queues for it
	Attempt     int           // the current run, or the last
	Token       zklock.Token  // of the claim that wrote the record
	Owner       string        // who wrote it
	Message     string        // of a failure, or why the last attempt was given up
	Omitted     string        // why a done record has no outcome
	Outcome     []byte        // as the codec wrote it
	Fingerprint []byte        //
	Retention   time.Duration // counted from Updated
	Created     time.Time     // by the ensemble's clock
	Updated     time.Time     // by the ensemble's clock
	Err         error         // the record cannot be read; only Key is set
}

func info(key string, r driver.Record, claimed bool, err error) Info {
	k, keyErr := ParseKey(key)
	if keyErr != nil {
		k = Key{ID: key}
	}
	if err != nil {
		return Info{Key: k, Err: err}
	}
	return Info{
		Key: k, State: string(r.State), Unknown: r.State == driver.Running && !claimed, Claimed: claimed,
		Attempt: r.Attempt, Token: zklock.Token(r.Token), Owner: r.Owner, Message: r.Message, Omitted: r.Omitted,
		Outcome: r.Outcome, Fingerprint: r.Fingerprint, Retention: r.Retention, Created: r.Created, Updated: r.Updated,
	}
}

// Lookup reads the record of a key, after a sync: two requests. ErrNotFound if there
// is none. Unknown and Claimed are not looked at; see Records.
func (g *Guard) Lookup(ctx context.Context, k Key) (Info, error) {
	if err := k.validate(); err != nil {
		return Info{}, err
	}
	r, err := g.store.Lookup(ctx, k.String(), true)
	if err != nil {
		return Info{}, fmt.Errorf("dedup: look up %s: %w", k, err)
	}
	i := info(k.String(), r, false, nil)
	i.Unknown = false
	return i, nil
}

// Records goes through all records, in no order. It reads each of them, a bucket of the
// index at a time. One that is not over, and that the sweeper has looked at meanwhile, may
// come twice. It ends with an error if the store cannot be asked.
func (g *Guard) Records(ctx context.Context) iter.Seq2[Info, error] {
	stop := errors.New("stop")
	return func(yield func(Info, error) bool) {
		err := g.store.Scan(ctx, func(key string, r driver.Record, claimed bool, err error) error {
			if !yield(info(key, r, claimed, err), nil) {
				return stop
			}
			return nil
		})
		if err != nil && !errors.Is(err, stop) {
			yield(Info{}, fmt.Errorf("dedup: records: %w", err))
		}
	}
}

// Unresolved goes through the records whose outcome is unknown: what Resolve is for.
// It costs what Records does. One whose holder is just giving up may be among them.
func (g *Guard) Unresolved(ctx context.Context) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		for i, err := range g.Records(ctx) {
			if (err != nil || i.Unknown) && !yield(i, err) {
				return
			}
		}
	}
}

// Resolution is what is made of an unknown outcome.
type Resolution struct {
	state   driver.State
	value   any
	encoded []byte
	message string
}

// Completed says that the work was done, and with what outcome; duplicates get it.
func Completed(v any) Resolution { return Resolution{state: driver.Done, value: v} }

// CompletedBytes is Completed with an outcome as the codec writes it.
func CompletedBytes(outcome []byte) Resolution {
	return Resolution{state: driver.Done, encoded: append([]byte{}, outcome...)}
}

// FailedWith says that the work failed for good; duplicates get a *FailedError.
func FailedWith(message string) Resolution {
	return Resolution{state: driver.Failed, message: message}
}

// NotDone says that the work was not done: the next call runs it.
func NotDone() Resolution { return Resolution{state: driver.Open, message: "resolved as not done"} }

// Resolve settles a record whose outcome is unknown, after queueing for its claim, so
// nobody works on it meanwhile. ctx bounds the wait, and so does Close. ErrDetermined if the record is
// open, done or failed; ErrNotFound if there is none; ErrOutcomeTooLarge.
func (g *Guard) Resolve(ctx context.Context, k Key, res Resolution) error {
	if err := k.validate(); err != nil {
		return err
	}
	outcome := res.encoded
	switch {
	case res.state == "":
		return fmt.Errorf("%w: the resolution is empty: use Completed, FailedWith or NotDone", ErrInvalidConfig)
	case res.state == driver.Done && outcome == nil:
		var err error
		if outcome, err = g.cfg.marshal(res.value); err != nil {
			return fmt.Errorf("%w: the outcome cannot be encoded: %w", ErrInvalidConfig, err)
		}
	}
	name := k.String()
	if limit := min(g.cfg.MaxOutcome, g.store.MaxOutcome(name)); len(outcome) > limit {
		return fmt.Errorf("%w: it has %d bytes, the limit is %d", ErrOutcomeTooLarge, len(outcome), limit)
	}
	if g.store.Nested(ctx, name) {
		return fmt.Errorf("%w: %s", ErrNested, name)
	}
	if err := g.begin(); err != nil {
		return err
	}
	defer g.end()
	waiting, cancel := g.untilClosed(ctx)
	cl, err := g.queueFor(waiting, name)
	cancel()
	if err != nil {
		return fmt.Errorf("dedup: resolve %s: %w", name, err)
	}
	r := cl.Record()
	if r.State != driver.Running {
		cl.GiveUp(nil)
		return fmt.Errorf("%w: %s is %s", ErrDetermined, name, r.State)
	}
	next := r.Next(res.state)
	next.Outcome, next.Message = outcome, message(errors.New(res.message))
	next.Owner = g.cfg.Owner
	if err := cl.Complete(ctx, next); err != nil {
		return fmt.Errorf("dedup: resolve %s: %w", name, err)
	}
	g.logKey(slog.LevelInfo, "resolved", name, next)
	return nil
}

// queueFor waits for the claim on a record, whatever happens to the connection.
func (g *Guard) queueFor(ctx context.Context, name string) (driver.Claim, error) {
	pause := newPause()
	for {
		cl, err := g.store.Queue(ctx, name, true)
		switch {
		case err == nil:
			return cl, nil
		case driver.Unusable(err), errors.Is(err, driver.ErrNotFound), errors.Is(err, driver.ErrRefused), closed(err):
			return nil, err
		case ctx.Err() != nil:
			return nil, errors.Join(context.Cause(ctx), err)
		}
		select {
		case <-time.After(pause.NextBackOff()):
		case <-ctx.Done():
		}
	}
}
