package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/integration/internal/report"
)

// contend makes the grants asked for, each on a lock drawn by lot.
func (w *worker) contend(ctx context.Context) error {
	mutexes := make([]*zklock.InterProcessMutex, len(w.paths))
	for i, path := range w.paths {
		var err error
		if mutexes[i], err = zklock.NewInterProcessMutex(w.client, path); err != nil {
			return err
		}
	}
	var wg sync.WaitGroup
	var begun atomic.Int64
	errs := make([]error, w.goroutines)
	for i := range errs {
		wg.Go(func() {
			for errs[i] == nil && begun.Add(1) <= int64(w.grants) {
				errs[i] = w.once(ctx, mutexes[rand.IntN(len(mutexes))])
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// once makes one acquisition and reports it.
func (w *worker) once(ctx context.Context, m *zklock.InterProcessMutex) error {
	line := report.Line{Event: report.Grant, Path: m.Path(), Asked: report.Now()}
	l, err := m.Acquire(ctx)
	if err != nil {
		return err
	}
	line.Got = report.Now()
	line.Node, line.Token = l.Path(), int64(l.Token())
	select {
	case <-time.After(rand.N(w.hold)):
	case <-l.Context().Done():
	}
	line.End = report.Now()
	err = l.Release(ctx)
	switch {
	case err == nil:
		line.Done = report.Now()
	case errors.Is(err, zklock.ErrLost):
		// When the ensemble takes the lock back is its business.
		line.Lost, line.Error = true, err.Error()
	default:
		return fmt.Errorf("release %s: %w", l.Path(), err)
	}
	w.out.Line(line)
	return nil
}
