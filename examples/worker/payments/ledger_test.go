package payments

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/go-zklock/zklock"
)

var payment = Event{Key: "k", Account: "a", Amount: 5, Currency: "EUR"}

func open(t *testing.T, path string, fence bool) *Ledger {
	t.Helper()
	l, err := OpenLedger(path, fence)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func begin(t *testing.T, l *Ledger, token zklock.Token, want bool) {
	t.Helper()
	if got, err := l.Begin("k", token, "w"); err != nil || got != want {
		t.Fatalf("Begin with token %s: %v, %v; want %v", token, got, err, want)
	}
}

func book(t *testing.T, l *Ledger) *Book {
	t.Helper()
	b, err := l.Book()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Two processes have a handle each on one file.
func TestFence(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger")
	older, newer := open(t, path, true), open(t, path, true)

	begin(t, older, 7, false)
	begin(t, newer, 9, false)
	// The newer holder has not charged yet, and the older one is late already.
	if err := older.Charge(payment, 7, "w"); !errors.Is(err, ErrStale) || !strings.Contains(err.Error(), "k has seen 0x9, and this is 0x7") {
		t.Fatalf("late charge: %v", err)
	}
	if charged, err := newer.Charged("k"); charged || err != nil {
		t.Fatalf("after a refused charge: %v, %v", charged, err)
	}
	if err := newer.Charge(payment, 9, "w"); err != nil {
		t.Fatal(err)
	}
	if _, err := older.Begin("k", 7, "w"); !errors.Is(err, ErrStale) {
		t.Fatalf("late begin: %v", err)
	}
	begin(t, older, 11, true)

	b := book(t, older)
	if len(b.Charges["k"]) != 1 || b.Charges["k"][0].Token != 9 || len(b.Refused) != 1 || b.Refused[0].Token != 7 {
		t.Errorf("charges %v, refused %v", b.Charges["k"], b.Refused)
	}
	if err := b.Check([]string{"k"}); err != nil {
		t.Error(err)
	}
	// A key has a fence of its own.
	if err := older.Charge(Event{Key: "other", Account: "a", Amount: 1, Currency: "EUR"}, 1, "w"); err != nil {
		t.Error(err)
	}
}

// The control: the same charges without a fence make two.
func TestNoFence(t *testing.T) {
	t.Parallel()
	l := open(t, filepath.Join(t.TempDir(), "ledger"), false)
	begin(t, l, 7, false)
	begin(t, l, 9, false)
	for _, token := range []zklock.Token{9, 7} {
		if err := l.Charge(payment, token, "w"); err != nil {
			t.Fatal(err)
		}
	}
	err := book(t, l).Check([]string{"k"})
	if err == nil || !strings.Contains(err.Error(), "k was charged 2 times: by w with token 0x9, by w with token 0x7") {
		t.Errorf("%v", err)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	l := open(t, filepath.Join(t.TempDir(), "ledger"), true)
	begin(t, l, 1, false)
	if err := book(t, l).Check([]string{"k"}); err == nil || err.Error() != "k was not charged" {
		t.Errorf("%v", err)
	}
	if err := l.Charge(payment, 1, "w"); err != nil {
		t.Fatal(err)
	}
	if err := book(t, l).Check(nil); err == nil || err.Error() != "k was charged, and no event asks for it" {
		t.Errorf("%v", err)
	}
}

func TestDamagedLedger(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"rubbish":    "ledger:2: not a ledger entry",
		`{"op":"x"}`: `ledger:2: op "x"`,
	} {
		path := filepath.Join(t.TempDir(), "ledger")
		if err := os.WriteFile(path, []byte(`{"op":"begin","key":"k","token":1,"worker":"w"}`+"\n"+line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := open(t, path, true).Charged("k"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// Appended lines of several handles do not mix, and everybody comes to the same verdict about each.
func TestConcurrentAppends(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger")
	const handles, rounds = 4, 100
	var (
		wg       sync.WaitGroup
		mu       sync.Mutex
		accepted = make(map[string]bool)
	)
	for h := range handles {
		l := open(t, path, true)
		wg.Go(func() {
			for i := range rounds {
				token := zklock.Token(i*handles + h + 1)
				switch err := l.Charge(payment, token, "w"); {
				case err == nil:
					mu.Lock()
					accepted[token.String()] = true
					mu.Unlock()
				case !errors.Is(err, ErrStale):
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	b := book(t, open(t, path, true))
	if n := len(b.Charges["k"]) + len(b.Refused); n != handles*rounds || len(b.Charges["k"]) != len(accepted) {
		t.Errorf("%d lines, %d charges; want %d lines, %d charges", n, len(b.Charges["k"]), handles*rounds, len(accepted))
	}
	largest := zklock.Token(0)
	for _, c := range b.Charges["k"] {
		if c.Token <= largest || !accepted[c.Token.String()] {
			t.Errorf("charge with token %s after %s, accepted: %v", c.Token, largest, accepted[c.Token.String()])
		}
		largest = c.Token
	}
}

func ExampleLedger() {
	dir, err := os.MkdirTemp("", "ledger")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	l, err := OpenLedger(filepath.Join(dir, "ledger.jsonl"), true)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = l.Close() }()

	_, err = l.Begin("k", 7, "stopped") // then it is stopped, and its lease expires
	fmt.Println(err)
	_, err = l.Begin("k", 9, "successor")
	fmt.Println(err)
	err = l.Charge(Event{Key: "k", Account: "a", Amount: 5, Currency: "EUR"}, 7, "stopped")
	fmt.Println(err)
	// Output:
	// <nil>
	// <nil>
	// refused by the ledger: the token is stale: k has seen 0x9, and this is 0x7
}
