package adapter

import (
	"context"
	"fmt"
	"runtime"
	"strconv"

	"github.com/go-zklock/zklock/integration/internal/report"
)

// Trier is a Lock that can be asked for without a wait.
type Trier interface {
	// Try says whether the lock was taken.
	Try(ctx context.Context) (bool, error)
}

// measured is what a command for measuring does, nil if it is none.
func (a *adapter) measured(ctx context.Context, words []string) func() error {
	numbers := make([]int, 0, 3)
	for _, word := range words[2:] {
		n, err := strconv.Atoi(word)
		if err != nil {
			return nil
		}
		numbers = append(numbers, n)
	}
	path := words[1]
	switch {
	case words[0] == "try" && len(numbers) == 1:
		return func() error { return a.try(ctx, path, numbers[0]) }
	case words[0] == "cycle" && len(numbers) == 3 && numbers[1] > 0:
		return func() error { return a.cycle(ctx, path, numbers[0], numbers[1], numbers[2]) }
	case words[0] == "guard" && len(numbers) == 3 && numbers[1] > 0:
		return func() error { return a.guard(ctx, path, numbers[0], numbers[1], numbers[2]) }
	default:
		return nil
	}
}

// tell writes what a command has kept.
func (a *adapter) tell(lines []report.Line) {
	for _, line := range lines {
		a.Out.Line(line)
	}
}

func (a *adapter) cycle(ctx context.Context, prefix string, first, keys, n int) error {
	locks := make([]Lock, keys)
	lines := make([]report.Line, 0, n)
	defer func() { a.tell(lines) }()
	for i := range n {
		k := i % keys
		line := report.Line{Event: report.Grant, Path: prefix + "/" + strconv.Itoa(first+k), Asked: report.Now()}
		if locks[k] == nil {
			var err error
			if locks[k], err = a.client.Lock(line.Path); err != nil {
				return err
			}
		}
		if err := a.wait(ctx, locks[k]); err != nil {
			return err
		}
		line.Got = report.Now()
		line.End = line.Got
		if err := locks[k].Release(ctx); err != nil {
			return fmt.Errorf("release: %w", err)
		}
		line.Done = report.Now()
		line.At = line.Done
		lines = append(lines, line)
	}
	return nil
}

// wait is Acquire, counted.
func (a *adapter) wait(ctx context.Context, l Lock) error {
	a.waiting.Add(1)
	defer a.waiting.Add(-1)
	if err := l.Acquire(ctx); err != nil {
		return fmt.Errorf("acquire: %w", err)
	}
	return nil
}

func (a *adapter) try(ctx context.Context, path string, n int) error {
	lock, err := a.client.Lock(path)
	if err != nil {
		return err
	}
	trier, ok := lock.(Trier)
	if !ok {
		return fmt.Errorf("this lock cannot be tried")
	}
	lines := make([]report.Line, 0, n)
	defer func() { a.tell(lines) }()
	for range n {
		line := report.Line{Event: report.Tried, Path: path, State: "held", Asked: report.Now()}
		got, err := trier.Try(ctx)
		if err != nil {
			return fmt.Errorf("try: %w", err)
		}
		line.Done = report.Now()
		line.At = line.Done
		if got {
			line.State = "acquired"
			if err := lock.Release(ctx); err != nil {
				return fmt.Errorf("release: %w", err)
			}
		}
		lines = append(lines, line)
	}
	return nil
}

func (a *adapter) guard(ctx context.Context, prefix string, first, keys, n int) error {
	lines := make([]report.Line, 0, n)
	defer func() { a.tell(lines) }()
	for i := range n {
		key := strconv.Itoa(first + i%keys)
		line := report.Line{Event: report.Guarded, Path: prefix + "/" + key, State: "ran", Asked: report.Now()}
		replayed, err := a.client.Guard(ctx, prefix, key)
		if err != nil {
			return fmt.Errorf("guard %s: %w", line.Path, err)
		}
		line.Done = report.Now()
		line.At = line.Done
		if replayed {
			line.State = "replayed"
		}
		lines = append(lines, line)
	}
	return nil
}

// memory is what the program needs, without what a collection would free.
func memory() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc + stats.StackInuse)
}
