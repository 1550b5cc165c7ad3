package httpdedup

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-zklock/zklock/dedup"
)

// Header is the name of the request header with the key.
const Header = "Idempotency-Key"

// ReplayedHeader is set to "true" in answers that come from the store.
const ReplayedHeader = "Idempotent-Replayed"

// ByAuthorization takes the value of the Authorization header for the principal. It
// fits API keys. Credentials that may be renewed between a request and its retry
// (short-lived tokens) do not fit: the retry would come from another principal, and
// run again. A request without one is refused: whoever tells callers apart by something
// else (another header, a cookie, a client certificate) has to say so with a Principal
// of its own, or they would get each other's answers. A service whose callers need not
// be told apart says Everyone.
//
// Only a hash of it is stored, as of every principal; but somebody who reads the
// records could try passwords on that, so do not use it with Basic authentication.
func ByAuthorization(r *http.Request) (string, error) {
	values := r.Header.Values("Authorization")
	switch {
	case len(values) > 1:
		return "", errors.New("several Authorization headers")
	case len(values) == 1:
		return values[0], nil
	}
	return "", errors.New("the request has no Authorization header: set httpdedup.Config.Principal, to httpdedup.Everyone if callers need not be told apart")
}

// Everyone takes all callers for one principal: whoever sends the same key and payload
// gets the same answer.
func Everyone(*http.Request) (string, error) { return "", nil }

// errMissing: there is no header.
var errMissing = errors.New("the request has no " + Header + " header")

// parseKey reads the header: a String of RFC 8941, or the key as it is.
func parseKey(h http.Header, most int) (string, error) {
	values := h.Values(Header)
	switch {
	case len(values) == 0:
		return "", errMissing
	case len(values) > 1:
		return "", fmt.Errorf("there are %d %s headers; one is allowed", len(values), Header)
	}
	key := strings.Trim(values[0], " \t")
	var err error
	if strings.HasPrefix(key, `"`) {
		key, err = unquote(key)
	} else {
		err = checkBare(key)
	}
	switch {
	case err != nil:
		return "", err
	case key == "":
		return "", errors.New("the key is empty")
	case len(key) > most:
		return "", fmt.Errorf("the key has %d bytes; at most %d are allowed", len(key), most)
	}
	return key, nil
}

func unquote(s string) (string, error) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' && i == len(s)-1:
			return b.String(), nil
		case c == '"':
			return "", errors.New("something follows the closing quote; one string without parameters is allowed")
		case c == '\\':
			if i++; i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", errors.New(`a backslash in a quoted key has to be followed by " or \`)
			}
			b.WriteByte(s[i])
		case c < ' ' || c > '~':
			return "", fmt.Errorf("the byte 0x%02x is not allowed in a key", c)
		default:
			b.WriteByte(c)
		}
	}
	return "", errors.New("the closing quote is missing")
}

func checkBare(s string) error {
	for i := range len(s) {
		switch c := s[i]; {
		case c <= ' ' || c > '~':
			return fmt.Errorf("the byte 0x%02x is not allowed in a key without quotes", c)
		case c == '"' || c == '\\' || c == ',' || c == ';':
			return fmt.Errorf("%q is not allowed in a key without quotes", string(c))
		}
	}
	return nil
}

// scope keeps the keys of methods, routes and principals apart. Neither method nor hash
// has a blank, so different three give different scopes.
func scope(method, route, principal string) string {
	const most = dedup.MaxScope - 64
	if len(method)+len(route) > most || !printable(route) {
		route = "sha256:" + hash(route)
	}
	return method + " " + route + " " + hash(principal)
}

func printable(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

// hash is half of a SHA-256: what is stored shows no credentials.
func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:16])
}

// fingerprint is that of the payload as the client has sent it.
func fingerprint(r *http.Request, headers []string, body []byte) dedup.Fingerprint {
	parts := [][]byte{[]byte(r.Method), []byte(r.URL.RequestURI())}
	for _, name := range headers {
		parts = append(parts, []byte(name), []byte(strings.Join(r.Header.Values(name), ", ")))
	}
	return dedup.Payload(append(parts, body)...)
}

// validToken says whether s can be a method or the name of a header.
func validToken(s string) bool {
	return s != "" && strings.IndexFunc(s, func(r rune) bool {
		return r <= ' ' || r > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	}) < 0
}
