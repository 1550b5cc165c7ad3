//go:build !linux

package main

import (
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-zklock/zklock"
)

// zklock run needs what only Linux has: a clock for all processes that counts suspend, a
// parent for what a dead one leaves, and a signal at a parent's death. The other commands
// run anywhere.

var (
	passedSignals  = []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	unheardSignals = []os.Signal{syscall.SIGPIPE}
)

func ignored(s os.Signal) bool { return signal.Ignored(s) }

const resized, sigStop, sigCont = syscall.Signal(-1), syscall.Signal(-1), syscall.Signal(-1)

func hiddenMain([]string) (code int, hidden bool) { return 0, false }

type supervisor struct {
	lease    *zklock.Lease
	term     bool
	grace    time.Duration
	files    [3]*os.File
	signals  <-chan os.Signal
	log      io.Writer
	deadline *deadlineFile
}

const runs = false

const self, demoWorker, demoCharge = "", "", ""

func superviseRun(*zklock.Client, *supervisor, string, []string, []string) (ending, error) {
	return ending{}, usagef("zklock run needs Linux")
}

func unread(*os.File) int64 { return 0 }

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func terminalSize(*os.File) (rows, columns int) { return 24, 80 }
