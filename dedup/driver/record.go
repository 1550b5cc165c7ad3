package driver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// State of a record.
type State string

const (
	// Running: somebody works on it, or did when he was last heard of. Without a claim
	// it means that nobody knows what came of it.
	Running State = "running"
	// Open: an attempt was given up cleanly; the next may begin.
	Open State = "open"
	// Done: there is an outcome. Final.
	Done State = "done"
	// Failed: there is a failure that stands for the outcome. Final.
	Failed State = "failed"
)

// Final says whether the state is never left again.
func (s State) Final() bool { return s == Done || s == Failed }

// Record is what is kept of a key.
type Record struct {
	State       State
	Attempt     int           // the current one, or the last; 0 if none has begun
	Claim       string        // ID of the claim that wrote the record
	Token       int64         // of that claim
	Fingerprint []byte        // of the payload; empty: none
	Retention   time.Duration // how long it is kept after its last change
	Owner       string        // who has the claim, for people
	Outcome     []byte        // if Done
	Omitted     string        // if Done: why Outcome is not there; empty: it is
	Message     string        // if Failed: the failure; if Open: why it was given up

	Version int64     // set by the store: grows with each change
	Created time.Time // set by the store, by its clock
	Updated time.Time // set by the store, by its clock

	// unknown are fields that a newer build wrote. They are kept.
	unknown map[string]json.RawMessage
}

// The format. A record is one line of text and the bytes of the outcome:
//
//	zklock-dedup/1 {"state":"done","attempt":1,…,"size":17}
//	<outcome>
//
// so that people can read it in any tool. The number is raised when an older build
// could misread a record; it refuses those. New fields do not need that: builds that do
// not know them keep them.
const (
	magic  = "zklock-dedup/"
	format = 1
)

type header struct {
	State       State  `json:"state"`
	Attempt     int    `json:"attempt"`
	Claim       string `json:"claim,omitempty"`
	Token       string `json:"token,omitempty"` // hexadecimal, as the token prints
	Fingerprint []byte `json:"fingerprint,omitempty"`
	Retention   string `json:"retention,omitempty"`
	Owner       string `json:"owner,omitempty"`
	Omitted     string `json:"omitted,omitempty"`
	Message     string `json:"message,omitempty"`
	Size        int    `json:"size"` // of the outcome
}

var knownFields = []string{"state", "attempt", "claim", "token", "fingerprint", "retention", "owner", "omitted", "message", "size"}

// MarshalBinary encodes the record, without what the store sets.
func (r Record) MarshalBinary() ([]byte, error) {
	h := header{
		State: r.State, Attempt: r.Attempt, Claim: r.Claim, Fingerprint: r.Fingerprint,
		Owner: r.Owner, Omitted: r.Omitted, Message: r.Message, Size: len(r.Outcome),
	}
	if r.Token != 0 {
		h.Token = "0x" + strconv.FormatUint(uint64(r.Token), 16)
	}
	if r.Retention != 0 {
		h.Retention = r.Retention.String()
	}
	line, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	if len(r.unknown) > 0 {
		fields := maps.Clone(r.unknown)
		if err := json.Unmarshal(line, &fields); err != nil {
			return nil, err
		}
		if line, err = json.Marshal(fields); err != nil {
			return nil, err
		}
	}
	var b bytes.Buffer
	b.Grow(len(magic) + len(line) + len(r.Outcome) + 8)
	fmt.Fprintf(&b, "%s%d ", magic, format)
	b.Write(line)
	b.WriteByte('\n')
	b.Write(r.Outcome)
	return b.Bytes(), nil
}

// CorruptError says why bytes are no record, and where they are. It matches ErrCorrupt.
type CorruptError struct {
	Where string // the node, say
	Why   string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%v: %s: %s", ErrCorrupt, e.Where, e.Why)
}

// Is makes errors.Is(err, ErrCorrupt) true.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

