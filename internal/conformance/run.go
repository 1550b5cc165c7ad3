package conformance

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Tick is the tickTime of the servers under test, and how often they look after containers.
const Tick = 500 * time.Millisecond

// SuperPassword is the password of the user super of servers that are used for more than one case.
const SuperPassword = "conformance"

// Runner runs cases against one server or ensemble, one at a time.
type Runner struct {
	// Dial opens a connection to a server, counted from 1.
	Dial func(server int) (net.Conn, error)
	// Sweep deletes all nodes before a case, as the user super.
	Sweep bool
	// Together allows cases to run at the same time, after one call of FindTick. Nothing is deleted before them; each
	// gets a node of its own, which its commands call $.
	Together bool

	runs     atomic.Int64
	boundary time.Time // a moment at which a tick began; zero if unknown
}

// execution is one case that runs.
type execution struct {
	r        *Runner
	c        *Case
	base     int64 // last transaction before the case
	conns    map[string]*conn
	order    []*conn
	sessions map[int64]*session
	root     string    // the node of the case, for Together
	zero     time.Time // tick 0
	answers  []string
}

// session is a session that the case has opened.
type session struct {
	name     string
	id       int64
	password []byte
}

// Run runs a case and returns the answers to each command.
func (r *Runner) Run(c *Case) ([][]string, error) {
	x := &execution{r: r, c: c, conns: map[string]*conn{}, sessions: map[int64]*session{}}
	if slices.ContainsFunc(c.Steps, func(s *Step) bool { return strings.HasPrefix(s.Text, "begin ") }) {
		if err := r.FindTick(); err != nil {
			return nil, err
		}
	}
	var err error
	if r.Together {
		x.root = fmt.Sprintf("/run%d", r.runs.Add(1))
	}
	if x.base, err = r.prepare(x.root); err != nil {
		return nil, fmt.Errorf("before the case: %w", err)
	}
	var all [][]string
	for _, step := range c.Steps {
		x.answers = nil
		text := step.Text
		if r.Together {
			text = strings.ReplaceAll(text, "$", x.root)
		}
		if err = x.step(text); err != nil {
			err = fmt.Errorf("%s: %w", step.Text, err)
			break
		}
		if r.Together {
			for i, answer := range x.answers {
				x.answers[i] = strings.ReplaceAll(answer, x.root, "$")
			}
		}
		all = append(all, x.answers)
	}
	return all, errors.Join(err, x.close())
}

// step runs one command and collects what it brings.
func (x *execution) step(text string) error {
	list, err := words(text)
	if err != nil {
		return err
	}
	switch list[0].text {
	case "begin", "until":
		return x.waitUntil(list)
	case "silence":
		for _, w := range list[1:] {
			if x.conns[w.text] == nil {
				return fmt.Errorf("no connection %s", w.text)
			}
			x.conns[w.text].silent = true
		}
		return nil
	case "4lw":
		if err := x.fourLetter(list[1:]); err != nil {
			return err
		}
		return x.settle(nil)
	}
	if len(list) < 2 {
		return errors.New("a connection and what to do with it are wanted")
	}
	name := list[0].text
	switch verb := list[1].text; verb {
	case "dial", "connect":
		err = x.connect(name, verb, list[2:])
	default:
		c := x.conns[name]
		if c == nil {
			return fmt.Errorf("no connection %s", name)
		}
		err = x.act(c, verb, list)
	}
	if err != nil {
		return err
	}
	return x.settle(x.conns[name])
}

// act does what a command says with an open connection.
func (x *execution) act(c *conn, verb string, list []word) error {
	if c.ended {
		return errors.New("the connection has ended")
	}
	switch verb {
	case "drop":
		return x.drop(c)
	case "wait":
		return x.wait(c)
	case "raw":
		raw := []byte(list[2].text)
		if !list[2].quoted {
			var err error
			if raw, err = hex.DecodeString(list[2].text); err != nil {
				return err
			}
		}
		c.hello = c.session == 0
		_, _ = c.nc.Write(raw)
		return nil
	case "pipe":
		return x.send(c, split(list[2:]))
	default:
		return x.send(c, [][]word{list[1:]})
	}
}

// split takes commands apart that a bar separates.
func split(list []word) [][]word {
	all := [][]word{nil}
	for _, w := range list {
		if w.text == "|" && !w.quoted {
			all = append(all, nil)
			continue
		}
		all[len(all)-1] = append(all[len(all)-1], w)
	}
	return all
}

