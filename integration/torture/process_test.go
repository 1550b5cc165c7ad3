package torture

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/go-zklock/zklock/integration/internal/report"
	"github.com/go-zklock/zklock/integration/zkcluster"
	"github.com/go-zklock/zklock/integration/zkproxy"
)

// process is this binary in another role.
type process struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	said  chan report.Line // what is not about a grant
	ended chan struct{}
	err   error
	log   lockedBuffer
}

// startProcess starts a process whose lines go into the history.
func startProcess(h *history, name, role string, env ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{name: name, cmd: exec.Command(self), said: make(chan report.Line, 16), ended: make(chan struct{})}
	p.cmd.Env = append(append(os.Environ(), envRole+"="+role), env...)
	p.cmd.Stderr = &p.log
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.ended)
		for in := bufio.NewScanner(stdout); in.Scan(); {
			var l report.Line
			if err := json.Unmarshal(in.Bytes(), &l); err != nil {
				continue // the half line of a process that was killed
			}
			h.add(name, l)
			switch l.Event {
			case report.Acquired, report.Grant, accepted, refused:
			default:
				p.said <- l
			}
		}
		p.err = p.cmd.Wait()
		close(p.said)
	}()
	return p, nil
}

// awaitLine waits until the process has said event.
func (p *process) awaitLine(ctx context.Context, event report.Event) (report.Line, error) {
	for {
		select {
		case l, ok := <-p.said:
			switch {
			case !ok:
				return l, fmt.Errorf("%s ended before it said %q:\n%s", p.name, event, p.log.tail())
			case l.Event == event:
				return l, nil
			case l.Event == report.Failed:
				return l, fmt.Errorf("%s: %s\n%s", p.name, l.Error, p.log.tail())
			}
		case <-ctx.Done():
			return report.Line{}, fmt.Errorf("%s: waiting for %q: %w\n%s", p.name, event, context.Cause(ctx), p.log.tail())
		}
	}
}

// kill ends the process and returns when all it said is in the history.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails when it has ended
	go func() {
		for range p.said {
		}
	}()
	<-p.ended
}

// worker is one place for a worker process, with proxies of its own in front of all servers. When its process is
// killed, another takes the place.
type worker struct {
	*process
	place   int
	born    int
	proxies []*zkproxy.Proxy
	start   func(name string) (*process, error)
}

// newWorker starts a worker with a session timeout of its own.
func newWorker(t testing.TB, h *history, c *zkcluster.Cluster, place int, env ...string) (*worker, error) {
	t.Helper()
	w := &worker{place: place}
	var servers []string
	for _, s := range c.Servers() {
		p := zkproxy.New(t, s.Addr())
		w.proxies = append(w.proxies, p)
		servers = append(servers, p.Addr())
	}
	env = append(env, "ZKLOCK_TORTURE_SERVERS="+strings.Join(servers, ","), fmt.Sprintf("ZKLOCK_TORTURE_PLACE=%d", place))
	w.start = func(name string) (*process, error) { return startProcess(h, name, "worker", env...) }
	return w, w.renew()
}

// renew starts another process in the place of the last.
func (w *worker) renew() (err error) {
	w.born++
	w.process, err = w.start(fmt.Sprintf("worker %d.%d", w.place, w.born))
	return err
}

// tell sends the worker a line.
func (w *worker) tell(line string) error {
	_, err := fmt.Fprintln(w.stdin, line)
	return err
}

func (w *worker) signal(s syscall.Signal) error { return w.cmd.Process.Signal(s) }

// lines does something to every line between the worker and the servers.
func (w *worker) lines(f func(*zkproxy.Proxy)) {
	for _, p := range w.proxies {
		f(p)
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// tail is the end of what was written, behind what the race detector has found.
func (l *lockedBuffer) tail() string {
	const most = 4 << 10
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.b.Bytes()
	end := b[max(0, len(b)-most):]
	if i := bytes.Index(b, []byte("WARNING: DATA RACE")); i >= 0 && i < len(b)-most {
		return string(b[i:min(len(b), i+2*most)]) + "\n…\n" + string(end)
	}
	return string(end)
}
