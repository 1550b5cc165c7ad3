package zklock

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zklock/zklock/zktest"
)

// scenario is a run of a file.
type scenario struct {
	t       *testing.T
	start   time.Time
	ens     *zktest.Ensemble
	clients map[string]*scenarioClient
	proofs  bool // are shown

	mu       sync.Mutex
	lines    []seenLine
	names    map[string]string // uuids to short names
	sessions map[int64]string  // ids to clients' names
}

// seenLine is a line of the trace. Lines of one instant are put in the order of what
// causes what.
type seenLine struct {
	at   time.Duration
	rank int
	text string
}

const (
	seenExpiry = iota
	seenServer
	seenReply
	seenState
	seenLease
	seenCall
	seenRequest
)

// see adds a line about a client, or about the ensemble if c is nil.
func (sc *scenario) see(c *scenarioClient, rank int, kind, text string) {
	who := "S"
	if c != nil {
		if c.gone.Load() {
			return
		}
		who = c.name
	}
	sc.mu.Lock()
	defer sc.mu.Unlock()
	sc.lines = append(sc.lines, seenLine{time.Since(sc.start), rank, fmt.Sprintf("%s  %-7s %s", who, kind, text)})
}

// trace returns what was seen since the last call.
func (sc *scenario) trace() (lines []string) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	slices.SortStableFunc(sc.lines, func(a, b seenLine) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.rank, b.rank), strings.Compare(a.text, b.text))
	})
	for _, l := range sc.lines {
		lines = append(lines, fmt.Sprintf("%6d  %s", l.at.Milliseconds(), l.text))
	}
	sc.lines = nil
	return lines
}

var lockNodePattern = regexp.MustCompile(`(?:/[\w/]*/)?_c_([0-9a-f-]{36})-lock-(-?\d+)?`)

// short names lock nodes as the top of scenario_test.go says, and sessions after their
// clients.
func (sc *scenario) short(text string) string {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	for id, name := range sc.sessions {
		text = strings.ReplaceAll(text, hexID(id), "of "+name)
	}
	return lockNodePattern.ReplaceAllStringFunc(text, func(node string) string {
		parts := lockNodePattern.FindStringSubmatch(node)
		name := sc.names[parts[1]]
		if name == "" {
			name = "?"
		}
		return name + "-" + parts[2]
	})
}

// txn shows what the ensemble does by itself or an operator by hand.
func (sc *scenario) txn(t zktest.Txn) {
	if t.Op == zktest.OpCloseSession && t.Expired {
		sc.see(nil, seenExpiry, "expires", sc.short("the session "+hexID(t.Session)))
	}
	for _, ch := range t.Changes {
		if ch.Op == zktest.OpDelete && (t.Session == 0 || t.Expired) {
			sc.see(nil, seenServer, "deletes", sc.short(ch.Path))
		}
	}
}

// end closes what is open.
func (sc *scenario) end() {
	for _, c := range sc.clients {
		c.away.Store(false)
		_ = c.client.Close()
	}
	if sc.ens != nil {
		sc.ens.Close()
	}
}

// scenarioConn shows the requests and answers that pass through a connection.
type scenarioConn struct {
	net.Conn
	c *scenarioClient

	mu      sync.Mutex
	begun   bool
	pending map[int32]zktest.Op // requests without an answer; pings and hidden ones are left out

	// Only the reader touches these.
	in    []byte
	ready bool
}

func (c *scenarioClient) observed(dial simDial) simDial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		raw, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		conn := &scenarioConn{Conn: raw, c: c, pending: map[int32]zktest.Op{}}
		c.sc.mu.Lock()
		c.conns = append(c.conns, conn)
		c.sc.mu.Unlock()
		return conn, nil
	}
}

func (s *scenarioConn) Write(p []byte) (int, error) {
	s.mu.Lock()
	if !s.begun {
		s.begun = true
		s.c.sc.see(s.c, seenRequest, "sends", "connect to server "+s.number())
	} else {
		for rest := p; len(rest) > 0; {
			n := 4 + binary.BigEndian.Uint32(rest)
			s.request(rest[:n])
			rest = rest[n:]
		}
	}
	s.mu.Unlock()
	return s.Conn.Write(p)
}

// number is the number of the server at the other end.
func (s *scenarioConn) number() string {
	for i, srv := range s.c.sc.ens.Servers() {
		if srv.Addr() == s.RemoteAddr().String() {
			return fmt.Sprint(i + 1)
		}
	}
	return "?"
}

