package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
)

// lsCmd is zklock ls.
type lsCmd struct {
	lookFlags

	Prefix string `arg:"" optional:"" help:"Show only keys that begin with this."`

	ensembleFlags
}

// Help is what zklock ls --help says at length.
func (*lsCmd) Help() string {
	return `Shows every key below --root: who holds it and since when, how many wait, the fencing
token of the holder, and the record that zklock once and package dedup keep.

    zklock ls
    zklock ls --watch nightly
    zklock ls --json | jq -r '.[] | select(.holder) | .key'

It reads each key and each of its lock nodes. In the column RECORD, "unknown" means that
a run was cut short and nobody knows what it did; see zklock resolve.`
}

// Validate is called by kong.
func (c *lsCmd) Validate() error { return c.validate() }

// Run is called by kong.
func (c *lsCmd) Run(std *streams) error {
	return c.look(std, c.Watch, func(ctx context.Context, v *viewer) error {
		return show(ctx, &c.lookFlags, std, v, func(ctx context.Context) ([]keyView, error) {
			views, err := v.keys(ctx, c.Prefix)
			if views == nil {
				views = []keyView{} // [] in JSON
			}
			return views, err
		}, listKeys)
	})
}

// look connects for a command that only looks, and runs it. Unless it watches, it is
// ended when the ensemble goes away for longer than it may take to connect.
func (f *ensembleFlags) look(std *streams, watch bool, do func(context.Context, *viewer) error) error {
	ctx, stop := interactive()
	defer stop()
	client, err := f.connect(ctx, std.err)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	v, err := newViewer(client, f)
	if err != nil {
		return err
	}
	if !watch {
		ctx, stop = whileThere(ctx, client, f.ConnectTimeout)
		defer stop()
	}
	if err = refused(do(ctx, v)); exitCode(err) == exitUnavailable {
		return exitf(exitUnavailable, "%w; %s says more", err, f.hint("doctor"))
	}
	return err
}

// listKeys prints a line for each key.
func listKeys(out io.Writer, views []keyView) {
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "KEY\tHOLDER\tFOR\tWAITING\tTOKEN\tRECORD")
	for _, v := range views {
		holder, since, token, record := "-", "-", "-", "-"
		if h := v.Holder; h != nil {
			holder, since, token = h.Identifier, ago(h.Since), strconv.FormatInt(int64(h.Token), 10)
		}
		if r := v.Record; r != nil {
			record = r.summary()
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%s\t%s\n", printable(v.Key), printable(holder), since, len(v.Waiting), token, record)
	}
	_ = tw.Flush()
}

// summary is a record in a few words.
func (r *recordView) summary() string {
	if r.Attempt == 0 {
		return r.State
	}
	return fmt.Sprintf("%s, attempt %d, %s", r.State, r.Attempt, ago(r.Updated))
}

// printable is a text that others have written, safe for a terminal.
func printable(text string) string {
	if quoted := strconv.Quote(text); quoted[1:len(quoted)-1] != text {
		return quoted
	}
	return text
}
