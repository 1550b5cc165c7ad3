package integration

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/integration/internal/figures"
	"github.com/go-zklock/zklock/integration/zkcluster"
)

// A server that stands alone gives every session its whole time again when it starts. So a holder that has long
// declared its lease lost is still an owner there, and has to take its node away itself.
func TestRestartedStandaloneServerKeepsNoNodeOfALostLease(t *testing.T) {
	const timeout = 20 * time.Second
	cluster := zkcluster.Start(t, zkcluster.Options{})
	server := cluster.Server(0)
	version := versionOf(t, cluster)
	ctx := bounded(t)
	path := uniquePath(t)

	// The control: a node whose session asks for as much time and whose client never comes back.
	var away atomic.Bool
	control, _, err := zk.Connect(cluster.Addrs(), timeout, zk.WithLogger(silent{}), zk.WithDialer(
		func(network, address string, d time.Duration) (net.Conn, error) {
			if away.Load() {
				return nil, errors.New("away for good")
			}
			return net.DialTimeout(network, address, d)
		}))
	must(t, "control", err)
	defer control.Close()
	orphan, err := control.Create("/orphan", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
	must(t, "control", err)

	holder := clientOf(t, cluster.Addrs(), timeout)
	session := holder.SessionID()
	lease := acquire(t, mutexOf(t, holder, path))
	waiter := acquireAsync(ctx, mutexOf(t, clientOf(t, cluster.Addrs(), 40*time.Second), path))
	participants(t, mutexOf(t, holder, path), 2)

	away.Store(true)
	must(t, "kill", server.Kill(ctx))
	begun := time.Now()
	await(t, "loss by the clock", lease.Lost())
	t.Logf("T = %v: lost %v after the kill", timeout, ms(time.Since(begun)))
	isErr(t, "the context", context.Cause(lease.Context()), zklock.ErrLost)
	// The holder stops, and releases as it would in any case. The node cannot be reached now.
	isErr(t, "Release", lease.Release(ctx), zklock.ErrLost)
	must(t, "start", server.Start(ctx))
	must(t, "serving", server.WaitServing(ctx))
	serving := time.Now()
	next := granted(t, "the waiter", waiter)
	took := time.Since(serving)
	figures.Record(t, "standalone server restarted after the loss", version, figures.HandOver, took)

	observer := observe(t, server)
	there, _, err := observer.Exists(orphan)
	must(t, "look at the control", err)
	t.Logf("the waiter holds %v after the server serves; the control's node is there: %v", ms(took), there)
	if !there {
		t.Errorf("the node of the control is gone too: sessions were not renewed, or the waiter had to wait for the expiry")
	}
	if next.Token() <= lease.Token() {
		t.Errorf("token %v after %v", next.Token(), lease.Token())
	}
	must(t, "the next holder's lease", next.Verify(ctx))
	release(t, next)
	again := acquire(t, mutexOf(t, holder, path))
	if holder.SessionID() == session {
		t.Errorf("the session is still %x", session)
	}
	release(t, again)
}
