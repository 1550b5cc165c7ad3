package dedup

import (
	"errors"
	"fmt"
	"strings"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup/driver"
)

// Errors of this package, all for use with errors.Is.
var (
	// ErrInvalidKey: the key is empty, too long or unprintable. The message names the
	// part and the rule.
	ErrInvalidKey = errors.New("dedup: invalid key")
	// ErrInvalidConfig: a Config, an Option or a Fingerprint that breaks a rule.
	ErrInvalidConfig = errors.New("dedup: invalid config")
	// ErrKeyReused: the key has a record of a call with another fingerprint.
	ErrKeyReused = errors.New("dedup: the key was used with another payload")
	// ErrInProgress: somebody else works on the key, and WaitLimit is over, or the call
	// had NoWait.
	ErrInProgress = errors.New("dedup: the key is being worked on")
	// ErrIndeterminate: fn may have run, and nobody knows what came of it. It is what a
	// call gets that finds such a record under Refuse, and the call whose own outcome
	// could not be stored. See Guard.Resolve.
	ErrIndeterminate = errors.New("dedup: the outcome is unknown")
	// ErrOutcomeTooLarge: fn has succeeded and its outcome does not fit, or cannot be
	// encoded. It will not run again: the record says that it is done, without the
	// outcome, and duplicates get this error too.
	ErrOutcomeTooLarge = errors.New("dedup: the outcome cannot be stored")
	// ErrFailed is matched by every *FailedError.
	ErrFailed = errors.New("dedup: failed for good")
	// ErrNested: the ctx of the call belongs to a call for the same key, or holds a
	// lock on the record's path. It would wait for itself.
	ErrNested = errors.New("dedup: a call for this key is already under way in this context")
	// ErrUnavailable: the ensemble cannot be asked, so this call has run nothing. What
	// others have done for the key is not known. Joined with the reason.
	ErrUnavailable = errors.New("dedup: the ensemble cannot be asked")
	// ErrKeyExpired: the key carries a time (UUIDv7) that is longer ago than the
	// retention, and there is no record: a late retry of something that may have been
	// done.
	ErrKeyExpired = errors.New("dedup: the key is older than the retention")
	// ErrClosed: the guard, or the client below it, is closed.
	ErrClosed = errors.New("dedup: the guard is closed")
	// ErrDetermined is what Resolve returns for a record that is not unknown.
	ErrDetermined = errors.New("dedup: the outcome of this key is not unknown")
	// ErrNewerFormat: the record was written by a newer build. It is not touched.
	ErrNewerFormat = driver.ErrNewerFormat
	// ErrCorrupt: the record cannot be read. The message names the node. It is not
	// touched.
	ErrCorrupt = driver.ErrCorrupt
	// ErrNotFound is what Resolve and Lookup return for a key without a record.
	ErrNotFound = driver.ErrNotFound
)

// FailedError is a stored failure: what fn returned as Permanent. It matches ErrFailed.
type FailedError struct {
	Message  string // the text of the error
	Replayed bool   // from the store; false for the call whose fn returned it
	Err      error  // what fn returned, with the same text and matches; nil if Replayed
}

// Error says that it failed for good, and then Message.
func (e *FailedError) Error() string { return "dedup: failed for good: " + e.Message }

// Is makes errors.Is(err, ErrFailed) true.
func (e *FailedError) Is(target error) bool { return target == ErrFailed }

// Unwrap returns Err.
func (e *FailedError) Unwrap() error { return e.Err }

// Permanent marks an error of fn as the outcome: it is stored, every duplicate gets it
// as a *FailedError, and fn is not run again. Only its text is stored, up to 4 KiB.
// Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Indeterminate marks an error of fn that leaves open whether it had its effect: the
// bank did not answer in time. The record then says so, as it does when the process
// dies: the call gets ErrIndeterminate joined with err, duplicates are treated by
// Policy, and Resolve settles it. Indeterminate(nil) is nil.
func Indeterminate(err error) error {
	if err == nil {
		return nil
	}
	return &indeterminateError{err}
}

type indeterminateError struct{ err error }

func (e *indeterminateError) Error() string { return e.err.Error() }
func (e *indeterminateError) Unwrap() error { return e.err }

// unmarked is an error of fn as Do returns it: without the marks Permanent and
// Indeterminate, which are about this key. Where it is returned by the fn of another
// call, they say nothing of that one's.
type unmarked struct{ err error }

func unmark(err error) error {
	if err == nil {
		return nil
	}
	return unmarked{err}
}

func (e unmarked) Error() string { return e.err.Error() }

func (e unmarked) Is(target error) bool { return errors.Is(e.err, target) }

func (e unmarked) As(target any) bool {
	switch target.(type) {
	case **permanentError, **indeterminateError:
		return false
	}
	return errors.As(e.err, target)
}

const maxMessage = 4 << 10

// message is the text of an error as it goes into a record.
func message(err error) string {
	s := strings.ToValidUTF8(err.Error(), "\uFFFD")
	if len(s) <= maxMessage {
		return s
	}
	return strings.ToValidUTF8(s[:maxMessage], "")
}

func invalid(base error, what string, value any, rule string) error {
	return fmt.Errorf("%w: %s %s: %s", base, what, quote(value), rule)
}

// quote shows a value, shortened when it is long.
func quote(value any) string {
	s, ok := value.(string)
	if !ok {
		return fmt.Sprint(value)
	}
	const most = 80
	if len(s) <= most {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%q… (%d bytes)", s[:most], len(s))
}

// closed says whether err means that the guard, or the store below it, is closed.
func closed(err error) bool {
	return errors.Is(err, driver.ErrClosed) || errors.Is(err, zklock.ErrClosed) || errors.Is(err, ErrClosed)
}
