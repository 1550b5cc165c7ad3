package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"
)

// rmCmd is zklock rm.
type rmCmd struct {
	Key     string `arg:"" help:"The key; SCOPE:ID for a record with a scope."`
	Force   bool   `help:"Remove lock nodes of others too, and records of an unknown outcome, after a confirmation."`
	Confirm string `placeholder:"KEY" help:"With --force: the key once more, instead of the question on the terminal."`

	ensembleFlags
}

// Help is what zklock rm --help says at length.
func (*rmCmd) Help() string {
	return `Removes a key: its record, and its node. A key that somebody holds or waits for is left
alone, with exit code 75: the lock goes by itself when its holder ends, or when the
session of a dead one times out (zklock show says whose it is).

--force takes the lock away from them. Their holder learns of it as fast as a watch
travels, and somebody else may hold the lock at that moment already: two of them can run
at the same time. So it asks first, on the terminal; --confirm KEY answers beforehand.`
}

// Validate is called by kong.
func (c *rmCmd) Validate() error {
	if c.Confirm != "" && c.Confirm != c.Key {
		return fmt.Errorf("--confirm %q: has to repeat the key, %q", c.Confirm, c.Key)
	}
	if c.Confirm != "" && !c.Force {
		return errors.New("--confirm needs --force")
	}
	_, err := keyPath("", c.Key)
	return err
}

// Run is called by kong.
func (c *rmCmd) Run(std *streams) error {
	return c.look(std, false, func(ctx context.Context, v *viewer) error {
		path, err := v.find(ctx, c.Key)
		if err != nil {
			return err
		}
		view, err := v.key(ctx, path)
		switch {
		case err != nil:
			return err
		case view == nil:
			return exitf(exitFailed, "there is no lock and no record at %s", path)
		}
		if reason := view.inUse(); reason != "" {
			if !c.Force {
				return exitf(exitNotAcquired, "%s %s; nothing was removed (%s says more, --force removes it all the same)", c.Key, reason, c.hint("show", c.Key))
			}
			if err := c.confirm(std, reason); err != nil {
				return err
			}
		}
		return v.remove(ctx, view)
	})
}

// inUse says what speaks against removing a key.
func (v *keyView) inUse() string {
	switch {
	case v.Holder != nil && len(v.Waiting) > 0:
		return fmt.Sprintf("is held by %s, and %d wait for it", printable(v.Holder.Identifier), len(v.Waiting))
	case v.Holder != nil:
		return fmt.Sprintf("is held by %s", printable(v.Holder.Identifier))
	case v.Record != nil && v.Record.State == "unknown":
		return "has a record of an unknown outcome, which a second run would follow"
	default:
		return ""
	}
}

// confirm asks the person at the terminal.
func (c *rmCmd) confirm(std *streams, reason string) error {
	if c.Confirm != "" {
		return nil
	}
	if !isTerminal(std.in) {
		return usagef("%s %s; without a terminal to ask on, --force needs --confirm %s", c.Key, reason, c.Key)
	}
	fmt.Fprintf(std.err, "%s %s. Two may run at the same time if you go on. Type the key to remove it: ", c.Key, reason)
	answer, _ := bufio.NewReader(std.in).ReadString('\n') // an answer that ends early is another answer
	if strings.TrimRight(answer, "\r\n") != c.Key {
		return exitf(exitFailed, "not confirmed; nothing was removed")
	}
	return nil
}

// remove deletes the lock nodes that were shown, those that wait first so that none of
// them gets the lock in between, and then the key's node.
func (v *viewer) remove(ctx context.Context, view *keyView) error {
	for _, waiting := range slices.Backward(view.Waiting) {
		if err := v.delete(ctx, waiting.Node); err != nil {
			return err
		}
	}
	if view.Holder != nil {
		if err := v.delete(ctx, view.Holder.Node); err != nil {
			return err
		}
	}
	err := v.delete(ctx, v.chroot+view.Path)
	if errors.Is(err, zk.ErrNotEmpty) {
		return exitf(exitNotAcquired, "%s: somebody has come in the meantime, or it has other children; its node is left", view.Key)
	}
	return err
}

// delete deletes one node, with the chroot; one that is gone is no error.
func (v *viewer) delete(ctx context.Context, path string) error {
	_, err := ask(ctx, func() (struct{}, error) { return struct{}{}, v.client.Conn().Delete(path, -1) })
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return fmt.Errorf("delete %s: %w", path, err)
	}
	return nil
}
