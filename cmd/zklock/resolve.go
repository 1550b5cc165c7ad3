package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-zklock/zklock/dedup"
)

// resolveCmd is zklock resolve.
type resolveCmd struct {
	Key     string        `arg:"" help:"The key; SCOPE:ID for a record with a scope."`
	Done    bool          `group:"outcome" xor:"outcome" help:"The work was done: further calls of zklock once exit with --status and print --output."`
	Failed  string        `group:"outcome" xor:"outcome" placeholder:"REASON" help:"The work has failed for good: further calls get REASON and exit with 1."`
	NotDone bool          `group:"outcome" xor:"outcome" help:"The work was not done: the next call runs it."`
	Status  int           `group:"outcome" placeholder:"0" help:"With --done: the exit code. Default 0."`
	Output  string        `group:"outcome" placeholder:"TEXT" help:"With --done: the output. Default: none."`
	Raw     bool          `group:"outcome" help:"With --done: store --output as it is, for a record that a program of package dedup reads and not zklock once."`
	Wait    time.Duration `default:"30s" placeholder:"30s" help:"How long to wait for somebody who works on the key. Connecting comes before, and is bounded by --connect-timeout. Default ${default}."`

	ensembleFlags
}

// Help is what zklock resolve --help says at length.
func (*resolveCmd) Help() string {
	return `Says what a run did that was cut short: one whose host died, whose lock was lost, or
that a signal ended. Until then zklock once refuses the key with exit code 70. Records
with any other state are left alone.

    zklock ls                                    the column RECORD says "unknown"
    zklock show migration-42                     who it was, and when
    zklock resolve migration-42 --done
    zklock resolve migration-42 --not-done       the next call runs it`
}

// Validate is called by kong.
func (c *resolveCmd) Validate() error {
	switch {
	case !c.Done && c.Failed == "" && !c.NotDone:
		return errors.New("what came of it? Give --done, --failed REASON or --not-done")
	case !c.Done && (c.Status != 0 || c.Output != "" || c.Raw):
		return errors.New("--status, --output and --raw go with --done")
	case c.Raw && c.Status != 0:
		return errors.New("--raw: a stored text has no --status")
	case c.Status < 0 || c.Status > 255:
		return fmt.Errorf("--status %d: has to be an exit code from 0 to 255", c.Status)
	case len(c.Output) > maxKept:
		return fmt.Errorf("--output: has %d bytes, the limit is %d", len(c.Output), maxKept)
	case c.Wait <= 0:
		return fmt.Errorf("--wait %v: has to be more than 0", c.Wait)
	}
	_, err := keyPath("", c.Key)
	return err
}

// Run is called by kong.
func (c *resolveCmd) Run(std *streams) error {
	return c.look(std, false, func(ctx context.Context, v *viewer) error {
		path, err := v.find(ctx, c.Key)
		if err != nil {
			return err
		}
		key, err := dedup.ParseKey(path[len(v.root)+1:])
		if err != nil {
			return usagef("%w", err)
		}
		guard, err := dedup.New(v.client, dedup.Config{Root: c.Root, SweepInterval: -1, MaxOutcome: 2*maxKept + 1<<10, Owner: c.Identifier})
		if err != nil {
			return usagef("%w", err)
		}
		defer closeGuard(guard)
		if err := c.fits(ctx, guard, key); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeoutCause(ctx, c.Wait, expired(fmt.Sprintf("--wait %v is over", c.Wait)))
		defer cancel()
		err = guard.Resolve(ctx, key, c.resolution())
		switch {
		case errors.Is(err, dedup.ErrNotFound), errors.Is(err, dedup.ErrDetermined):
			return exitf(exitFailed, "%w; nothing was changed", err)
		case errors.Is(err, context.DeadlineExceeded) && there(v.client):
			return exitf(exitNotAcquired, "%w; %s says who works on it", err, c.hint("show", c.Key))
		case errors.Is(err, context.DeadlineExceeded):
			return exitf(exitUnavailable, "%w, and the ensemble does not answer", err)
		}
		return err
	})
}

// fits refuses to write what zklock once reads into the record of another program,
// which would take it for an outcome of its own without a word.
func (c *resolveCmd) fits(ctx context.Context, guard *dedup.Guard, key dedup.Key) error {
	if !c.Done {
		return nil
	}
	i, err := guard.Lookup(ctx, key)
	if err != nil {
		if errors.Is(err, dedup.ErrNotFound) {
			return exitf(exitFailed, "%w; nothing was changed", err)
		}
		return err
	}
	switch ours := strings.HasPrefix(i.Owner, onceOwner); {
	case ours && c.Raw:
		return exitf(exitFailed, "the record was made by zklock once, which does not read --raw; nothing was changed")
	case !ours && !c.Raw:
		return exitf(exitFailed, "the record was made by a program (%s) and not by zklock once; give --raw and --output TEXT with the outcome as that program writes it; nothing was changed", printable(i.Owner))
	}
	return nil
}

func (c *resolveCmd) resolution() dedup.Resolution {
	switch {
	case c.NotDone:
		return dedup.NotDone()
	case c.Failed != "":
		return dedup.FailedWith(c.Failed)
	case c.Raw:
		return dedup.CompletedBytes([]byte(c.Output))
	default:
		return dedup.Completed(outcome{Status: c.Status, Stdout: []byte(c.Output)})
	}
}
