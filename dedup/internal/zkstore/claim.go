package zkstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup/driver"
	"github.com/go-zklock/zklock/internal/claim"
)

// zkClaim is a driver.Claim: a lock node in the record's node.
type zkClaim struct {
	st  *Store
	key string
	dir string
	l   claim.Lease

	mu      sync.Mutex
	rec     driver.Record
	version int32
	unsure  bool // a Renew was not answered
}

// Queue implements driver.Store.
func (st *Store) Queue(ctx context.Context, key string, wait bool) (driver.Claim, error) {
	l, err := st.c.Acquire(ctx, st.dir(key), !wait)
	if errors.Is(err, zk.ErrNoNode) {
		return nil, driver.ErrNotFound
	}
	if err != nil {
		return nil, st.refine(err)
	}
	for tries := 1; ; tries++ {
		pause(ctx, tries)
		s, err := st.c.Live(ctx)
		if err == nil {
			// On the session that made the claim, so it sees what the last holder wrote.
			var r driver.Record
			// A read after the loss of the claim says nothing: somebody may work on the key.
			if r, err = st.read(ctx, s, key, false); err == nil && leaseOf(l).Err() == nil {
				return &zkClaim{st: st, key: key, dir: st.dir(key), l: l, rec: r, version: int32(r.Version)}, nil
			}
		}
		lost := leaseOf(l).Err()
		if lost == nil && err != nil && ctx.Err() == nil && !st.c.Definite(err) && !driver.Unusable(err) && !errors.Is(err, driver.ErrNotFound) {
			continue // the connection broke
		}
		l.Drop(nil)
		return nil, st.refine(errors.Join(err, lost))
	}
}

func leaseOf(l claim.Lease) *zklock.Lease { return l.Lease().(*zklock.Lease) }

func (z *zkClaim) lease() *zklock.Lease { return leaseOf(z.l) }

// ID implements driver.Claim.
func (z *zkClaim) ID() string { return z.l.UUID() }

// Token implements driver.Claim.
func (z *zkClaim) Token() int64 { return z.l.Node().Token }

// Record implements driver.Claim.
func (z *zkClaim) Record() driver.Record {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.rec
}

// Await implements driver.Claim.
func (z *zkClaim) Await(ctx context.Context) error { return z.lease().Await(ctx) }

// Err implements driver.Claim.
func (z *zkClaim) Err() error { return z.lease().Err() }

// Deadline implements driver.Claim.
func (z *zkClaim) Deadline() time.Time { return z.lease().Deadline() }

// Bind implements driver.Claim.
func (z *zkClaim) Bind(ctx context.Context) (context.Context, context.CancelFunc) {
	return z.l.Bind(ctx)
}

// sign puts the claim's name to a record and encodes it.
func (z *zkClaim) sign(r driver.Record) (driver.Record, []byte, error) {
	r.Claim, r.Token = z.ID(), z.Token()
	data, err := r.MarshalBinary()
	return r, data, err
}

func (z *zkClaim) check() *zk.CheckVersionRequest {
	return &zk.CheckVersionRequest{Path: z.l.Node().Path, Version: -1}
}

func (z *zkClaim) remove() *zk.DeleteRequest {
	return &zk.DeleteRequest{Path: z.l.Node().Path, Version: -1}
}

