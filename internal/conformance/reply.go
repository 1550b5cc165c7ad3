package conformance

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

var errorNames = map[int32]string{
	0: "ok", -1: "SystemError", -2: "RuntimeInconsistency", -3: "DataInconsistency", -4: "ConnectionLoss", -5: "MarshallingError",
	-6: "Unimplemented", -7: "OperationTimeout", -8: "BadArguments", -13: "NewConfigNoQuorum", -14: "ReconfigInProgress",
	-100: "APIError", -101: "NoNode", -102: "NoAuth", -103: "BadVersion", -108: "NoChildrenForEphemerals",
	-110: "NodeExists", -111: "NotEmpty", -112: "SessionExpired", -113: "InvalidCallback", -114: "InvalidACL",
	-115: "AuthFailed", -118: "SessionMoved", -119: "NotReadOnly", -120: "EphemeralOnLocalSession", -121: "NoWatcher",
	-122: "RequestTimeout", -123: "ReconfigDisabled", -124: "SessionClosedRequireSaslAuth", -125: "QuotaExceeded", -127: "Throttled",
}

func errorName(code int32) string {
	if name, ok := errorNames[code]; ok {
		return name
	}
	return "error " + strconv.Itoa(int(code))
}

var eventNames = map[int32]string{
	-1: "None", 1: "NodeCreated", 2: "NodeDeleted", 3: "NodeDataChanged", 4: "NodeChildrenChanged", 5: "DataWatchRemoved", 6: "ChildWatchRemoved",
}

// zxid shows a transaction id relative to the case.
func (x *execution) zxid(id int64) string {
	switch {
	case x.r.Together && id > 0:
		return "*"
	case id > x.base:
		return fmt.Sprintf("+%d", id-x.base)
	case id == x.base:
		return "+0"
	case id == 0 || id == -1:
		return strconv.FormatInt(id, 10)
	}
	return "before"
}

// owner shows a session by its name.
func (x *execution) owner(id int64) string {
	if id == 0 {
		return "none"
	}
	if s := x.sessions[id]; s != nil {
		return s.name
	}
	return fmt.Sprintf("%#x", uint64(id))
}

// stat reads and shows a Stat.
func (x *execution) stat(r *reader) string {
	czxid, mzxid, ctime, mtime := r.int64(), r.int64(), r.int64(), r.int64()
	version, cversion, aversion, owner := r.int32(), r.int32(), r.int32(), r.int64()
	length, children, pzxid := r.int32(), r.int32(), r.int64()
	var c, m string
	switch off := time.Since(time.UnixMilli(ctime)).Abs(); {
	case ctime == 0:
		c = "0"
	case off < time.Minute:
		c = "now"
	default:
		c = "off by " + off.String()
	}
	switch {
	case czxid == mzxid && ctime == mtime:
		m = "ctime"
	case czxid != mzxid && mtime >= ctime && time.Since(time.UnixMilli(mtime)).Abs() < time.Minute:
		m = "later"
	default:
		m = fmt.Sprintf("ctime%+d", mtime-ctime)
	}
	return fmt.Sprintf("czxid=%s mzxid=%s pzxid=%s ctime=%s mtime=%s versions=%d/%d/%d owner=%s len=%d children=%d",
		x.zxid(czxid), x.zxid(mzxid), x.zxid(pzxid), c, m, version, cversion, aversion, x.owner(owner), length, children)
}

func showData(p []byte) string {
	switch {
	case p == nil:
		return "null"
	case len(p) > 400:
		return fmt.Sprintf("bytes:%d", len(p))
	}
	return strconv.Quote(string(p))
}

func showStrings(list []string) string {
	slices.Sort(list)
	for i, s := range list {
		list[i] = strconv.Quote(s)
	}
	return "[" + strings.Join(list, " ") + "]"
}

func showACL(r *reader) string {
	var list []string
	for n := r.int32(); n > 0 && r.err == nil; n-- {
		perms := r.int32()
		scheme, id := r.string(), r.string()
		list = append(list, fmt.Sprintf("%s:%s:%d", scheme, id, perms))
	}
	return "[" + strings.Join(list, " ") + "]"
}

