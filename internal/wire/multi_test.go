package wire

import (
	"encoding/binary"
	"slices"
	"testing"
)

// jute builds a record.
type jute struct{ b []byte }

func (j *jute) int(n int32) *jute { j.b = binary.BigEndian.AppendUint32(j.b, uint32(n)); return j }
func (j *jute) str(s string) *jute {
	j.int(int32(len(s)))
	j.b = append(j.b, s...)
	return j
}

func (j *jute) op(kind int32, done byte) *jute {
	j.int(kind)
	j.b = append(j.b, done)
	return j.int(-1)
}

func (j *jute) acl(n int32) *jute {
	j.int(n)
	for range n {
		j.int(31).str("world").str("anyone")
	}
	return j
}

func TestMultiPathsFindsEveryCreateAndDelete(t *testing.T) {
	j := new(jute)
	j.op(opDelete, 0).str("/d").int(-1)
	j.op(opCreate, 0).str("/a").str("data").acl(2).int(0)
	j.op(opCheck, 0).str("/k").int(3)
	j.op(opSetData, 0).str("/s").int(-1).int(0) // no data
	j.op(opCreate2, 0).str("/a/_c_x-lock-").str("").acl(1).int(3)
	j.op(opCreate, 0).str("/c").int(-1).acl(1).int(flagContainer)
	j.op(-1, 1)
	whole := j.b
	creates, deletes, container := multiPaths(whole)
	if want := []string{"/a", "/a/_c_x-lock-", "/c"}; !slices.Equal(creates, want) {
		t.Errorf("creates: %q, want %q", creates, want)
	}
	if want := []string{"/d"}; !slices.Equal(deletes, want) {
		t.Errorf("deletes: %q, want %q", deletes, want)
	}
	if container != "/c" {
		t.Errorf("container: %q, want /c", container)
	}
	// Cut short anywhere it gives what came before, and never panics.
	for n := range whole {
		if creates, deletes, _ := multiPaths(whole[:n]); len(creates) > 3 || len(deletes) > 1 {
			t.Errorf("%d bytes: %q, %q", n, creates, deletes)
		}
	}
	// An operation that it does not know ends it.
	j = new(jute)
	j.op(opCreate, 0).str("/a").str("").acl(0).int(0)
	j.op(99, 0).str("/b")
	if creates, _, _ := multiPaths(j.b); !slices.Equal(creates, []string{"/a"}) {
		t.Errorf("%q, want what comes before it", creates)
	}
	// Lengths that lie.
	for _, n := range []int32{-2, 1 << 30, -1 << 31} {
		j = new(jute)
		j.op(opCreate, 0).str("/a").int(n)
		multiPaths(j.b)
		j = new(jute)
		j.op(opCreate, 0).str("/a").str("").int(n)
		multiPaths(j.b)
	}
}

// reply is the frame of an answer to a transaction.
func reply(results *jute) []byte {
	frame := append(make([]byte, 4+16), results.b...)
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	return frame
}

func result(j *jute, kind int32) *jute {
	j.int(kind)
	j.b = append(j.b, 0)
	return j.int(0)
}

func (j *jute) stat() *jute {
	for i := range int32(17) {
		j.int(i)
	}
	return j
}

// end ends a list of operations or results.
func (j *jute) end() *jute { return j.op(-1, 1) }

func TestStatOfAContainerIsTakenOut(t *testing.T) {
	for name, tc := range map[string]struct {
		have, want *jute
		made       bool
	}{
		"a container and a node": {
			result(result(new(jute), opCreate2).str("/c").stat(), opCreate).str("/c/n").end(),
			result(result(new(jute), opCreate).str("/c"), opCreate).str("/c/n").end(),
			true,
		},
		"behind others": {
			result(result(result(result(new(jute), opDelete), opSetData).stat(), opCheck), opCreate2).str("/c").stat().end(),
			result(result(result(result(new(jute), opDelete), opSetData).stat(), opCheck), opCreate).str("/c").end(),
			true,
		},
		"a plain node": {
			result(result(new(jute), opCreate).str("/c"), opCreate).str("/c/n").end(),
			result(result(new(jute), opCreate).str("/c"), opCreate).str("/c/n").end(),
			false,
		},
	} {
		got, made := withoutStats(reply(tc.have))
		if want := reply(tc.want); !slices.Equal(got, want) || made != tc.made {
			t.Errorf("%s: %v\n%q, want %v\n%q", name, made, got, tc.made, want)
		}
		// Cut short anywhere it keeps its length right, and never panics.
		for n := range tc.have.b {
			cut, _ := withoutStats(reply(&jute{tc.have.b[:n]}))
			if len(cut) != 4+int(binary.BigEndian.Uint32(cut)) {
				t.Errorf("%s, cut to %d: %d bytes with the length %d", name, n, len(cut), binary.BigEndian.Uint32(cut))
			}
		}
	}
}

// The library gets the answer without the Stat, and who asked hears of a server that made
// a plain node.
func TestTransactionThatMakesAContainer(t *testing.T) {
	ops := new(jute)
	ops.op(opCreate, 0).str("/c").int(-1).acl(1).int(flagContainer)
	ops.op(opCreate, 0).str("/c/n").str("data").acl(1).int(3).end()
	plain := result(result(new(jute), opCreate).str("/c"), opCreate).str("/c/n1").end()
	container := result(result(new(jute), opCreate2).str("/c").stat(), opCreate).str("/c/n1").end()
	const done = "answered multi 0s, created /c 0x2a, created /c/n 0x2a, touch 1 1, proof 0"
	for name, tc := range map[string]struct {
		answer []byte
		want   []byte
		events string
	}{
		"a container":  {container.b, plain.b, done},
		"a plain node": {plain.b, plain.b, done + ", plain /c"},
		"refused":      {multiFailed(-102, -2), multiFailed(-102, -2), "answered multi 0s, touch 1 1"},
	} {
		b := newBench(t).open()
		b.at(1)
		b.send(requestFrame(1, opMulti, ops.b))
		b.want(name, "sent /c, sent /c/n")
		b.raw.push(replyFrame(1, 42, 0, tc.answer))
		got, err := b.read()
		if want := replyFrame(1, 42, 0, tc.want); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: the library reads %x, %v; want %x", name, got, err, want)
		}
		b.want(name, tc.events)
	}
}
