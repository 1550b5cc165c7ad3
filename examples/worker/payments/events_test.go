package payments

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-zklock/zklock"
)

const good = `{"key":"k1","account":"a","amount":5,"currency":"EUR"}`

func TestShippedEvents(t *testing.T) {
	t.Parallel()
	events, err := Open("")
	if err != nil {
		t.Fatal(err)
	}
	keys := Keys(events)
	if len(events) != 63 || len(keys) != 41 {
		t.Errorf("%d events with %d keys, want 63 with 41: without duplicates they show nothing", len(events), len(keys))
	}
	for _, key := range keys {
		if _, err := zklock.EscapeKey(key); err != nil {
			t.Error(err)
		}
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		in    string
		good  int
		wants []string // in the error; none: no error
	}{
		"nothing":           {in: ""},
		"good":              {in: good, good: 1},
		"empty lines":       {in: "\n" + good + "\n\n  \n" + good + "\r\n", good: 2},
		"not JSON":          {in: good + "\npay me", good: 1, wants: []string{"f:2:", "invalid character"}},
		"all bad lines":     {in: "x\n" + good + "\n{}", good: 1, wants: []string{"f:1:", "f:3:"}},
		"two objects":       {in: good + good, wants: []string{"f:1:", "more than one"}},
		"unknown field":     {in: `{"key":"k","acount":"a","amount":5,"currency":"EUR"}`, wants: []string{"f:1:", "acount"}},
		"no key":            {in: `{"account":"a","amount":5,"currency":"EUR"}`, wants: []string{"f:1:", "no key"}},
		"no account":        {in: `{"key":"k","amount":5,"currency":"EUR"}`, wants: []string{"no account"}},
		"nothing to charge": {in: `{"key":"k","account":"a","amount":0,"currency":"EUR"}`, wants: []string{"amount 0"}},
		"half a cent":       {in: `{"key":"k","account":"a","amount":0.5,"currency":"EUR"}`, wants: []string{"0.5"}},
		"currency":          {in: `{"key":"k","account":"a","amount":5,"currency":"eur"}`, wants: []string{`"eur"`}},
		"other content":     {in: good + "\n\n" + strings.Replace(good, "5", "6", 1), good: 1, wants: []string{"f:3:", `"k1"`, "line 1"}},
		"too long": {
			in: good + "\n" + strings.Repeat(" ", maxLine) + good + "\n" + good, good: 1,
			wants: []string{"f:2:", "longer than 65536 bytes", "not read"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			events, err := Parse("f", strings.NewReader(tt.in))
			if len(events) != tt.good {
				t.Errorf("%d events, want %d", len(events), tt.good)
			}
			if (err != nil) != (len(tt.wants) > 0) || err != nil && !errors.Is(err, ErrBadLine) {
				t.Fatalf("error %v, want one with %q", err, tt.wants)
			}
			for _, want := range tt.wants {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
		})
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "e.jsonl")
	if _, err := Open(name); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(name, []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	if events, err := Open(name); err != nil || len(events) != 1 {
		t.Errorf("%d events, %v", len(events), err)
	}
}
