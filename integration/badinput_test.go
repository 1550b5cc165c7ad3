package integration

import (
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/go-zklock/zklock"
)

// undisturbed checks that a client went through a test without losing its connection.
func undisturbed(t *testing.T, l *zklock.Lease, st *states) {
	t.Helper()
	must(t, "another lease of the client", l.Verify(bounded(t)))
	if s := st.String(); s != "" {
		t.Errorf("the client's states: %s; its connection was to stand", s)
	}
}

// ZooKeeper takes any digest for an identity; a wrong one shows where an ACL asks for
// the right one.
func TestWrongDigestIsRefusedByTheACL(t *testing.T) {
	ctx := bounded(t)
	follower, leader := roles(t, ensemble.Get(t))
	operator := observe(t, leader)
	must(t, "auth of the operator", operator.AddAuth("digest", []byte("owner:right")))
	path := uniquePath(t)
	ensure(t, operator, "/dedup")
	acl := zk.DigestACL(zk.PermAll, "owner", "right")
	_, err := operator.Create(path, nil, 0, acl)
	must(t, "make "+path, err)
	as := func(digest string) *zklock.Client {
		return clientOf(t, []string{follower.Addr()}, 30*time.Second, func(cfg *zklock.Config) {
			cfg.Auth = []zklock.Auth{{Scheme: "digest", Credentials: []byte(digest)}}
			cfg.ACL = zk.DigestACL(zk.PermAll, "owner", "right")
		})
	}
	wrong := as("owner:wrong")
	st := watchStates(t, wrong)
	other := acquire(t, mutexOf(t, clientOf(t, []string{follower.Addr()}, 30*time.Second), uniquePath(t)))
	for name, call := range map[string]func() error{
		"Acquire":      func() error { _, err := mutexOf(t, wrong, path).Acquire(ctx); return err },
		"TryAcquire":   func() error { _, err := mutexOf(t, wrong, path).TryAcquire(ctx); return err },
		"Participants": func() error { _, err := mutexOf(t, wrong, path).Participants(ctx); return err },
	} {
		err := call()
		t.Logf("%s: %v", name, err)
		isErr(t, name, err, zk.ErrNoAuth)
		if name != "Participants" {
			isErr(t, name, err, zklock.ErrNotAcquired)
		}
	}
	if left := nodes(t, operator, path); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	undisturbed(t, other, st)
	release(t, other)

	right := as("owner:right")
	l := acquire(t, mutexOf(t, right, path))
	must(t, "verify", l.Verify(ctx))
	release(t, l)
}

// An ACL that forbids us something costs the one lock, and says so.
func TestACLThatForbidsUs(t *testing.T) {
	ctx := bounded(t)
	follower, leader := roles(t, ensemble.Get(t))
	operator := observe(t, leader)
	must(t, "auth of the operator", operator.AddAuth("digest", []byte("operator:secret")))
	ensure(t, operator, "/dedup")
	c := clientOf(t, []string{follower.Addr()}, 30*time.Second)
	st := watchStates(t, c)
	other := acquire(t, mutexOf(t, c, uniquePath(t)))
	forbid := func(perms int32) *zklock.InterProcessMutex {
		path := uniquePath(t)
		acl := append(zk.WorldACL(perms), zk.DigestACL(zk.PermAll, "operator", "secret")...)
		_, err := operator.Create(path, nil, 0, acl)
		must(t, "make "+path, err)
		return mutexOf(t, c, path)
	}
	_, err := forbid(zk.PermRead | zk.PermDelete).Acquire(ctx)
	t.Logf("no create: %v", err)
	isErr(t, "no create", err, zklock.ErrNotAcquired, zk.ErrNoAuth)

	m := forbid(zk.PermCreate | zk.PermDelete)
	_, err = m.Acquire(ctx)
	t.Logf("no read: %v", err)
	isErr(t, "no read", err, zklock.ErrNotAcquired, zk.ErrNoAuth)
	awaitNodes(t, operator, m.Path(), 0)

	m = forbid(zk.PermCreate | zk.PermRead)
	l := acquire(t, m)
	err = l.Release(ctx)
	t.Logf("no delete: %v", err)
	isErr(t, "no delete", err, zklock.ErrPending, zk.ErrNoAuth)
	isErr(t, "the lease", l.Err(), zklock.ErrReleased)
	undisturbed(t, other, st)
	release(t, other)
	must(t, "close", c.Close()) // and with the session the node that could not be deleted
	awaitNodes(t, operator, m.Path(), 0)
}

// A request over jute.maxbuffer makes a server drop the connection; it must not get there.
func TestOversizeRequestDoesNotDropOtherLocks(t *testing.T) {
	follower, leader := roles(t, ensemble.Get(t))
	operator := observe(t, leader)
	c, p := viaProxy(t, follower, 30*time.Second)
	st := watchStates(t, c)
	l := acquire(t, mutexOf(t, c, uniquePath(t)))
	path := uniquePath(t)
	ensure(t, operator, path)
	for _, size := range []int{1 << 20, 4 << 20} {
		p.Reset()
		_, err := c.Conn().Set(path, make([]byte, size), -1)
		t.Logf("%d bytes: %v", size, err)
		isErr(t, "oversize", err, zk.ErrShortBuffer)
		if n := p.Snapshot().Total.Writes(); n > 0 {
			t.Errorf("%d bytes were sent", size)
		}
	}
	if _, err := c.Conn().Set(path, make([]byte, 1000<<10), -1); err != nil {
		t.Errorf("1000 KiB: %v", err)
	}
	undisturbed(t, l, st)
	release(t, l)
}

func TestEnsembleSizeAndQuorumSize(t *testing.T) {
	cluster := ensemble.Get(t)
	follower, _ := roles(t, cluster)
	registry := prometheus.NewRegistry()
	clientOf(t, cluster.Addrs(), 30*time.Second, func(cfg *zklock.Config) { cfg.Registerer = registry })
	sizes := func(size, quorum float64) {
		t.Helper()
		begun := time.Now()
		eventually(t, "zk_ensemble_size and zk_quorum_size", func() bool {
			return metric(t, registry, "zk_ensemble_size") == size && metric(t, registry, "zk_quorum_size") == quorum
		})
		t.Logf("size %v, quorum %v after %v", size, quorum, ms(time.Since(begun)))
	}
	sizes(3, 3)
	must(t, "kill", follower.Kill(bounded(t)))
	sizes(3, 2)
	must(t, "start", follower.Start(bounded(t)))
	sizes(3, 3)
}
