package conformance

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// words splits a command at its blanks. A part in quotes is a Go string and may hold blanks.
func words(text string) ([]word, error) {
	var list []word
	for {
		text = strings.TrimLeft(text, " ")
		if text == "" {
			return list, nil
		}
		var w word
		for text != "" && text[0] != ' ' {
			if text[0] != '"' {
				w.text += text[:1]
				text = text[1:]
				continue
			}
			quoted, err := strconv.QuotedPrefix(text)
			if err != nil {
				return nil, fmt.Errorf("quotes that do not end: %s", text)
			}
			plain, err := strconv.Unquote(quoted)
			if err != nil {
				return nil, err
			}
			w.text += plain
			w.quoted = true
			text = text[len(quoted):]
		}
		list = append(list, w)
	}
}

type word struct {
	text   string
	quoted bool
}

// args are the words of one operation after its name.
type args struct {
	list []word
	err  error
}

func (a *args) failf(format string, v ...any) {
	if a.err == nil {
		a.err = fmt.Errorf(format, v...)
	}
}

func (a *args) next(what string) word {
	if len(a.list) == 0 {
		a.failf("%s is missing", what)
		return word{}
	}
	w := a.list[0]
	a.list = a.list[1:]
	return w
}

// path takes a path; the bare word null is a null string.
func (a *args) path(w *writer) {
	p := a.next("path")
	if p.text == "null" && !p.quoted {
		w.int32(-1)
		return
	}
	w.string(p.text)
}

// data takes a node's data: a word, null, or bytes:N for N of them.
func (a *args) data(w *writer) {
	d := a.next("data")
	if !d.quoted && d.text == "null" {
		w.bytes(nil)
		return
	}
	if n, ok := strings.CutPrefix(d.text, "bytes:"); ok && !d.quoted {
		size, err := strconv.Atoi(n)
		if err != nil {
			a.failf("%v", err)
		}
		w.bytes([]byte(strings.Repeat("x", size)))
		return
	}
	w.bytes([]byte(d.text))
}

func (a *args) int32(what string) int32 {
	v := a.next(what)
	n, err := strconv.ParseInt(v.text, 0, 32)
	if err != nil {
		a.failf("%s: %v", what, err)
	}
	return int32(n)
}

// option takes "name=value" from anywhere among the words.
func (a *args) option(name string) (string, bool) {
	for i, w := range a.list {
		if v, ok := strings.CutPrefix(w.text, name+"="); ok {
			a.list = append(append([]word{}, a.list[:i]...), a.list[i+1:]...)
			return v, true
		}
	}
	return "", false
}

func (a *args) intOption(name string, def int64) int64 {
	v, ok := a.option(name)
	if !ok {
		return def
	}
	n, err := strconv.ParseInt(v, 0, 64)
	if err != nil {
		a.failf("%s: %v", name, err)
	}
	return n
}

// flag takes a bare word from anywhere.
func (a *args) flag(name string) bool {
	for i, w := range a.list {
		if w.text == name && !w.quoted {
			a.list = append(append([]word{}, a.list[:i]...), a.list[i+1:]...)
			return true
		}
	}
	return false
}

// acl takes "acl=scheme:id:perms,…", with the permissions as a number; the default gives everything to everybody.
// acl=none is an empty list, acl=null a null one.
func (a *args) acl(w *writer) {
	v, ok := a.option("acl")
	if !ok {
		v = "world:anyone:31"
	}
	switch v {
	case "none":
		w.int32(0)
		return
	case "null":
		w.int32(-1)
		return
	}
	list := strings.Split(v, ",")
	w.int32(int32(len(list)))
	for _, entry := range list {
		first, last := strings.Index(entry, ":"), strings.LastIndex(entry, ":")
		if first < 0 || first == last {
			a.failf("acl %q: want scheme:id:perms", entry)
			return
		}
		perms, err := strconv.ParseInt(entry[last+1:], 0, 32)
		if err != nil {
			a.failf("acl %q: %v", entry, err)
		}
		w.int32(int32(perms))
		w.string(entry[:first])
		w.string(entry[first+1 : last])
	}
}

var opcodes = map[string]int32{
	"create": 1, "delete": 2, "exists": 3, "getData": 4, "setData": 5, "getACL": 6, "setACL": 7, "getChildren": 8,
	"sync": 9, "ping": 11, "getChildren2": 12, "check": 13, "multi": 14, "create2": 15, "reconfig": 16,
	"createContainer": 19, "deleteContainer": 20, "createTTL": 21, "setAuth": 100, "setWatches": 101, "setWatches2": 105,
	"closeSession": -11,
}