// send sends requests without waiting between them.
func (x *execution) send(c *conn, commands [][]word) error {
	var frames [][]byte
	for _, list := range commands {
		q, err := build(list, c.last+1, x.base)
		if err != nil {
			return err
		}
		switch {
		case q.op == 11:
			c.pings = append(c.pings, true)
		default:
			if q.xid == c.last+1 {
				c.last++
			}
			c.pending = append(c.pending, q)
		}
		frames = append(frames, q.frame)
	}
	c.send(frames...)
	return nil
}

// connect opens a connection and, unless the verb is dial, asks for a session.
func (x *execution) connect(name, verb string, list []word) error {
	if old := x.conns[name]; old != nil && !old.ended {
		return errors.New("there is such a connection")
	}
	a := args{list: list}
	server := int(a.intOption("server", 1))
	timeout := time.Duration(a.intOption("timeout", 20*Tick.Milliseconds())) * time.Millisecond
	seen := a.intOption("seen", 0)
	password := make([]byte, 16)
	var id int64
	if of, ok := a.option("session"); ok {
		found := false
		for _, s := range x.sessions {
			if s.name == of {
				id, password, found = s.id, s.password, true
			}
		}
		if !found {
			var err error
			if id, err = strconv.ParseInt(of, 0, 64); err != nil {
				return fmt.Errorf("no session %s", of)
			}
		}
	}
	if p, ok := a.option("password"); ok {
		password = []byte(p)
		if p == "null" {
			password = nil
		}
	}
	readOnly := !a.flag("noreadonly")
	if a.flag("seeall") { // everything that the case has done
		seen = x.base
	}
	if a.flag("seefuture") {
		seen = x.base + 1000
	}
	a.end()
	if a.err != nil {
		return a.err
	}
	nc, err := x.r.Dial(server)
	if err != nil {
		return err
	}
	c := newConn(name, server, nc)
	x.order = slices.DeleteFunc(x.order, func(c *conn) bool { return c.name == name })
	x.conns[name], x.order = c, append(x.order, c)
	if verb == "connect" {
		c.hello = true
		c.send(helloFrame(seen, timeout, id, password, readOnly))
		return x.await(c, func() bool { return !c.hello })
	}
	return nil
}

// settle collects what has come on every connection: first on the one that has spoken. A connection without a session
// cannot be asked.
func (x *execution) settle(first *conn) error {
	list := slices.Clone(x.order)
	if i := slices.Index(list, first); i > 0 {
		list = append([]*conn{first}, slices.Delete(list, i, i+1)...)
	}
	for _, c := range list {
		from := len(x.answers)
		switch {
		case c.hello: // what comes is for a wait
		case c.ended || c.session == 0 && !c.ending:
			for len(c.frames) > 0 && !c.ended {
				x.take(c, <-c.frames)
			}
		case c.silent:
			if c == first {
				if err := x.await(c, func() bool { return len(c.pending)+len(c.pings) == 0 }); err != nil {
					return err
				}
			}
		case c.session != 0:
			c.ping(false)
			if err := x.await(c, func() bool { return len(c.pings) == 0 }); err != nil {
				return err
			}
		}
		// A ping may be answered before the connection ends, or not: this does not count.
		if c.ending {
			if err := x.await(c, func() bool { return false }); err != nil {
				return err
			}
		}
		if x.c.Unordered {
			sortEvents(x.answers[from:])
		}
	}
	return nil
}

// sortEvents sorts the events that stand next to each other.
func sortEvents(list []string) {
	isEvent := func(s string) bool { return strings.Contains(s, " event ") }
	for i := 0; i < len(list); i++ {
		j := i
		for j < len(list) && isEvent(list[j]) {
			j++
		}
		slices.Sort(list[i:j])
		i = j
	}
}

// await takes frames until the condition holds or the connection has ended.
func (x *execution) await(c *conn, done func() bool) error {
	patient := time.NewTimer(patience)
	defer patient.Stop()
	for !c.ended && !done() {
		select {
		case f := <-c.frames:
			x.take(c, f)
		case <-patient.C:
			return fmt.Errorf("nothing comes on %s for %v; so far: %q", c.name, patience, x.answers)
		}
	}
	return nil
}

