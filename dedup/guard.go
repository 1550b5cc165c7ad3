package dedup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup/driver"
	"github.com/go-zklock/zklock/dedup/internal/zkstore"
	"github.com/go-zklock/zklock/internal/claim"
)

// Guard runs functions once for each key. It is safe for concurrent use; one per
// process and Root is usual.
type Guard struct {
	store driver.Store
	cfg   Config
	log   *slog.Logger
	met   *metrics

	closing context.Context // ends with Close
	cancel  context.CancelCauseFunc
	tasks   sync.WaitGroup // the sweeper

	mu      sync.Mutex
	flights map[flightKey]*flight
	active  int           // flights and calls of Resolve under way
	idle    chan struct{} // closed when active is 0; nil while nobody waits
	seen    map[string]struct{}
	closed  bool
}

// New makes a guard on a client. Nothing is sent; the paths are made when they are
// first needed. Close the guard before the client: a client that is closed takes the
// claims of running functions with it, and their outcomes are unknown then.
//
// ErrInvalidConfig, zklock.ErrInvalidPath.
func New(c *zklock.Client, cfg Config) (*Guard, error) {
	if c == nil {
		return nil, fmt.Errorf("%w: the client is nil", ErrInvalidConfig)
	}
	cfg, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	hooks := claim.Of(c)
	if cfg.Logger == nil {
		cfg.Logger = hooks.Logger()
	}
	if cfg.Registerer == nil {
		cfg.Registerer = hooks.Registerer()
	}
	store, err := Store(c, cfg)
	if err != nil {
		return nil, err
	}
	return newGuard(store, cfg)
}

// Store is the storage of New, for what wraps it (NewWithStore) or tests it. Only
// Config.Root and Config.Now count. ErrInvalidConfig, zklock.ErrInvalidPath.
func Store(c *zklock.Client, cfg Config) (driver.Store, error) {
	if c == nil {
		return nil, fmt.Errorf("%w: the client is nil", ErrInvalidConfig)
	}
	cfg, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	if cfg.Root == "" {
		cfg.Root = claim.Of(c).Root()
	}
	store, err := zkstore.New(c, cfg.Root, cfg.Now)
	if err != nil {
		return nil, err
	}
	return store, nil
}

// NewWithStore makes a guard on another storage. Config.Root is not used.
func NewWithStore(store driver.Store, cfg Config) (*Guard, error) {
	if store == nil {
		return nil, fmt.Errorf("%w: the store is nil", ErrInvalidConfig)
	}
	cfg, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	return newGuard(store, cfg)
}

func newGuard(store driver.Store, cfg Config) (*Guard, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Owner == "" {
		host, _ := os.Hostname()
		cfg.Owner = fmt.Sprintf("%s-%d", host, os.Getpid())
	}
	g := &Guard{store: store, cfg: cfg, log: cfg.Logger, flights: make(map[flightKey]*flight), seen: make(map[string]struct{})}
	var err error
	if g.met, err = newMetrics(cfg.Registerer); err != nil {
		return nil, err
	}
	g.closing, g.cancel = context.WithCancelCause(context.Background())
	context.AfterFunc(g.closing, func() { g.mu.Lock(); g.closed = true; g.mu.Unlock() })
	if cfg.SweepInterval > 0 {
		g.tasks.Go(g.sweepAlways)
	}
	return g, nil
}

// Retention is how long the records are kept that this guard makes, and the longest
// that a call may wait: Config.Retention, with its default.
func (g *Guard) Retention() time.Duration { return g.cfg.Retention }

// Close stops taking calls: those that wait return ErrClosed at once, those whose
// function runs go on and store their outcome. It returns when the last has, and what
// was begun for callers that have left is undone, or the cause of ctx's end. Further
// calls wait for the same.
func (g *Guard) Close(ctx context.Context) error {
	g.mu.Lock()
	g.closed = true
	if g.idle == nil {
		g.idle = make(chan struct{})
		if g.active == 0 {
			close(g.idle)
		}
	}
	idle := g.idle
	g.mu.Unlock()
	g.cancel(ErrClosed)
	select {
	case <-idle:
		g.tasks.Wait()
		return nil
	case <-ctx.Done():
		return fmt.Errorf("dedup: close: functions still run, or claims are being given up: %w", context.Cause(ctx))
	}
}

// untilClosed derives a ctx that ends with Close too.
func (g *Guard) untilClosed(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(g.closing, func() { cancel(ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// begin counts something that Close waits for.
func (g *Guard) begin() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.beginLocked()
}

func (g *Guard) beginLocked() error {
	if g.closed {
		return ErrClosed
	}
	g.active++
	return nil
}

func (g *Guard) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.active--; g.active == 0 && g.idle != nil {
		close(g.idle)
	}
}

const maxSeen = 4096

// hasSeen says whether this guard has met the key lately, and notes it.
func (g *Guard) hasSeen(key string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, ok := g.seen[key]
	if !ok {
		if len(g.seen) >= maxSeen {
			clear(g.seen)
		}
		g.seen[key] = struct{}{}
	}
	return ok
}

// unavailable wraps why the store cannot be asked.
func unavailable(err error) error {
	if closed(err) {
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	if errors.Is(err, ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// logKey logs one transition of a key.
func (g *Guard) logKey(level slog.Level, event, key string, r driver.Record, args ...any) {
	if !g.log.Enabled(context.Background(), level) {
		return
	}
	if event != "" {
		args = append([]any{"event", event}, args...)
	}
	plain := key
	if k, err := ParseKey(key); err == nil {
		plain = k.ID
		if k.Scope != "" {
			args = append(args, "scope", k.Scope)
		}
	}
	args = append(args, "idempotency_key", plain)
	for _, a := range g.store.Attrs(key) {
		args = append(args, a)
	}
	args = append(args, "token", zklock.Token(r.Token).String(), "attempt", r.Attempt, "state", string(r.State))
	g.log.Log(context.Background(), level, "dedup: "+event, args...)
}
