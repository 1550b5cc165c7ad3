// Package zkstore keeps dedup's records in ZooKeeper.
//
//	<root>/<key>                       the record; persistent
//	<root>/<key>/_c_<uuid>-lock-…      the claim: a lock node as package zklock makes them
//	<root>-expiry/<time>-<shard>/…     the index for retention, see index.go
//
// A claim that is made with its record is first in the queue by construction, and
// ends in the transaction that writes the record. What the answer to a transaction
// says of its operations is believed only for the first that failed.
package zkstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup/driver"
	"github.com/go-zklock/zklock/internal/claim"
)

// Store is a driver.Store on a *zklock.Client.
type Store struct {
	client *zklock.Client
	c      claim.Client
	root   string // with the chroot
	index  string // with the chroot
	bare   string // index without the chroot
	now    func() time.Time

	mu     sync.Mutex
	passes int32 // version of the clock node when it was last seen; -1: never
}

var _ driver.Store = (*Store)(nil)

// New makes a store below root, which is a path as zklock.NewInterProcessMutex takes
// it. now is the wall clock that index entries are filed by; it does not have to be
// right (they are looked at with the ensemble's clock before anything is removed).
func New(c *zklock.Client, root string, now func() time.Time) (*Store, error) {
	if _, err := zklock.NewInterProcessMutex(c, root); err != nil {
		return nil, err
	}
	hooks := claim.Of(c)
	return &Store{
		client: c, c: hooks, now: now,
		root: hooks.Chroot() + root, index: hooks.Chroot() + root + indexSuffix, bare: root + indexSuffix,
		passes: -1,
	}, nil
}

// Available implements driver.Store.
func (st *Store) Available() error {
	if down, err := st.c.Suspended(); down {
		if err == nil {
			err = errors.New("the connection is suspended")
		}
		return st.refine(err)
	}
	return nil
}

// Closing implements driver.Store.
func (st *Store) Closing() <-chan struct{} { return st.c.Closing() }

// Nested implements driver.Store.
func (st *Store) Nested(ctx context.Context, key string) bool { return st.c.Carries(ctx, st.dir(key)) }

// refine gives the driver's names to errors of the client.
func (st *Store) refine(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, zklock.ErrClosed) && !errors.Is(err, driver.ErrClosed):
		return fmt.Errorf("%w: %w", driver.ErrClosed, err)
	case errors.Is(err, claim.ErrNested):
		return driver.ErrNested
	case errors.Is(err, zklock.ErrHeld):
		return driver.ErrClaimed
	case errors.Is(err, zk.ErrShortBuffer):
		return fmt.Errorf("%w: %w", driver.ErrTooLarge, err)
	}
	for _, refusal := range []error{zk.ErrNoAuth, zk.ErrInvalidACL, zk.ErrBadArguments, zk.ErrNoChildrenForEphemerals, zklock.ErrAuthFailed} {
		if errors.Is(err, refusal) {
			return fmt.Errorf("%w: %w", driver.ErrRefused, err)
		}
	}
	return err
}

// recordOverhead is what a commit needs of a request besides the outcome and three
// paths: the header of the record and of the operations.
const recordOverhead = 8 << 10

// MaxOutcome implements driver.Store.
func (st *Store) MaxOutcome(key string) int {
	return max(st.c.MaxBuffer()-recordOverhead-4*(len(st.dir(key))+64), 0)
}

// Attrs implements driver.Store. The fields are those of package zklock's lines.
func (st *Store) Attrs(key string) []slog.Attr {
	return []slog.Attr{
		slog.String("znode_path", st.dir(key)),
		slog.String("session_id", fmt.Sprintf("0x%x", uint64(st.client.SessionID()))),
	}
}

func (st *Store) dir(key string) string { return st.root + "/" + key }

// errPlain: the node is there and empty. It is the path of a plain lock, not a record.
var errPlain = fmt.Errorf("%w: the node is empty", driver.ErrNotFound)

// Lookup implements driver.Store.
func (st *Store) Lookup(ctx context.Context, key string, latest bool) (driver.Record, error) {
	s, err := st.c.Live(ctx)
	if err != nil {
		return driver.Record{}, st.refine(err)
	}
	return st.read(ctx, s, key, latest)
}

func (st *Store) read(ctx context.Context, s claim.Session, key string, latest bool) (driver.Record, error) {
	r, _, err := st.readStat(ctx, s, key, latest)
	return r, err
}

func (st *Store) readStat(ctx context.Context, s claim.Session, key string, latest bool) (driver.Record, *zk.Stat, error) {
	dir := st.dir(key)
	if latest {
		if err := s.Sync(ctx, dir); err != nil {
			return driver.Record{}, nil, st.refine(err)
		}
	}
	data, stat, err := s.Get(ctx, dir)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return driver.Record{}, nil, driver.ErrNotFound
	case err != nil:
		return driver.Record{}, nil, st.refine(err)
	case len(data) == 0:
		return driver.Record{}, stat, errPlain
	}
	r, err := driver.ParseRecord(data, dir)
	if err != nil {
		return driver.Record{}, stat, err
	}
	r.Version = int64(stat.Version)
	r.Created, r.Updated = time.UnixMilli(stat.Ctime), time.UnixMilli(stat.Mtime)
	if r.Token == 0 {
		r.Token = stat.Czxid // of the first claim, which was made in the same transaction
	}
	return r, stat, nil
}

// pause keeps a loop from spinning when the ensemble answers with what says nothing.
// The first tries are what an ordinary course may need.
func pause(ctx context.Context, tries int) {
	const free = 4
	if tries < free {
		return
	}
	t := time.NewTimer(min(5*time.Millisecond<<min(tries-free, 8), time.Second))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// ensure makes a persistent node and what is above it.
func ensure(ctx context.Context, s claim.Session, path string) error {
	for range 8 {
		err := s.Create(ctx, path, nil)
		switch {
		case err == nil || errors.Is(err, zk.ErrNodeExists):
			return nil
		case !errors.Is(err, zk.ErrNoNode):
			return err
		}
		up := path[:strings.LastIndexByte(path, '/')]
		if up == "" {
			return err
		}
		if err := ensure(ctx, s, up); err != nil {
			return err
		}
	}
	return fmt.Errorf("the parents of %s vanish again and again", path)
}
