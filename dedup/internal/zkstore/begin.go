package zkstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"

	"github.com/go-zklock/zklock/dedup/driver"
	"github.com/go-zklock/zklock/internal/claim"
)

// beginning is one call of Begin.
type beginning struct {
	st   *Store
	key  string
	dir  string
	id   string // uuid of the claim; the same for every try, so that a late one fails
	rec  driver.Record
	data []byte
	wait bool

	session claim.Session // that an unanswered try was sent on; nil: none was
	// settled is closed when the library has answered that try.
	settled <-chan struct{}
	// plain is our lock on the node, which is there and empty: the path of a plain lock.
	// It goes in the same transaction.
	plain claim.Lease
}

// Begin implements driver.Store.
func (st *Store) Begin(ctx context.Context, key string, r driver.Record, wait bool) (driver.Claim, error) {
	b := &beginning{st: st, key: key, dir: st.dir(key), id: uuid.NewString(), rec: r, wait: wait}
	b.rec.Claim = b.id
	var err error
	if b.data, err = b.rec.MarshalBinary(); err != nil {
		return nil, err
	}
	if st.c.Carries(ctx, b.dir) {
		return nil, driver.ErrNested
	}
	defer b.dropPlain()
	for tries := 1; ; tries++ {
		c, err := b.try(ctx)
		if err == nil && c == nil {
			if ctx.Err() == nil {
				pause(ctx, tries)
				continue
			}
			err = context.Cause(ctx)
		}
		if err == nil {
			return c, nil
		}
		if b.session != nil && !errors.Is(err, driver.ErrExists) {
			return nil, &driver.UnknownError{Claim: b.id, Err: err, Undone: st.abandon(key, b.id, b.settled)}
		}
		return nil, st.refine(err)
	}
}

// try makes one try. It returns neither a claim nor an error to be called again.
func (b *beginning) try(ctx context.Context) (driver.Claim, error) {
	s, err := b.st.c.Live(ctx)
	if err != nil {
		return nil, err
	}
	if b.session != nil {
		if s != b.session {
			// What was sent on the lost session may be there, with a claim that is going.
			return nil, errors.New("the session was lost before the answer came")
		}
		if c, err := b.findOut(ctx, s); c != nil || err != nil {
			return c, err
		}
	}
	bucket, entry := b.st.entryFor(b.key, b.rec)
	n, results, settled, err := s.Claim(ctx, b.dir, b.id, func(create *zk.CreateRequest) []any {
		var ops []any
		if b.plain != nil {
			// As long as our lock node is in it, it is the node that was read, and not a
			// record that somebody has put in its place.
			ops = append(ops, &zk.DeleteRequest{Path: b.plain.Node().Path, Version: -1}, &zk.DeleteRequest{Path: b.dir, Version: -1})
		}
		return append(ops,
			&zk.CreateRequest{Path: b.dir, Data: b.data, Acl: b.st.c.ACL()},
			create,
			&zk.CreateRequest{Path: entry, Data: []byte(b.key), Acl: b.st.c.ACL()})
	})
	if err == nil {
		b.dropPlain()
		return b.hold(ctx, s, n)
	}
	op, err := claim.FailedOp(results, err)
	first := 0
	if b.plain != nil {
		first = 2
		select {
		case <-b.dropPlain():
		case <-ctx.Done():
		}
	}
	switch {
	case op < 0 && b.st.c.Definite(err):
		if errors.Is(err, zk.ErrShortBuffer) {
			return nil, err
		}
		return nil, nil // not sent: the connection went, or ctx ended
	case op < 0:
		b.session, b.settled = s, settled
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, nil
	case first > 0 && op == 0 && errors.Is(err, zk.ErrNoNode):
		return nil, nil // our lock is gone
	case op == 1 && first > 0 && errors.Is(err, zk.ErrNotEmpty):
		if !b.wait {
			return nil, driver.ErrClaimed
		}
		return nil, nil // somebody queues behind us: after him
	case op == first && errors.Is(err, zk.ErrNodeExists):
		return b.exists(ctx, s)
	case op == first && errors.Is(err, zk.ErrNoNode):
		return nil, ignoreTransient(ctx, b.st, ensure(ctx, s, b.st.root))
	case op == first+2 && errors.Is(err, zk.ErrNoNode):
		return nil, ignoreTransient(ctx, b.st, ensure(ctx, s, bucket))
	}
	return nil, fmt.Errorf("make the record %s: operation %d: %w", b.dir, op, err)
}

// ignoreTransient is nil for an error that says nothing: the next try will.
func ignoreTransient(ctx context.Context, st *Store, err error) error {
	if ctx.Err() == nil && st.c.Definite(err) {
		return err
	}
	return nil
}

