package zkcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/go-zklock/zklock/integration/image"
)

// ProgramOptions say what to run in a container.
type ProgramOptions struct {
	// Image is the container's image. It has to be there.
	Image string
	// Command is what to run, without a shell.
	Command []string
	// Folders are folders of this machine, by their names in the container.
	Folders map[string]string
	// Stderr gets what the program writes there. Default: nowhere.
	Stderr io.Writer
}

// Program is a process in a container of its own, with the network and the clocks of this machine. It reads
// what is written to Stdin; Stdout ends when it has ended.
type Program struct {
	Stdin  io.Writer
	Stdout io.Reader

	docker    *client.Client
	container string
	stream    client.ContainerAttachResult
	pid       int           // as this machine sees it; 0 if it does not
	ended     chan struct{} // closed when it has ended; code and err are set by then
	code      int64
	err       error

	mu      sync.Mutex
	removed bool
}

// PeersImage returns the name of the image with the peers' libraries, which is built if it is not there.
func PeersImage(ctx context.Context, logf func(format string, args ...any)) (string, error) {
	docker, err := engine(ctx)
	if err != nil {
		return "", err
	}
	return image.EnsurePeers(ctx, docker, logf)
}

// StartProgram starts a program. Close must be called; when this process dies instead, the container goes like
// those of the servers.
func StartProgram(ctx context.Context, o ProgramOptions) (_ *Program, err error) {
	docker, err := engine(ctx)
	if err != nil {
		return nil, err
	}
	var binds []string
	for inside, here := range o.Folders {
		binds = append(binds, here+":"+inside)
	}
	p := &Program{docker: docker, ended: make(chan struct{})}
	unlock, err := lockEngine(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	made, err := docker.ContainerCreate(ctx, client.ContainerCreateOptions{
		Image: o.Image,
		Config: &container.Config{
			Entrypoint: o.Command, Labels: labels(),
			OpenStdin: true, StdinOnce: true, AttachStdin: true, AttachStdout: true, AttachStderr: true,
		},
		HostConfig: &container.HostConfig{NetworkMode: "host", Binds: binds},
	})
	if err != nil {
		return nil, fmt.Errorf("making a container for %v: %w", o.Command, err)
	}
	p.container = made.ID
	defer func() {
		if err != nil {
			_, removeErr := docker.ContainerRemove(context.WithoutCancel(ctx), made.ID, client.ContainerRemoveOptions{Force: true})
			err = errors.Join(fmt.Errorf("starting %v: %w", o.Command, err), removeErr)
		}
	}()
	p.stream, err = docker.ContainerAttach(ctx, made.ID, client.ContainerAttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		return nil, err
	}
	gone := docker.ContainerWait(context.WithoutCancel(ctx), made.ID, client.ContainerWaitOptions{Condition: container.WaitConditionNextExit})
	if _, err := docker.ContainerStart(ctx, made.ID, client.ContainerStartOptions{}); err != nil {
		p.stream.Close()
		return nil, err
	}
	p.findProcess(ctx)
	out, in := io.Pipe()
	stderr := o.Stderr
	if stderr == nil {
		stderr = io.Discard
	}
	go func() {
		_, err := stdcopy.StdCopy(in, stderr, p.stream.Reader)
		in.CloseWithError(err)
	}()
	go func() {
		defer close(p.ended)
		select {
		case result := <-gone.Result:
			p.code = result.StatusCode
		case p.err = <-gone.Error:
		}
	}()
	p.Stdin, p.Stdout = p.stream.Conn, out
	return p, nil
}

// findProcess looks the program up among the processes of this machine, as for a server.
func (p *Program) findProcess(ctx context.Context) {
	seen, err := p.docker.ContainerInspect(ctx, p.container, client.ContainerInspectOptions{})
	if err != nil || seen.Container.State == nil {
		return
	}
	group, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", seen.Container.State.Pid))
	if err == nil && bytes.Contains(group, []byte(p.container)) {
		p.pid = seen.Container.State.Pid
	}
}

// PID is the process as this machine sees it, 0 if it does not.
func (p *Program) PID() int { return p.pid }

// CloseStdin tells the program that nothing more comes.
func (p *Program) CloseStdin() error { return p.stream.CloseWrite() }

// Wait returns when the program has ended: nil if it ended with 0.
func (p *Program) Wait(ctx context.Context) error {
	select {
	case <-p.ended:
	case <-ctx.Done():
		return fmt.Errorf("waiting for the end: %w", context.Cause(ctx))
	}
	if p.err == nil && p.code != 0 {
		return fmt.Errorf("ended with %d", p.code)
	}
	return p.err
}

// Signal sends a signal, at once where this machine sees the process.
func (p *Program) Signal(ctx context.Context, sig syscall.Signal) error {
	if p.pid != 0 && os.Geteuid() == 0 {
		return syscall.Kill(p.pid, sig)
	}
	_, err := p.docker.ContainerKill(ctx, p.container, client.ContainerKillOptions{Signal: strconv.Itoa(int(sig))})
	return err
}

// Close ends the program, if it has not, and removes its container. It may be called again.
func (p *Program) Close(ctx context.Context) error {
	p.mu.Lock()
	removed := p.removed
	p.removed = true
	p.mu.Unlock()
	if removed {
		return nil
	}
	err := exclusively(ctx, func() error {
		_, err := p.docker.ContainerRemove(ctx, p.container, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		if errdefs.IsNotFound(err) {
			return nil
		}
		return err
	})
	p.stream.Close()
	return err
}
