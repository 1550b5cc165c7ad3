package wire

import "encoding/binary"

// multiPaths returns the paths that a transaction asks to create and to delete, and the
// one that it asks to make a container. It stops at the first operation that it does not
// know: the zxid of what follows is not learnt then.
//
// Each operation is a header (type int32, done bool, error int32) and its record.
func multiPaths(body []byte) (creates, deletes []string, container string) {
	r := fields{body}
	for {
		kind, ok := r.int32()
		if !ok || len(r.b) < 5 || r.b[0] != 0 {
			return creates, deletes, container
		}
		r.b = r.b[5:]
		path, ok := readString(r.b)
		if !ok {
			return creates, deletes, container
		}
		r.b = r.b[4+len(path):]
		switch kind {
		case opCreate, opCreate2, opCreateContainer:
			var flags int32
			if ok = r.skipBuffer() && r.skipACL(); ok {
				flags, ok = r.int32()
			}
			if ok {
				creates = append(creates, path)
			}
			if ok && flags == flagContainer {
				container = path
			}
		case opDelete:
			if ok = r.skip(4); ok {
				deletes = append(deletes, path)
			}
		case opCheck:
			ok = r.skip(4)
		case opSetData:
			ok = r.skipBuffer() && r.skip(4)
		default:
			ok = false
		}
		if !ok {
			return creates, deletes, container
		}
	}
}

// withoutStats takes the Stats out of the answer to a transaction that was carried out,
// in place. The result of a create that made a container has one, as if it had been a
// create2, which the library does not know. made says whether there was one.
//
// Each result is a header, as of the operations, and what the type has.
func withoutStats(frame []byte) (out []byte, made bool) {
	const start, header, stat = 4 + 16, 9, 68
	kept, at := start, start // what is kept ends at kept
	for len(frame)-at >= header {
		kind := int32(binary.BigEndian.Uint32(frame[at:]))
		size, drop := header, 0
		switch kind {
		case opCreate, opCreate2:
			path, ok := readString(frame[at+header:])
			if !ok {
				return frame, made // not an answer: the library will say so
			}
			size += 4 + len(path)
			if kind == opCreate2 {
				made, drop = true, stat
				create := int32(opCreate)
				binary.BigEndian.PutUint32(frame[at:], uint32(create))
			}
		case opSetData:
			size += stat
		}
		size = min(size, len(frame)-at)
		kept += copy(frame[kept:], frame[at:at+size])
		at = min(at+size+drop, len(frame))
	}
	kept += copy(frame[kept:], frame[at:])
	binary.BigEndian.PutUint32(frame, uint32(kept-4))
	return frame[:kept], made
}

// fields reads a record from its start.
type fields struct{ b []byte }

func (f *fields) int32() (int32, bool) {
	if len(f.b) < 4 {
		return 0, false
	}
	n := int32(binary.BigEndian.Uint32(f.b))
	f.b = f.b[4:]
	return n, true
}

func (f *fields) skip(n int) bool {
	if n < 0 || n > len(f.b) {
		return false
	}
	f.b = f.b[n:]
	return true
}

// skipBuffer skips a buffer or a string; -1 is the length of none.
func (f *fields) skipBuffer() bool {
	n, ok := f.int32()
	return ok && f.skip(int(max(n, 0)))
}

func (f *fields) skipACL() bool {
	n, ok := f.int32()
	for ; ok && n > 0; n-- {
		ok = f.skip(4) && f.skipBuffer() && f.skipBuffer()
	}
	return ok
}
