package main

import (
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// bootTimer fires at a time of the clock that counts suspend. Go's timers stand still
// while the system sleeps, and would fire that much too late.
type bootTimer struct {
	C  <-chan struct{} // receives once it has fired; possibly for an earlier setting
	fd int
}

func newBootTimer() (*bootTimer, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	ch := make(chan struct{}, 1)
	go func() {
		for b := make([]byte, 8); ; {
			if _, err := unix.Read(fd, b); err != nil && err != unix.EINTR {
				return
			}
			ch <- struct{}{}
		}
	}()
	return &bootTimer{C: ch, fd: fd}, nil
}

// set makes it fire at a time of the boot clock; at once if that has passed.
func (t *bootTimer) set(at time.Duration) {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(int64(at), 1))}
	_ = unix.TimerfdSettime(t.fd, unix.TFD_TIMER_ABSTIME, &spec, nil) // fails for bad arguments only
}

// setName sets what ps shows for this process. Nothing depends on it.
func setName(name string) {
	b, err := unix.BytePtrFromString(name)
	if err != nil {
		return
	}
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(b)), 0, 0, 0) //nolint:gosec // prctl takes a pointer
	runtime.KeepAlive(b)
}
