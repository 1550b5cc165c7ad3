package torture

import (
	"context"
	"errors"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/go-zklock/zklock/integration/internal/report"
	"github.com/go-zklock/zklock/integration/zkcluster"
	"github.com/go-zklock/zklock/integration/zkproxy"
)

// kind is one kind of fault. begin makes it and returns how it is ended.
type kind struct {
	name  string
	begin func(ctx context.Context, r *run) (end func(context.Context) error, err error)
}

// slowWrites is how long the log of a slow disk is held up at a time.
const slowWrites = 200 * time.Millisecond

// kinds are all of them.
var kinds = []kind{
	{"worker killed", func(_ context.Context, r *run) (func(context.Context) error, error) {
		w := r.victim
		// Until now it held what it held; from now on it does nothing.
		r.history.add(w.name, report.Line{Event: killed})
		w.kill()
		return func(ctx context.Context) error {
			if err := w.renew(); err != nil {
				return err
			}
			_, err := w.awaitLine(ctx, report.Ready)
			return err
		}, nil
	}},
	{"worker stopped", func(_ context.Context, r *run) (func(context.Context) error, error) {
		w := r.victim
		// The time before the stop and the time before it goes on: what it did in between it did while it ran.
		r.history.add(w.name, report.Line{Event: stopped})
		if err := w.signal(syscall.SIGSTOP); err != nil {
			return nil, err
		}
		return func(context.Context) error {
			r.history.add(w.name, report.Line{Event: continued})
			return w.signal(syscall.SIGCONT)
		}, nil
	}},
	client("client cut off", func(p *zkproxy.Proxy) { p.Refuse(true); p.Cut() }, func(p *zkproxy.Proxy) { p.Refuse(false) }),
	client("client in silence", both((*zkproxy.Proxy).Hold), both((*zkproxy.Proxy).Pass)),
	client("client not heard", one((*zkproxy.Proxy).Hold, zkproxy.ToServer), one((*zkproxy.Proxy).Pass, zkproxy.ToServer)),
	client("client hears nothing", one((*zkproxy.Proxy).Hold, zkproxy.ToClient), one((*zkproxy.Proxy).Pass, zkproxy.ToClient)),
	server("follower cut off from the others", follower, (*zkcluster.Server).CutPeers),
	server("leader cut off from the others", leader, (*zkcluster.Server).CutPeers),
	server("follower does not hear the others", follower, (*zkcluster.Server).DeafenPeers),
	server("leader does not hear the others", leader, (*zkcluster.Server).DeafenPeers),
	server("server cut off from its clients", anyServer, (*zkcluster.Server).CutClients),
	server("uplink of a server stalled", anyServer, (*zkcluster.Server).StallUplink),
	server("server stopped", anyServer, (*zkcluster.Server).Pause),
	server("leader killed", leader, (*zkcluster.Server).Kill),
	{"rolling restart", func(ctx context.Context, r *run) (func(context.Context) error, error) {
		return func(context.Context) error { return nil }, r.cluster.RollingRestart(ctx)
	}},
	{"slow disks", func(ctx context.Context, r *run) (func(context.Context) error, error) {
		// Two of three, so that no quorum is quick.
		l, err := leader(ctx, r)
		if err != nil {
			return nil, err
		}
		f, err := follower(ctx, r)
		if err != nil {
			return nil, err
		}
		first, err := l.SlowDisk(ctx, slowWrites)
		if err != nil {
			return nil, err
		}
		second, err := f.SlowDisk(ctx, slowWrites)
		if err != nil {
			return nil, errors.Join(err, first())
		}
		return func(context.Context) error { return errors.Join(first(), second()) }, nil
	}},
}

// client is a kind that lies between one worker and all servers.
func client(name string, begin, end func(*zkproxy.Proxy)) kind {
	return kind{name, func(_ context.Context, r *run) (func(context.Context) error, error) {
		w := r.victim
		w.lines(begin)
		return func(context.Context) error {
			w.lines(end)
			return nil
		}, nil
	}}
}

func one(f func(*zkproxy.Proxy, zkproxy.Direction), d zkproxy.Direction) func(*zkproxy.Proxy) {
	return func(p *zkproxy.Proxy) { f(p, d) }
}

func both(f func(*zkproxy.Proxy, zkproxy.Direction)) func(*zkproxy.Proxy) {
	return func(p *zkproxy.Proxy) {
		f(p, zkproxy.ToServer)
		f(p, zkproxy.ToClient)
	}
}

// server is a kind that befalls one server.
func server(name string, which func(context.Context, *run) (*zkcluster.Server, error), begin func(*zkcluster.Server, context.Context) error) kind {
	return kind{name, func(ctx context.Context, r *run) (func(context.Context) error, error) {
		s, err := which(ctx, r)
		if err != nil {
			return nil, err
		}
		return s.Heal, begin(s, ctx)
	}}
}

func leader(ctx context.Context, r *run) (*zkcluster.Server, error) { return r.cluster.Leader(ctx) }

func follower(ctx context.Context, r *run) (*zkcluster.Server, error) {
	all, err := r.cluster.Followers(ctx)
	if err != nil {
		return nil, err
	}
	return all[rand.IntN(len(all))], nil
}

func anyServer(_ context.Context, r *run) (*zkcluster.Server, error) {
	return r.cluster.Server(rand.IntN(r.cluster.Size())), nil
}
