package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// catchSignals takes the signals that the command gets, but not those that were ignored
// when we were started: nohup means the command.
func catchSignals() (signals <-chan os.Signal, stop func()) {
	ch := make(chan os.Signal, 16)
	for _, s := range passedSignals {
		if !ignored(s) {
			signal.Notify(ch, s)
		}
	}
	unheard := make(chan os.Signal, 1)
	for _, s := range unheardSignals {
		if !ignored(s) {
			signal.Notify(unheard, s)
		}
	}
	return ch, func() {
		signal.Stop(ch)
		signal.Stop(unheard)
	}
}

// signalError is the cause of a wait that a signal has ended.
type signalError struct{ sig syscall.Signal }

func (e *signalError) Error() string { return fmt.Sprintf("ended by a signal (%v)", e.sig) }

// untilSignal is a context that ends with the first signal until stop is called. The
// signals after that are left in the channel. What was waited for may have come in the same
// moment: whether the context has ended has to be looked at after stop, or the signal is
// lost.
func untilSignal(parent context.Context, signals <-chan os.Signal) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	over, done := make(chan struct{}), make(chan struct{})
	var once sync.Once
	go func() {
		defer close(done)
		for {
			select {
			case s := <-signals:
				if sig := s.(syscall.Signal); sig != resized {
					cancel(&signalError{sig})
					return
				}
			case <-over:
				return
			}
		}
	}()
	return ctx, func() {
		once.Do(func() { close(over) })
		<-done
	}
}

// interactive is a context that ends with SIGINT or SIGTERM, for commands that only look.
func interactive() (ctx context.Context, stop context.CancelFunc) {
	return signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
}
