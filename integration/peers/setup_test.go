package peers_test

import (
	"context"
	"errors"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock/integration/internal/report"
	"github.com/go-zklock/zklock/integration/peers"
	"github.com/go-zklock/zklock/integration/zkcluster"
)

func TestMain(m *testing.M) {
	code := zkcluster.Main(m)
	if kit != nil {
		_ = kit.Close() // a folder of this run's own
	}
	os.Exit(code)
}

var ensemble = zkcluster.NewShared(zkcluster.Options{Servers: 3})

// patience bounds each wait for an event. How long things take is printed, not asserted.
const patience = 2 * time.Minute

// kitPatience is longer: an image may have to be built first.
const kitPatience = 10 * time.Minute

var (
	kitOnce sync.Once
	kit     *peers.Kit
	errKit  error
)

func kitOf(t *testing.T) *peers.Kit {
	t.Helper()
	kitOnce.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), kitPatience)
		defer cancel()
		kit, errKit = peers.NewKit(ctx, t.Logf)
	})
	must(t, "the peers' adapters", errKit)
	return kit
}

func must(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func bounded(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// start starts a peer that is ready, and ends it with the test.
func start(t *testing.T, library peers.Library, o peers.Options) *peers.Peer {
	t.Helper()
	k := kitOf(t)
	p, err := k.Start(bounded(t), library, o)
	must(t, "start", err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			t.Errorf("end the adapter of %s: %v", library, err)
		}
		if t.Failed() {
			t.Logf("%s wrote:\n%s", library, p.Stderr())
		}
	})
	next(t, p, report.Ready)
	return p
}

func next(t *testing.T, p *peers.Peer, events ...report.Event) peers.Line {
	t.Helper()
	l, err := p.Next(bounded(t), events...)
	must(t, "wait", err)
	return l
}

func commandf(t *testing.T, p *peers.Peer, format string, args ...any) {
	t.Helper()
	must(t, "command", p.Command(format, args...))
}

// observe opens a plain session, for looking from outside.
func observe(t *testing.T, servers []string) *zk.Conn {
	t.Helper()
	conn, events, err := zk.Connect(servers, 20*time.Second, zk.WithLogger(silent{}))
	must(t, "observer", err)
	t.Cleanup(conn.Close)
	deadline := time.After(patience)
	for {
		select {
		case ev := <-events:
			if ev.State == zk.StateHasSession {
				return conn
			}
		case <-deadline:
			t.Fatal("no session for the observer")
		}
	}
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// ensure makes a persistent node, and those above it.
func ensure(t *testing.T, conn *zk.Conn, path string) {
	t.Helper()
	for i := 1; i <= len(path); i++ {
		if i == len(path) || path[i] == '/' {
			if _, err := conn.Create(path[:i], nil, 0, zk.WorldACL(zk.PermAll)); err != nil && !errors.Is(err, zk.ErrNodeExists) {
				must(t, "make "+path[:i], err)
			}
		}
	}
}

var paths struct {
	sync.Mutex
	n int
}

func uniquePath() string {
	paths.Lock()
	defer paths.Unlock()
	paths.n++
	return "/peers/" + strconv.Itoa(os.Getpid()) + "-" + strconv.Itoa(paths.n)
}
