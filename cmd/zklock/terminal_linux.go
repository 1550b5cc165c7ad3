package main

import (
	"cmp"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// isTerminal says whether f is one.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// terminalSize is how many rows and columns f has.
func terminalSize(f *os.File) (rows, columns int) {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 24, 80
	}
	return cmp.Or(int(size.Row), 24), cmp.Or(int(size.Col), 80)
}

// foreground is the terminal that was lent to the command.
type foreground struct {
	tty   int
	modes *unix.Termios
	ours  int
}

// lend makes group the one that the terminal's keys go to, if we have it. It returns nil if
// there is nothing to take back.
//
// The terminal is the controlling one, whatever standard input is: ssh, sudo and others ask
// there for a password. The group is in the background otherwise, and orphaned, since its
// parent is in another session: what it reads from the terminal fails then.
func lend(group int) *foreground {
	// A script's jobs in the background share its group. Those that a script puts there have
	// SIGINT ignored, and no terminal as their input: the keys are the script's.
	if ignored(syscall.SIGINT) && !isTerminal(os.Stdin) {
		return nil
	}
	tty, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil // there is none
	}
	f := &foreground{tty: tty, ours: unix.Getpgrp()}
	if !f.give(group) {
		_ = unix.Close(tty)
		return nil
	}
	return f
}

// give is what lend does once the terminal is open.
func (f *foreground) give(group int) bool {
	if owner, err := unix.IoctlGetInt(f.tty, unix.TIOCGPGRP); err != nil || owner != f.ours {
		return false
	}
	var err error
	if f.modes, err = unix.IoctlGetTermios(f.tty, unix.TCGETS); err != nil {
		return false
	}
	// From now on we are in the background: what we say must not stop us, nor taking the
	// terminal back.
	signal.Ignore(syscall.SIGTTOU)
	return unix.IoctlSetPointerInt(f.tty, unix.TIOCSPGRP, group) == nil
}

// takeBack ends lend. The modes are restored if the command had no chance to.
func (f *foreground) takeBack(killed bool) {
	if f == nil {
		return
	}
	_ = unix.IoctlSetPointerInt(f.tty, unix.TIOCSPGRP, f.ours)
	if killed {
		_ = unix.IoctlSetTermios(f.tty, unix.TCSETSW, f.modes)
	}
	_ = unix.Close(f.tty)
}
