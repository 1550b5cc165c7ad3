package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/examples/worker/payments"
)

// worker charges payment events, one session and one goroutine.
type worker struct {
	name   string
	client *zklock.Client
	root   string
	ledger *payments.Ledger
	log    *slog.Logger

	// The world outside. authorise stands in for asking somebody whether the account may be charged. wire is the way
	// of a charge to the ledger, like that of a request to a payment provider: once it is on its way no gate and no
	// ctx can take it back, and if this process is stopped there, only the token keeps the ledger right.
	authorise func(ctx context.Context, ev payments.Event) error
	wire      func(ev payments.Event)
}

// tally is what a worker did.
type tally struct {
	charged   int // by this worker
	already   int // events whose key had been charged, by any worker
	abandoned int // attempts that ended because the lock was lost
}

// run goes through all events, in an order of its own so that workers do not follow one another from lock to lock.
// When it returns nil, every event's key has been charged, by this worker or by another.
func (w *worker) run(ctx context.Context, events []payments.Event) (tally, error) {
	var t tally
	h := fnv.New64a()
	_, _ = h.Write([]byte(w.name))
	for _, i := range rand.New(rand.NewPCG(h.Sum64(), 0)).Perm(len(events)) {
		if err := w.settle(ctx, events[i], &t); err != nil {
			return t, fmt.Errorf("%s: event %q: %w", w.name, events[i].Key, err)
		}
	}
	return t, nil
}

// settle returns nil once ev's key has been charged.
func (w *worker) settle(ctx context.Context, ev payments.Event, t *tally) error {
	// Most duplicates end here, without a lock. A "no" is only a reason to look again under it.
	if charged, err := w.ledger.Charged(ev.Key); err != nil {
		return err
	} else if charged {
		t.already++
		return nil
	}
	element, err := zklock.EscapeKey(ev.Key)
	if err != nil {
		return err
	}
	mutex, err := zklock.NewInterProcessMutex(w.client, w.root+"/"+element, zklock.WithIdentifier(w.name))
	if err != nil {
		return err
	}
	for {
		charged := false
		err := mutex.Do(ctx, func(ctx context.Context, l *zklock.Lease) error {
			var err error
			charged, err = w.charge(ctx, l, ev)
			return err
		})
		switch {
		case charged: // perhaps with the lease lost right after; the ledger has it
			t.charged++
			return nil
		case err == nil:
			t.already++
			return nil
		case ctx.Err() == nil && !errors.Is(err, errForeignLedger) &&
			(errors.Is(err, zklock.ErrLost) || errors.Is(err, payments.ErrStale)):
			// Somebody else has the lock now, or will. What they did is in the ledger.
			w.log.Warn("lost the lock: the attempt is abandoned", "idempotency_key", ev.Key, "error", err)
			t.abandoned++
		default:
			return err
		}
	}
}

// charge is the business logic. It runs under the lock and passes a gate before each step that two must not take.
// Await pauses it while the connection is in doubt and ends it when the lease is lost; ctx ends then too, which
// cuts short what is under way.
func (w *worker) charge(ctx context.Context, l *zklock.Lease, ev payments.Event) (charged bool, err error) {
	if err := l.Await(ctx); err != nil {
		return false, err
	}
	already, err := w.ledger.Begin(ev.Key, l.Token(), w.name)
	if err != nil {
		return false, w.refused(ctx, l, ev, err)
	}
	if already {
		return false, nil
	}

	if err := l.Await(ctx); err != nil {
		return false, err
	}
	if err := w.authorise(ctx, ev); err != nil {
		return false, err
	}

	if err := l.Await(ctx); err != nil {
		return false, err
	}
	w.log.Info("charging", "idempotency_key", ev.Key, "token", l.Token().String())
	w.wire(ev)
	if err := w.ledger.Charge(ev, l.Token(), w.name); err != nil {
		return false, w.refused(ctx, l, ev, err)
	}
	w.log.Info("charged", "idempotency_key", ev.Key, "token", l.Token().String(), "amount", ev.Amount, "currency", ev.Currency)
	return true, nil
}

// errForeignLedger is returned when the ledger refuses the token of the lock's true holder.
var errForeignLedger = errors.New("the ledger holds tokens of another ensemble")

// refused says what it means that the ledger does not take our token. Normally the lease is gone, or is about to be
// when this client has not heard of it yet. If the ensemble says that it is still ours, the ledger has seen tokens of
// another ensemble, and no retry will help.
func (w *worker) refused(ctx context.Context, l *zklock.Lease, ev payments.Event, err error) error {
	if !errors.Is(err, payments.ErrStale) {
		return err
	}
	gate := l.Await(ctx)
	if gate == nil {
		if gate = l.Verify(ctx); gate == nil {
			gate = errForeignLedger
		}
	}
	w.log.Warn("the ledger refused a stale token", "idempotency_key", ev.Key, "token", l.Token().String(), "error", err, "gate", gate)
	return fmt.Errorf("%w; %w", err, gate)
}
