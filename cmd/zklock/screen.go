package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/go-zklock/zklock"
)

// lookFlags say how something is shown.
type lookFlags struct {
	JSON     bool          `name:"json" help:"Print JSON; with --watch one document a line."`
	Watch    bool          `short:"w" help:"Show it again and again, on a terminal in place, until Ctrl-C."`
	Interval time.Duration `default:"1s" placeholder:"1s" help:"How long to wait between two looks with --watch. Default ${default}."`
}

func (f *lookFlags) validate() error {
	if f.Interval < 10*time.Millisecond {
		return fmt.Errorf("--interval %v: has to be at least 10ms", f.Interval)
	}
	return nil
}

// show prints what look finds, once or until ctx ends. text writes it for people.
func show[T any](ctx context.Context, f *lookFlags, std *streams, v *viewer, look func(context.Context) (T, error), text func(io.Writer, T)) error {
	if !f.Watch {
		found, err := look(ctx)
		switch {
		case ctx.Err() != nil && !errors.Is(context.Cause(ctx), errAway):
			return nil // Ctrl-C is how it ends
		case err != nil:
			return err
		case f.JSON:
			enc := json.NewEncoder(std.out)
			enc.SetIndent("", "  ")
			return enc.Encode(found)
		}
		text(std.out, found)
		return nil
	}
	frames := f.frames(std)
	defer frames.end()
	for {
		found, err := lookWhileThere(ctx, v.client, look)
		switch {
		case ctx.Err() != nil:
			return nil // as above
		case away(err):
			frames.away()
		case err != nil:
			return err
		case f.JSON:
			frames.back()
			if err := json.NewEncoder(std.out).Encode(found); err != nil {
				return err
			}
		default:
			frames.back()
			var b strings.Builder
			text(&b, found)
			frames.show(b.String())
		}
		if !frames.pause(ctx, f.Interval) {
			return nil
		}
	}
}

// lookWhileThere looks, and gives up as soon as the ensemble does not answer.
func lookWhileThere[T any](ctx context.Context, client *zklock.Client, look func(context.Context) (T, error)) (T, error) {
	ctx, stop := whileThere(ctx, client, 0)
	defer stop()
	return look(ctx)
}

// frames are what is shown with --watch, one after the other.
type frames struct {
	std     *streams
	inPlace bool
	resized chan os.Signal
	last    string    // the frame that was shown last
	since   time.Time // when the ensemble went away; zero while it is there
}

func (f *lookFlags) frames(std *streams) *frames {
	fs := &frames{std: std, inPlace: !f.JSON && isTerminal(std.out), resized: make(chan os.Signal, 1)}
	if fs.inPlace {
		signal.Notify(fs.resized, resized)
		fmt.Fprint(std.out, "\x1b[2J")
	}
	return fs
}

func (fs *frames) end() { signal.Stop(fs.resized) }

// show shows a frame.
func (fs *frames) show(frame string) {
	fs.last = frame
	if fs.inPlace {
		fs.draw()
	} else {
		fmt.Fprint(fs.std.out, frame)
	}
}

// away keeps the last frame, and says since when it is old.
func (fs *frames) away() {
	first := fs.since.IsZero()
	if first {
		fs.since = time.Now()
	}
	switch {
	case fs.inPlace:
		fs.draw()
	case first:
		fmt.Fprintf(fs.std.err, "zklock: %s\n", fs.absence())
	}
}

// back ends away.
func (fs *frames) back() {
	if !fs.since.IsZero() && !fs.inPlace {
		fmt.Fprintf(fs.std.err, "zklock: the ensemble is back\n")
	}
	fs.since = time.Time{}
}

func (fs *frames) absence() string {
	return fmt.Sprintf("the ensemble is away since %s", fs.since.Format("15:04:05"))
}

// draw writes over what was there before, line by line, so that nothing flickers. The
// terminal itself cuts what is too wide (it knows how wide a character is), since a line
// that wrapped would push the first one out at the top. So would the last row's end.
func (fs *frames) draw() {
	var lines []string
	if fs.last != "" {
		lines = strings.Split(strings.TrimRight(fs.last, "\n"), "\n")
	}
	rows, columns := terminalSize(fs.std.out)
	rows-- // the cursor's
	var note []string
	if !fs.since.IsZero() {
		note = []string{fs.absence()}
	}
	if room := max(rows-len(note), 1); len(lines) > room {
		more := len(lines) - room + 1
		lines = append(lines[:room-1:room-1], fmt.Sprintf("… and %d more", more))
	}
	var screen strings.Builder
	screen.WriteString("\x1b[?7l\x1b[H")
	for _, line := range append(lines, note...) {
		screen.WriteString(cut(line, columns) + "\x1b[K\r\n")
	}
	screen.WriteString("\x1b[J\x1b[?7h")
	fmt.Fprint(fs.std.out, screen.String())
}

// pause waits for the next look, and fits the frame into a window that changes meanwhile.
// It returns false when ctx is over.
func (fs *frames) pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return true
		case <-fs.resized:
			fs.draw()
		case <-ctx.Done():
			return false
		}
	}
}

// ago is how long something has been so, as people say it.
func ago(since time.Time) string {
	d := time.Since(since)
	switch {
	case d < 0:
		return "0s"
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}
