package peers

import (
	"bufio"
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/go-zklock/zklock/integration/internal/report"
	"github.com/go-zklock/zklock/integration/zkcluster"
)

// Library is whose lock a peer takes.
type Library string

// The libraries.
const (
	Curator     Library = "Curator"
	Kazoo       Library = "kazoo"
	GoZooKeeper Library = "go-zookeeper"
	Zklock      Library = "zklock"
)

// Libraries are all of them.
var Libraries = []Library{Curator, Kazoo, GoZooKeeper, Zklock}

//go:embed curator/Adapter.java kazoo/adapter.py
var sources embed.FS

// Line is a line of the protocol.
type Line = report.Line

// Event says what a line is about.
type Event = report.Event

// The events that programs outside this module wait for.
const (
	Ready    = report.Ready
	Acquired = report.Acquired
	Released = report.Released
	Grant    = report.Grant
	Tried    = report.Tried
	Guarded  = report.Guarded
	Status   = report.Status
	Finished = report.Finished
)

// Options say how a peer connects.
type Options struct {
	Servers string        // connect string
	Timeout time.Duration // session timeout asked for
	Tick    time.Duration // the ensemble's tick; default 2 s
	// CuratorNames gives kazoo's nodes names that Curator's recipe sees. Other libraries have them anyway.
	CuratorNames bool
	// Java are the flags of Curator's virtual machine. Default: small and quick to start, like the servers.
	Java []string
}

// A Kit holds the adapters in a form that can be started. Close removes it.
type Kit struct {
	dir   string
	image string
}

// NewKit compiles the adapters: Go's on this machine, Java's in a container. logf, which may be nil, hears of long
// steps.
func NewKit(ctx context.Context, logf func(format string, args ...any)) (_ *Kit, err error) {
	k := &Kit{}
	if k.dir, err = os.MkdirTemp("", "zklock-peers-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, k.Close())
		}
	}()
	for library, pkg := range map[Library]string{GoZooKeeper: "gozk", Zklock: "zklock"} {
		cmd := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(k.dir, string(library)),
			"github.com/go-zklock/zklock/integration/peers/"+pkg)
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("compiling the adapter of %s: %w\n%s", library, err, out)
		}
	}
	for _, name := range []string{"curator/Adapter.java", "kazoo/adapter.py"} {
		text, err := sources.ReadFile(name)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(k.dir, filepath.Base(name)), text, 0o600); err != nil {
			return nil, err
		}
	}
	if k.image, err = zkcluster.PeersImage(ctx, logf); err != nil {
		return nil, err
	}
	if err := k.inside(ctx, "javac", "-proc:none", "-d", "/adapters", "-cp", "/opt/peers/lib/*", "/adapters/Adapter.java"); err != nil {
		return nil, fmt.Errorf("compiling the adapter of Curator: %w", err)
	}
	return k, nil
}

// inside runs a command to its end in the image.
func (k *Kit) inside(ctx context.Context, command ...string) error {
	var said bytes.Buffer
	p, err := zkcluster.StartProgram(ctx, zkcluster.ProgramOptions{
		Image: k.image, Command: command, Folders: map[string]string{"/adapters": k.dir}, Stderr: &said,
	})
	if err != nil {
		return err
	}
	_, err = io.Copy(&said, p.Stdout)
	if err = errors.Join(err, p.Wait(ctx)); err != nil {
		err = fmt.Errorf("%w\n%s", err, said.Bytes())
	}
	return errors.Join(err, p.Close(context.WithoutCancel(ctx)))
}

// Close removes what NewKit made.
func (k *Kit) Close() error { return os.RemoveAll(k.dir) }

// Versions are those of the libraries, as their packages say.
func (k *Kit) Versions(ctx context.Context) (map[Library]string, error) {
	var text bytes.Buffer
	p, err := zkcluster.StartProgram(ctx, zkcluster.ProgramOptions{
		Image: k.image, Command: []string{"dpkg-query", "-W", "-f", "${Version}\n", "libcurator-recipes-java", "python3-kazoo"},
	})
	if err != nil {
		return nil, err
	}
	_, err = io.Copy(&text, p.Stdout)
	if err = errors.Join(err, p.Wait(ctx), p.Close(context.WithoutCancel(ctx))); err != nil {
		return nil, err
	}
	fields := bytes.Fields(text.Bytes())
	if len(fields) != 2 {
		return nil, fmt.Errorf("versions of the packages: %q", text.String())
	}
	goZooKeeper, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Version}}", "github.com/go-zookeeper/zk").Output()
	return map[Library]string{
		Curator: string(fields[0]), Kazoo: string(fields[1]), GoZooKeeper: string(bytes.TrimSpace(goZooKeeper)), Zklock: "this one",
	}, err
}

// Peer is a running adapter.
type Peer struct {
	Library Library
	// Lines are what it says, in order. It is closed when the program has ended.
	Lines <-chan Line

	stdin   io.Writer
	stderr  lockedBuffer
	program *zkcluster.Program // in a container,
	cmd     *exec.Cmd          // or not
	ended   chan struct{}      // of cmd; err is set by then
	err     error
}

