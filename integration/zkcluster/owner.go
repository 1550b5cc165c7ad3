package zkcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	"github.com/moby/moby/client"
)

// Everything made in Docker carries these labels, so that what a dead process left behind can be told from
// what a running one uses, also when the process was killed and removed nothing.
const (
	labelRun   = "zklock.test.run"
	labelOwner = "zklock.test.owner"
)

// foreignAge is the age at which things of a process that cannot be looked up from here, since it runs in
// another container, count as left behind.
const foreignAge = 6 * time.Hour

// runID names this process among all that ever made containers here.
var runID = uuid.NewString()

func labels() map[string]string {
	return map[string]string{labelRun: runID, labelOwner: self().String()}
}

// owner names a process for good: process ids are used again, and mean something else after a restart of the
// machine or in another container.
type owner struct {
	boot      string // boot id of the kernel
	namespace string // its pid namespace
	pid       string
	started   string // in ticks since boot
}

func (o owner) String() string {
	return strings.Join([]string{o.boot, o.namespace, o.pid, o.started}, "/")
}

func parseOwner(text string) (owner, bool) {
	part := strings.Split(text, "/")
	if len(part) != 4 {
		return owner{}, false
	}
	return owner{part[0], part[1], part[2], part[3]}, true
}

func self() owner { return lookUp(fmt.Sprint(os.Getpid())) }

// lookUp describes the process that has the id now; started is empty if there is none.
func lookUp(pid string) owner {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	namespace, _ := os.Readlink("/proc/self/ns/pid")
	o := owner{boot: strings.TrimSpace(string(boot)), namespace: strings.NewReplacer("pid:[", "", "]", "").Replace(namespace), pid: pid}
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return o
	}
	// The second field is the program's name in parentheses and may hold blanks and parentheses itself; the
	// start time is field 22, so the 20th after it.
	text := string(stat)
	if fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:]); len(fields) > 19 {
		o.started = fields[19]
	}
	return o
}

// dead tells whether the process is known to be gone. made is when the thing that it owns was made.
func (o owner) dead(made time.Time) bool {
	now := lookUp(o.pid)
	switch {
	case o.boot != now.boot:
		return true
	case o.namespace != now.namespace:
		return time.Since(made) > foreignAge
	default:
		return o.started != now.started
	}
}

// removePatience is how long one container may take to be removed.
const removePatience = 20 * time.Second

// removeLeftovers removes what processes that are gone left in Docker.
func removeLeftovers(ctx context.Context, docker *client.Client) error {
	return removeLabelled(ctx, docker, make(client.Filters).Add("label", labelOwner), func(labels map[string]string, made time.Time) bool {
		o, ok := parseOwner(labels[labelOwner])
		return ok && o.dead(made)
	})
}

// removeRun removes all that one run made.
func removeRun(ctx context.Context, docker *client.Client, run string) error {
	all := func(map[string]string, time.Time) bool { return true }
	return removeLabelled(ctx, docker, make(client.Filters).Add("label", labelRun+"="+run), all)
}

func removeLabelled(ctx context.Context, docker *client.Client, filter client.Filters, doomed func(labels map[string]string, made time.Time) bool) error {
	unlock, err := lockEngine(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	var all error
	note := func(err error) {
		// Two processes may clean up at once: what the other one removes is as good as removed.
		if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
			all = errors.Join(all, err)
		}
	}
	containers, err := docker.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filter})
	if err != nil {
		return err
	}
	for _, found := range containers.Items {
		if doomed(found.Labels, time.Unix(found.Created, 0)) {
			if found.State == "paused" {
				_, err := docker.ContainerUnpause(ctx, found.ID, client.ContainerUnpauseOptions{})
				note(err)
			}
			// What an engine cannot remove must not keep the tests from starting.
			one, cancel := context.WithTimeout(ctx, removePatience)
			_, err := docker.ContainerRemove(one, found.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
			cancel()
			note(err)
		}
	}
	networks, err := docker.NetworkList(ctx, client.NetworkListOptions{Filters: filter})
	if err != nil {
		return errors.Join(all, err)
	}
	for _, found := range networks.Items {
		if doomed(found.Labels, found.Created) {
			_, err := docker.NetworkRemove(ctx, found.ID, client.NetworkRemoveOptions{})
			note(err)
		}
	}
	return all
}
