// Package claim lets package dedup make and give up lock nodes inside transactions
// of its own. A lock alone has no use for that, so it is not part of what package
// zklock exports; zklock fills Of in when it is imported.
package claim

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/prometheus/client_golang/prometheus"
)

// Of returns the hooks of a *zklock.Client.
var Of func(client any) Client

// ErrNested is returned by Acquire for a ctx that carries a lease of the same path:
// the wait would be for itself.
var ErrNested = errors.New("the context already carries a lease of this path")

// Client is what a store needs of a *zklock.Client. Paths include the chroot.
type Client interface { //nolint:interfacebloat // what one package needs of another, not an abstraction
	// Live waits for a session that is ready for requests.
	Live(ctx context.Context) (Session, error)
	// Acquire queues for the lock on dir, as InterProcessMutex.Acquire does, or
	// TryAcquire with try. It never makes dir: zk.ErrNoNode if it is not there. The
	// lease is pinned, see Lease.
	Acquire(ctx context.Context, dir string, try bool) (Lease, error)
	// Settle runs step in the background until it is done or the client is closed. The
	// channel is closed at the end.
	Settle(step Step) (ended <-chan struct{})
	// Carries says whether ctx carries a live lease on dir.
	Carries(ctx context.Context, dir string) bool
	// Definite says whether err is an answer of the ensemble, or a refusal to send the
	// request. Any other error leaves open whether it was carried out.
	Definite(err error) bool
	// Suspended says whether the client is without a connection right now, and why.
	Suspended() (bool, error)
	// Silence is how long a request of a lost session may still be carried out.
	Silence() time.Duration
	Closing() <-chan struct{}

	Chroot() string
	Root() string // Config.Root
	ACL() []zk.ACL
	MaxBuffer() int
	Logger() *slog.Logger
	Registerer() prometheus.Registerer // nil: none
}

// Step is one try of something that has to be done in the end. It is called again,
// after a pause and perhaps on another session, until it says that it is done.
type Step func(ctx context.Context, s Session) (done bool)

// Session is one session. Its requests fail when it is lost, and are bounded by ctx.
type Session interface { //nolint:interfacebloat // the same
	ID() int64
	Get(ctx context.Context, path string) ([]byte, *zk.Stat, error)
	Exists(ctx context.Context, path string) (bool, *zk.Stat, error)
	Children(ctx context.Context, path string) ([]string, error)
	Sync(ctx context.Context, path string) error
	Create(ctx context.Context, path string, data []byte) error // persistent
	Delete(ctx context.Context, path string, version int32) error
	Multi(ctx context.Context, ops ...any) ([]zk.MultiResponse, error)

	// Claim sends a transaction that makes the lock node of uuid in dir: ops gets the
	// create to put among the others. It returns the node and its token. settled is
	// closed when the library has answered, which may be after ctx has ended.
	Claim(ctx context.Context, dir, uuid string, ops func(create *zk.CreateRequest) []any) (n Node, results []zk.MultiResponse, settled <-chan struct{}, err error)
	// Find looks for the lock node of uuid with a view no older than the call.
	Find(ctx context.Context, dir, uuid string) (n Node, found bool, err error)
	// Hold makes a lease of a node of this session that is first in the queue of dir. The
	// lease is pinned. On an error the node is the caller's to remove.
	Hold(ctx context.Context, dir string, n Node) (Lease, error)
}

// Node is a lock node that exists.
type Node struct {
	Path  string
	Token int64 // its czxid
}

// Lease is a lease that somebody works under: it is pinned, so a loss keeps the node,
// and Close the session, until Commit has ended or Drop is called. One of them has
// to be.
type Lease interface {
	// Lease is the *zklock.Lease.
	Lease() any
	Node() Node
	UUID() string
	// Bind derives the ctx to work under: it ends with ctx and with the lease.
	Bind(ctx context.Context) (context.Context, context.CancelFunc)
	// Commit ends the lease by step, which has to delete the node, unless the lease is
	// lost: then it does nothing and returns the *zklock.LostError. ended is closed when
	// step is done, or the client closed.
	Commit(step Step) (ended <-chan struct{}, err error)
	// Drop ends the lease by step, lost or not; nil deletes the node. Nothing is done
	// about a node that is known to be gone.
	Drop(step Step) (ended <-chan struct{})
}

// FailedOp is the operation that a transaction failed for, with its error; -1 if it was
// carried out or failed as a whole.
func FailedOp(results []zk.MultiResponse, err error) (op int, opErr error) {
	if err == nil {
		return -1, nil
	}
	for i, r := range results {
		if r.Error != nil {
			return i, r.Error
		}
	}
	return -1, err
}
