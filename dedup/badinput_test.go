package dedup_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
)

func TestBadKeys(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start()
		long := strings.Repeat("k", dedup.MaxID+1)
		for _, tc := range []struct {
			key  dedup.Key
			says string
		}{
			{dedup.Key{}, "an empty id"},
			{dedup.Key{Scope: "s"}, "an empty id"},
			{dedup.Key{ID: long}, "longer than 1024 bytes"},
			{dedup.Key{ID: strings.Repeat("ä", 513)}, "longer than 1024 bytes"},
			{dedup.Key{Scope: strings.Repeat("s", dedup.MaxScope+1), ID: "k"}, "longer than 256 bytes"},
			{dedup.Key{ID: "a\x00b"}, "U+0000"},
			{dedup.Key{ID: "a\nb"}, "U+000A"},
			{dedup.Key{ID: "a\u202eb"}, "U+202E"},
			{dedup.Key{Scope: "\x7f", ID: "k"}, "U+007F"},
			{dedup.Key{ID: "\xff"}, "not valid UTF-8"},
		} {
			for what, err := range map[string]error{
				"Do": func() error {
					_, err := dedup.Do(t.Context(), p.Guard, tc.key, dedup.NoFingerprint, mustNotRun(t))
					return err
				}(),
				"Resolve": p.Resolve(t.Context(), tc.key, dedup.NotDone()),
				"Lookup":  func() error { _, err := p.Lookup(t.Context(), tc.key); return err }(),
			} {
				if !errors.Is(err, dedup.ErrInvalidKey) || !strings.Contains(err.Error(), tc.says) || len(err.Error()) > 400 {
					t.Errorf("%s %.40q: %v, want ErrInvalidKey and %q", what, tc.key, err, tc.says)
				}
			}
		}
		if n := len(b.srv.Children("/dedup")); n != 0 {
			t.Errorf("%d records were made", n)
		}
	})
}

// Odd keys that are allowed work, and each is a key of its own.
func TestOddKeysWork(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start()
		keys := []dedup.Key{
			{ID: "."}, {ID: ".."}, {ID: "/"}, {ID: "a/b"}, {ID: "%2F"}, {ID: "%"}, {ID: "a b"}, {ID: "zookeeper"}, {ID: "config"},
			{ID: ":"}, {Scope: "a", ID: "b:c"}, {Scope: "a:b", ID: "c"}, {ID: "a:b:c"}, {Scope: "%3A", ID: "%3A"}, {ID: "%3A%3A%3A"},
			{ID: "ä€😀"}, {ID: "_c_x-lock-0000000000"}, {ID: strings.Repeat("k", dedup.MaxID)},
			{Scope: strings.Repeat("/", dedup.MaxScope), ID: strings.Repeat("%", dedup.MaxID)},
		}
		for i, k := range keys {
			if r, err := dedup.Do(t.Context(), p.Guard, k, dedup.NoFingerprint, func(context.Context, *dedup.Claim) (int, error) { return i, nil }); err != nil || r.Replayed {
				t.Errorf("%.40q: %+v, %v", k, r, err)
			}
			if back, err := dedup.ParseKey(k.String()); err != nil || back != k {
				t.Errorf("%.40q came back as %.40q, %v", k, back, err)
			}
		}
		for i, k := range keys {
			if r, err := dedup.Do(t.Context(), p.Guard, k, dedup.NoFingerprint, func(context.Context, *dedup.Claim) (int, error) { return -1, nil }); err != nil || r.Value != i {
				t.Errorf("%.40q: %+v, %v", k, r, err)
			}
		}
		if n := len(b.srv.Children("/dedup")); n != len(keys) {
			t.Errorf("%d records of %d keys", n, len(keys))
		}
	})
}

func FuzzParseKey(f *testing.F) {
	for _, s := range []string{"k", "s%3Ak", "%3A", "a%2Fb", "%", "%zz", ".", "%2E"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		k, err := dedup.ParseKey(s)
		if err != nil {
			if !errors.Is(err, dedup.ErrInvalidKey) {
				t.Errorf("%v, want ErrInvalidKey", err)
			}
			return
		}
		if k.String() != s {
			t.Errorf("%q was taken and is written %q", s, k.String())
		}
	})
}

