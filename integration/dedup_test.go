package integration

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/integration/internal/figures"
	"github.com/go-zklock/zklock/integration/internal/report"
)

func guardOf(t *testing.T, c *zklock.Client, policy dedup.Policy) *dedup.Guard {
	t.Helper()
	g, err := dedup.New(c, dedup.Config{Policy: policy, SweepInterval: -1, WaitLimit: patience})
	must(t, "guard", err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := g.Close(ctx); err != nil {
			t.Errorf("close the guard: %v", err)
		}
	})
	return g
}

// says is a function that returns a value and counts its runs.
func says(text string, runs *int) func(context.Context, *dedup.Claim) (string, error) {
	return func(context.Context, *dedup.Claim) (string, error) {
		*runs++
		return text, nil
	}
}

// F28: a process dies between its claim and its commit. Nobody knows what it did, so the policy decides; whoever runs
// again has a larger token.
func TestProcessThatDiesUnderItsClaimLeavesAnUnknownOutcome(t *testing.T) {
	const timeout = 6 * time.Second
	cluster := ensemble.Get(t)
	version := versionOf(t, cluster)
	ctx := bounded(t)
	id := uniquePath(t)
	key := dedup.Key{Scope: "test", ID: id}
	first := startWorker(t, buildWorker(t), "-mode", "guard", "-servers", cluster.ConnectString(), "-timeout", timeout.String(), "-paths", id)
	was := first.next(t, report.Acquired)
	refuses := guardOf(t, clientOf(t, cluster.Addrs(), timeout), dedup.Refuse)
	again := guardOf(t, clientOf(t, cluster.Addrs(), timeout), dedup.Reexecute)

	// Not while it lives.
	runs := 0
	if _, err := dedup.Do(ctx, refuses, key, dedup.NoFingerprint, says("too early", &runs), dedup.NoWait()); !errors.Is(err, dedup.ErrInProgress) {
		t.Errorf("while it works: %v", err)
	}
	first.signal(t, syscall.SIGKILL)
	killed := time.Now()
	await(t, "the kill", first.ended)
	_, err := dedup.Do(ctx, refuses, key, dedup.NoFingerprint, says("refused", &runs))
	took := time.Since(killed)
	t.Logf("known to be unknown %v after the kill: %v", ms(took), err)
	isErr(t, "Refuse", err, dedup.ErrIndeterminate)
	figures.Record(t, "process killed between claim and commit, T = 6 s", version, figures.HandOver, took)
	if runs != 0 {
		t.Errorf("%d runs before anybody was asked for one", runs)
	}
	res, err := dedup.Do(ctx, again, key, dedup.NoFingerprint, says("second run", &runs))
	must(t, "Reexecute", err)
	if runs != 1 || res.Value != "second run" || res.Replayed || res.Attempt != 2 || int64(res.Token) <= was.Token {
		t.Errorf("Reexecute: %d runs, %+v; the first token was %v", runs, res, zklock.Token(was.Token))
	}
	res, err = dedup.Do(ctx, refuses, key, dedup.NoFingerprint, says("third run", &runs))
	must(t, "replay", err)
	if runs != 1 || res.Value != "second run" || !res.Replayed {
		t.Errorf("replay: %d runs, %+v", runs, res)
	}
}

// F30: a function returns after its claim was lost. Its outcome is not stored, its caller is told, and that of the
// one who came after stands.
func TestOutcomeOfALostClaimIsNotStored(t *testing.T) {
	cluster := ensemble.Get(t)
	ctx := bounded(t)
	follower, leader := roles(t, cluster)
	c, p := viaProxy(t, follower, 6*time.Second)
	ours := guardOf(t, c, dedup.Refuse)
	theirs := guardOf(t, clientOf(t, []string{leader.Addr()}, 6*time.Second), dedup.Reexecute)
	key := dedup.Key{Scope: "test", ID: uniquePath(t)}

	var tokens [2]zklock.Token
	res, err := dedup.Do(ctx, ours, key, dedup.NoFingerprint, func(ctx context.Context, claim *dedup.Claim) (string, error) {
		tokens[0] = claim.Token()
		back := silence(p)
		await(t, "the end of the function's ctx", ctx.Done())
		isErr(t, "the function's ctx", context.Cause(ctx), zklock.ErrLost)
		next, err := dedup.Do(bounded(t), theirs, key, dedup.NoFingerprint, func(_ context.Context, claim *dedup.Claim) (string, error) {
			tokens[1] = claim.Token()
			return "theirs", nil
		})
		must(t, "the one who comes after", err)
		if next.Value != "theirs" || next.Attempt != 2 {
			t.Errorf("the one who comes after: %+v", next)
		}
		back()
		return "ours, too late", nil
	})
	t.Logf("the first call: %+v, %v", res, err)
	if tokens[1] <= tokens[0] {
		t.Errorf("token %v after %v", tokens[1], tokens[0])
	}
	if err == nil && (res.Value != "theirs" || !res.Replayed) {
		t.Errorf("the first call returns %+v as if its own outcome counted", res)
	}
	if err != nil && !errors.Is(err, zklock.ErrLost) && !errors.Is(err, dedup.ErrIndeterminate) {
		t.Errorf("the first call: %v; it does not say that the claim was lost", err)
	}
	runs := 0
	for name, g := range map[string]*dedup.Guard{"ours": ours, "theirs": theirs} {
		var got dedup.Result[string]
		eventually(t, "a replay by "+name, func() bool { // the client may still be on its way back
			var err error
			got, err = dedup.Do(ctx, g, key, dedup.NoFingerprint, says("once more", &runs))
			return err == nil
		})
		if runs != 0 || got.Value != "theirs" || !got.Replayed {
			t.Errorf("%s: %d runs, %+v", name, runs, got)
		}
	}
}
