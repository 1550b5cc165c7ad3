package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/internal/boottime"
)

// trustedUntil is a lease's deadline on the boot clock, which the watcher reads too. It is
// never later than the lease's own: the clock is read before the lease is asked, so that
// whatever happens in between, a stop or a suspend, makes it earlier.
func trustedUntil(lease *zklock.Lease) time.Duration {
	now := boottime.Reading()
	return now + time.Until(lease.Deadline())
}

// deadlineFile tells the command until when its lock is certain.
type deadlineFile struct {
	dir  string
	name string
}

func newDeadlineFile() (*deadlineFile, error) {
	dir, err := os.MkdirTemp("", "lock-deadline-") // its name is among the watcher's arguments, see watcherName
	if err != nil {
		return nil, err
	}
	// Nothing in it is secret, and the command may run as somebody else.
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // see above
		return nil, err
	}
	return &deadlineFile{dir: dir, name: filepath.Join(dir, "deadline")}, nil
}

// write replaces the file: a reader sees the old line or the new one.
func (f *deadlineFile) write(until time.Duration) error {
	wall := time.Now().Add(until - boottime.Reading())
	text := fmt.Sprintf("%s %d\n", wall.UTC().Format(time.RFC3339Nano), until.Nanoseconds())
	next := f.name + ".next"
	if err := os.WriteFile(next, []byte(text), 0o644); err != nil { //nolint:gosec // as in newDeadlineFile
		return err
	}
	if err := os.Chmod(next, 0o644); err != nil { //nolint:gosec // a umask may have taken that away
		return err
	}
	return os.Rename(next, f.name)
}

func (f *deadlineFile) remove() { _ = os.RemoveAll(f.dir) }
