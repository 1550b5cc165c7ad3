package main

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
)

//go:embed postgres.sh
var postgresScript string

// postgres is a PostgreSQL server that the script runs.
type postgres struct {
	url   string
	cmd   *exec.Cmd
	stdin io.Closer
}

// startPostgres runs the script. What it says goes to log.
func startPostgres(log io.Writer) (*postgres, error) {
	cmd := exec.Command("bash", "-c", postgresScript, "postgres.sh") //nolint:noctx // the end of its input ends it
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &postgres{cmd: cmd, stdin: stdin}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return nil, errors.Join(errors.New("PostgreSQL was not started"), p.stop())
	}
	p.url = strings.TrimSpace(line)
	return p, nil
}

// stop removes the server.
func (p *postgres) stop() error {
	_ = p.stdin.Close()
	return p.cmd.Wait()
}

// instance is a process that serves.
type instance struct {
	name    string
	address string
	cmd     *exec.Cmd
	ended   chan struct{}

	mu      sync.Mutex
	lines   []line
	changed chan struct{} // closed and replaced with every line
}

// line is a line of an instance's log.
type line struct {
	Msg     string `json:"msg"`
	Key     string `json:"key"`
	Token   string `json:"token"`
	Attempt int    `json:"attempt"`
	Address string `json:"address"`
	text    string
}

// startInstance runs this program with -serve, and returns once it serves. Its log goes to log, too.
func startInstance(ctx context.Context, name string, log io.Writer, args ...string) (*instance, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	in := &instance{name: name, ended: make(chan struct{}), changed: make(chan struct{})}
	in.cmd = exec.Command(self, append([]string{"-serve", "-listen", "127.0.0.1:0"}, args...)...) //nolint:noctx // see stop
	stdout, err := in.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	in.cmd.Stderr = log
	if err := in.cmd.Start(); err != nil {
		return nil, err
	}
	go in.follow(stdout, log)
	l, err := in.await(ctx, func(l line) bool { return l.Msg == "serving" })
	if err != nil {
		return nil, errors.Join(err, in.cmd.Process.Kill())
	}
	in.address = l.Address
	return in, nil
}

// follow reads the log until the process ends.
func (in *instance) follow(stdout io.Reader, log io.Writer) {
	defer close(in.ended)
	for s := bufio.NewScanner(stdout); s.Scan(); {
		l := line{text: s.Text()}
		_ = json.Unmarshal(s.Bytes(), &l) // a line of somebody else has no fields
		fmt.Fprintf(log, "%s %s\n", in.name, l.text)
		in.mu.Lock()
		in.lines = append(in.lines, l)
		close(in.changed)
		in.changed = make(chan struct{})
		in.mu.Unlock()
	}
	_ = in.cmd.Wait()
}

// logged is what the instance has logged, and what tells of the next line.
func (in *instance) logged() ([]line, <-chan struct{}) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.Clip(in.lines), in.changed
}

// await waits for a line.
func (in *instance) await(ctx context.Context, match func(line) bool) (line, error) {
	for {
		lines, changed := in.logged()
		for _, l := range lines {
			if match(l) {
				return l, nil
			}
		}
		select {
		case <-changed:
		case <-in.ended:
			if more, _ := in.logged(); len(more) > len(lines) {
				continue
			}
			return line{}, fmt.Errorf("instance %s ended", in.name)
		case <-ctx.Done():
			return line{}, fmt.Errorf("instance %s: %w", in.name, context.Cause(ctx))
		}
	}
}

// stop ends the process in good order.
func (in *instance) stop() {
	_ = in.cmd.Process.Signal(os.Interrupt) // fails if it has ended
	<-in.ended
}
