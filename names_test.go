package zklock

import (
	"errors"
	"fmt"
	"net/url"
	"sort"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"
)

func TestEscapeKey(t *testing.T) {
	for _, tc := range []struct{ key, want string }{
		{"order-17", "order-17"},
		{"a/b", "a%2Fb"},
		{"/", "%2F"},
		{"100%", "100%25"},
		{"a%2Fb", "a%252Fb"}, // a key that looks escaped is escaped again
		{".", "%2E"},
		{"..", "%2E%2E"},
		{"...", "..."},
		{".a", ".a"},
		{"a.", "a."},
		{"./..", ".%2F.."},
		{"a b+c", "a b+c"},
		{"\x00", "%00"},
		{"a\nb", "a%0Ab"},
		{"\x7f", "%7F"},
		{"\u0085", "%C2%85"},
		{"é日本", "é日本"},
		{"\ud7ff", "\ud7ff"},
		{"\ue000", "%EE%80%80"},
		{"\uf8ff", "%EF%A3%BF"},
		{"\uf900", "\uf900"},
		{"\uffef", "\uffef"},
		{"\ufff0", "%EF%BF%B0"},
		{"\ufffd", "%EF%BF%BD"}, // the replacement character itself, not a broken byte
		{"😀", "%F0%9F%98%80"},   // two surrogates in UTF-16
		{"\xff", "%FF"},
		{"a\xc3", "a%C3"},
		{"\xed\xa0\x80", "%ED%A0%80"}, // an unpaired surrogate
		{"_c_x-lock-1", "_c_x-lock-1"},
		{strings.Repeat("k", MaxKey), strings.Repeat("k", MaxKey)},
	} {
		got, err := EscapeKey(tc.key)
		if err != nil || got != tc.want {
			t.Errorf("EscapeKey(%q) = %q, %v; want %q", tc.key, got, err, tc.want)
		}
	}
}

func TestEscapeKeyRefuses(t *testing.T) {
	for _, tc := range []struct{ key, rule, value string }{
		{"", "an empty key names nothing", `""`},
		{strings.Repeat("k", MaxKey+1), "longer than 1024 bytes", "(1025 bytes)"},
		{strings.Repeat("é", 1<<19), "longer than 1024 bytes", "(1048576 bytes)"},
	} {
		got, err := EscapeKey(tc.key)
		wantErr(t, err, ErrInvalidPath, tc.rule, tc.value)
		if got != "" {
			t.Errorf("a refused key gave %q", got)
		}
		// The value is named, not repeated: a megabyte in a log helps nobody.
		if err != nil && len(err.Error()) > 400 {
			t.Errorf("the message has %d bytes", len(err.Error()))
		}
	}
}

// javaRefuses is ZooKeeper's PathUtils.validatePath as it stands there: over UTF-16
// units, with its own ranges. It is written down a second time on purpose.
func javaRefuses(path string) string {
	units := utf16.Encode([]rune(path))
	if len(units) == 0 || units[0] != '/' {
		return "not absolute"
	}
	if len(units) > 1 && units[len(units)-1] == '/' {
		return "ends with /"
	}
	var last uint16 = '/'
	for i := 1; i < len(units); last, i = units[i], i+1 {
		u := units[i]
		end := i+1 == len(units) || units[i+1] == '/'
		switch {
		case u == 0:
			return "null character"
		case u == '/' && last == '/':
			return "empty node name"
		case u == '.' && last == '.' && units[i-2] == '/' && end:
			return "relative paths"
		case u == '.' && last == '/' && end:
			return "relative paths"
		case u > 0 && u <= 0x1f, u >= 0x7f && u <= 0x9f, u >= 0xd800 && u <= 0xf8ff, u >= 0xfff0:
			return fmt.Sprintf("invalid character %04x", u)
		}
	}
	return ""
}

// checkKey is what every key must satisfy: one element, that ZooKeeper takes and
// that gives the key back (so that no two keys share an element).
func checkKey(t *testing.T, key string) {
	t.Helper()
	e, err := EscapeKey(key)
	if key == "" || len(key) > MaxKey {
		if !errors.Is(err, ErrInvalidPath) {
			t.Fatalf("EscapeKey of %d bytes: %v, want ErrInvalidPath", len(key), err)
		}
		return
	}
	if err != nil {
		t.Fatalf("EscapeKey(%q): %v", key, err)
	}
	if strings.Contains(e, "/") || !utf8.ValidString(e) {
		t.Fatalf("EscapeKey(%q) = %q, which is not one valid element", key, e)
	}
	back, err := url.PathUnescape(e)
	if err != nil || back != key {
		t.Fatalf("EscapeKey(%q) = %q, which unescapes to %q, %v", key, e, back, err)
	}
	path := "/dedup/" + e
	if err := validatePath(path); err != nil {
		t.Fatalf("EscapeKey(%q) = %q: %v", key, e, err)
	}
	if why := javaRefuses(path); why != "" {
		t.Fatalf("EscapeKey(%q) = %q, which ZooKeeper refuses: %s", key, e, why)
	}
	if got := keyOf(path + "/" + protectedPrefix + "x" + lockInfix + "0000000001"); got != key {
		t.Fatalf("the log would name the key %q, not %q", got, key)
	}
}

