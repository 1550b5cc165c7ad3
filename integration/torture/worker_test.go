package torture

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/goleak"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/integration/internal/report"
)

// goroutinesPerWorker are the goroutines of a worker, each of which takes one lock after the other.
const goroutinesPerWorker = 3

// A hold has up to maxSteps steps of up to longestStep. Each has its gate at its beginning and a write at its end, as
// that of a program that does not look again between the two.
const (
	maxSteps    = 6
	longestStep = 100 * time.Millisecond
)

// cling tells a worker that its first goroutine is to keep the lock it has, or gets, until it loses it or hears letGo.
const cling, letGo = "cling", "let go"

// impatience is how long the one in impatientShare waits at most before it gives up.
const (
	impatience     = 300 * time.Millisecond
	impatientShare = 8
)

// gateClosed is the State of a grant whose first gate said that it is lost already: nothing was done under it.
const gateClosed = "gate closed"

// workerMain takes locks until its input ends. Then it gives them back, closes its client and looks for goroutines
// that are left.
func workerMain() int {
	out := report.NewWriter(os.Stdout)
	if err := work(out); err != nil {
		out.Line(report.Line{Event: report.Failed, Error: err.Error()})
		return 1
	}
	out.Line(report.Line{Event: report.Closed})
	return 0
}

func work(out *report.Writer) error {
	timeout, err := time.ParseDuration(os.Getenv("ZKLOCK_TORTURE_TIMEOUT"))
	if err != nil {
		return err
	}
	place, err := strconv.Atoi(os.Getenv("ZKLOCK_TORTURE_PLACE"))
	if err != nil {
		return err
	}
	client, err := zklock.Connect(context.Background(), zklock.Config{
		Servers: []string{os.Getenv("ZKLOCK_TORTURE_SERVERS")}, SessionTimeout: timeout, TickTime: tick,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	out.Line(report.Line{Event: report.Ready})
	var mutexes []*zklock.InterProcessMutex
	for path := range strings.SplitSeq(os.Getenv("ZKLOCK_TORTURE_PATHS"), ",") {
		m, err := zklock.NewInterProcessMutex(client, path)
		if err != nil {
			return err
		}
		mutexes = append(mutexes, m)
	}
	stop := make(chan struct{})
	var clings atomic.Bool
	go func() {
		defer close(stop)
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			clings.Store(in.Text() == cling)
		}
	}()
	var wg sync.WaitGroup
	errs := make([]error, goroutinesPerWorker)
	for i := range errs {
		wg.Go(func() {
			for errs[i] == nil {
				select {
				case <-stop:
					return
				default:
				}
				// Each has a lock of its own choice, so that one that is blocked holds up its contenders only. Those
				// who wait for a moment only look at the others too.
				keep := func() bool { return i == 0 && clings.Load() }
				if rand.IntN(impatientShare) == 0 {
					errs[i] = hold(mutexes[rand.IntN(len(mutexes))], out, rand.N(impatience), keep)
				} else {
					errs[i] = hold(mutexes[(place+i)%len(mutexes)], out, 0, keep)
				}
			}
		})
	}
	wg.Wait()
	out.Line(report.Line{Event: report.Finished})
	http.DefaultClient.CloseIdleConnections()
	return errors.Join(errors.Join(errs...), client.Close(), goleak.Find())
}

// hold makes one acquisition: gates, work, writes, release. With a limit it may give up. While keep says so it goes on
// for as long as the lock is its own.
func hold(m *zklock.InterProcessMutex, out *report.Writer, limit time.Duration, keep func() bool) error {
	ctx := context.Background()
	line := report.Line{Event: report.Acquired, Path: m.Path(), Asked: report.Now()}
	wait, cancel := ctx, func() {}
	if limit > 0 {
		wait, cancel = context.WithTimeout(ctx, limit)
	}
	lease, err := m.Acquire(wait)
	cancel()
	if limit > 0 && errors.Is(err, zklock.ErrNotAcquired) && errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("acquire %s: %w", m.Path(), err)
	}
	line.Got = report.Now()
	line.Node, line.Token = lease.Path(), int64(lease.Token())
	out.Line(line) // at once, for a process that is killed says nothing later

	line.Event, line.At = report.Grant, 0
	for step, steps := 0, 1+rand.IntN(maxSteps); step < steps || keep(); step++ {
		if lease.Await(lease.Context()) != nil {
			if step == 0 {
				line.State = gateClosed
			}
			break
		}
		select {
		case <-time.After(rand.N(longestStep)):
			if line.Fenced, err = put(m.Path(), lease.Token()); err != nil {
				return err
			}
		case <-lease.Context().Done():
		}
	}
	line.End = report.Now()
	switch err := lease.Release(ctx); {
	case err == nil:
		line.Done = report.Now()
	case errors.Is(err, zklock.ErrLost):
		line.Lost, line.Error = true, err.Error()
	default:
		return fmt.Errorf("release %s: %w", lease.Path(), err)
	}
	out.Line(line)
	return nil
}

// put writes to the store and returns the status code.
func put(key string, token zklock.Token) (int, error) {
	q := url.Values{"key": {key}, "token": {strconv.FormatInt(int64(token), 10)}}
	resp, err := http.Post(os.Getenv("ZKLOCK_TORTURE_STORE")+"?"+q.Encode(), "text/plain", nil) //nolint:gosec // the address is the test's
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}
