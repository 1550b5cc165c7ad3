package main

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// zklock and its watcher talk in lines over two pipes. A line is far below PIPE_BUF, so
// it is written whole or not at all.
//
// What the watcher is told. The end of this pipe means that zklock is gone.
const (
	sayRun    = "run"    // and until when, in nanoseconds of the boot clock: the group may run
	sayStop   = "stop"   // the lease is suspended: stop the group until the next run
	saySignal = "signal" // and its number: send it to the group
	sayTerm   = "term"   // and the grace in nanoseconds: continue the group, SIGTERM, after the grace SIGKILL
	sayKill   = "kill"   // kill the group as it is
)

// What the watcher tells.
const (
	tellReady   = "ready"   // and the group's id: it waits for the first run
	tellFailed  = "failed"  // and the errno: the command could not be executed
	tellStarted = "started" // the command runs
	tellOverdue = "overdue" // the deadline passed without a new one: the group was stopped
	tellLeft    = "left"    // the command has ended, and processes of its group still run
	tellGone    = "gone"    // and the command's wait status: the whole group has ended
)

// line is one of them, with a number that has a meaning for some.
type line struct {
	word string
	n    int64
}

func (l line) String() string { return fmt.Sprintf("%s %d\n", l.word, l.n) }

// readLines sends what comes from r, and closes the channel at its end. Whatever cannot
// be read counts as the end.
func readLines(r io.Reader) <-chan line {
	ch := make(chan line)
	go func() {
		defer close(ch)
		for in := bufio.NewScanner(r); in.Scan(); {
			word, number, _ := strings.Cut(in.Text(), " ")
			n, err := strconv.ParseInt(number, 10, 64)
			if err != nil {
				return
			}
			ch <- line{word, n}
		}
	}()
	return ch
}
