package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// showCmd is zklock show.
type showCmd struct {
	lookFlags

	Key string `arg:"" help:"The key; SCOPE:ID for a record with a scope."`

	ensembleFlags
}

// Help is what zklock show --help says at length.
func (*showCmd) Help() string {
	return `Shows one key: who holds it, with host, process, session and token, who waits, in the
order in which they will get it, and the record that zklock once keeps. Exit code 1 if
there is neither a lock nor a record of that key.

    zklock show nightly
    zklock show --json nightly | jq .holder.host`
}

// Validate is called by kong.
func (c *showCmd) Validate() error {
	if _, err := keyPath("", c.Key); err != nil {
		return err
	}
	return c.validate()
}

// Run is called by kong.
func (c *showCmd) Run(std *streams) error {
	return c.look(std, c.Watch, func(ctx context.Context, v *viewer) error {
		return show(ctx, &c.lookFlags, std, v, func(ctx context.Context) (*keyView, error) {
			path, err := v.find(ctx, c.Key)
			if err != nil {
				return nil, err
			}
			view, err := v.key(ctx, path)
			switch {
			case err != nil:
				return nil, err
			case view == nil && !c.Watch:
				return nil, exitf(exitFailed, "there is no lock and no record at %s; %s lists the keys", path, c.hint("ls"))
			case view == nil:
				view = &keyView{Key: c.Key, Path: path}
			}
			return view, nil
		}, describeKey)
	})
}

// describeKey prints all about one key.
func describeKey(out io.Writer, v *keyView) {
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(tw, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	row("key", "%s", printable(v.Key))
	row("path", "%s", v.Path)
	if v.Holder == nil {
		row("holder", "nobody")
	} else {
		row("holder", "%s", v.Holder)
		row("token", "%d (%s)", int64(v.Holder.Token), v.Holder.Token)
	}
	for i := range v.Waiting {
		row(ordinal(i+1), "%s", &v.Waiting[i])
	}
	if r := v.Record; r != nil {
		row("record", "%s", r.summary())
		row("", "written by %s", printable(r.Owner))
		if r.Token != 0 {
			row("", "token %d (%s)", int64(r.Token), r.Token)
		}
		row("", "made %s, changed %s, kept for %v after that", r.Created.Format(time.RFC3339), r.Updated.Format(time.RFC3339), r.Retention)
		if r.Message != "" {
			row("", "%s", printable(r.Message))
		}
		if len(r.Outcome)+len(r.Bytes) > 0 {
			row("outcome", "%s", r.describeOutcome())
		}
		if r.State == "unknown" {
			row("", "a run was cut short: find out what it did, then zklock resolve")
		}
	}
	_ = tw.Flush()
}

// String is a contender in one line.
func (c *contenderView) String() string {
	who := printable(c.Identifier)
	if c.Host != "" {
		who += fmt.Sprintf(" (host %s, pid %d)", printable(c.Host), c.PID)
	}
	return fmt.Sprintf("%s, session %s, since %s (%s)", who, c.Session, c.Since.Local().Format("2006-01-02 15:04:05"), ago(c.Since))
}

// describeOutcome shows what is stored: that of zklock once by its parts.
func (r *recordView) describeOutcome() string {
	var o outcome
	switch {
	case r.Bytes != nil:
		return fmt.Sprintf("%d bytes", len(r.Bytes))
	case strings.HasPrefix(r.Outcome, `{"status":`) && json.Unmarshal([]byte(r.Outcome), &o) == nil:
		var text strings.Builder
		fmt.Fprintf(&text, "exit code %d", o.Status)
		for _, part := range []struct {
			name string
			kept []byte
		}{{"stdout", o.Stdout}, {"stderr", o.Stderr}} {
			if len(part.kept) > 0 {
				fmt.Fprintf(&text, ", %s %s", part.name, excerpt(string(part.kept)))
			}
		}
		return text.String()
	default:
		return excerpt(r.Outcome)
	}
}

// excerpt is the beginning of a text, quoted.
func excerpt(text string) string {
	const most = 200
	if len(text) > most {
		return fmt.Sprintf("%q… (%d bytes)", text[:most], len(text))
	}
	return strconv.Quote(text)
}
