// Package driver is what package dedup asks of a storage: one record for each key,
// and one claim at a time on it. It knows nothing of codecs, of HTTP, or of
// ZooKeeper. A storage that passes package deduptest can be given to
// dedup.NewWithStore.
//
// Lock and record come from one store, so that the end of a claim and the record
// that it leaves are one transaction. Keys are what dedup.Key.String gives: not
// empty, printable, without '/', valid as one element of a ZooKeeper path, and of up
// to MaxKey bytes.
package driver

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// MaxKey bounds the keys that a store has to take, in bytes.
const MaxKey = 4 << 10

// Errors of a Store and of its Claims, for use with errors.Is. Every other error
// means that the store could not be asked, or did not answer; the guard asks again.
var (
	// ErrNotFound: the key has no record.
	ErrNotFound = errors.New("dedup store: no record")
	// ErrExists is matched by every *ExistsError.
	ErrExists = errors.New("dedup store: the record exists")
	// ErrClaimed: somebody else has the claim, or waits for it.
	ErrClaimed = errors.New("dedup store: somebody else has the claim")
	// ErrClaimLost: the claim is gone, so nothing was written.
	ErrClaimLost = errors.New("dedup store: the claim is gone")
	// ErrConflict: the record is not what it was when the claim read it, so nothing was
	// written.
	ErrConflict = errors.New("dedup store: the record was changed by somebody else")
	// ErrUnknown: the write may or may not have been carried out. A Begin with this
	// answer is undone in the background; its Claim is in UnknownError.
	ErrUnknown = errors.New("dedup store: not known whether it was written")
	// ErrNested: ctx carries a claim on the same key, or a lock on the same path.
	ErrNested = errors.New("dedup store: the context already holds this key")
	// ErrNewerFormat: a record that a newer build wrote. It is not touched.
	ErrNewerFormat = errors.New("dedup store: the record has a newer format")
	// ErrCorrupt is matched by every *CorruptError.
	ErrCorrupt = errors.New("dedup store: the record is corrupt")
	// ErrTooLarge: the record does not fit into the store. Nothing was written.
	ErrTooLarge = errors.New("dedup store: the record is too large")
	// ErrRefused: the store does not allow it, and will not when it is asked again.
	// Joined with the store's answer.
	ErrRefused = errors.New("dedup store: refused")
	// ErrClosed: the store is closed, or is being closed.
	ErrClosed = errors.New("dedup store: closed")
)

// UnknownError is a Begin that may have made a record. It matches ErrUnknown and its
// reason.
type UnknownError struct {
	Claim  string // Record.Claim of the record, if it was made
	Err    error
	Undone <-chan struct{} // closed when it has been undone, or the store is closed
}

func (e *UnknownError) Error() string { return ErrUnknown.Error() + ": " + e.Err.Error() }

// Unwrap returns ErrUnknown and the reason.
func (e *UnknownError) Unwrap() []error { return []error{ErrUnknown, e.Err} }

// ExistsError is a Begin that found a record, and did nothing. It matches ErrExists.
type ExistsError struct {
	Record Record // as read after that
}

func (e *ExistsError) Error() string { return ErrExists.Error() }

// Is makes errors.Is(err, ErrExists) true.
func (e *ExistsError) Is(target error) bool { return target == ErrExists }

