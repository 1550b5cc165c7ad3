package main

import (
	"context"
	"errors"
	"io"

	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/integration/internal/report"
)

// guard claims a key, says so, and finishes the work when a line comes in.
func (w *worker) guard(ctx context.Context) error {
	g, err := dedup.New(w.client, dedup.Config{SweepInterval: -1})
	if err != nil {
		return err
	}
	key := dedup.Key{Scope: "test", ID: w.paths[0]}
	_, err = dedup.Do(ctx, g, key, dedup.NoFingerprint, func(_ context.Context, c *dedup.Claim) (string, error) {
		w.out.Line(report.Line{Event: report.Acquired, Path: w.paths[0], Token: int64(c.Token())})
		_, err := w.command()
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return "from the worker", err
	})
	return errors.Join(err, g.Close(ctx))
}
