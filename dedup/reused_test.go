package dedup_test

import (
	"context"
	"errors"
	"testing"

	"github.com/go-zklock/zklock/dedup"
)

// F29: the same key with another payload is refused at every state, before anything
// else.
func TestOtherPayloadIsRefusedInEveryState(t *testing.T) {
	other := func(t *testing.T, p *process, opts ...dedup.Option) {
		t.Helper()
		_, err := dedup.Do(t.Context(), p.Guard, dedup.Key{ID: "k"}, dedup.Payload([]byte("other")), mustNotRun(t), opts...)
		if !errors.Is(err, dedup.ErrKeyReused) {
			t.Errorf("%v, want ErrKeyReused", err)
		}
	}
	for state, prepare := range map[string]func(b *bundle, p *process) (after func()){
		"running elsewhere": func(b *bundle, p *process) func() {
			fn, started, goOn := blocks("one")
			holder := p.goDo(b.t.Context(), "k", fn)
			<-started
			return func() { close(goOn); <-holder }
		},
		"open": func(b *bundle, p *process) func() {
			_, _ = p.do(b.t.Context(), "k", fails(errors.New("broken")))
			return nil
		},
		"done": func(b *bundle, p *process) func() {
			_, _ = p.do(b.t.Context(), "k", says("one"))
			return nil
		},
		"failed": func(b *bundle, p *process) func() {
			_, _ = p.do(b.t.Context(), "k", fails(dedup.Permanent(errors.New("broken"))))
			return nil
		},
		"unknown": func(b *bundle, p *process) func() { b.unknown(p, "k"); return nil },
	} {
		t.Run(state, func(t *testing.T) {
			inBubble(t, func(b *bundle) {
				t := b.t
				p, q := b.start(), b.start()
				after := prepare(b, p)
				was := b.state("k")
				for _, pr := range []*process{p, q} {
					other(t, pr)
					other(t, pr, dedup.NoWait())
					other(t, pr, dedup.WithPolicy(dedup.Reexecute))
				}
				if s := b.state("k"); s != was {
					t.Errorf("the record was %s and is %s", was, s)
				}
				if after != nil {
					after()
				}
				b.atRest()
			})
		})
	}
}

// Two payloads under one key at one instant: one runs, the other is refused.
func TestTwoPayloadsAtOneInstant(t *testing.T) {
	for _, processes := range []int{1, 2} {
		inBubble(t, func(b *bundle) {
			t := b.t
			p := b.start()
			q := p
			if processes == 2 {
				q = b.start()
			}
			errs := make(chan error, 2)
			ran := 0
			for i, pr := range []*process{p, q} {
				go func() {
					_, err := dedup.Do(t.Context(), pr.Guard, dedup.Key{ID: "k"}, dedup.Payload([]byte{byte(i)}), func(context.Context, *dedup.Claim) (int, error) { ran++; return i, nil })
					errs <- err
				}()
			}
			a, c := <-errs, <-errs
			if a != nil {
				a, c = c, a
			}
			if a != nil || !errors.Is(c, dedup.ErrKeyReused) || ran != 1 {
				t.Errorf("%v and %v, ran %d times", a, c, ran)
			}
			b.atRest()
		})
	}
}

// The record that the caller waited for was swept, and made again for another payload
// when his turn comes: the fingerprint is looked at under the claim.
func TestOtherPayloadIsRefusedUnderTheClaim(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p, q := b.start(), b.start()
		if _, err := p.do(t.Context(), "k", fails(errors.New("broken"))); err == nil {
			t.Fatal("no error")
		}
		l := p.lock(t, "k") // so that the caller waits, and the record can be changed by hand
		waiter := q.goDo(t.Context(), "k", mustNotRun(t))
		for len(b.srv.Children("/dedup/k")) < 2 {
			b.tick()
		}
		r, err := driverRecord(b, "k")
		if err != nil {
			t.Fatal(err)
		}
		r.Fingerprint = []byte("of another payload")
		data, err := r.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		if err := b.srv.Set("/dedup/k", data); err != nil {
			t.Fatal(err)
		}
		release(t, l)
		if o := <-waiter; !errors.Is(o.err, dedup.ErrKeyReused) {
			t.Errorf("%+v, want ErrKeyReused", o)
		}
		b.atRest()
	})
}

func TestNoFingerprintTakesEveryPayload(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start()
		run := func(fp dedup.Fingerprint) error {
			_, err := dedup.Do(t.Context(), p.Guard, dedup.Key{ID: "k"}, fp, says("one"))
			return err
		}
		for _, fp := range []dedup.Fingerprint{dedup.NoFingerprint, dedup.Payload([]byte("a")), dedup.Payload([]byte("b")), dedup.PayloadJSON(map[string]int{"a": 1})} {
			if err := run(fp); err != nil {
				t.Error(err)
			}
		}
	})
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start()
		for _, tc := range []struct {
			id string
			fp dedup.Fingerprint
			ok bool
		}{
			{"k", dedup.Payload([]byte("ab"), []byte("c")), true},
			{"k", dedup.Payload([]byte("ab"), []byte("c")), true},
			{"k", dedup.NoFingerprint, true},
			{"k", dedup.Payload([]byte("a"), []byte("bc")), false},
			{"k", dedup.Payload([]byte("abc")), false},
			{"j", dedup.PayloadJSON(map[string]int{"a": 1, "b": 2}), true},
			{"j", dedup.PayloadJSON(map[string]int{"b": 2, "a": 1}), true},
			{"j", dedup.PayloadJSON(map[string]int{"a": 1}), false},
		} {
			_, err := dedup.Do(t.Context(), p.Guard, dedup.Key{ID: tc.id}, tc.fp, says("one"))
			if tc.ok && err != nil || !tc.ok && !errors.Is(err, dedup.ErrKeyReused) {
				t.Errorf("%s: %v, want ok %v", tc.id, err, tc.ok)
			}
		}
	})
}
