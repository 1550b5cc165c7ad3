package zkproxy

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// Kind names what a frame asks for or says. It is the unit of counting.
type Kind string

// The kinds of requests. A multi is split by what it holds: one that only checks changes nothing and is how
// a session proves that it lives.
const (
	Connect         Kind = "connect"
	Create          Kind = "create" // create, create2, createContainer and createTTL
	Delete          Kind = "delete"
	Exists          Kind = "exists"
	GetData         Kind = "getData"
	SetData         Kind = "setData"
	GetACL          Kind = "getACL"
	SetACL          Kind = "setACL"
	GetChildren     Kind = "getChildren" // getChildren and getChildren2
	Sync            Kind = "sync"
	Ping            Kind = "ping"
	Multi           Kind = "multi" // a multi that writes
	Proof           Kind = "proof" // a multi that holds nothing but checks
	MultiRead       Kind = "multiRead"
	Reconfig        Kind = "reconfig"
	RemoveWatches   Kind = "removeWatches"
	SetWatches      Kind = "setWatches"
	AddWatch        Kind = "addWatch"
	SetAuth         Kind = "setAuth"
	CloseSession    Kind = "closeSession"
	WhoAmI          Kind = "whoAmI"
	GetEphemerals   Kind = "getEphemerals"
	ChildrenNumber  Kind = "getAllChildrenNumber"
	SASL            Kind = "sasl"
	UnknownRequest  Kind = "unknown"
	FourLetterWord  Kind = "four-letter word" // a connection that does not speak the protocol
	WatchEventFrame Kind = "watch event"      // from the server only
)

// Writes are the kinds that go through the quorum. Sync and the proof are not among them, since they change
// nothing; connect and closeSession are the session's and not the recipe's.
var Writes = []Kind{Create, Delete, SetData, SetACL, Multi, Reconfig}

// Reads are the kinds that a server answers from its own memory.
var Reads = []Kind{Exists, GetData, GetACL, GetChildren, MultiRead, GetEphemerals, ChildrenNumber}

// opcodes are those of ZooKeeper's ZooDefs.OpCode.
var opcodes = map[int32]Kind{
	1: Create, 15: Create, 19: Create, 21: Create,
	2: Delete, 20: Delete,
	3: Exists, 4: GetData, 5: SetData, 6: GetACL, 7: SetACL,
	8: GetChildren, 12: GetChildren,
	9: Sync, 11: Ping, opCheck: Proof, opMulti: Multi, 22: MultiRead,
	16: Reconfig, 17: RemoveWatches, 18: RemoveWatches,
	100: SetAuth, 101: SetWatches, 105: SetWatches, 106: AddWatch,
	102: SASL, 103: GetEphemerals, 104: ChildrenNumber, 107: WhoAmI,
	-11: CloseSession,
}

const (
	opCheck int32 = 13
	opMulti int32 = 14
)

// The transaction ids that are not counted up by the client.
const (
	xidWatchEvent int32 = -1
	xidPing       int32 = -2
)

// replyHeader is the length of the header of a server's frame.
const replyHeader = 16

// request decodes what follows the length of a client's frame.
func request(body []byte) (xid int32, kind Kind) {
	if len(body) < 8 {
		return 0, UnknownRequest
	}
	xid, op := int32(binary.BigEndian.Uint32(body)), int32(binary.BigEndian.Uint32(body[4:]))
	kind, known := opcodes[op]
	if !known {
		kind = UnknownRequest
	}
	if op == opMulti && onlyChecks(body[8:]) {
		kind = Proof
	}
	return xid, kind
}

// onlyChecks tells whether the operations of a multi are checks and nothing else. Each has a header (type, done,
// err), and a check is a path and a version. The first operation of another type settles it, so no other
// type needs to be decoded.
func onlyChecks(ops []byte) bool {
	for n := 0; ; n++ {
		if len(ops) < 9 {
			return false
		}
		op, done := int32(binary.BigEndian.Uint32(ops)), ops[4] != 0
		ops = ops[9:]
		if done {
			return n > 0
		}
		if op != opCheck || len(ops) < 4 {
			return false
		}
		size := int64(int32(binary.BigEndian.Uint32(ops))) // a path; -1 stands for none
		skip := 4 + max(size, 0) + 4
		if int64(len(ops)) < skip {
			return false
		}
		ops = ops[skip:]
	}
}

// replyXid reads the transaction id of a server's frame: a header is that, the zxid and an error code.
func replyXid(body []byte) (xid int32, ok bool) {
	if len(body) < replyHeader {
		return 0, false
	}
	return int32(binary.BigEndian.Uint32(body)), true
}

// eventPath reads the path of a watch event: after the header come the event's type and the state.
func eventPath(body []byte) (string, error) {
	const before = replyHeader + 8
	if len(body) < before+4 {
		return "", fmt.Errorf("a watch event of %d bytes is too short", len(body))
	}
	size, rest := int64(int32(binary.BigEndian.Uint32(body[before:]))), body[before+4:]
	if size < 0 || size > int64(len(rest)) {
		return "", fmt.Errorf("a watch event with a path of %d bytes in %d", size, len(body))
	}
	return string(rest[:size]), nil
}

// isWord tells whether the first bytes of a connection are a four-letter word: as the length of a frame they
// would be a number far over the server's limit.
func isWord(first [4]byte) bool {
	return !slices.ContainsFunc(first[:], func(b byte) bool { return b < 'a' || b > 'z' })
}