// Renew implements driver.Claim.
func (z *zkClaim) Renew(ctx context.Context, r driver.Record) error {
	z.mu.Lock()
	defer z.mu.Unlock()
	r, data, err := z.sign(r)
	if err != nil {
		return err
	}
	for tries := 1; ; tries++ {
		pause(ctx, tries)
		if err := z.Err(); err != nil {
			return fmt.Errorf("%w: %w", driver.ErrClaimLost, err)
		}
		s, err := z.st.c.Live(ctx)
		if err == nil && z.unsure {
			var found driver.Record
			found, err = z.st.read(ctx, s, z.key, true)
			switch {
			case err == nil && found.Claim == r.Claim && found.Attempt == r.Attempt && found.State == r.State:
				z.unsure = false
				z.rec, z.version = found, int32(found.Version)
				return nil
			case err == nil && found.Version != int64(z.version), errors.Is(err, driver.ErrNotFound):
				return driver.ErrConflict
			}
		}
		if err == nil {
			var results []zk.MultiResponse
			results, err = s.Multi(ctx, z.check(), &zk.SetDataRequest{Path: z.dir, Data: data, Version: z.version})
			if err == nil {
				z.unsure = false
				z.rec, z.version = r, results[1].Stat.Version
				z.rec.Version = int64(z.version)
				return nil
			}
			op, opErr := claim.FailedOp(results, err)
			switch {
			case op == 0 && errors.Is(opErr, zk.ErrNoNode):
				return driver.ErrClaimLost
			case op == 1 && (errors.Is(opErr, zk.ErrBadVersion) || errors.Is(opErr, zk.ErrNoNode)):
				if !z.unsure {
					return driver.ErrConflict
				}
				continue // ours, perhaps
			case op >= 0 || z.st.c.Definite(err) && errors.Is(err, zk.ErrShortBuffer):
				return z.st.refine(opErr)
			case !z.st.c.Definite(err):
				z.unsure = true
			}
		}
		if ctx.Err() != nil {
			if z.unsure {
				return fmt.Errorf("%w: %w", driver.ErrUnknown, context.Cause(ctx))
			}
			return context.Cause(ctx)
		}
		if errors.Is(err, zklock.ErrClosed) {
			return z.st.refine(err)
		}
	}
}

// Complete implements driver.Claim.
func (z *zkClaim) Complete(ctx context.Context, r driver.Record) error {
	z.mu.Lock()
	r, data, err := z.sign(r)
	m := &commit{z: z, rec: r, data: data, version: z.version, origin: 0, result: make(chan error, 1)}
	z.mu.Unlock()
	if err != nil {
		z.l.Drop(nil)
		return err
	}
	ended, err := z.l.Commit(m.step)
	if err != nil {
		z.l.Drop(nil)
		return fmt.Errorf("%w: %w", driver.ErrClaimLost, err)
	}
	select {
	case err := <-m.result:
		return z.st.refine(err)
	case <-ended:
	case <-ctx.Done():
	}
	select {
	case err := <-m.result:
		return z.st.refine(err)
	default:
	}
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrUnknown, err)
	}
	return fmt.Errorf("%w: %w", driver.ErrUnknown, driver.ErrClosed)
}

// commit writes the record and removes the claim, in one transaction, and finds out
// whether that has happened when no answer says so.
type commit struct {
	z       *zkClaim
	rec     driver.Record
	data    []byte
	version int32
	origin  int64 // the session of the first try

	unsure bool // a try was not answered
	gone   bool // a later try found no claim
	told   bool
	result chan error // buffered
}

func (m *commit) step(ctx context.Context, s claim.Session) (done bool) {
	if m.origin == 0 {
		m.origin = s.ID()
	}
	if !m.told {
		err, definite := m.try(ctx, s)
		if !definite {
			return false
		}
		m.told = true
		m.result <- err
		if err == nil || errors.Is(err, driver.ErrClaimLost) {
			return true
		}
	}
	return m.z.st.removed(ctx, s, m.z.l.Node().Path, m.origin)
}

// removed deletes a claim that could not end with its record.
func (st *Store) removed(ctx context.Context, s claim.Session, node string, origin int64) bool {
	err := s.Delete(ctx, node, -1)
	// One that may not be deleted goes with its session.
	return err == nil || errors.Is(err, zk.ErrNoNode) || st.c.Definite(err) && s.ID() != origin
}