// wait waits for the next frame.
func (x *execution) wait(c *conn) error {
	select {
	case f := <-c.frames:
		from := len(x.answers)
		x.take(c, f)
		if !x.zero.IsZero() && len(x.answers) > from {
			ticks := math.Round(float64(f.at.Sub(x.zero)) / float64(Tick))
			x.answers[len(x.answers)-1] += fmt.Sprintf(" at tick %.0f", ticks)
		}
		return nil
	case <-time.After(patience):
		return fmt.Errorf("nothing comes within %v", patience)
	}
}

// take puts one frame into the record.
func (x *execution) take(c *conn, f frame) {
	say := func(text string) { x.answers = append(x.answers, c.name+" "+text) }
	if f.body == nil {
		c.ended = true
		_ = c.nc.Close()
		say("closed")
		return
	}
	r := &reader{b: f.body}
	if c.hello {
		c.hello = false
		say(x.connected(c, r))
		return
	}
	xid, zxid, code := r.int32(), r.int64(), r.int32()
	switch {
	case r.err != nil:
		say("frame " + hex.EncodeToString(f.body))
	case xid == -1:
		say(x.event(zxid, code, r))
	case xid == -2 && len(c.pings) > 0:
		if c.pings[0] {
			say(fmt.Sprintf("ping %s %s%s", x.zxid(zxid), errorName(code), leftover(r)))
		}
		c.pings = c.pings[1:]
	default:
		// Requests are answered in their order; one that is never answered is passed over.
		i := slices.IndexFunc(c.pending, func(q request) bool { return q.xid == xid })
		if i < 0 {
			say(fmt.Sprintf("unasked #%d %s", xid, errorName(code)))
			return
		}
		q := c.pending[i]
		c.pending = c.pending[i+1:]
		c.ending = c.ending || q.op == -11 && code == 0 || code == -115 || code == -6 && zxid == -1
		for _, line := range x.reply(q, xid, zxid, code, r) {
			say(line)
		}
	}
}

// drop ends a connection from the client's side and returns when the server has noticed.
func (x *execution) drop(c *conn) error {
	local := "/" + c.nc.LocalAddr().String() + "["
	_ = c.nc.Close()
	c.ended = true
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		text, err := x.r.word(c.server, "cons")
		if err != nil {
			return err
		}
		if !strings.Contains(text, local) {
			return nil
		}
	}
	return errors.New("the server does not let go of the connection")
}

// close ends every session of the case.
func (x *execution) close() error {
	for _, c := range x.order {
		_ = c.nc.Close()
	}
	for _, id := range slices.Sorted(maps.Keys(x.sessions)) {
		s := x.sessions[id]
		nc, err := x.r.Dial(1)
		if err != nil {
			return err
		}
		c := newConn(s.name, 1, nc)
		c.send(helloFrame(0, Tick, s.id, s.password, true), request{op: -11, xid: 1}.header())
		for f := range c.frames { // a session that is over closes at once
			if f.body == nil {
				break
			}
		}
		_ = nc.Close()
	}
	return nil
}

// fourLetter shows a server's answer to a four-letter word: the lines that begin with one of the words after it, or all.
func (x *execution) fourLetter(list []word) error {
	text, err := x.r.word(1, list[0].text)
	if err != nil {
		return err
	}
	for _, s := range x.sessions {
		text = strings.ReplaceAll(text, fmt.Sprintf("%#x", uint64(s.id)), "session "+s.name)
	}
	lines := slices.Collect(strings.Lines(text))
	if list[0].text == "mntr" { // in the order of a hash table
		slices.Sort(lines)
	}
	for _, line := range lines {
		line = strings.TrimSuffix(line, "\n")
		if hex, ok := strings.CutPrefix(line, "Zxid: "); ok {
			id, err := strconv.ParseInt(hex, 0, 64)
			if err != nil {
				return err
			}
			line = "Zxid: " + x.zxid(id)
		}
		if len(list) == 1 || slices.ContainsFunc(list[1:], func(w word) bool { return strings.HasPrefix(line, w.text) }) {
			x.answers = append(x.answers, strconv.Quote(line))
		}
	}
	return nil
}

// word asks a server with a four-letter word.
func (r *Runner) word(server int, word string) (string, error) {
	nc, err := r.Dial(server)
	if err != nil {
		return "", err
	}
	defer func() { _ = nc.Close() }()
	if err := nc.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(nc, word); err != nil {
		return "", err
	}
	text, err := io.ReadAll(nc)
	return string(text), err
}
