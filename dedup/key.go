package dedup

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/go-zklock/zklock"
)

// Limits of a Key, in bytes.
const (
	MaxScope = 256
	MaxID    = 1 << 10
)

// Key names what must be done once. Two keys are the same if both parts are.
type Key struct {
	// Scope keeps the ids of different callers apart: a tenant, an operation, a route.
	// May be empty. At most MaxScope bytes.
	Scope string
	// ID is the idempotency key: what the caller sends again with every retry. A UUIDv7
	// lets the guard tell late retries (ErrKeyExpired). At most MaxID bytes.
	ID string
}

// separator stands between scope and id. EscapeKey never gives it for a part: a
// percent sign of the part itself becomes %25, and a colon stays as it is.
const separator = "%3A"

// String is the key as one path element, as the store and logs have it: both parts
// percent-encoded as zklock.EscapeKey does, joined by "%3A". url.PathUnescape makes
// it scope:id.
func (k Key) String() string {
	id, err := zklock.EscapeKey(k.ID)
	if err != nil {
		id = url.PathEscape(k.ID)
	}
	if k.Scope == "" {
		return id
	}
	scope, err := zklock.EscapeKey(k.Scope)
	if err != nil {
		scope = url.PathEscape(k.Scope)
	}
	return scope + separator + id
}

// ParseKey is the inverse of Key.String.
func ParseKey(s string) (Key, error) {
	var k Key
	scope, id, ok := strings.Cut(s, separator)
	if !ok {
		scope, id = "", s
	}
	var err error
	if k.Scope, err = url.PathUnescape(scope); err == nil {
		k.ID, err = url.PathUnescape(id)
	}
	if err != nil {
		return Key{}, fmt.Errorf("%w: %s: %w", ErrInvalidKey, quote(s), err)
	}
	if err := k.validate(); err != nil {
		return Key{}, err
	}
	if k.String() != s {
		return Key{}, invalid(ErrInvalidKey, "key", s, "not as Key.String writes it")
	}
	return k, nil
}

func (k Key) validate() error {
	if k.ID == "" {
		return invalid(ErrInvalidKey, "id", k.ID, "an empty id names nothing")
	}
	if err := validatePart("id", k.ID, MaxID); err != nil {
		return err
	}
	return validatePart("scope", k.Scope, MaxScope)
}

func validatePart(what, s string, most int) error {
	if len(s) > most {
		return invalid(ErrInvalidKey, what, s, fmt.Sprintf("longer than %d bytes", most))
	}
	if !utf8.ValidString(s) {
		return invalid(ErrInvalidKey, what, s, "it is not valid UTF-8")
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return invalid(ErrInvalidKey, what, s, fmt.Sprintf("the character %U cannot be printed", r))
		}
	}
	return nil
}

// made is when a key says that it was made: the time of a UUIDv7.
func (k Key) made() (time.Time, bool) {
	u, err := uuid.Parse(k.ID)
	if err != nil || u.Version() != 7 || u.Variant() != uuid.RFC4122 {
		return time.Time{}, false
	}
	return time.UnixMilli(int64(binary.BigEndian.Uint64(append([]byte{0, 0}, u[:6]...)))), true
}

// Fingerprint tells payloads apart, so that a key that is used again for something
// else is refused (ErrKeyReused) and not answered with another's outcome. Make one with
// Payload or PayloadJSON, or say NoFingerprint; the zero value is refused.
type Fingerprint struct {
	sum []byte
	off bool
	err error
}

// NoFingerprint takes every payload of the key for the same. A record keeps the
// fingerprint of the call that made it; calls are compared only if both have one.
var NoFingerprint = Fingerprint{off: true}

// Payload is the fingerprint of parts: SHA-256 over each part's length and bytes, so
// ("a","bc") and ("ab","c") differ.
func Payload(parts ...[]byte) Fingerprint {
	h := sha256.New()
	for _, p := range parts {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write(p)
	}
	return Fingerprint{sum: h.Sum(nil)}
}

// PayloadJSON is the fingerprint of a value's JSON, as encoding/json writes it: maps
// have their keys sorted. A value that cannot be encoded makes Do fail with
// ErrInvalidConfig.
func PayloadJSON(v any) Fingerprint {
	b, err := json.Marshal(v)
	if err != nil {
		return Fingerprint{err: err}
	}
	return Payload(b)
}

func (f Fingerprint) validate() error {
	switch {
	case f.err != nil:
		return fmt.Errorf("%w: the payload has no JSON: %w", ErrInvalidConfig, f.err)
	case !f.off && len(f.sum) == 0:
		return fmt.Errorf("%w: no fingerprint: use Payload, PayloadJSON or NoFingerprint", ErrInvalidConfig)
	}
	return nil
}

// matches says whether a record's fingerprint is not another's.
func (f Fingerprint) matches(recorded []byte) bool {
	return f.off || len(recorded) == 0 || string(f.sum) == string(recorded)
}
