package zklock

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/go-zklock/zklock/internal/claim"
)

// What package dedup needs and a lock does not: lock nodes that are made and given
// up inside transactions of the caller's.

func init() { //nolint:gochecknoinits // the hooks have to be there before anybody asks
	claim.Of = func(c any) claim.Client { return claimClient{c.(*Client)} }
}

type claimClient struct{ c *Client }

func (v claimClient) Live(ctx context.Context) (claim.Session, error) {
	s, err := v.c.live(ctx)
	if err != nil {
		return nil, err
	}
	return claimSession{s}, nil
}

func (v claimClient) Acquire(ctx context.Context, dir string, try bool) (claim.Lease, error) {
	if v.Carries(ctx, dir) {
		return nil, claim.ErrNested
	}
	m := v.c.mutexAt(dir)
	l, err := m.acquire(ctx, try, nil)
	if err != nil {
		return nil, err
	}
	return pinLease(l)
}

// mutexAt is a mutex on a path with the chroot whose parent is somebody else's to
// make.
func (c *Client) mutexAt(dir string) *InterProcessMutex {
	return &InterProcessMutex{c: c, path: dir, full: dir, opts: mutexOptions{identifier: c.cfg.Identifier, inside: true}}
}

// pinLease keeps the node of a lease for somebody who works under it.
func pinLease(l *Lease) (claim.Lease, error) {
	l.hold.pin()
	if err := l.Err(); err != nil {
		l.hold.unpin()
		_ = l.end()
		l.hold.giveUp(nil)
		return nil, err
	}
	return claimLease{l}, nil
}

func (v claimClient) Settle(step claim.Step) <-chan struct{} {
	d := newDeletion(v.c.session(), "")
	d.step = step
	v.c.startDeletion(d)
	return d.done
}

func (v claimClient) Carries(ctx context.Context, dir string) bool {
	link, _ := ctx.Value(leaseKey{}).(*leaseLink)
	for ; link != nil; link = link.parent {
		if h := link.lease.hold; h.c == v.c && h.path == dir && !errors.Is(link.lease.Err(), ErrReleased) {
			return true
		}
	}
	return false
}

func (v claimClient) Definite(err error) bool { return answered(err) || errors.Is(err, errNotSent) }

func (v claimClient) Suspended() (bool, error) {
	if v.c.isClosing() {
		return true, ErrClosed
	}
	s := v.c.session()
	s.mu.Lock()
	down := s.wire == nil || s.suspended
	err := s.authErr
	s.mu.Unlock()
	if !down {
		return false, nil
	}
	return true, errors.Join(err, v.c.serverErrors())
}

func (v claimClient) Silence() time.Duration {
	s := v.c.session()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.timeout + 2*s.delay
}

func (v claimClient) Closing() <-chan struct{}          { return v.c.closing }
func (v claimClient) Chroot() string                    { return v.c.cfg.hosts.Chroot }
func (v claimClient) Root() string                      { return v.c.cfg.Root }
func (v claimClient) ACL() []zk.ACL                     { return v.c.cfg.ACL }
func (v claimClient) MaxBuffer() int                    { return v.c.cfg.MaxBuffer }
func (v claimClient) Logger() *slog.Logger              { return v.c.log }
func (v claimClient) Registerer() prometheus.Registerer { return v.c.cfg.Registerer }

type claimSession struct{ s *session }

func (v claimSession) ID() int64 { return v.s.sessionID() }

func (v claimSession) Get(ctx context.Context, path string) ([]byte, *zk.Stat, error) {
	r, err := get(ctx, v.s, path)
	return r.data, r.stat, err
}

func (v claimSession) Exists(ctx context.Context, path string) (bool, *zk.Stat, error) {
	type answer struct {
		ok   bool
		stat *zk.Stat
	}
	a, err := call(ctx, v.s, func(conn *zk.Conn) (answer, error) {
		ok, stat, err := conn.Exists(path)
		return answer{ok, stat}, err
	})
	return a.ok, a.stat, err
}

func (v claimSession) Children(ctx context.Context, path string) ([]string, error) {
	return v.s.c.children(ctx, v.s, path)
}

func (v claimSession) Sync(ctx context.Context, path string) error {
	_, err := call(ctx, v.s, func(conn *zk.Conn) (string, error) { return conn.Sync(path) })
	return err
}

func (v claimSession) Create(ctx context.Context, path string, data []byte) error {
	_, err := call(ctx, v.s, func(conn *zk.Conn) (string, error) { return conn.Create(path, data, 0, v.s.c.cfg.ACL) })
	return err
}

func (v claimSession) Delete(ctx context.Context, path string, version int32) error {
	_, err := call(ctx, v.s, func(conn *zk.Conn) (struct{}, error) { return struct{}{}, conn.Delete(path, version) })
	return err
}