func (m *commit) try(ctx context.Context, s claim.Session) (result error, definite bool) { //nolint:revive // result is what the caller of Complete gets
	st := m.z.st
	if m.unsure {
		r, err := st.read(ctx, s, m.z.key, true)
		switch {
		case errors.Is(err, driver.ErrNotFound), driver.Unusable(err):
			return fmt.Errorf("%w: %w", driver.ErrConflict, err), true
		case err != nil:
			return nil, false //nolint:nilerr // no answer: the next step asks again
		case r.Claim == m.rec.Claim && r.State == m.rec.State:
			return nil, true
		case r.Version != int64(m.version):
			return driver.ErrConflict, true
		case m.gone:
			return driver.ErrClaimLost, true
		}
	}
	results, err := s.Multi(ctx, m.z.check(), &zk.SetDataRequest{Path: m.z.dir, Data: m.data, Version: m.version}, m.z.remove())
	if err == nil {
		return nil, true
	}
	op, opErr := claim.FailedOp(results, err)
	switch {
	case op == 0 && errors.Is(opErr, zk.ErrNoNode):
		if m.unsure { // an earlier try may have removed it: read, and tell
			m.gone = true
			return nil, false
		}
		return driver.ErrClaimLost, true
	case op == 1 && (errors.Is(opErr, zk.ErrBadVersion) || errors.Is(opErr, zk.ErrNoNode)):
		if m.unsure {
			return nil, false
		}
		return driver.ErrConflict, true
	case op >= 0, errors.Is(err, zk.ErrShortBuffer):
		return fmt.Errorf("write the record %s: %w", m.z.dir, opErr), true
	case !st.c.Definite(err):
		m.unsure = true
	}
	return nil, false
}

// GiveUp implements driver.Claim.
func (z *zkClaim) GiveUp(r *driver.Record) <-chan struct{} {
	if r == nil {
		return z.l.Drop(nil)
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	_, data, err := z.sign(*r)
	if err != nil {
		return z.l.Drop(nil)
	}
	g := &givingUp{z: z, data: data, version: z.version, look: z.unsure, write: true}
	return z.l.Drop(g.step)
}

// givingUp opens a record and removes the claim in one transaction.
type givingUp struct {
	z       *zkClaim
	data    []byte
	version int32
	origin  int64
	look    bool // the record may be other than version says
	write   bool // the record is the claim's to write
	fence   bool // version is of a record that a late write of the claim's may yet change
}

func (g *givingUp) step(ctx context.Context, s claim.Session) (done bool) {
	st := g.z.st
	if g.origin == 0 {
		g.origin = s.ID()
	}
	if g.write && g.look {
		r, err := st.read(ctx, s, g.z.key, true)
		switch {
		case errors.Is(err, driver.ErrNotFound), driver.Unusable(err):
			g.write = false
		case err != nil:
			return false
		case r.Claim != g.z.ID() || r.State != driver.Running:
			// It is as the last one left it. A Renew that was not answered may yet be
			// carried out, as long as the claim is there.
			g.version, g.fence = int32(r.Version), true
		default:
			g.version, g.look, g.fence = int32(r.Version), false, false
		}
	}
	if g.write && g.fence {
		results, err := s.Multi(ctx, &zk.CheckVersionRequest{Path: g.z.dir, Version: g.version}, g.z.remove())
		op, opErr := claim.FailedOp(results, err)
		switch {
		case err == nil, op == 1 && errors.Is(opErr, zk.ErrNoNode):
			return true
		case op == 0 && errors.Is(opErr, zk.ErrBadVersion):
			return false // look again
		case op < 0:
			return false
		}
		g.write = false
	}
	if !g.write {
		return st.removed(ctx, s, g.z.l.Node().Path, g.origin)
	}
	results, err := s.Multi(ctx, g.z.check(), &zk.SetDataRequest{Path: g.z.dir, Data: g.data, Version: g.version}, g.z.remove())
	if err == nil {
		return true
	}
	op, opErr := claim.FailedOp(results, err)
	switch {
	case op == 0 && errors.Is(opErr, zk.ErrNoNode):
		return true // gone: by an earlier try, or with its session
	case op == 1:
		g.look = true
	case op >= 0, errors.Is(err, zk.ErrShortBuffer):
		g.write = false
	}
	return false
}