func TestEscapeKeyOfEveryRune(t *testing.T) {
	check := func(r rune) {
		checkKey(t, string(r))
		if r < 0x300 || r > 0xff00 && r < 0x10010 {
			checkKey(t, "."+string(r))
			checkKey(t, string(r)+".")
		}
	}
	// One of 16 stands for the large blocks that are treated alike.
	for r := rune(0); r <= 0xffff; r++ {
		if (r > 0x3000 && r < 0xd700 || r > 0xe010 && r < 0xf8f0) && r%16 != 0 {
			continue
		}
		check(r)
	}
	for r := rune(0x10000); r <= utf8.MaxRune; r += 0xfff {
		check(r)
	}
}

func FuzzEscapeKey(f *testing.F) {
	for _, key := range []string{"", "a", ".", "..", "...", "a/b", "%", "%2e", "\x00", "\xff\xfe", "😀", "\ue000", "é\xc3", strings.Repeat("\x01", MaxKey)} {
		f.Add(key, key+"x")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		checkKey(t, a)
		checkKey(t, b)
		ea, erra := EscapeKey(a)
		eb, errb := EscapeKey(b)
		if erra == nil && errb == nil && (ea == eb) != (a == b) {
			t.Fatalf("%q and %q escape to %q and %q", a, b, ea, eb)
		}
	})
}

// The client library checks paths by rules of its own. Keys of every allowed rune,
// packed into few requests, have to pass them and the server's.
func TestEscapedKeysPassTheLibrary(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		conn := b.connect().Conn()
		try := func(key string) {
			e, err := EscapeKey(key)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := conn.Exists("/" + e); err != nil {
				t.Errorf("Exists of the escaped key %q: %v", key, err)
			}
		}
		var key strings.Builder
		for r := range rune(0x10100) {
			if _, _ = key.WriteRune(r); key.Len() > MaxKey-8 {
				try(key.String())
				key.Reset()
			}
		}
		try(key.String())
		for _, k := range []string{".", "..", "...", ".a", "..a", "a.", "é.", "\xff", "/", "//", "/./"} {
			try(k)
		}
	})
}

func TestValidatePath(t *testing.T) {
	for _, ok := range []string{
		"/a", "/dedup/order 17", "/a/.b/..c/...", "/é/日本", "/zookeeper2", "/a/zookeeper", "/" + strings.Repeat("a", maxPath-1),
	} {
		if err := validatePath(ok); err != nil {
			t.Errorf("%q: %v", shorten(ok), err)
		}
	}
	for _, tc := range []struct{ path, rule string }{
		{"", "it is empty"},
		{"a/b", "it has to be absolute"},
		{"dedup", "it has to be absolute"},
		{"/", "the root is not a lock"},
		{"/a/", "it ends with a slash"},
		{"//", "it ends with a slash"},
		{"//a", "it has an empty element (//)"},
		{"/a//b", "it has an empty element (//)"},
		{"/.", "it has the element ."},
		{"/a/./b", "it has the element ."},
		{"/..", "it has the element .."},
		{"/a/../b", "it has the element .."},
		{"/a\x00b", "character U+0000"},
		{"/a\nb", "character U+000A"},
		{"/a\x7f", "character U+007F"},
		{"/a\u009f", "character U+009F"},
		{"/a\ue123", "character U+E123"},
		{"/a\ufff0", "character U+FFF0"},
		{"/a😀", "character U+1F600"},
		{"/a\xff", "it is not valid UTF-8"},
		{"/zookeeper", "/zookeeper is reserved"},
		{"/zookeeper/quota", "/zookeeper is reserved"},
		{"/" + strings.Repeat("a", maxPath), "longer than 16384 bytes"},
	} {
		wantErr(t, validatePath(tc.path), ErrInvalidPath, tc.rule, shorten(tc.path))
	}
}

func TestParseContender(t *testing.T) {
	const uuid = "5f2d0c1e-6a55-4c39-9f0d-0d9c2f6f1a11"
	for _, tc := range []struct {
		name string
		seq  int32
	}{
		{"_c_" + uuid + "-lock-0000000007", 7},          // Curator, and ours
		{"_c_5f2d0c1e6a554c399f0d-lock-0000000012", 12}, // go-zookeeper: no dashes
		{"5f2d0c1e6a554c39__lock__0000000003", 3},       // kazoo
		{"_c_" + uuid + "-lock-2147483647", 2147483647},
		{"_c_" + uuid + "-lock--2147483648", -2147483648}, // %010d of a wrapped counter
		{"_c_" + uuid + "-lock--000000001", -1},
		{"_c_" + uuid + "-lock-5", 5},
		{"_c_" + uuid + "-lock-00000000000000000009", 9},
		{"_c_a-lock-1-lock-0000000002", 2}, // the last infix counts
		{"__lock__1", 1},
	} {
		c, ok := parseContender(tc.name)
		if !ok || c.seq != tc.seq || c.name != tc.name {
			t.Errorf("parseContender(%q) = %+v, %v; want %d", tc.name, c, ok, tc.seq)
		}
	}
	for _, name := range []string{
		"", "config", "0", "_c_", "_c_x", "-lock-", "-lock-1", "_c_-lock-1", "lock-0000000001", "x-lock-1",
		"_c_x-lock-", "_c_x-lock--", "_c_x-lock-a", "_c_x-lock-1a", "_c_x-lock-+1", "_c_x-lock- 1", "_c_x-lock-1 ",
		"_c_x-lock-2147483648", "_c_x-lock--2147483649", "_c_x-lock-99999999999999999999", "_c_x-lock-1--2", "_c_x-lock-१",
		"__lock__", "__lock__x", "a__lock__2147483648", "_c_x-LOCK-1", "_c_x_lock_1",
		"_c_" + uuid + "-read-0000000001", // Curator's read-write lock is another recipe
	} {
		if c, ok := parseContender(name); ok {
			t.Errorf("parseContender(%q) takes it for a contender: %+v", name, c)
		}
	}
}

