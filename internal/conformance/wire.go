package conformance

import (
	"encoding/binary"
	"errors"
)

// writer builds the body of a frame in the encoding of ZooKeeper's protocol.
type writer struct{ b []byte }

func (w *writer) int32(v int32) { w.b = binary.BigEndian.AppendUint32(w.b, uint32(v)) }
func (w *writer) int64(v int64) { w.b = binary.BigEndian.AppendUint64(w.b, uint64(v)) }

func (w *writer) bool(v bool) {
	if v {
		w.b = append(w.b, 1)
	} else {
		w.b = append(w.b, 0)
	}
}

// bytes writes a buffer; nil is null.
func (w *writer) bytes(p []byte) {
	if p == nil {
		w.int32(-1)
		return
	}
	w.int32(int32(len(p)))
	w.b = append(w.b, p...)
}

func (w *writer) string(s string) { w.bytes([]byte(s)) }

func (w *writer) strings(list []string) {
	w.int32(int32(len(list)))
	for _, s := range list {
		w.string(s)
	}
}

var errEnd = errors.New("the frame ends early")

// reader takes the body of a frame apart. After a failure it returns zero values, and err says so.
type reader struct {
	b   []byte
	err error
}

func (r *reader) next(n int) []byte {
	if r.err == nil && (n < 0 || n > len(r.b)) {
		r.err = errEnd
	}
	if r.err != nil {
		return make([]byte, max(0, min(n, 8)))
	}
	p := r.b[:n]
	r.b = r.b[n:]
	return p
}

func (r *reader) int32() int32 { return int32(binary.BigEndian.Uint32(r.next(4))) }
func (r *reader) int64() int64 { return int64(binary.BigEndian.Uint64(r.next(8))) }
func (r *reader) bool() bool   { return r.next(1)[0] != 0 }

// bytes reads a buffer; null is nil.
func (r *reader) bytes() []byte {
	n := r.int32()
	if n == -1 || r.err != nil {
		return nil
	}
	return append([]byte{}, r.next(int(n))...)
}

func (r *reader) string() string { return string(r.bytes()) }

func (r *reader) strings() []string {
	var list []string
	for n := r.int32(); n > 0 && r.err == nil; n-- {
		list = append(list, r.string())
	}
	return list
}
