// Package adapter is what the adapters written in Go share: the line protocol of package peers.
package adapter

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zklock/zklock/integration/internal/report"
)

// Lock is a lock of one path. Its methods are not called at the same time.
type Lock interface {
	// Acquire waits for the lock until ctx ends.
	Acquire(ctx context.Context) error
	Release(ctx context.Context) error
	// Node looks up the node of the lock while it is held.
	Node(ctx context.Context) (string, error)
}

// Client is a connected client.
type Client interface {
	Lock(path string) (Lock, error)
	// Guard makes sure that prefix/key has an outcome, and says whether it had one.
	Guard(ctx context.Context, prefix, key string) (replayed bool, err error)
	State() string
	Close() error
}

// Settings are the arguments of an adapter.
type Settings struct {
	Servers string
	Timeout time.Duration
	Tick    time.Duration
	Out     *report.Writer
}

type adapter struct {
	Settings
	client  Client
	tasks   sync.WaitGroup
	slots   map[string]*slot
	waiting atomic.Int64
}

// Main obeys the commands on standard input.
func Main(connect func(context.Context, Settings) (Client, error)) {
	out := report.NewWriter(os.Stdout)
	if err := run(connect, out); err != nil {
		out.Line(report.Line{Event: report.Failed, Error: err.Error()})
		os.Exit(1)
	}
}

func run(connect func(context.Context, Settings) (Client, error), out *report.Writer) error {
	if len(os.Args) != 4 {
		return fmt.Errorf("usage: %s SERVERS SESSION-TIMEOUT-MS TICK-MS", os.Args[0])
	}
	timeout, err := milliseconds(os.Args[2])
	if err != nil {
		return err
	}
	tick, err := milliseconds(os.Args[3])
	if err != nil {
		return err
	}
	a := &adapter{Settings: Settings{Servers: os.Args[1], Timeout: timeout, Tick: tick, Out: out}, slots: make(map[string]*slot)}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if a.client, err = connect(ctx, a.Settings); err != nil {
		return err
	}
	out.Line(report.Line{Event: report.Ready})
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if err := a.obey(ctx, strings.Fields(in.Text())); err != nil {
			return err
		}
	}
	cancel()
	a.tasks.Wait()
	if err := a.client.Close(); err != nil {
		return err
	}
	out.Line(report.Line{Event: report.Closed})
	return nil
}

func milliseconds(text string) (time.Duration, error) {
	n, err := strconv.Atoi(text)
	return time.Duration(n) * time.Millisecond, err
}

// slot is one path, with the commands about it in turn.
type slot struct {
	lock Lock
	jobs chan func()
}

func (a *adapter) obey(ctx context.Context, words []string) error {
	if len(words) == 1 && words[0] == "status" {
		a.Out.Line(report.Line{Event: report.Status, State: a.client.State(), Waiting: a.waiting.Load(), Memory: memory()})
		return nil
	}
	if len(words) < 2 {
		return fmt.Errorf("command %q", words)
	}
	path := words[1]
	if f := a.measured(ctx, words); f != nil {
		a.tasks.Go(func() {
			if err := f(); err != nil {
				a.failed(path, err)
			}
			a.Out.Line(report.Line{Event: report.Finished, Path: path})
		})
		return nil
	}
	switch {
	case words[0] == "acquire" && len(words) == 3:
		limit, err := milliseconds(words[2])
		if err != nil {
			return err
		}
		return a.queue(path, func(l Lock) { a.acquire(ctx, l, path, limit) })
	case words[0] == "release" && len(words) == 2:
		return a.queue(path, func(l Lock) { a.release(ctx, l, path) })
	case words[0] == "loop" && (len(words) == 4 || len(words) == 5 && words[4] == "nodes"):
		n, err := strconv.Atoi(words[2])
		if err != nil {
			return err
		}
		hold, err := milliseconds(words[3])
		if err != nil {
			return err
		}
		lock, err := a.client.Lock(path)
		if err != nil {
			return err
		}
		a.tasks.Go(func() {
			if err := a.loop(ctx, lock, path, n, hold, len(words) == 5); err != nil {
				a.failed(path, err)
			}
			a.Out.Line(report.Line{Event: report.Finished, Path: path})
		})
		return nil
	default:
		return fmt.Errorf("command %q", words)
	}
}

// queue puts a command behind the others about the same path.
func (a *adapter) queue(path string, f func(Lock)) error {
	s := a.slots[path]
	if s == nil {
		lock, err := a.client.Lock(path)
		if err != nil {
			return err
		}
		s = &slot{lock: lock, jobs: make(chan func(), 16)}
		a.slots[path] = s
		go func() {
			for job := range s.jobs {
				job()
			}
		}()
	}
	a.tasks.Add(1)
	s.jobs <- func() {
		defer a.tasks.Done()
		f(s.lock)
	}
	return nil
}

func (a *adapter) acquire(ctx context.Context, l Lock, path string, limit time.Duration) {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	line := report.Line{Event: report.Acquired, Path: path, Asked: report.Now()}
	err := l.Acquire(ctx)
	line.At = report.Now()
	switch {
	case err == nil:
		a.Out.Line(line)
	case errors.Is(err, context.DeadlineExceeded):
		line.Event, line.Error = report.TimedOut, err.Error()
		a.Out.Line(line)
	default:
		a.failed(path, err)
	}
}

func (a *adapter) release(ctx context.Context, l Lock, path string) {
	if err := l.Release(ctx); err != nil {
		a.failed(path, err)
		return
	}
	a.Out.Line(report.Line{Event: report.Released, Path: path})
}

func (a *adapter) failed(path string, err error) {
	a.Out.Line(report.Line{Event: report.Failed, Path: path, Error: err.Error()})
}

// loop makes n grants, and ends with the first error.
func (a *adapter) loop(ctx context.Context, l Lock, path string, n int, hold time.Duration, nodes bool) error {
	for range n {
		line := report.Line{Event: report.Grant, Path: path, Asked: report.Now()}
		if err := a.wait(ctx, l); err != nil {
			return err
		}
		line.Got = report.Now()
		if nodes {
			var err error
			if line.Node, err = l.Node(ctx); err != nil {
				return fmt.Errorf("look up the node: %w", err)
			}
		}
		if hold > 0 {
			time.Sleep(hold)
		}
		line.End = report.Now()
		if err := l.Release(ctx); err != nil {
			return fmt.Errorf("release: %w", err)
		}
		line.Done = report.Now()
		a.Out.Line(line)
	}
	return nil
}
