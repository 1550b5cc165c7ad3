package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// group is zklock's side of a command and its watcher.
//
// What must happen in any case, a stop and a kill, zklock does itself as well: the
// watcher may have been stopped by somebody.
type group struct {
	watcher int // its pid
	id      int // the process group's, once the watcher has said so
	control *os.File
	status  <-chan line // closed at the end of the watcher
}

// sayWithin bounds how long zklock waits for a watcher that does not read.
const sayWithin = time.Second

// startGroup starts a watcher and through it a process that becomes the command after
// the first run. files are its standard ones. dir is removed with the group, by the
// watcher if zklock cannot.
func startGroup(path string, argv, env []string, files [3]*os.File, dir string) (*group, error) {
	// If the watcher is killed, the command must become our child: until we have reaped
	// it, its group's id cannot be given to others, and we may kill by it.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, os.NewSyscallError("prctl", err)
	}
	controlR, controlW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = controlR.Close() }()
	statusR, statusW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = statusW.Close() }()
	numbers, err := passOn(controlR, statusW)
	if err != nil {
		return nil, err
	}
	args := append([]string{watcherName, watcherCommand, numbers[0], numbers[1], dir, path}, argv...)
	pid, err := syscall.ForkExec(self, args, &syscall.ProcAttr{Env: env, Files: []uintptr{files[0].Fd(), files[1].Fd(), files[2].Fd()}})
	if err != nil {
		return nil, fmt.Errorf("starting the watcher: %w", err)
	}
	return &group{watcher: pid, control: controlW, status: readLines(statusR)}, nil
}

// say tells the watcher something. An error means that it cannot be relied on.
func (g *group) say(word string, n int64) error {
	if err := g.control.SetWriteDeadline(time.Now().Add(sayWithin)); err != nil {
		return err
	}
	_, err := g.control.WriteString(line{word, n}.String())
	return err
}

// signal sends to the whole group.
func (g *group) signal(s syscall.Signal) {
	if g.id > 0 {
		_ = syscall.Kill(-g.id, s) // fails when nobody is left
	}
}

// stop stops the group until the next run.
func (g *group) stop() error {
	g.signal(syscall.SIGSTOP)
	return g.say(sayStop, 0)
}

// kill ends the group.
func (g *group) kill() error {
	g.signal(syscall.SIGKILL)
	return g.say(sayKill, 0)
}

// end ends whatever is left, and returns when it is gone, with the watcher's status. It is
// for a watcher that has ended or does not answer. It reaps what is the group's and nothing
// else: a process may have other children.
func (g *group) end() (watcher unix.WaitStatus) {
	_ = syscall.Kill(g.watcher, syscall.SIGKILL)
	for reaped := false; ; {
		g.signal(syscall.SIGKILL)
		if !reaped {
			pid, err := unix.Wait4(g.watcher, &watcher, unix.WNOHANG, nil)
			reaped = pid == g.watcher || errors.Is(err, syscall.ECHILD)
		}
		if reaped && g.gone() {
			return watcher
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// gone says whether nobody of the group is left, dead ones that came to us with the watcher's
// end included.
func (g *group) gone() bool {
	if g.id == 0 {
		return true
	}
	for {
		pid, err := unix.Wait4(-g.id, nil, unix.WNOHANG, nil)
		if pid <= 0 && !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	return errors.Is(syscall.Kill(-g.id, 0), syscall.ESRCH)
}

// reap takes the exit status of a watcher that has said that the group is gone.
func (g *group) reap() {
	_ = g.control.Close()
	for {
		if _, err := unix.Wait4(g.watcher, nil, 0, nil); !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}

// unread is how many bytes wait in a pipe.
func unread(r *os.File) int64 {
	raw, err := r.SyscallConn()
	if err != nil {
		return 0
	}
	n := 0
	_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }) // fails for a file that is closed
	return int64(n)
}