func TestBadConfig(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start()
		for says, cfg := range map[string]dedup.Config{
			"Retention":     {Retention: time.Second - 1},
			"Retention -1h": {Retention: -time.Hour},
			"WaitLimit":     {WaitLimit: -1},
			"shorter than WaitLimit 1m0s: a record could go while somebody waits for it": {Retention: 30 * time.Second, WaitLimit: time.Minute},
			"Policy(7)":              {Policy: 7},
			"MaxOutcome":             {MaxOutcome: -1},
			"longer than 1024 bytes": {Owner: strings.Repeat("o", 1025)},
		} {
			if _, err := dedup.New(p.client, cfg); !errors.Is(err, dedup.ErrInvalidConfig) || !strings.Contains(err.Error(), says) {
				t.Errorf("%v, want ErrInvalidConfig and %q", err, says)
			}
		}
		for _, root := range []string{"dedup", "/dedup/", "//", "/a/../b", "/zookeeper"} {
			if _, err := dedup.New(p.client, dedup.Config{Root: root}); !errors.Is(err, zklock.ErrInvalidPath) {
				t.Errorf("root %q: %v, want ErrInvalidPath", root, err)
			}
		}
		if _, err := dedup.New(nil, dedup.Config{}); !errors.Is(err, dedup.ErrInvalidConfig) {
			t.Errorf("no client: %v", err)
		}
		if _, err := dedup.NewWithStore(nil, dedup.Config{}); !errors.Is(err, dedup.ErrInvalidConfig) {
			t.Errorf("no store: %v", err)
		}
		// A wait limit that is not set fits into a short retention.
		g, err := dedup.New(p.client, dedup.Config{Retention: time.Second, SweepInterval: -1})
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestBadCalls(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start(hour)
		for what, call := range map[string]func() error{
			"no guard": func() error {
				_, err := dedup.Do(t.Context(), nil, dedup.Key{ID: "k"}, dedup.NoFingerprint, mustNotRun(t))
				return err
			},
			"no function": func() error {
				_, err := dedup.Do[string](t.Context(), p.Guard, dedup.Key{ID: "k"}, dedup.NoFingerprint, nil)
				return err
			},
			"no fingerprint": func() error {
				_, err := dedup.Do(t.Context(), p.Guard, dedup.Key{ID: "k"}, dedup.Fingerprint{}, mustNotRun(t))
				return err
			},
			"a payload without JSON": func() error {
				_, err := dedup.Do(t.Context(), p.Guard, dedup.Key{ID: "k"}, dedup.PayloadJSON(math.Inf(1)), mustNotRun(t))
				return err
			},
			"WaitLimit 0":  func() error { _, err := p.do(t.Context(), "k", mustNotRun(t), dedup.WaitLimit(0)); return err },
			"WaitLimit -1": func() error { _, err := p.do(t.Context(), "k", mustNotRun(t), dedup.WaitLimit(-1)); return err },
			"WaitLimit 2h": func() error {
				_, err := p.do(t.Context(), "k", mustNotRun(t), dedup.WaitLimit(2*time.Hour))
				return err
			},
			"policy":        func() error { _, err := p.do(t.Context(), "k", mustNotRun(t), dedup.WithPolicy(-1)); return err },
			"no resolution": func() error { return p.Resolve(t.Context(), dedup.Key{ID: "k"}, dedup.Resolution{}) },
			"not encodable": func() error { return p.Resolve(t.Context(), dedup.Key{ID: "k"}, dedup.Completed(make(chan int))) },
		} {
			if err := call(); !errors.Is(err, dedup.ErrInvalidConfig) {
				t.Errorf("%s: %v, want ErrInvalidConfig", what, err)
			}
		}
		if err := p.Resolve(t.Context(), dedup.Key{ID: "k"}, dedup.CompletedBytes(make([]byte, dedup.DefaultMaxOutcome+1))); !errors.Is(err, dedup.ErrOutcomeTooLarge) {
			t.Errorf("%v, want ErrOutcomeTooLarge", err)
		}
		if dedup.Permanent(nil) != nil {
			t.Error("Permanent(nil) is an error")
		}
		if n := len(b.srv.Children("/dedup")); n != 0 {
			t.Errorf("%d records were made", n)
		}
	})
}