// ParseRecord decodes a record; where names it in errors. It returns a
// *CorruptError, or an error that matches ErrNewerFormat.
func ParseRecord(data []byte, where string) (Record, error) {
	corrupt := func(format string, args ...any) (Record, error) {
		return Record{}, &CorruptError{Where: where, Why: fmt.Sprintf(format, args...)}
	}
	rest, ok := bytes.CutPrefix(data, []byte(magic))
	if !ok {
		return corrupt("it does not begin with %q", magic)
	}
	number, rest, ok := bytes.Cut(rest, []byte(" "))
	n, err := strconv.ParseUint(string(number), 10, 32)
	switch {
	case !ok || err != nil || n == 0:
		return corrupt("its format is %.20q, which is no number", number)
	case n > format:
		return Record{}, fmt.Errorf("%w: %s has format %d, this build reads up to %d", ErrNewerFormat, where, n, format)
	}
	line, outcome, ok := bytes.Cut(rest, []byte("\n"))
	if !ok {
		return corrupt("its first line does not end")
	}
	h, unknown, err := parseHeader(line)
	if err != nil {
		return corrupt("its first line: %v", err)
	}
	r := Record{
		State: h.State, Attempt: h.Attempt, Claim: h.Claim, Fingerprint: h.Fingerprint,
		Owner: h.Owner, Omitted: h.Omitted, Message: h.Message,
	}
	switch h.State {
	case Running, Open, Done, Failed:
	default:
		return corrupt("its state is %.40q", h.State)
	}
	if h.Attempt < 0 {
		return corrupt("its attempt is %d", h.Attempt)
	}
	if h.Size != len(outcome) {
		return corrupt("its outcome has %d bytes and should have %d", len(outcome), h.Size)
	}
	if len(outcome) > 0 {
		r.Outcome = outcome
	}
	if len(r.Fingerprint) == 0 {
		r.Fingerprint = nil
	}
	if h.Token != "" {
		hex, ok := strings.CutPrefix(h.Token, "0x")
		t, err := strconv.ParseUint(hex, 16, 64)
		if !ok || err != nil {
			return corrupt("its token is %.40q", h.Token)
		}
		r.Token = int64(t)
	}
	if h.Retention != "" {
		if r.Retention, err = time.ParseDuration(h.Retention); err != nil || r.Retention < 0 {
			return corrupt("its retention is %.40q", h.Retention)
		}
	}
	r.unknown = unknown
	return r, nil
}

// parseHeader decodes the first line. Names are taken as they are: encoding/json would
// take "Size" for "size". One look is enough for a line that has no other names, which
// is every line until there is a newer build.
func parseHeader(line []byte) (h header, unknown map[string]json.RawMessage, err error) {
	if knownOnly(line) {
		err = json.Unmarshal(line, &h)
		return h, nil, err
	}
	return parseAnyHeader(line)
}

// knownOnly says whether the names of an object are all known, written without escapes,
// and there once. The line may be anything; what is no JSON is not judged here.
func knownOnly(line []byte) bool {
	var seen uint
	depth := 0
	for i := 0; i < len(line); i++ {
		switch line[i] {
		case '{', '[':
			if depth++; depth == 1 && line[i] == '[' {
				return false
			}
		case '}', ']':
			depth--
		case '"':
			begin := i + 1
			for i++; i < len(line) && line[i] != '"'; i++ {
				if line[i] == '\\' {
					i++
				}
			}
			if i >= len(line) {
				return false
			}
			if depth != 1 || !bytes.HasPrefix(bytes.TrimLeft(line[i+1:], " \t\r\n"), []byte(":")) {
				continue // a value
			}
			bit := uint(1) << (slices.Index(knownFields, string(line[begin:i])) + 1)
			if bit == 1 || seen&bit != 0 {
				return false
			}
			seen |= bit
		}
	}
	return true
}

// parseAnyHeader is parseHeader for lines with other names too.
func parseAnyHeader(line []byte) (h header, unknown map[string]json.RawMessage, err error) {
	if err := json.Unmarshal(line, &unknown); err != nil {
		return h, nil, err
	}
	known := make(map[string]json.RawMessage, len(knownFields))
	for _, name := range knownFields {
		if value, ok := unknown[name]; ok {
			known[name] = value
			delete(unknown, name)
		}
	}
	for name, value := range unknown {
		if unknown[name], err = json.Marshal(value); err != nil { // as it will be written
			return h, nil, err
		}
	}
	if len(unknown) == 0 {
		unknown = nil
	}
	exact, err := json.Marshal(known)
	if err != nil {
		return h, nil, err
	}
	return h, unknown, json.Unmarshal(exact, &h)
}

// Next is a record for another state of the same key: what the last one says of the
// key stays, what it says of the attempt does not.
func (r Record) Next(s State) Record {
	return Record{
		State: s, Attempt: r.Attempt, Fingerprint: r.Fingerprint, Retention: r.Retention, Owner: r.Owner,
		Version: r.Version, Created: r.Created, unknown: r.unknown,
	}
}

// Unusable says whether err means that the record is there and cannot be used by this
// build.
func Unusable(err error) bool {
	return errors.Is(err, ErrCorrupt) || errors.Is(err, ErrNewerFormat)
}
