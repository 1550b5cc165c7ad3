package dedup_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
)

func TestOutcomeThatCannotBeStored(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start(func(_ *zklock.Config, c *dedup.Config) { c.MaxOutcome = 100 })
		q := b.start()
		long := strings.Repeat("x", 100)
		r, err := p.do(t.Context(), "large", says(long))
		if !errors.Is(err, dedup.ErrOutcomeTooLarge) || r.Value != long || r.Replayed || r.Attempt != 1 || r.Token == 0 {
			t.Errorf("%+v, %v: want ErrOutcomeTooLarge and the value", r, err)
		}
		if want := "it has 102 bytes, the limit is 100"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
		c, err := dedup.Do(t.Context(), p.Guard, dedup.Key{ID: "no JSON"}, dedup.NoFingerprint, func(context.Context, *dedup.Claim) (chan int, error) { return make(chan int), nil })
		if !errors.Is(err, dedup.ErrOutcomeTooLarge) || c.Value == nil || !strings.Contains(err.Error(), "it cannot be encoded") {
			t.Errorf("%+v, %v: want ErrOutcomeTooLarge and the value", c, err)
		}
		for _, other := range []*process{p, q} {
			for _, id := range []string{"large", "no JSON"} {
				r, err := dedup.Do(t.Context(), other.Guard, dedup.Key{ID: id}, dedup.NoFingerprint, mustNotRun(t))
				if !errors.Is(err, dedup.ErrOutcomeTooLarge) || !r.Replayed || r.Value != "" || r.Attempt != 1 {
					t.Errorf("replay of %s: %+v, %v", id, r, err)
				}
			}
		}
		i, err := q.Lookup(t.Context(), dedup.Key{ID: "large"})
		if err != nil || i.State != "done" || i.Omitted == "" || len(i.Outcome) != 0 {
			t.Errorf("%+v, %v", i, err)
		}
		b.atRest()
	})
}

// What ZooKeeper takes bounds an outcome too, to the byte.
func TestOutcomeIsBoundedByTheBuffer(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start(func(z *zklock.Config, c *dedup.Config) { z.MaxBuffer = 32 << 10; c.MaxOutcome = 1 << 20 })
		for size := 20 << 10; size < 32<<10; size += 97 {
			r, err := p.do(t.Context(), strings.Repeat("k", size%97+1)+string(rune('a'+size%26))+strings.Repeat("z", size/97), says(strings.Repeat("x", size)))
			if len(r.Value) != size || err != nil && !errors.Is(err, dedup.ErrOutcomeTooLarge) {
				t.Fatalf("%d bytes: %v", size, err)
			}
		}
		b.atRest()
	})
}

func TestOutcomesSurviveTheCodec(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start()
		r, err := dedup.Do(t.Context(), p.Guard, dedup.Key{ID: "nothing"}, dedup.NoFingerprint, func(context.Context, *dedup.Claim) (*int, error) { return nil, nil })
		if err != nil || r.Value != nil {
			t.Errorf("%+v, %v", r, err)
		}
		r, err = dedup.Do(t.Context(), p.Guard, dedup.Key{ID: "nothing"}, dedup.NoFingerprint, func(context.Context, *dedup.Claim) (*int, error) { t.Error("ran"); return nil, nil })
		if err != nil || r.Value != nil || !r.Replayed {
			t.Errorf("%+v, %v", r, err)
		}
		q := b.start(func(_ *zklock.Config, c *dedup.Config) { c.Codec = rawCodec{} })
		for range 2 {
			r, err := q.do(t.Context(), "empty", says(""))
			if err != nil || r.Value != "" {
				t.Errorf("%+v, %v", r, err)
			}
		}
	})
}

// An outcome that cannot be decoded is an error with what is known of it, and stays.
func TestReplayThatCannotBeDecoded(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start()
		first, err := p.do(t.Context(), "k", says("one"))
		if err != nil {
			t.Fatal(err)
		}
		r, err := dedup.Do(t.Context(), p.Guard, dedup.Key{ID: "k"}, dedup.Payload([]byte("payload")), func(context.Context, *dedup.Claim) (int, error) {
			t.Error("the function ran")
			return 0, nil
		})
		if err == nil || !strings.Contains(err.Error(), "decode the outcome of k") || r.Value != 0 || !r.Replayed || r.Token != first.Token || r.Attempt != 1 {
			t.Errorf("%+v, %v", r, err)
		}
		if r, err := p.do(t.Context(), "k", mustNotRun(t)); err != nil || r.Value != "one" {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// rawCodec stores strings as they are.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error)      { return []byte(v.(string)), nil }
func (rawCodec) Unmarshal(data []byte, v any) error { *v.(*string) = string(data); return nil }
