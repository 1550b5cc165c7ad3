package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"syscall"

	"github.com/go-zklock/zklock"
)

// Exit codes. Those from 64 on are sysexits.h's, 126, 127 and 128+n the shells'.
const (
	exitFailed       = 1
	exitUsage        = 2
	exitData         = 65 // the key was used for something else
	exitUnavailable  = 69 // no server was ready
	exitUnknown      = 70 // what an earlier run did is not known
	exitNotAcquired  = 75 // somebody else holds the lock; try again later
	exitLost         = 76 // the lock was lost while the command ran
	exitNoPermission = 77 // the ensemble refused the credentials, or the access list does
	exitCannotRun    = 126
	exitNotFound     = 127
	exitSignal       = 128 // and the signal's number
)

// exitError ends the program with a code, and with a message unless err is nil.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// exitf makes an error that ends the program with code.
func exitf(code int, format string, args ...any) error {
	return &exitError{code, fmt.Errorf(format, args...)}
}

// usagef makes an error about the command line or the configuration.
func usagef(format string, args ...any) error { return exitf(exitUsage, format, args...) }

// expired is a limit of ours that is over. It matches context.DeadlineExceeded without
// repeating its text.
type expired string

func (e expired) Error() string { return string(e) }

func (e expired) Is(target error) bool { return target == context.DeadlineExceeded }

// exitCode is the code that err ends the program with.
func exitCode(err error) int {
	var e *exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e.code
	case errors.Is(err, zklock.ErrInvalidConfig), errors.Is(err, zklock.ErrInvalidPath):
		return exitUsage
	default:
		return exitFailed
	}
}

// cannotRun says why a program could not be started, as shells do: 127 if there is none
// of that name, 126 if it cannot be run.
func cannotRun(name string, err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return exitf(exitNotFound, "%s: not found; %w", name, errNotStarted)
	}
	return exitf(exitCannotRun, "%s: cannot be run: %w; %w", name, err, errNotStarted)
}

// notStarted marks errors of a run in which the command never ran.
var errNotStarted = errors.New("nothing was run")

// started says whether the command ran in a run that ended with err.
func started(err error) bool { return !errors.Is(err, errNotStarted) }
