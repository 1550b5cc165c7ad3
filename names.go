package zklock

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Children of a lock path are named as Curator's InterProcessMutex names them,
// `_c_<uuid>-lock-<sequence>`, so that services in other languages take turns with
// ours.
const (
	protectedPrefix = "_c_"
	lockInfix       = "-lock-"
	// kazooInfix is kazoo's own name for the same thing.
	kazooInfix = "__lock__"
)

const (
	// MaxKey is how long a key given to EscapeKey may be, in bytes.
	MaxKey = 1 << 10
	// maxPath bounds a lock path, in bytes. It is far under jute.maxbuffer, since
	// every proof carries the paths of the nodes held.
	maxPath = 16 << 10
)

// EscapeKey turns any non-empty key of up to MaxKey bytes into one path element,
// for use as in "/dedup/" + escaped. Bytes that an element may not hold are
// percent-encoded as in a URL: '/', '%', control characters, invalid UTF-8,
// characters that ZooKeeper refuses (those above U+D7FF that are in a private or
// special block, and all above U+FFFF), and "." and ".." as a whole. Distinct keys
// give distinct elements, and url.PathUnescape gives the key back.
//
// The empty key and longer ones are refused with ErrInvalidPath.
func EscapeKey(key string) (string, error) {
	switch {
	case key == "":
		return "", invalidPath("key", key, "an empty key names nothing")
	case len(key) > MaxKey:
		return "", invalidPath("key", key, fmt.Sprintf("longer than %d bytes", MaxKey))
	case key == "." || key == "..":
		return strings.ReplaceAll(key, ".", "%2E"), nil
	}
	var b strings.Builder
	for i := 0; i < len(key); {
		r, n := utf8.DecodeRuneInString(key[i:])
		if r == '/' || r == '%' || r == utf8.RuneError && n == 1 || !allowedRune(r) {
			for _, c := range []byte(key[i : i+n]) {
				fmt.Fprintf(&b, "%%%02X", c)
			}
		} else {
			b.WriteString(key[i : i+n])
		}
		i += n
	}
	return b.String(), nil
}

// allowedRune says whether ZooKeeper lets r stand in a path: what its
// PathUtils.validatePath checks, which sees UTF-16 units and so refuses every
// character above U+FFFF by its surrogates.
func allowedRune(r rune) bool {
	switch {
	case r <= 0x1f, r >= 0x7f && r <= 0x9f:
		return false
	case r >= 0xd800 && r <= 0xf8ff, r >= 0xfff0:
		return false
	}
	return true
}

// ValidatePath says whether path can be a lock's: nil, or the error that
// NewInterProcessMutex returns, which matches ErrInvalidPath. It is for programs that
// check their settings before they connect.
func ValidatePath(path string) error { return validatePath(path) }

// validatePath checks a lock path as a user gives it.
func validatePath(path string) error {
	const kind = "path"
	switch {
	case path == "":
		return invalidPath(kind, path, "it is empty")
	case path[0] != '/':
		return invalidPath(kind, path, "it has to be absolute")
	case path == "/":
		return invalidPath(kind, path, "the root is not a lock")
	case path[len(path)-1] == '/':
		return invalidPath(kind, path, "it ends with a slash")
	case len(path) > maxPath:
		return invalidPath(kind, path, fmt.Sprintf("longer than %d bytes", maxPath))
	case !utf8.ValidString(path):
		return invalidPath(kind, path, "it is not valid UTF-8; see EscapeKey")
	case path == "/zookeeper" || strings.HasPrefix(path, "/zookeeper/"):
		return invalidPath(kind, path, "/zookeeper is reserved")
	}
	for element := range strings.SplitSeq(path[1:], "/") {
		switch element {
		case "":
			return invalidPath(kind, path, "it has an empty element (//)")
		case ".", "..":
			return invalidPath(kind, path, "it has the element "+element)
		}
	}
	for _, r := range path {
		if !allowedRune(r) {
			return invalidPath(kind, path, fmt.Sprintf("ZooKeeper does not allow the character %U; see EscapeKey", r))
		}
	}
	return nil
}

// nodePrefix is what a create for uuid asks for; the server appends the sequence.
func nodePrefix(path, uuid string) string {
	return path + "/" + protectedPrefix + uuid + lockInfix
}

// contender is a child of a lock path that takes part in the queue.
type contender struct {
	name string
	seq  int32
}

// parseContender reads a child's name. Every name that is not a lock node of
// ours, Curator's, go-zookeeper's or kazoo's is not a contender: it neither
// blocks anybody nor is it touched.
func parseContender(name string) (contender, bool) {
	i := strings.LastIndex(name, lockInfix)
	switch {
	case i > len(protectedPrefix) && strings.HasPrefix(name, protectedPrefix):
		i += len(lockInfix)
	default:
		if i = strings.LastIndex(name, kazooInfix); i < 0 {
			return contender{}, false
		}
		i += len(kazooInfix)
	}
	seq, ok := parseSequence(name[i:])
	return contender{name, seq}, ok
}

// parseSequence reads what a server printed with %010d: a signed 32-bit number
// of any digit count.
func parseSequence(s string) (int32, bool) {
	digits := strings.TrimPrefix(s, "-")
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 32)
	return int32(n), err == nil
}

// before says whether a stands before b in the queue. The counter wraps from
// 2147483647 to -2147483648, so the order is that of serial numbers: a is before
// b if the way from a up to b is the shorter one.
func (a contender) before(b contender) bool {
	d := uint32(b.seq) - uint32(a.seq)
	switch d {
	case 0: // different makers of one number, after the parent was made again
		return a.name < b.name
	case 1 << 31: // as far one way as the other; any order will do that all agree on
		return a.seq < b.seq
	default:
		return d < 1<<31
	}
}

// contenders picks them from a listing.
func contenders(children []string) []contender {
	cs := make([]contender, 0, len(children))
	for _, name := range children {
		if c, ok := parseContender(name); ok {
			cs = append(cs, c)
		}
	}
	return cs
}

// place finds own in a queue: whether it is listed, and the one just before it,
// if any.
func place(cs []contender, own contender) (listed bool, predecessor *contender) {
	for i := range cs {
		c := &cs[i]
		if c.name == own.name {
			listed = true
			continue
		}
		if c.before(own) && (predecessor == nil || predecessor.before(*c)) {
			predecessor = c
		}
	}
	return listed, predecessor
}

// uuidOf returns the uuid in the name of a lock node of Curator's shape, or "".
func uuidOf(name string) string {
	rest, ok := strings.CutPrefix(name, protectedPrefix)
	if !ok {
		return ""
	}
	i := strings.LastIndex(rest, lockInfix)
	if i < 0 {
		return ""
	}
	return rest[:i]
}
