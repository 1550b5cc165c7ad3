package integration

import (
	"context"
	"errors"
	"path"
	"testing"
	"time"

	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/integration/zkproxy"
)

type dedupFunc = func(context.Context, *dedup.Claim) (string, error)

// once calls Do with one payload.
func once(ctx context.Context, g *dedup.Guard, key string, fn dedupFunc) (dedup.Result[string], error) {
	return dedup.Do(ctx, g, dedup.Key{ID: key}, dedup.Payload([]byte("payload")), fn)
}

// replays checks what a duplicate gets.
func replays(t testing.TB, g *dedup.Guard, key, want string) dedup.Result[string] {
	t.Helper()
	r, err := once(bounded(t), g, key, func(context.Context, *dedup.Claim) (string, error) {
		t.Error("a duplicate ran")
		return "", nil
	})
	must(t, "duplicate", err)
	if r.Value != want || !r.Replayed {
		t.Errorf("a duplicate got %+v, want a replay of %q", r, want)
	}
	return r
}

// F12: the ensemble has stored the outcome, and the reply is lost.
func TestDedupReplyToTheCommitLost(t *testing.T) {
	cluster := ensemble.Get(t)
	follower, leader := roles(t, cluster)
	c, p := viaProxy(t, follower, 12*time.Second)
	g := guardOf(t, c, dedup.Refuse)
	other := guardOf(t, clientOf(t, []string{leader.Addr()}, 12*time.Second), dedup.Refuse)
	for _, lost := range []int{1, 2, 3} {
		key := path.Base(uniquePath(t))
		runs := 0
		var losing <-chan struct{}
		r, err := once(bounded(t), g, key, func(context.Context, *dedup.Claim) (string, error) {
			runs++
			losing = p.Lose(zkproxy.ToClient, zkproxy.Multi, 1, zkproxy.Break)
			// And the answers to the search for the truth.
			p.Lose(zkproxy.ToClient, zkproxy.GetData, lost-1, zkproxy.Break)
			return "one", nil
		})
		must(t, "the call whose reply was lost", err)
		await(t, "the loss", losing)
		if r.Value != "one" || r.Replayed || runs != 1 {
			t.Errorf("%d replies lost: %+v after %d runs", lost, r, runs)
		}
		if again := replays(t, other, key, "one"); again.Token != r.Token {
			t.Errorf("%d replies lost: the duplicate's token is %v, the first one's %v", lost, again.Token, r.Token)
		}
	}
}

// F29: another payload under a key, while somebody works on it and afterwards.
func TestDedupKeyReused(t *testing.T) {
	cluster := ensemble.Get(t)
	follower, leader := roles(t, cluster)
	g := guardOf(t, clientOf(t, []string{leader.Addr()}, 12*time.Second), dedup.Refuse)
	other := guardOf(t, clientOf(t, []string{follower.Addr()}, 12*time.Second), dedup.Refuse)
	key := path.Base(uniquePath(t))
	reuse := func(when string) {
		_, err := dedup.Do(bounded(t), other, dedup.Key{ID: key}, dedup.Payload([]byte("another")), func(context.Context, *dedup.Claim) (string, error) {
			t.Errorf("%s: it ran with another payload", when)
			return "", nil
		})
		isErr(t, when, err, dedup.ErrKeyReused)
	}
	_, err := once(bounded(t), g, key, func(context.Context, *dedup.Claim) (string, error) {
		reuse("running")
		return "", errors.New("once more")
	})
	if err == nil {
		t.Error("a function that failed returned no error")
	}
	reuse("open")
	_, err = once(bounded(t), g, key, func(context.Context, *dedup.Claim) (string, error) { return "one", nil })
	must(t, "the second attempt", err)
	reuse("done")
}
