package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/go-zklock/zklock"
)

// lookAtQueue is how often the line is renewed that tells a person how the wait goes.
const lookAtQueue = time.Second

// waiting shows the place in the queue on a terminal.
type waiting struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// showWaiting begins to show it if out is a terminal, and does nothing otherwise.
func showWaiting(ctx context.Context, client *zklock.Client, mutex *zklock.InterProcessMutex, out *os.File) *waiting {
	ctx, cancel := context.WithCancel(ctx)
	w := &waiting{cancel: cancel}
	if !isTerminal(out) {
		return w
	}
	w.done.Go(func() {
		shown := false
		begun := time.Now()
		for pause(ctx, lookAtQueue) {
			text := describeQueue(ctx, client, mutex)
			if ctx.Err() != nil {
				break
			}
			_, columns := terminalSize(out)
			fmt.Fprintf(out, "\r\x1b[K%s", cut(fmt.Sprintf("%s (%v)", text, time.Since(begun).Round(time.Second)), columns-1))
			shown = true
		}
		if shown {
			fmt.Fprint(out, "\r\x1b[K")
		}
	})
	return w
}

// stop ends it, and removes the line.
func (w *waiting) stop() {
	w.cancel()
	w.done.Wait()
}

// describeQueue says where we are in the queue, and who has the lock.
func describeQueue(ctx context.Context, client *zklock.Client, mutex *zklock.InterProcessMutex) string {
	name := printable(keyOf(mutex.Path()))
	ctx, cancel := context.WithTimeout(ctx, 5*lookAtQueue)
	defer cancel()
	ps, err := mutex.Participants(ctx)
	if err != nil {
		return fmt.Sprintf("waiting for %s: the ensemble does not answer (%v)", name, client.State())
	}
	for i, p := range ps {
		if p.SessionID == client.SessionID() && i > 0 {
			return fmt.Sprintf("waiting for %s: %s in the queue; held by %s since %s",
				name, ordinal(i), printable(ps[0].Identifier), ps[0].Since.Local().Format("15:04:05"))
		}
	}
	return fmt.Sprintf("waiting for %s", name)
}

// ordinal is 1st for 1.
func ordinal(n int) string {
	suffix := "th"
	if n%100 < 11 || n%100 > 13 {
		switch n % 10 {
		case 1:
			suffix = "st"
		case 2:
			suffix = "nd"
		case 3:
			suffix = "rd"
		}
	}
	return fmt.Sprintf("%d%s", n, suffix)
}

// cut shortens a line to a number of columns, taking every character for one.
func cut(text string, columns int) string {
	runes := []rune(text)
	if columns < 1 || len(runes) <= columns {
		return text
	}
	return string(runes[:columns-1]) + "…"
}

// pause waits, and returns false when ctx is over.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
