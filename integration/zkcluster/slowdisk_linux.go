package zkcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// SlowDisk holds up the thread that writes the transaction log, over and over for as long as delay with short
// pauses, as slow writes to the disk hold it up. It ends when the returned function is called, or with the server.
//
// The thread is stopped by ptrace, which needs root and an engine on this machine; otherwise the error matches
// errors.ErrUnsupported. A thread that is caught between two writes can hold up the whole server for as long.
func (s *Server) SlowDisk(ctx context.Context, delay time.Duration) (stop func() error, err error) {
	s.mu.Lock()
	pid, running := s.pid, s.running
	s.mu.Unlock()
	if !running {
		return nil, errors.New("the server does not run")
	}
	if pid == 0 || os.Geteuid() != 0 {
		return nil, fmt.Errorf("slow disk: root and a server on this machine are needed: %w", errors.ErrUnsupported)
	}
	thread, err := threadNamed(pid, "SyncThread:")
	if err != nil {
		return nil, err
	}
	quit, done := make(chan struct{}), make(chan error, 1)
	first := make(chan error, 1)
	go func() {
		// Only the thread that traces may end the tracing.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		done <- holdUp(thread, delay, quit, first)
	}()
	select {
	case err := <-first:
		if err != nil {
			return nil, err
		}
	case <-ctx.Done():
		close(quit)
		return nil, context.Cause(ctx)
	}
	return func() error {
		close(quit)
		return <-done
	}, nil
}

// breath is how long the thread goes on between two stops: enough for a write or two.
const breath = 2 * time.Millisecond

// holdUp stops a thread again and again. first hears how the first stop went.
func holdUp(thread int, delay time.Duration, quit <-chan struct{}, first chan<- error) error {
	for n := 0; ; n++ {
		err := stopFor(thread, delay)
		if n == 0 {
			if errors.Is(err, syscall.EPERM) {
				err = fmt.Errorf("slow disk: %w: %w", errors.ErrUnsupported, err)
			}
			first <- err
		}
		if errors.Is(err, syscall.ESRCH) { // the server has ended, or its thread
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-time.After(breath):
		case <-quit:
			return nil
		}
	}
}

// stopFor stops one thread for a while.
func stopFor(thread int, delay time.Duration) error {
	if err := unix.PtraceSeize(thread); err != nil {
		return err
	}
	if err := unix.PtraceInterrupt(thread); err != nil {
		return errors.Join(err, syscall.PtraceDetach(thread))
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(thread, &status, unix.WALL, nil); err != nil {
		return err
	}
	if status.Exited() || status.Signaled() {
		return syscall.ESRCH
	}
	var signal int
	if event := int(status) >> 16; status.Stopped() && event == 0 {
		signal = int(status.StopSignal()) // it was on its way to the thread, and must arrive
	} else {
		time.Sleep(delay)
	}
	if _, _, errno := syscall.Syscall6(syscall.SYS_PTRACE, syscall.PTRACE_DETACH, uintptr(thread), 0, uintptr(signal), 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// threadNamed finds a thread by the beginning of its name.
func threadNamed(pid int, prefix string) (int, error) {
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", pid))
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err == nil && strings.HasPrefix(string(text), prefix) {
			return strconv.Atoi(filepath.Base(filepath.Dir(name)))
		}
	}
	return 0, fmt.Errorf("process %d has no thread %s…", pid, prefix)
}