// results reads and shows the results of a multi, one a line.
func (x *execution) results(r *reader) []string {
	var lines []string
	for r.err == nil {
		op, done, code := r.int32(), r.bool(), r.int32()
		if r.err != nil {
			break
		}
		if done {
			if op != -1 || code != -1 {
				lines = append(lines, fmt.Sprintf("  end %d %d", op, code))
			}
			return lines
		}
		line := fmt.Sprintf("  %s %s", opName(op), errorName(code))
		switch op {
		case 1:
			line += " " + strconv.Quote(r.string())
		case 15, 19, 21:
			line += " " + strconv.Quote(r.string()) + " " + x.stat(r)
		case 5:
			line += " " + x.stat(r)
		case -1:
			line += " " + errorName(r.int32())
		}
		lines = append(lines, line)
	}
	return append(lines, "  no end")
}

func opName(op int32) string {
	if op == -1 {
		return "error"
	}
	for name, n := range opcodes {
		if n == op {
			return name
		}
	}
	return "op " + strconv.Itoa(int(op))
}

// reply shows a frame that answers a request.
func (x *execution) reply(q request, xid int32, zxid int64, code int32, r *reader) []string {
	line := fmt.Sprintf("#%d %s %s", xid, x.zxid(zxid), errorName(code))
	var more []string
	if code == 0 {
		switch q.op {
		case 1, 9:
			line += " " + strconv.Quote(r.string())
		case 15, 19, 21:
			line += " " + strconv.Quote(r.string()) + " " + x.stat(r)
		case 3, 5, 7:
			line += " " + x.stat(r)
		case 4:
			line += " " + showData(r.bytes()) + " " + x.stat(r)
		case 6:
			line += " " + showACL(r) + " " + x.stat(r)
		case 8:
			line += " " + showStrings(r.strings())
		case 12:
			line += " " + showStrings(r.strings()) + " " + x.stat(r)
		case 14:
			more = x.results(r)
		}
	}
	return append([]string{line + leftover(r)}, more...)
}

func leftover(r *reader) string {
	switch {
	case r.err != nil:
		return " and " + r.err.Error()
	case len(r.b) > 0:
		return fmt.Sprintf(" and %d bytes more", len(r.b))
	}
	return ""
}

// event shows a frame that tells of a watch.
func (x *execution) event(zxid int64, code int32, r *reader) string {
	kind, state := r.int32(), r.int32()
	path := r.string()
	name := eventNames[kind]
	if name == "" {
		name = fmt.Sprintf("event %d", kind)
	}
	shown := "SyncConnected"
	if state != 3 {
		shown = fmt.Sprintf("state %d", state)
	}
	if code != 0 {
		shown += " " + errorName(code)
	}
	return fmt.Sprintf("event %s %q %s zxid=%s%s", name, path, shown, x.zxid(zxid), leftover(r))
}

// connected shows the answer to a connect request and notes the session that it opens.
func (x *execution) connected(c *conn, r *reader) string {
	version, timeout, id, password := r.int32(), r.int32(), r.int64(), r.bytes()
	shown := "none"
	if len(r.b) > 0 {
		shown = strconv.FormatBool(r.bool())
	}
	pass := fmt.Sprintf("%d bytes", len(password))
	s := x.sessions[id]
	switch {
	case bytes.Equal(password, make([]byte, len(password))):
		pass = "zero"
	case s != nil && bytes.Equal(password, s.password):
		pass = "same"
	}
	if s == nil && id != 0 {
		x.sessions[id] = &session{name: c.name, id: id, password: password}
	}
	c.session = id
	c.ending = id == 0
	line := fmt.Sprintf("connected timeout=%d session=%s password=%s readOnly=%s", timeout, x.owner(id), pass, shown)
	if version != 0 {
		line += fmt.Sprintf(" version=%d", version)
	}
	return line + leftover(r)
}