// Start starts an adapter. It is ready, or has failed, when it says so.
func (k *Kit) Start(ctx context.Context, library Library, o Options) (*Peer, error) {
	if o.Tick == 0 {
		o.Tick = 2 * time.Second
	}
	args := []string{o.Servers, strconv.FormatInt(o.Timeout.Milliseconds(), 10), strconv.FormatInt(o.Tick.Milliseconds(), 10)}
	p := &Peer{Library: library}
	var stdout io.Reader
	var err error
	switch library {
	case Curator:
		flags := o.Java
		if flags == nil {
			flags = []string{"-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"}
		}
		command := slices.Concat([]string{"java"}, flags, []string{"-cp", "/adapters:/opt/peers/lib/*", "Adapter"}, args)
		stdout, err = p.startInside(ctx, k, command)
	case Kazoo:
		command := []string{"python3", "/adapters/adapter.py"}
		if o.CuratorNames {
			command = append([]string{"env", "KAZOO_NAMES=curator"}, command...)
		}
		stdout, err = p.startInside(ctx, k, append(command, args...))
	default:
		stdout, err = p.startHere(filepath.Join(k.dir, string(library)), args)
	}
	if err != nil {
		return nil, fmt.Errorf("starting the adapter of %s: %w", library, err)
	}
	lines := make(chan Line, 1<<16) // more than any test lets pile up
	p.Lines = lines
	go func() {
		defer close(lines)
		for in := bufio.NewScanner(stdout); in.Scan(); {
			var l Line
			if err := json.Unmarshal(in.Bytes(), &l); err != nil {
				l = Line{Event: report.Failed, Error: fmt.Sprintf("%q: %v", in.Text(), err)}
			}
			lines <- l
		}
		if p.cmd != nil {
			p.err = p.cmd.Wait()
			close(p.ended)
		}
	}()
	return p, nil
}

func (p *Peer) startInside(ctx context.Context, k *Kit, command []string) (io.Reader, error) {
	var err error
	p.program, err = zkcluster.StartProgram(ctx, zkcluster.ProgramOptions{
		Image: k.image, Command: command, Folders: map[string]string{"/adapters": k.dir}, Stderr: &p.stderr,
	})
	if err != nil {
		return nil, err
	}
	p.stdin = p.program.Stdin
	return p.program.Stdout, nil
}

func (p *Peer) startHere(program string, args []string) (io.Reader, error) {
	p.cmd = exec.Command(program, args...) //nolint:noctx // Close ends it
	p.cmd.Stderr = &p.stderr
	p.ended = make(chan struct{})
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return stdout, p.cmd.Start()
}

// Command sends one command.
func (p *Peer) Command(format string, args ...any) error {
	_, err := fmt.Fprintf(p.stdin, format+"\n", args...)
	return err
}

// ErrEnded says that a peer has ended while it was waited for.
var ErrEnded = errors.New("the adapter has ended")

// Next returns the next line that is about one of the events. Others are passed over, but a Failed that is not
// asked for is an error.
func (p *Peer) Next(ctx context.Context, events ...report.Event) (Line, error) {
	for {
		select {
		case l, ok := <-p.Lines:
			if !ok {
				return l, fmt.Errorf("%s: %w, before it said %v\n%s", p.Library, ErrEnded, events, p.stderr.String())
			}
			if slices.Contains(events, l.Event) {
				return l, nil
			}
			if l.Event == report.Failed {
				return l, fmt.Errorf("%s: %s", p.Library, l.Error)
			}
		case <-ctx.Done():
			return Line{}, fmt.Errorf("%s: waiting for %v: %w", p.Library, events, context.Cause(ctx))
		}
	}
}

// PID is the program's process as this machine sees it, 0 if it does not.
func (p *Peer) PID() int {
	if p.program != nil {
		return p.program.PID()
	}
	return p.cmd.Process.Pid
}

// Signal sends a signal to the program.
func (p *Peer) Signal(ctx context.Context, sig syscall.Signal) error {
	if p.program != nil {
		return p.program.Signal(ctx, sig)
	}
	return p.cmd.Process.Signal(sig)
}

// Finish tells the program that nothing more comes and waits for its good end.
func (p *Peer) Finish(ctx context.Context) error {
	var err error
	if p.program != nil {
		err = p.program.CloseStdin()
	} else if c, ok := p.stdin.(io.Closer); ok {
		err = c.Close()
	}
	if err != nil {
		return err
	}
	if _, err := p.Next(ctx, report.Closed); err != nil {
		return err
	}
	return p.wait(ctx)
}

func (p *Peer) wait(ctx context.Context) error {
	if p.program != nil {
		return p.program.Wait(ctx)
	}
	select {
	case <-p.ended:
		return p.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close ends the program, whatever it does, and removes what was made for it.
func (p *Peer) Close(ctx context.Context) error {
	go func() { // nobody listens any more
		for range p.Lines {
		}
	}()
	if p.program != nil {
		return p.program.Close(ctx)
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Stderr is what the program wrote there.
func (p *Peer) Stderr() string { return p.stderr.String() }

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