// exists finds out what stands in the way. The failed create has been through the
// quorum, so a read on the same session sees what it saw.
func (b *beginning) exists(ctx context.Context, s claim.Session) (driver.Claim, error) {
	r, err := b.st.read(ctx, s, b.key, false)
	switch {
	case errors.Is(err, errPlain):
		return nil, b.lockPlain(ctx)
	case errors.Is(err, driver.ErrNotFound):
		return nil, nil // swept since
	case driver.Unusable(err):
		return nil, err
	case err != nil:
		return nil, ignoreTransient(ctx, b.st, err)
	case r.Claim == b.id:
		return nil, nil // an unanswered try was applied: findOut adopts it
	}
	return nil, &driver.ExistsError{Record: r}
}

// findOut looks what came of a try on this session that was not answered.
func (b *beginning) findOut(ctx context.Context, s claim.Session) (driver.Claim, error) {
	r, err := b.st.read(ctx, s, b.key, true)
	switch {
	case errors.Is(err, driver.ErrNotFound):
		return nil, nil // it was not carried out; if it still will be, the next try finds it
	case driver.Unusable(err):
		return nil, err
	case err != nil:
		return nil, ignoreTransient(ctx, b.st, err)
	case r.Claim != b.id:
		return nil, &driver.ExistsError{Record: r}
	}
	n, found, err := s.Find(ctx, b.dir, b.id)
	switch {
	case err != nil:
		return nil, ignoreTransient(ctx, b.st, err)
	case !found:
		return nil, errors.New("the record was made and its claim is gone")
	}
	b.rec = r
	return b.hold(ctx, s, n)
}

// hold takes the claim. From here on the record is there.
func (b *beginning) hold(ctx context.Context, s claim.Session, n claim.Node) (driver.Claim, error) {
	if b.session == nil {
		b.session = s
	}
	l, err := s.Hold(ctx, b.dir, n)
	if err != nil {
		return nil, err
	}
	r := b.rec
	r.Token = n.Token
	return &zkClaim{st: b.st, key: b.key, dir: b.dir, l: l, rec: r, version: int32(r.Version)}, nil
}

// lockPlain takes the lock on a node that is empty, after those who queue for it as a
// plain lock.
func (b *beginning) lockPlain(ctx context.Context) error {
	l, err := b.st.c.Acquire(ctx, b.dir, !b.wait)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return nil // reaped
	case err != nil:
		return err
	}
	b.plain = l
	s, err := b.st.c.Live(ctx)
	if err == nil {
		_, err = b.st.read(ctx, s, b.key, false)
	}
	if !errors.Is(err, errPlain) || leaseOf(l).Err() != nil {
		b.dropPlain() // a record by now, or not known
	}
	return nil
}

// dropPlain gives our lock on an empty node up, if there is one.
func (b *beginning) dropPlain() (ended <-chan struct{}) {
	if b.plain == nil {
		return nil
	}
	ended = b.plain.Drop(nil)
	b.plain = nil
	return ended
}

// abandon opens a record again that a Begin may have made and whose claim nobody
// took. fn has not run, so that is the truth.
func (st *Store) abandon(key, id string, settled <-chan struct{}) (undone <-chan struct{}) {
	a := &abandoned{st: st, key: key, dir: st.dir(key), id: id, settled: settled, until: time.Now().Add(st.c.Silence())}
	return st.c.Settle(a.step)
}

type abandoned struct {
	st      *Store
	key     string
	dir     string
	id      string
	settled <-chan struct{} // nil: nothing is in flight
	until   time.Time       // what was sent before may be carried out until then
}

func (a *abandoned) step(ctx context.Context, s claim.Session) (done bool) {
	if a.settled != nil {
		select {
		case <-a.settled:
		case <-ctx.Done():
			return false
		}
	}
	r, err := a.st.read(ctx, s, a.key, true)
	switch {
	case errors.Is(err, driver.ErrNotFound):
		// A server that was stopped may yet carry it out: look again until it cannot.
		return time.Now().After(a.until)
	case driver.Unusable(err):
		return true
	case err != nil:
		return false
	case r.Claim != a.id || r.State != driver.Running || r.Version != 0:
		return true
	}
	n, found, err := s.Find(ctx, a.dir, a.id)
	if err != nil {
		return false
	}
	open := r.Next(driver.Open)
	open.Attempt, open.Claim = 0, a.id
	open.Message = "the claim was given up before anything ran"
	data, err := open.MarshalBinary()
	if err != nil {
		return true
	}
	ops := []any{&zk.SetDataRequest{Path: a.dir, Data: data, Version: 0}}
	if found {
		ops = append(ops, &zk.DeleteRequest{Path: n.Path, Version: -1})
	}
	_, err = s.Multi(ctx, ops...)
	return err == nil
}