func FuzzParseContender(f *testing.F) {
	for _, name := range []string{"_c_x-lock-1", "__lock__1", "_c_-lock-", "config"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		c, ok := parseContender(name)
		if !ok {
			return
		}
		if c.name != name || !strings.Contains(name, lockInfix) && !strings.Contains(name, kazooInfix) {
			t.Fatalf("%q: %+v", name, c)
		}
		_ = uuidOf(name) // must not panic
	})
}

func TestUUIDOf(t *testing.T) {
	for name, want := range map[string]string{
		"_c_abc-lock-0000000001": "abc",
		"_c_a-lock-b-lock-1":     "a-lock-b",
		"_c_x":                   "",
		"_c_":                    "",
		"abc__lock__1":           "",
		"abc-lock-1":             "",
		"_c_-lock-1":             "",
	} {
		if got := uuidOf(name); got != want {
			t.Errorf("uuidOf(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestSequenceOrder(t *testing.T) {
	at := func(seq int32) contender { return contender{name: fmt.Sprintf("_c_x-lock-%010d", seq), seq: seq} }
	for _, tc := range []struct {
		a, b int32
		want bool
	}{
		{0, 1, true}, {1, 0, false},
		{-1, 0, true}, {-2, -1, true}, {-1, -2, false},
		{2147483647, -2147483648, true}, // the wrap
		{-2147483648, 2147483647, false},
		{2147483600, -2147483600, true},
		{0, 2147483647, true},
		{-2147483648, -1, true},
	} {
		if got := at(tc.a).before(at(tc.b)); got != tc.want {
			t.Errorf("%d before %d: %v, want %v", tc.a, tc.b, got, tc.want)
		}
	}
	// Never both and never neither, also for one number twice and for opposite numbers.
	for _, p := range [][2]contender{
		{at(5), {name: "a__lock__5", seq: 5}},
		{at(0), at(-2147483648)}, {at(1), at(-2147483647)}, {at(7), at(8)},
	} {
		if p[0].before(p[1]) == p[1].before(p[0]) {
			t.Errorf("%v and %v have no order", p[0], p[1])
		}
	}
	if a := at(3); a.before(a) {
		t.Error("a node stands before itself")
	}
	// A queue across the wrap sorts by age.
	var cs []contender
	for i := range 10 {
		cs = append(cs, at(int32(int64(2147483643+i)))) // the conversion wraps as the server's counter does
	}
	want := fmt.Sprint(cs)
	sort.Slice(cs, func(i, j int) bool { return cs[i].seq < cs[j].seq })
	if fmt.Sprint(cs) == want {
		t.Fatal("the numbers do not wrap: the test shows nothing")
	}
	sort.Slice(cs, func(i, j int) bool { return cs[i].before(cs[j]) })
	if got := fmt.Sprint(cs); got != want {
		t.Errorf("sorted across the wrap:\n%s, want\n%s", got, want)
	}
}

func TestPlace(t *testing.T) {
	node := func(seq int32) contender { return contender{name: fmt.Sprintf("_c_u-lock-%010d", seq), seq: seq} }
	names := func(seqs ...int32) (cs []contender) {
		for _, s := range seqs {
			cs = append(cs, node(s))
		}
		return cs
	}
	for _, tc := range []struct {
		queue  []contender
		own    int32
		listed bool
		pred   int32 // 0: none
	}{
		{nil, 1, false, 0},
		{names(1), 1, true, 0},
		{names(2, 1), 1, true, 0},
		{names(3, 1, 2), 3, true, 2}, // the one just before, not the first
		{names(1, 9), 9, true, 1},
		{names(1, 2), 5, false, 2}, // not listed: gone
		{names(-2147483648, 2147483647), -2147483648, true, 2147483647},
		{names(-2147483648, 2147483647), 2147483647, true, 0},
	} {
		listed, pred := place(tc.queue, node(tc.own))
		if listed != tc.listed || (pred == nil) != (tc.pred == 0) || pred != nil && pred.seq != tc.pred {
			t.Errorf("place of %d in %v: listed %v, predecessor %v; want %v, %d", tc.own, tc.queue, listed, pred, tc.listed, tc.pred)
		}
	}
}
