// Package payments is what the example programs share: payment events, and the ledger that charges go to.
package payments

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// Event asks for one charge. Deliveries repeat: events with the same Key are the same charge.
type Event struct {
	Key      string `json:"key"`      // the idempotency key
	Account  string `json:"account"`  // who pays
	Amount   int64  `json:"amount"`   // in the currency's smallest unit; more than 0
	Currency string `json:"currency"` // three capital letters
}

//go:embed events.jsonl
var shipped []byte

// maxLine is the longest line of events that is read, in bytes.
const maxLine = 64 << 10

// ErrBadLine is matched by every error about a line of events that cannot be used.
var ErrBadLine = errors.New("not a payment event")

// Open reads the events in the file called name, or those that ship with the program if name is empty, or
// standard input if it is "-". See Parse.
func Open(name string) ([]Event, error) {
	switch name {
	case "":
		return Parse("events.jsonl", bytes.NewReader(shipped))
	case "-":
		return Parse("standard input", os.Stdin)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return Parse(name, f)
}

// Parse reads one JSON object a line, as Event describes it. Empty lines are left out. Every bad line is in the
// error, as name:number; the good ones are returned beside it. A line is bad also when an earlier line has its
// key with other content: whichever of the two were charged, the other would be lost.
func Parse(name string, r io.Reader) ([]Event, error) {
	type seen struct {
		event Event
		line  int
	}
	var (
		events []Event
		errs   []error
		first  = make(map[string]seen)
		number = 0
		lines  = bufio.NewScanner(r)
	)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		number++
		text := bytes.TrimSpace(lines.Bytes())
		if len(text) == 0 {
			continue
		}
		ev, err := parseLine(text)
		if err == nil {
			if s, ok := first[ev.Key]; !ok {
				first[ev.Key] = seen{ev, number}
			} else if s.event != ev {
				err = fmt.Errorf("%w: key %q has other content in line %d", ErrBadLine, ev.Key, s.line)
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s:%d: %w", name, number, err))
			continue
		}
		events = append(events, ev)
	}
	if err := lines.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("%w: longer than %d bytes; the lines after it were not read", ErrBadLine, maxLine)
		}
		errs = append(errs, fmt.Errorf("%s:%d: %w", name, number+1, err))
	}
	return events, errors.Join(errs...)
}

func parseLine(text []byte) (Event, error) {
	var ev Event
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&ev); err != nil {
		return ev, fmt.Errorf("%w: %w", ErrBadLine, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return ev, fmt.Errorf("%w: there is more than one JSON object", ErrBadLine)
	}
	switch {
	case ev.Key == "":
		return ev, fmt.Errorf("%w: no key", ErrBadLine)
	case ev.Account == "":
		return ev, fmt.Errorf("%w: key %q: no account", ErrBadLine, ev.Key)
	case ev.Amount <= 0:
		return ev, fmt.Errorf("%w: key %q: amount %d is not more than 0", ErrBadLine, ev.Key, ev.Amount)
	case !isCurrency(ev.Currency):
		return ev, fmt.Errorf("%w: key %q: currency %q is not three capital letters", ErrBadLine, ev.Key, ev.Currency)
	}
	return ev, nil
}

func isCurrency(s string) bool {
	if len(s) != 3 {
		return false
	}
	for _, c := range []byte(s) {
		if c < 'A' || c > 'Z' {
			return false
		}
	}
	return true
}

// Keys returns the distinct keys in the order of their first events.
func Keys(events []Event) []string {
	var keys []string
	seen := make(map[string]bool)
	for _, ev := range events {
		if !seen[ev.Key] {
			seen[ev.Key] = true
			keys = append(keys, ev.Key)
		}
	}
	return keys
}
