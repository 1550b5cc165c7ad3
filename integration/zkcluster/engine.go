package zkcluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// engineMu and a lock file see to it that only one change to containers or networks
// is under way, in this process and in others that use this package. Engines up to
// 20.10 can deadlock when a container leaves its networks while another does, and
// then answer nothing of the kind any more.
var engineMu sync.Mutex

// lockEngine waits for its turn. Not to be nested.
func lockEngine(ctx context.Context) (unlock func(), err error) {
	name := filepath.Join(os.TempDir(), "zklock-engine.lock")
	file, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o666) //nolint:gosec // shared by the users of one engine
	if err != nil {
		return nil, fmt.Errorf("lock file of the engine: %w", err)
	}
	engineMu.Lock()
	for {
		if err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
			return func() {
				_ = file.Close() // which unlocks
				engineMu.Unlock()
			}, nil
		}
		select {
		case <-time.After(20 * time.Millisecond): // a lock of another process: there is no event for it
		case <-ctx.Done():
			engineMu.Unlock()
			return nil, fmt.Errorf("waiting for %s: %w", name, context.Cause(ctx))
		}
	}
}

// exclusively runs f in its turn.
func exclusively(ctx context.Context, f func() error) error {
	unlock, err := lockEngine(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return f()
}
