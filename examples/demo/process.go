//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
)

// process is one worker program.
type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended and its log is read
	err  error         // how it ended; set before done is closed

	mu      sync.Mutex
	lines   []logLine
	changed chan struct{} // closed and replaced with every line
}

// logLine is a line of a worker's log.
type logLine struct {
	Msg   string `json:"msg"`
	Key   string `json:"idempotency_key"`
	Token string `json:"token"`
	Error string `json:"error"`
	Gate  string `json:"gate"`
	text  string
}

func startWorker(program string, args []string) (*process, error) {
	p := &process{name: args[1], done: make(chan struct{}), changed: make(chan struct{})}
	p.cmd = exec.Command(program, args...) //nolint:noctx // kill ends it, whatever becomes of a ctx
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.cmd.Stderr = w
	err = p.cmd.Start()
	_ = w.Close()
	if err != nil {
		_ = r.Close()
		return nil, err
	}
	go func() {
		defer close(p.done)
		p.follow(r)
		_ = r.Close()
		p.err = p.cmd.Wait()
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// follow reads the log until the process ends.
func (p *process) follow(r io.Reader) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := logLine{text: lines.Text()}
		if json.Unmarshal(lines.Bytes(), &line) != nil {
			line = logLine{Msg: line.text, text: line.text} // not from its log: a panic, say
		}
		p.mu.Lock()
		p.lines = append(p.lines, line)
		close(p.changed)
		p.changed = make(chan struct{})
		p.mu.Unlock()
	}
	_, _ = io.Copy(io.Discard, r) // a line that is too long must not block the process
}

// logged returns how many lines there are: where to look for the next ones.
func (p *process) logged() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lines)
}

// await returns the first line with that message from line number from on.
func (p *process) await(ctx context.Context, from int, msg string) (logLine, error) {
	for {
		p.mu.Lock()
		fresh, changed := p.lines[from:], p.changed
		p.mu.Unlock()
		for _, line := range fresh {
			if line.Msg == msg {
				return line, nil
			}
		}
		from += len(fresh)
		select {
		case <-changed:
		case <-p.done:
			if p.logged() > from {
				continue
			}
			return logLine{}, fmt.Errorf("%s ended before it logged %q", p.name, msg)
		case <-ctx.Done():
			return logLine{}, fmt.Errorf("waiting for %s to log %q: %w", p.name, msg, context.Cause(ctx))
		}
	}
}

func (p *process) awaitExit(ctx context.Context) error {
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("waiting for its end: %w", context.Cause(ctx))
	}
}

func (p *process) signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("%v to %s: %w", sig, p.name, err)
	}
	return nil
}

// kill ends the process, unless it has ended, and waits for that.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

func (p *process) lastLines() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var texts []string
	for _, l := range p.lines[max(0, len(p.lines)-5):] {
		texts = append(texts, l.text)
	}
	return texts
}
