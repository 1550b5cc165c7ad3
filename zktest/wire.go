package zktest

import (
	"encoding/binary"
	"errors"
	"io"
)

// Imitates ZooKeeper 3.8 and 3.9: the jute encoding of BinaryInputArchive and BinaryOutputArchive. Numbers are
// big-endian; a string or buffer is a 32-bit length and its bytes, with length -1 for null; a vector is a 32-bit
// count and its elements, with -1 for null.

// errShort is what the decoder reports for a record that ends early or claims a length it does not have.
var errShort = errors.New("zktest: record ends early")

// decoder takes one frame apart. The first failure sticks and every later call returns zero values, so that
// callers check err once. It never allocates more than the frame holds.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) take(n int) []byte {
	if d.err != nil {
		return nil
	}
	if n < 0 || n > len(d.b) {
		d.err = errShort
		return nil
	}
	p := d.b[:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) int32() int32 {
	p := d.take(4)
	if p == nil {
		return 0
	}
	return int32(binary.BigEndian.Uint32(p))
}

func (d *decoder) int64() int64 {
	p := d.take(8)
	if p == nil {
		return 0
	}
	return int64(binary.BigEndian.Uint64(p))
}

func (d *decoder) bool() bool {
	p := d.take(1)
	return p != nil && p[0] != 0
}

// buffer returns a copy of the bytes, nil for null.
func (d *decoder) buffer() []byte {
	n := d.int32()
	if d.err != nil || n == -1 {
		return nil
	}
	p := d.take(int(n))
	if p == nil {
		return nil
	}
	return append([]byte{}, p...)
}

// string fails on null: no request that this server knows may leave out a string.
func (d *decoder) string() string {
	n := d.int32()
	return string(d.take(int(n)))
}

// count returns the length of a vector whose elements take at least size bytes each; null counts as empty.
func (d *decoder) count(size int) int {
	n := d.int32()
	if d.err != nil || n == -1 {
		return 0
	}
	if n < 0 || int(n) > len(d.b)/size {
		d.err = errShort
		return 0
	}
	return int(n)
}

func (d *decoder) strings() []string {
	n := d.count(4)
	var out []string
	for i := 0; i < n && d.err == nil; i++ {
		out = append(out, d.string())
	}
	return out
}

func (d *decoder) acls() []ACL {
	n := d.count(12)
	var out []ACL
	for i := 0; i < n && d.err == nil; i++ {
		out = append(out, ACL{Perms: d.int32(), Scheme: d.string(), ID: d.string()})
	}
	return out
}

// encoder builds one frame. The first four bytes are kept for the length.
type encoder struct{ b []byte }

func newEncoder() *encoder { return &encoder{b: make([]byte, 4, 64)} }

func (e *encoder) int32(v int32) { e.b = binary.BigEndian.AppendUint32(e.b, uint32(v)) }
func (e *encoder) int64(v int64) { e.b = binary.BigEndian.AppendUint64(e.b, uint64(v)) }

func (e *encoder) bool(v bool) {
	if v {
		e.b = append(e.b, 1)
		return
	}
	e.b = append(e.b, 0)
}

func (e *encoder) buffer(p []byte) {
	if p == nil {
		e.int32(-1)
		return
	}
	e.int32(int32(len(p)))
	e.b = append(e.b, p...)
}

func (e *encoder) string(s string) {
	e.int32(int32(len(s)))
	e.b = append(e.b, s...)
}

func (e *encoder) strings(list []string) {
	e.int32(int32(len(list)))
	for _, s := range list {
		e.string(s)
	}
}

func (e *encoder) acls(list []ACL) {
	e.int32(int32(len(list)))
	for _, a := range list {
		e.int32(a.Perms)
		e.string(a.Scheme)
		e.string(a.ID)
	}
}

func (e *encoder) stat(st Stat) {
	e.int64(st.Czxid)
	e.int64(st.Mzxid)
	e.int64(st.Ctime)
	e.int64(st.Mtime)
	e.int32(st.Version)
	e.int32(st.Cversion)
	e.int32(st.Aversion)
	e.int64(st.EphemeralOwner)
	e.int32(st.DataLength)
	e.int32(st.NumChildren)
	e.int64(st.Pzxid)
}

// header starts a reply: xid, the zxid the server is at, and the error code.
func (e *encoder) header(xid int32, zxid int64, code Code) {
	e.int32(xid)
	e.int64(zxid)
	e.int32(int32(code))
}

// frame fills in the length and returns the bytes to send.
func (e *encoder) frame() []byte {
	binary.BigEndian.PutUint32(e.b[:4], uint32(len(e.b)-4))
	return e.b
}

// readBody reads n bytes. Memory grows with what arrives and not with what the sender claims.
func readBody(r io.Reader, n int) ([]byte, error) {
	const step = 64 << 10
	var body []byte
	for len(body) < n {
		from := len(body)
		body = append(body, make([]byte, min(step, n-from))...)
		if _, err := io.ReadFull(r, body[from:]); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
	return body, nil
}
