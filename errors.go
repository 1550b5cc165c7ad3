package zklock

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
)

// Errors of this package, all for use with errors.Is.
var (
	// ErrHeld is what TryAcquire returns when somebody else holds the lock or
	// waits for it. A node that it made before it saw the other's is being deleted.
	ErrHeld = errors.New("zklock: the lock is held")
	// ErrLost is matched by every *LostError.
	ErrLost = errors.New("zklock: the lease is lost")
	// ErrReleased is what a lease answers after Release, and the cause of its
	// context's end.
	ErrReleased = errors.New("zklock: the lease was released")
	// ErrNotAcquired is what Acquire returns when it gives up. It is always joined
	// with the reason: context.Cause of the caller's ctx, or the ensemble's answer.
	ErrNotAcquired = errors.New("zklock: not acquired")
	// ErrClosed is what calls on a closed Client return, and calls that wait while
	// it is being closed.
	ErrClosed = errors.New("zklock: the client is closed")
	// ErrInvalidPath is matched by every error about a path or a key that cannot
	// be used. The message names the value and the rule.
	ErrInvalidPath = errors.New("zklock: invalid path")
	// ErrInvalidConfig is matched by every error about a Config or an option. The
	// message names the field, the value and the rule.
	ErrInvalidConfig = errors.New("zklock: invalid config")
	// ErrAuthFailed is matched when the ensemble refuses the credentials of
	// Config.Auth.
	ErrAuthFailed = errors.New("zklock: the ensemble refused the credentials")
	// ErrPending is what Release returns, joined with the reason, when its ctx ends
	// before the ensemble confirmed that the node is gone, or the ensemble refuses to
	// delete it. The lease is over
	// for this process all the same; the client goes on deleting the node, and
	// Release may be called again to wait for it.
	ErrPending = errors.New("zklock: the node is not confirmed to be gone yet")
)

// Reason says why a lease was lost.
type Reason string

// The reasons of a LostError. They are also the values of the label reason of
// zklock_lost_total.
const (
	// SessionExpired: the ensemble said that the session is over.
	SessionExpired Reason = "session_expired"
	// SessionReplaced: a server answered a reconnect with another session, so the
	// old one can no longer be used.
	SessionReplaced Reason = "session_replaced"
	// TrustExpired: the trust deadline passed without a new proof. The ensemble
	// may still have the session; this process can no longer know.
	TrustExpired Reason = "trust_expired"
	// NodeDeleted: the lock node is gone, and nothing said that its session is over:
	// somebody deleted it by hand. A session that the ensemble ends while its
	// connection stands (an operator who kills sessions) can show itself this way too,
	// since the watch on the node is quicker.
	NodeDeleted Reason = "node_deleted"
	// ClientClosed: Client.Close was called.
	ClientClosed Reason = "client_closed"
	// AuthFailed: the ensemble refused the credentials on a reconnect.
	AuthFailed Reason = "auth_failed"
	// Revoked: the lease was asked for with WithRevocable, and somebody revoked
	// it (InterProcessMutex.Revoke, or Curator's Revoker).
	Revoked Reason = "revoked"
)

// LostError says which lease was lost, why and when. It matches ErrLost.
type LostError struct {
	Path   string    // the lock node
	Token  Token     // its token
	Reason Reason    //
	At     time.Time // when this process took it for lost
	Err    error     // what was behind it, or nil
}

// Error names the node, the token and the reason.
func (e *LostError) Error() string {
	s := fmt.Sprintf("zklock: lost %s (token %s): %s", e.Path, e.Token, e.Reason)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Is makes errors.Is(err, ErrLost) true.
func (e *LostError) Is(target error) bool { return target == ErrLost }

// Unwrap returns Err.
func (e *LostError) Unwrap() error { return e.Err }

// notAcquired joins ErrNotAcquired with its reason.
func notAcquired(reason error) error {
	if errors.Is(reason, ErrNotAcquired) {
		return reason
	}
	return fmt.Errorf("%w: %w", ErrNotAcquired, reason)
}

// invalidPath makes an error that matches ErrInvalidPath and shows the value,
// shortened when it is long.
func invalidPath(kind, value, rule string) error {
	return fmt.Errorf("%w: %s %s: %s", ErrInvalidPath, kind, shorten(value), rule)
}

func shorten(value string) string {
	const most = 80
	if len(value) <= most {
		return fmt.Sprintf("%q", value)
	}
	return fmt.Sprintf("%q… (%d bytes)", value[:most], len(value))
}

// answered says whether err is a definite answer to a request: the ensemble's, or a
// refusal of the library to send it. Any other error leaves open whether the request
// was carried out: the connection may have gone after the server applied it.
func answered(err error) bool {
	for _, definite := range []error{
		nil, zk.ErrNoNode, zk.ErrNodeExists, zk.ErrNoAuth, zk.ErrBadVersion, zk.ErrNotEmpty,
		zk.ErrNoChildrenForEphemerals, zk.ErrInvalidACL, zk.ErrBadArguments,
		zk.ErrShortBuffer, zk.ErrInvalidPath, zk.ErrInvalidFlags,
	} {
		if errors.Is(err, definite) {
			return true
		}
	}
	return false
}

// unknownCode says whether err is an error code that the library has no name for: an
// answer, of which nobody can say whether the request was carried out.
func unknownCode(err error) bool {
	for _, code := range []error{zk.ErrAPIError, zk.ErrAuthFailed, zk.ErrNothing, zk.ErrReconfigDisabled} {
		if errors.Is(err, code) {
			return true
		}
	}
	return err != nil && (errors.Is(err, errOversize) || strings.Contains(err.Error(), "unknown error: "))
}

// errOversize is an answer that was not taken. Sent again, the request would get the
// same.
var errOversize = errors.New("the reply is too large")

// errNotSent marks requests that were given up before they were handed to the
// client library.
var errNotSent = errors.New("the request was not sent")