// Store keeps the records. It is safe for concurrent use. ctx bounds every call.
type Store interface {
	// Available is nil if the store can be asked right now, and else why not.
	Available() error
	// Closing is closed when the store begins to be closed. Calls fail with ErrClosed
	// then.
	Closing() <-chan struct{}
	// Nested says whether ctx comes from a claim on key that is not over, or holds a
	// lock on its path, so that waiting for a claim would be waiting for itself.
	Nested(ctx context.Context, key string) bool

	// Lookup reads a record. With latest it shows every write that was answered before
	// the call; otherwise it may lag behind. ErrNotFound, ErrNewerFormat, ErrCorrupt.
	Lookup(ctx context.Context, key string, latest bool) (Record, error)

	// Begin makes the record and its claim in one transaction. The store sets
	// r.Claim. If a stranger holds the key without a record (a plain lock on its
	// path), it waits, or returns ErrClaimed with wait false. *ExistsError, ErrTooLarge,
	// ErrNewerFormat, ErrCorrupt; *UnknownError if it may have been made after all: the
	// store then opens it again in the background, with attempt 0.
	Begin(ctx context.Context, key string, r Record, wait bool) (Claim, error)

	// Queue waits for the claim on a record that exists, first come, first served; with
	// wait false it returns ErrClaimed instead of waiting, also for a claim whose end
	// this store has not been shown yet. ErrNotFound if there is no record (it makes
	// none), ErrNewerFormat, ErrCorrupt, ErrNested.
	Queue(ctx context.Context, key string, wait bool) (Claim, error)

	// Sweep removes the records whose retention is over, unless somebody else is doing
	// that right now or has just done it (ErrClaimed, see SweepOptions).
	Sweep(ctx context.Context, opts SweepOptions) (SweepReport, error)

	// Scan calls f for every record, in no order, until it fails. claimed says
	// whether somebody has the claim or waits for it. It shows every write that was
	// answered before the call. Records that cannot be read come with their error. One
	// that a sweep of the store has looked at meanwhile may come twice.
	Scan(ctx context.Context, f func(key string, r Record, claimed bool, err error) error) error

	// MaxOutcome is how many bytes of outcome a record of key can have at most.
	MaxOutcome(key string) int

	// Attrs is what a log line about key says of the store, such as where the record is
	// and on which connection; nil: nothing. It does not wait for the store.
	Attrs(key string) []slog.Attr
}

// Claim is the right to work on a key: exclusive, with a deadline that is proved
// again and again, that can be suspended and can be lost. It ends with Complete or
// GiveUp, one of which has to be called once the work has returned; until then a
// store that can do so keeps others away even if the claim is lost.
type Claim interface {
	// ID is what Record.Claim is set to by Begin, Renew and Complete.
	ID() string
	// Token grows strictly from claim to claim of a key, for as long as the store lives.
	Token() int64
	// Record is the record as the claim has read or written it last.
	Record() Record

	// Await is nil while the claim is held, waits while it is suspended, and fails
	// when it is lost or over. It compares the clock with the deadline.
	Await(ctx context.Context) error
	// Err is nil while the claim is held or suspended. It compares the clock too.
	Err() error
	// Deadline is when the claim is lost unless it is proved again.
	Deadline() time.Time
	// Bind derives a ctx that ends with ctx and with the claim.
	Bind(ctx context.Context) (context.Context, context.CancelFunc)

	// Renew writes r, if the claim and the record are as they were. The store sets
	// r.Claim and r.Token. ErrClaimLost, ErrConflict; ErrUnknown when ctx ends first.
	Renew(ctx context.Context, r Record) error
	// Complete writes r and ends the claim in one transaction, if both are as they
	// were; the store sets r.Claim and r.Token. An answer that was lost is found out.
	// ErrClaimLost, ErrConflict, ErrTooLarge: not written, and the claim is given up.
	// ErrUnknown when ctx ends first, or the store is closed: it goes on in the
	// background. A claim that this process has lost already is not completed.
	Complete(ctx context.Context, r Record) error
	// GiveUp ends the claim in the background. r is written with it in one
	// transaction, if the claim is still there and the record is as the claim wrote it
	// last; nil leaves the record. The store goes on until that is done or the claim is gone. The channel is
	// closed at the end.
	GiveUp(r *Record) <-chan struct{}
}

// SweepOptions of one pass.
type SweepOptions struct {
	// Interval is how often some process is to sweep. A store skips a pass (ErrClaimed) if
	// it can tell that another process has made one since it was last asked; 0: it does not
	// skip.
	Interval time.Duration
	Unknown  bool // sweep records whose outcome is unknown too
	// Evicted is called for each record that was removed, as it was: as often as
	// SweepReport.Swept says, one call after the other, before Sweep returns. It may call
	// the store. nil: nobody wants to know.
	Evicted func(key string, r Record)
}

// SweepReport is what one pass did.
type SweepReport struct {
	Swept     int       // records removed
	Moved     int       // due later than the index said, or in use
	Unknown   int       // left because their outcome is unknown
	Missing   int       // index entries whose record was gone before its time
	Unusable  int       // left because they cannot be read
	Records   int64     // all records of the index, -1 if not counted by this pass
	Time      time.Time // the store's
	Remaining bool      // the pass ended early
}
