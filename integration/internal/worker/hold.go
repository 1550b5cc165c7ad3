package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/integration/internal/report"
)

// holdAll takes every lock and then obeys: "write" makes one gated write with each,
// "check" says of each whether it is still held. At the end of the input it releases.
func (w *worker) holdAll(ctx context.Context) error {
	var leases []*zklock.Lease
	for _, path := range w.paths {
		m, err := zklock.NewInterProcessMutex(w.client, path)
		if err != nil {
			return err
		}
		l, err := m.Acquire(ctx)
		if err != nil {
			return err
		}
		w.out.Line(report.Line{Event: report.Acquired, Path: path, Node: l.Path(), Token: int64(l.Token())})
		leases = append(leases, l)
	}
	for {
		command, err := w.command()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if command == "check" {
			for i, l := range leases {
				w.check(ctx, w.paths[i], l)
			}
			continue
		}
		if command != "write" {
			return fmt.Errorf("unknown command %q", command)
		}
		var wg sync.WaitGroup
		errs := make([]error, len(leases))
		for i, l := range leases {
			wg.Go(func() { w.noticeStop(w.paths[i], l) })
			wg.Go(func() { errs[i] = w.writeLate(ctx, w.paths[i], l) })
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	var errs []error
	for _, l := range leases {
		if err := l.Release(ctx); err != nil && !errors.Is(err, zklock.ErrLost) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// check waits for the gate of a lease, and asks the ensemble.
func (w *worker) check(ctx context.Context, path string, l *zklock.Lease) {
	line := report.Line{Event: report.Checked, Path: path, Node: l.Path(), Token: int64(l.Token())}
	err := l.Await(ctx)
	if err == nil {
		err = l.Verify(ctx)
	}
	if err != nil {
		line.Error, line.Lost = err.Error(), errors.Is(err, zklock.ErrLost)
	}
	w.out.Line(line)
}

// noticeStop passes a gate every few milliseconds. When it finds that the process
// was stopped, it reports what the first gate after that said.
func (w *worker) noticeStop(path string, l *zklock.Lease) {
	const stopped = int64(time.Second)
	for last := report.Now(); ; {
		time.Sleep(5 * time.Millisecond)
		before := report.Now()
		err := l.Err()
		after := report.Now()
		if before-last > stopped {
			line := report.Line{Event: report.Woke, Path: path, At: before, Lost: errors.Is(err, zklock.ErrLost)}
			if err != nil {
				line.Error = err.Error()
			}
			w.out.Line(line)
			return
		}
		// Stopped inside the gate: what it says may be from before, so the next counts.
		last = after
		if after-before > stopped {
			last = before
		}
	}
}

// writeLate passes a gate, works, and writes without another look, as a program
// does that is stopped between its gate and its step.
func (w *worker) writeLate(ctx context.Context, path string, l *zklock.Lease) error {
	if err := l.Await(ctx); err != nil {
		return err
	}
	w.out.Line(report.Line{Event: report.Gated, Path: path})
	time.Sleep(w.work)
	line := report.Line{Event: report.Wrote, Path: path, Token: int64(l.Token())}
	var err error
	if line.Fenced, err = put(ctx, w.store+"/fenced", path, l.Token()); err != nil {
		return err
	}
	if line.Open, err = put(ctx, w.store+"/open", path, l.Token()); err != nil {
		return err
	}
	w.out.Line(line)
	return nil
}

// put writes to a store under key, with the token, and returns the status code.
func put(ctx context.Context, store, key string, token zklock.Token) (int, error) {
	q := url.Values{"key": {key}, "token": {strconv.FormatInt(int64(token), 10)}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, store+"?"+q.Encode(), nil)
	if err != nil {
		return 0, err
	}
	// One connection a request: none is left for the check of goroutines.
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}