// request shows one request.
func (s *scenarioConn) request(frame []byte) {
	op := frameOp(frame)
	sc := s.c.sc
	begins, _ := frameTxn(frame)
	if op == zktest.OpPing || begins == zktest.OpCheck && !sc.proofs {
		return
	}
	body := frame[12:]
	if path, _ := wireString(body); op == zktest.OpSync && path == "/" {
		return // of an idle client
	}
	s.pending[int32(binary.BigEndian.Uint32(frame[4:]))] = op
	text := map[zktest.Op]string{
		zktest.OpCreate: "create", zktest.OpCreateContainer: "createContainer", zktest.OpDelete: "delete",
		zktest.OpExists: "exists", zktest.OpGetData: "getData", zktest.OpGetChildren2: "getChildren",
		zktest.OpSync: "sync", zktest.OpMulti: "check", zktest.OpSetWatches: "setWatches", zktest.OpCloseSession: "closeSession",
	}[op]
	switch op {
	case zktest.OpSetWatches:
		body = body[12:] // the last transaction seen, and the number of data watches
	case zktest.OpMulti:
		body = body[9:]
	case zktest.OpCloseSession:
		body = nil
	}
	where, rest := wireString(body)
	if begins == zktest.OpDelete || begins == zktest.OpCreate { // and the create of a lock node
		what := map[zktest.Op]string{zktest.OpDelete: "delete ", zktest.OpCreate: "createContainer "}[begins]
		nodes := lockNodePattern.FindAllString(string(rest), -1)
		made := nodes[len(nodes)-1]
		s.c.nameNode(made)
		sc.see(s.c, seenRequest, "sends", what+sc.short(where)+" and create "+sc.short(made))
		return
	}
	if op == zktest.OpCreate {
		s.c.nameNode(where)
	}
	if (op == zktest.OpGetData || op == zktest.OpExists) && bytes.Equal(rest, []byte{1}) {
		text += "+watch"
	}
	sc.see(s.c, seenRequest, "sends", strings.TrimSpace(text+" "+sc.short(where)))
}

// nameNode gives a name to a lock node that is being made.
func (c *scenarioClient) nameNode(p string) {
	id := uuidOf(path.Base(p) + "0000000000")
	if id == "" {
		return
	}
	c.sc.mu.Lock()
	defer c.sc.mu.Unlock()
	if c.sc.names[id] == "" {
		c.made++
		c.sc.names[id] = fmt.Sprintf("%s%d", strings.ToLower(c.name), c.made)
	}
}

func wireString(b []byte) (s string, rest []byte) {
	if len(b) < 4 || int64(len(b)-4) < int64(int32(binary.BigEndian.Uint32(b))) {
		return "", nil
	}
	n := 4 + binary.BigEndian.Uint32(b)
	return string(b[4:n]), b[n:]
}

func (s *scenarioConn) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	s.in = append(s.in, p[:n]...)
	for len(s.in) >= 4 {
		size := 4 + int(binary.BigEndian.Uint32(s.in))
		if len(s.in) < size {
			break
		}
		s.reply(s.in[4:size])
		s.in = s.in[size:]
	}
	return n, err
}

// reply shows one answer or event.
func (s *scenarioConn) reply(body []byte) {
	sc := s.c.sc
	if !s.ready {
		s.ready = true
		id := int64(binary.BigEndian.Uint64(body[8:]))
		if id == 0 {
			sc.see(s.c, seenReply, "gets", "session expired")
			return
		}
		sc.mu.Lock()
		sc.sessions[id] = s.c.name
		sc.mu.Unlock()
		sc.see(s.c, seenReply, "gets", "a session")
		return
	}
	xid := int32(binary.BigEndian.Uint32(body))
	code := zktest.Code(int32(binary.BigEndian.Uint32(body[12:])))
	body = body[16:]
	if xid == -1 {
		kinds := map[uint32]string{1: "created", 2: "deleted", 3: "changed", 4: "children"}
		where, _ := wireString(body[8:])
		sc.see(s.c, seenReply, "watch", kinds[binary.BigEndian.Uint32(body)]+" "+sc.short(where))
		return
	}
	s.mu.Lock()
	op, shown := s.pending[xid]
	delete(s.pending, xid)
	s.mu.Unlock()
	if !shown {
		return
	}
	text := "ok"
	switch {
	case code != zktest.CodeOK:
		text = strings.TrimPrefix(code.Error(), "zktest: ")
	case op == zktest.OpCreate:
		where, _ := wireString(body)
		text = sc.short(where)
	case op == zktest.OpGetChildren2:
		text = sc.children(body)
	case op == zktest.OpMulti && len(body) > 4 && int32(binary.BigEndian.Uint32(body)) == -1:
		text = "refused"
	}
	sc.see(s.c, seenReply, "gets", text)
}

// children lists the lock nodes in the order of the queue.
func (sc *scenario) children(body []byte) string {
	names := make([]string, binary.BigEndian.Uint32(body))
	body = body[4:]
	for i := range names {
		names[i], body = wireString(body)
	}
	slices.SortFunc(names, func(a, b string) int {
		ca, _ := parseContender(a)
		cb, _ := parseContender(b)
		return int(ca.seq - cb.seq)
	})
	return "[" + sc.short(strings.Join(names, " ")) + "]"
}
