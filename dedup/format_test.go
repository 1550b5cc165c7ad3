package dedup_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/zktest"
)

// What this build cannot read it does not touch, and says which node it is.
func TestRecordThatCannotBeRead(t *testing.T) {
	for text, want := range map[string]error{
		`zklock-dedup/2 {"state":"done"}` + "\n": dedup.ErrNewerFormat,
		`zklock-dedup/99 whatever`:               dedup.ErrNewerFormat,
		"rubbish":                                dedup.ErrCorrupt,
		"zklock-dedup/1 {\n":                     dedup.ErrCorrupt,
	} {
		inBubble(t, func(b *bundle) {
			t := b.t
			p := b.start()
			fresh := b.start()
			if _, err := p.do(t.Context(), "k", says("one")); err != nil {
				t.Fatal(err)
			}
			b.tick() // a call that comes at once may share the answer of this one
			if err := b.srv.Set("/dedup/k", []byte(text)); err != nil {
				t.Fatal(err)
			}
			check := func(what string, err error) {
				t.Helper()
				if !errors.Is(err, want) || !strings.Contains(err.Error(), "/dedup/k") {
					t.Errorf("%s: %v, want %v and the node", what, err, want)
				}
			}
			for _, pr := range []*process{p, fresh} {
				_, err := pr.do(t.Context(), "k", mustNotRun(t))
				check("Do", err)
				_, err = pr.do(t.Context(), "k", mustNotRun(t), dedup.NoWait(), dedup.WithPolicy(dedup.Reexecute))
				check("Do", err)
			}
			check("Resolve", p.Resolve(t.Context(), dedup.Key{ID: "k"}, dedup.NotDone()))
			_, err := p.Lookup(t.Context(), dedup.Key{ID: "k"})
			check("Lookup", err)
			if data, err := b.srv.Get("/dedup/k"); err != nil || string(data) != text {
				t.Errorf("the record is now %q, %v", data, err)
			}
			b.atRest()
		})
	}
}

// The record becomes unreadable while its function runs: it stays as it is.
func TestRecordOfANewerBuildIsNotWrittenOver(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start()
		b.warm(p)
		const newer = `zklock-dedup/2 {"state":"sleeping"}` + "\n"
		b.srv.Inject(zktest.Before(func() {
			if err := b.srv.Set("/dedup/k", []byte(newer)); err != nil {
				t.Error(err)
			}
		}, zktest.OpMulti).Client(p.name).Path("/dedup/k").Nth(2))
		if _, err := p.do(t.Context(), "k", says("one")); !errors.Is(err, dedup.ErrIndeterminate) {
			t.Errorf("%v, want ErrIndeterminate", err)
		}
		if data, _ := b.srv.Get("/dedup/k"); string(data) != newer {
			t.Errorf("the record is now %q", data)
		}
		b.atRest()
	})
}

// A field that a newer build has added is kept by this one through another attempt.
func TestFieldsOfANewerBuildAreKept(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start()
		if _, err := p.do(t.Context(), "k", fails(errors.New("broken"))); err == nil {
			t.Fatal("no error")
		}
		data, err := b.srv.Get("/dedup/k")
		if err != nil {
			t.Fatal(err)
		}
		if err := b.srv.Set("/dedup/k", []byte(strings.Replace(string(data), `{"`, `{"region":{"eu":1},"`, 1))); err != nil {
			t.Fatal(err)
		}
		if r, err := p.do(t.Context(), "k", says("two")); err != nil || r.Attempt != 2 {
			t.Errorf("%+v, %v", r, err)
		}
		if data, _ := b.srv.Get("/dedup/k"); !strings.Contains(string(data), `"region":{"eu":1}`) || !strings.HasSuffix(string(data), "\n\"two\"") {
			t.Errorf("the record is now %q", data)
		}
	})
}
