// Package image finds or makes the ZooKeeper image that the integration tests run.
//
// The official image is preferred. Where no registry can be reached, build.sh of this folder makes an
// image with the same environment variables out of Debian's packages; it is made once and reused until
// the recipe changes.
package image

import (
	"context"
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
)

// EnvImage is the environment variable that names the image for the default version. When it is set,
// nothing else is tried.
const EnvImage = "ZKLOCK_ZOOKEEPER_IMAGE"

// DefaultVersion is the ZooKeeper version that tests run when they ask for none.
const DefaultVersion = "3.9"

// pullPatience is how long a registry may take to say its first word. A machine without one usually
// fails at once, but a firewall that drops packets would hold up every run for minutes.
const pullPatience = 15 * time.Second

//go:embed build.sh entrypoint.sh peers.sh
var recipe embed.FS

// Ensure returns the name of an image of the given ZooKeeper version ("3.9" or "3.8", "" for
// DefaultVersion) that is present in the engine. It looks in this order: $ZKLOCK_ZOOKEEPER_IMAGE for the
// default version, a local zookeeper:<version>, an image built before, the registry, and last it
// builds one, which takes a minute or two. Long steps are told to logf, which may be nil.
//
// A built image goes before the registry so that a machine without one asks only once.
func Ensure(ctx context.Context, docker client.APIClient, version string, logf func(format string, args ...any)) (string, error) {
	if logf == nil {
		logf = func(string, ...any) {}
	}
	if version == "" {
		version = DefaultVersion
	}

	if name := os.Getenv(EnvImage); name != "" && version == DefaultVersion {
		switch ok, err := present(ctx, docker, name); {
		case err != nil:
			return "", err
		case ok:
			return name, nil
		}
		logf("pulling %s, as %s says", name, EnvImage)
		if err := pull(ctx, docker, name); err != nil {
			return "", fmt.Errorf("%s=%s is neither in the engine nor can it be pulled: %w", EnvImage, name, err)
		}
		return name, nil
	}

	official := "zookeeper:" + version
	built, err := script(ctx, nil, "build.sh", "--tag", version)
	if err != nil {
		return "", err
	}
	for _, name := range []string{official, built} {
		switch ok, err := present(ctx, docker, name); {
		case err != nil:
			return "", err
		case ok:
			return name, nil
		}
	}
	err = pull(ctx, docker, official)
	if err == nil {
		return official, nil
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	logf("cannot pull %s (%v); building an image from Debian's packages, once, in a minute or two", official, err)
	return script(ctx, logf, "build.sh", version)
}

// EnsurePeers returns the name of an image with a JDK and Curator, and with Python and kazoo. It is built unless
// it is there.
func EnsurePeers(ctx context.Context, docker client.APIClient, logf func(format string, args ...any)) (string, error) {
	if logf == nil {
		logf = func(string, ...any) {}
	}
	name, err := script(ctx, nil, "peers.sh", "--tag")
	if err != nil {
		return "", err
	}
	if ok, err := present(ctx, docker, name); err != nil || ok {
		return name, err
	}
	logf("building an image with Curator and kazoo from Debian's packages, once, in a minute or two")
	return script(ctx, logf, "peers.sh")
}

// present tells whether the engine has the image.
func present(ctx context.Context, docker client.APIClient, name string) (bool, error) {
	_, err := docker.ImageInspect(ctx, name)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("asking the Docker engine for image %s: %w", name, err)
	}
	return true, nil
}

// pull fetches the image, and gives up when the registry stays silent for pullPatience.
func pull(ctx context.Context, docker client.APIClient, name string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(pullPatience, func() {
		cancel(fmt.Errorf("the registry said nothing for %s", pullPatience))
	})
	defer silence.Stop()

	resp, err := docker.ImagePull(ctx, name, client.ImagePullOptions{})
	if err == nil {
		for message, streamErr := range resp.JSONMessages(ctx) {
			silence.Reset(pullPatience)
			if streamErr != nil {
				err = streamErr
			} else if message.Error != nil {
				err = message.Error
			}
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// script runs one of the scripts from a temporary folder, so that it works wherever the test binary was built,
// and returns the image name that it prints.
func script(ctx context.Context, logf func(string, ...any), script string, args ...string) (string, error) {
	dir, err := os.MkdirTemp("", "zklock-image-recipe-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	for _, name := range []string{"build.sh", "entrypoint.sh", "peers.sh"} {
		text, err := recipe.ReadFile(name)
		if err != nil {
			return "", err
		}
		// Executable, since the scripts start themselves again under sudo and install the entry point.
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o700); err != nil { //nolint:gosec // a script
			return "", err
		}
	}

	var progress strings.Builder
	cmd := exec.CommandContext(ctx, "/bin/sh", append([]string{filepath.Join(dir, script)}, args...)...)
	cmd.Stderr = &progress
	// SIGINT lets the script remove its half-made tree. It goes to the whole group, because the shell
	// looks at signals only after the program that it waits for has ended.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.Output()
	if logf != nil && progress.Len() > 0 {
		logf("%s", strings.TrimSpace(progress.String()))
	}
	if err != nil {
		return "", fmt.Errorf("building an image with %s: %w\n%s", script, err, progress.String())
	}
	name := strings.TrimSpace(string(out))
	if name == "" {
		return "", fmt.Errorf("building an image: %s printed no name", script)
	}
	return name, nil
}