var modes = map[string]int32{
	"persistent": 0, "ephemeral": 1, "sequential": 2, "ephemeral-sequential": 3, "container": 4, "ttl": 5, "sequential-ttl": 6,
}

// body writes the record of one operation. base is the transaction id from which since= counts.
func (a *args) body(w *writer, name string, base int64) {
	switch name {
	case "create", "create2", "createContainer", "createTTL":
		a.path(w)
		a.data(w)
		a.acl(w)
		flags := map[string]int32{"createContainer": 4, "createTTL": 5}[name]
		for mode, n := range modes {
			if a.flag(mode) {
				flags = n
			}
		}
		w.int32(int32(a.intOption("flags", int64(flags))))
		if name == "createTTL" {
			w.int64(a.intOption("ttl", 1000))
		}
	case "delete", "check":
		a.path(w)
		w.int32(a.int32("version"))
	case "setData":
		a.path(w)
		a.data(w)
		w.int32(a.int32("version"))
	case "setACL":
		a.path(w)
		a.acl(w)
		w.int32(a.int32("version"))
	case "exists", "getData", "getChildren", "getChildren2":
		a.path(w)
		w.bool(a.flag("watch"))
	case "getACL", "sync", "deleteContainer":
		a.path(w)
	case "reconfig":
		for range 3 {
			w.string(a.next("server list").text)
		}
		w.int64(-1)
	case "setAuth":
		w.int32(0)
		w.string(a.next("scheme").text)
		a.data(w)
	case "setWatches", "setWatches2":
		w.int64(base + a.intOption("since", 0))
		kinds := []string{"data", "exist", "child"}
		if name == "setWatches2" {
			kinds = append(kinds, "persistent", "recursive")
		}
		for _, kind := range kinds {
			var paths []string
			if v, ok := a.option(kind); ok {
				paths = strings.Split(v, ",")
			}
			w.strings(paths)
		}
	case "ping", "closeSession":
	case "multi":
		a.multi(w, base)
	case "op":
		raw, err := hex.DecodeString(a.next("body").text)
		if err != nil {
			a.failf("%v", err)
		}
		w.b = append(w.b, raw...)
	default:
		a.failf("unknown operation %q", name)
	}
}

// multi writes operations that a semicolon separates, each with its header, and the header that ends them unless the
// word noend is there.
func (a *args) multi(w *writer, base int64) {
	end := !a.flag("noend")
	for len(a.list) > 0 && a.err == nil {
		var one args
		for len(a.list) > 0 {
			next := a.next("word")
			if next.text == ";" && !next.quoted {
				break
			}
			one.list = append(one.list, next)
		}
		name := one.next("operation").text
		kind := opcodes[name]
		if name == "op" {
			kind = one.int32("number")
		}
		w.int32(int32(one.intOption("type", int64(kind))))
		w.bool(false)
		w.int32(-1)
		one.body(w, name, base)
		one.end()
		a.err = one.err
	}
	if end {
		w.int32(-1)
		w.bool(true)
		w.int32(-1)
	}
}

// end makes words that nobody took an error.
func (a *args) end() {
	if len(a.list) > 0 {
		a.failf("what is %q?", a.list[0].text)
	}
}

// request is one request on its way.
type request struct {
	op    int32
	xid   int32
	frame []byte // header and body
}

// build makes a request out of a command's words. next is the number it gets unless it has one of its own.
//
// Words that go with any request: xid=N, trunc=N (only the first N bytes of the body), extra=N (N zero bytes after it).
func build(list []word, next int32, base int64) (request, error) {
	a := args{list: list}
	name := a.next("operation").text
	op := opcodes[name]
	if name == "op" {
		op = a.int32("number")
	}
	switch name {
	case "setAuth":
		next = -4
	case "setWatches", "setWatches2":
		next = -8
	case "ping":
		next = -2
	}
	q := request{op: op, xid: int32(a.intOption("xid", int64(next)))}
	trunc, extra := a.intOption("trunc", -1), a.intOption("extra", 0)
	var w writer
	a.body(&w, name, base)
	a.end()
	if a.err != nil {
		return q, a.err
	}
	if trunc >= 0 {
		if int(trunc) > len(w.b) {
			return q, errors.New("trunc: the body is shorter")
		}
		w.b = w.b[:trunc]
	}
	w.b = append(w.b, make([]byte, extra)...)
	q.frame = slices.Concat(q.header(), w.b)
	return q, nil
}
