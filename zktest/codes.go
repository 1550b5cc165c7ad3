package zktest

import "strconv"

// Imitates ZooKeeper 3.8 and 3.9: operation codes of ZooDefs.OpCode and error codes of KeeperException.Code.

// Op is the kind of a client's request, by its number on the wire. Two kinds have no number of their own there:
// OpConnect, the first frame of a connection, and OpUnknown, any number this server does not know.
type Op int32

// The kinds of request that the server counts and that faults can be aimed at.
const (
	OpCreate          Op = 1
	OpDelete          Op = 2
	OpExists          Op = 3
	OpGetData         Op = 4
	OpSetData         Op = 5
	OpGetACL          Op = 6
	OpSetACL          Op = 7
	OpGetChildren     Op = 8
	OpSync            Op = 9
	OpPing            Op = 11
	OpGetChildren2    Op = 12
	OpCheck           Op = 13
	OpMulti           Op = 14
	OpCreate2         Op = 15
	OpReconfig        Op = 16
	OpCreateContainer Op = 19
	OpDeleteContainer Op = 20
	OpCreateTTL       Op = 21
	OpSetAuth         Op = 100
	OpSetWatches      Op = 101
	OpSetWatches2     Op = 105
	OpCreateSession   Op = -10
	OpCloseSession    Op = -11

	OpConnect Op = -1000 // the connect request: a new session or the resumption of one
	OpUnknown Op = -1001 // any operation code the server does not know
)

var opNames = map[Op]string{
	OpCreate:          "create",
	OpDelete:          "delete",
	OpExists:          "exists",
	OpGetData:         "getData",
	OpSetData:         "setData",
	OpGetACL:          "getACL",
	OpSetACL:          "setACL",
	OpGetChildren:     "getChildren",
	OpSync:            "sync",
	OpPing:            "ping",
	OpGetChildren2:    "getChildren2",
	OpCheck:           "check",
	OpMulti:           "multi",
	OpCreate2:         "create2",
	OpReconfig:        "reconfig",
	OpCreateContainer: "createContainer",
	OpDeleteContainer: "deleteContainer",
	OpCreateTTL:       "createTTL",
	OpSetAuth:         "setAuth",
	OpSetWatches:      "setWatches",
	OpSetWatches2:     "setWatches2",
	OpCreateSession:   "createSession",
	OpCloseSession:    "closeSession",
	OpConnect:         "connect",
	OpUnknown:         "unknown",
}

// String returns the name ZooKeeper's own sources use, such as "getChildren2".
func (o Op) String() string {
	if n, ok := opNames[o]; ok {
		return n
	}
	return "op" + strconv.Itoa(int(o))
}

// write says whether the operation goes through the leader and takes a transaction id.
func (o Op) write() bool {
	switch o {
	case OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL, OpDelete, OpDeleteContainer, OpSetData,
		OpSetACL, OpCheck, OpMulti, OpReconfig, OpCreateSession, OpCloseSession:
		return true
	}
	return false
}

// Code is an error code in a reply; 0 is success.
type Code int32

// The error codes the server sends.
const (
	CodeOK                   Code = 0
	CodeRuntimeInconsistency Code = -2
	CodeMarshalling          Code = -5
	CodeUnimplemented        Code = -6
	CodeBadArguments         Code = -8
	CodeNoNode               Code = -101
	CodeNoAuth               Code = -102
	CodeBadVersion           Code = -103
	CodeNoChildrenForEph     Code = -108
	CodeNodeExists           Code = -110
	CodeNotEmpty             Code = -111
	CodeSessionExpired       Code = -112
	CodeInvalidACL           Code = -114
	CodeAuthFailed           Code = -115
	CodeSessionMoved         Code = -118
	CodeReconfigDisabled     Code = -123
)

var codeNames = map[Code]string{
	CodeOK:                   "ok",
	CodeRuntimeInconsistency: "runtime inconsistency",
	CodeMarshalling:          "marshalling error",
	CodeUnimplemented:        "unimplemented",
	CodeBadArguments:         "bad arguments",
	CodeNoNode:               "no node",
	CodeNoAuth:               "no auth",
	CodeBadVersion:           "bad version",
	CodeNoChildrenForEph:     "no children for ephemerals",
	CodeNodeExists:           "node exists",
	CodeNotEmpty:             "not empty",
	CodeSessionExpired:       "session expired",
	CodeInvalidACL:           "invalid ACL",
	CodeAuthFailed:           "auth failed",
	CodeSessionMoved:         "session moved",
	CodeReconfigDisabled:     "reconfig disabled",
}

// Error makes a Code usable as an error; the inspection calls of Server return it. A nil error, not CodeOK, is success there.
func (c Code) Error() string {
	if n, ok := codeNames[c]; ok {
		return "zktest: " + n
	}
	return "zktest: error " + strconv.Itoa(int(c))
}