func (v claimSession) Multi(ctx context.Context, ops ...any) ([]zk.MultiResponse, error) {
	return call(ctx, v.s, func(conn *zk.Conn) ([]zk.MultiResponse, error) { return conn.Multi(ops...) })
}

func (v claimSession) Claim(ctx context.Context, dir, id string, ops func(*zk.CreateRequest) []any) (claim.Node, []zk.MultiResponse, <-chan struct{}, error) {
	s := v.s
	prefix := nodePrefix(dir, id)
	box := s.expect(prefix)
	create := &zk.CreateRequest{
		Path: prefix, Data: s.c.nodeData(s.c.cfg.Identifier, time.Now()), Acl: s.c.cfg.ACL, Flags: zk.FlagEphemeralSequential,
	}
	request := ops(create)
	at := -1
	for i, op := range request {
		if op == any(create) {
			at = i
		}
	}
	settled := make(chan struct{})
	results, err := call(ctx, s, func(conn *zk.Conn) ([]zk.MultiResponse, error) {
		defer close(settled)
		defer s.unexpect(prefix)
		return conn.Multi(request...)
	})
	if errors.Is(err, errNotSent) {
		s.unexpect(prefix)
		close(settled)
	}
	if err != nil {
		return claim.Node{}, results, settled, err
	}
	n := claim.Node{Path: results[at].String, Token: int64(s.czxid(box))}
	if n.Token == 0 {
		// The answer passed the wrapper unseen: as good as lost.
		return claim.Node{}, nil, settled, errNoToken
	}
	s.c.logNode(s, n.Path, Token(n.Token), "created", nil)
	return n, results, settled, nil
}

func (v claimSession) Find(ctx context.Context, dir, id string) (claim.Node, bool, error) {
	name, err := v.s.c.search(ctx, v.s, dir, id)
	if err != nil || name == "" {
		return claim.Node{}, false, err
	}
	r, err := get(ctx, v.s, dir+"/"+name)
	if errors.Is(err, zk.ErrNoNode) {
		return claim.Node{}, false, nil
	}
	if err != nil {
		return claim.Node{}, false, err
	}
	return claim.Node{Path: dir + "/" + name, Token: r.stat.Czxid}, true, nil
}

func (v claimSession) Hold(ctx context.Context, dir string, cn claim.Node) (claim.Lease, error) {
	s, c := v.s, v.s.c
	n, err := s.madeNode(cn.Path, Token(cn.Token))
	if err != nil {
		return nil, err
	}
	// It is first at the ensemble, so it goes before all that stand in line here.
	t := c.enqueueFirst(dir, &n.contender)
	m := c.mutexAt(dir)
	a := &attempt{m: m, ticket: t, opts: m.opts}
	for {
		l, err := a.grant(ctx, n)
		if err != nil {
			t.leave()
			return nil, err
		}
		if l != nil {
			s.nodesOwned(1)
			return pinLease(l)
		}
		if err := s.awaitUp(ctx); err != nil {
			t.leave()
			return nil, err
		}
	}
}

type claimLease struct{ l *Lease }

func (v claimLease) Lease() any { return v.l }
func (v claimLease) Node() claim.Node {
	return claim.Node{Path: v.l.hold.node, Token: int64(v.l.hold.token)}
}
func (v claimLease) UUID() string { return uuidOf(v.l.hold.node[len(v.l.hold.path)+1:]) }

func (v claimLease) Bind(ctx context.Context) (context.Context, context.CancelFunc) {
	return v.l.bind(ctx)
}

func (v claimLease) Commit(step claim.Step) (<-chan struct{}, error) {
	if lost := v.l.end(); lost != nil {
		return nil, lost
	}
	return v.l.hold.giveUp(&ending{step: step, pinned: true}).done, nil
}

func (v claimLease) Drop(step claim.Step) <-chan struct{} {
	_ = v.l.end()
	d := v.l.hold.giveUp(&ending{step: step})
	v.l.hold.unpin()
	return d.done
}

// ending is how a lock node goes otherwise than by a plain delete.
type ending struct {
	step   claim.Step // nil: a plain delete
	pinned bool       // step runs under the pin, and ends it
}

// end closes the gates of every handle on the hold. It returns the loss if there was
// one before.
func (l *Lease) end() *LostError {
	h := l.hold
	h.s.checkTrust(h)
	h.mu.Lock()
	lost := h.err
	if h.aliveLocked() {
		h.setLocked(LeaseReleased)
	}
	handles := make([]*Lease, 0, len(h.leases))
	for other := range h.leases {
		other.released, other.lost = true, lost
		handles = append(handles, other)
	}
	clear(h.leases)
	h.mu.Unlock()
	for _, other := range handles {
		other.cancel(ErrReleased)
	}
	return lost
}
