package zklock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"

	"github.com/go-zklock/zklock/internal/claim"
	"github.com/go-zklock/zklock/internal/wire"
)

// node is a lock node of ours that exists.
type node struct {
	contender
	s     *session
	path  string
	token Token
	queue *listing // made right behind the create; nil if there is none
}

// listing is the answer to a getChildren.
type listing struct {
	names []string
	err   error
}

// Requests with a ctx.

type data struct {
	data []byte
	stat *zk.Stat
}

func get(ctx context.Context, s *session, path string) (data, error) {
	return call(ctx, s, func(conn *zk.Conn) (data, error) {
		b, stat, err := conn.Get(path)
		return data{b, stat}, err
	})
}

func getW(ctx context.Context, s *session, path string) ([]byte, <-chan zk.Event, error) {
	type result struct {
		data   []byte
		events <-chan zk.Event
	}
	r, err := call(ctx, s, func(conn *zk.Conn) (result, error) {
		b, _, events, err := conn.GetW(path)
		return result{b, events}, err
	})
	return r.data, r.events, err
}

func exists(ctx context.Context, s *session, path string) (bool, error) {
	return call(ctx, s, func(conn *zk.Conn) (bool, error) {
		ok, _, err := conn.Exists(path)
		return ok, err
	})
}

// children lists dir. Nodes of ours that a create with a lost reply left there are
// deleted on the way.
func (c *Client) children(ctx context.Context, s *session, dir string) ([]string, error) {
	names, err := call(ctx, s, func(conn *zk.Conn) ([]string, error) {
		names, _, err := conn.Children(dir)
		return names, err
	})
	if err != nil {
		return nil, err
	}
	c.listed(s, dir, names)
	return names, nil
}

// listed looks at a listing for what matters whoever asked for it.
func (c *Client) listed(s *session, dir string, names []string) {
	c.noteKnown(dir)
	if c.anyAbandoned() {
		for _, name := range names {
			if id := uuidOf(name); id != "" && c.isAbandoned(id) {
				c.forgive(id)
				s.nodesOwned(1) // the deletion takes it out again
				c.startDeletion(newDeletion(s, dir+"/"+name))
			}
		}
	}
}

// maxRounds bounds how often a node is made anew: because its parents vanish under it,
// removed by the ensemble in between, or because its create is lost.
const maxRounds = 20

// made is the answer to a create.
type made struct {
	path string
	err  error
}

// makeNode makes the attempt's lock node on session s, unless that is under way already.
// errAgain means that s was lost. On any other error nothing is left, or the client
// sees to it. Whoever is first here lists the queue right behind the create, on the
// same connection, which saves a round trip. A path inside a record is somebody else's
// to make: ErrNoNode if it is not there.
func (a *attempt) makeNode(ctx context.Context, s *session) (*node, error) {
	c, dir, inside := a.m.c, a.m.full, a.opts.inside
	lost := 0
	together := true
	for range maxRounds {
		var n *node
		var err error
		if j := a.ticket.takeJoining(); j != nil {
			n, err = c.joined(ctx, s, dir, j)
		} else {
			container := false
			w := s.connection()
			if !inside {
				if container, err = c.ensureParents(ctx, s, dir, together); err != nil {
					return nil, sessionGone(s, err)
				}
			}
			n, err = c.create(ctx, s, dir, uuid.NewString(), a.ticket.data, isOpen(a.ticket.turn), container)
			if container {
				together = false
				c.madeTogether(w, err)
			}
		}
		switch {
		case err == nil:
			s.nodesOwned(1)
			c.logNode(s, n.path, n.token, "created", nil)
			return n, nil
		case errors.Is(err, zk.ErrNoNode) && !inside:
			c.forgetKnown(dir) // reaped since we looked
		case errors.Is(err, errParents): // not as they were when we looked
		case errors.Is(err, errAbsent):
			lost++ // the reply and the request: again with a new uuid
		default:
			return nil, err
		}
	}
	return nil, fmt.Errorf("no node could be made in %s: %d times the create was lost, %d times the parents had vanished", dir, lost, maxRounds-lost)
}

var errNoToken = errors.New("the create's zxid was not seen")

// errAbsent: the create was not carried out.
var errAbsent = errors.New("the node was not made")

// create sends one create and finds out what came of it. With list it lists the queue
// right behind. With container it makes dir in the same transaction, which saves a write:
// while it has never had a child, the ensemble does not remove an empty container, and
// with its first child it cannot be left behind by a client that dies.
func (c *Client) create(ctx context.Context, s *session, dir, id string, data []byte, list, container bool) (*node, error) {
	if err := s.awaitUp(ctx); err != nil {
		return nil, sessionGone(s, err)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	prefix := nodePrefix(dir, id)
	box := s.expect(prefix)
	defer s.unexpect(prefix)
	behind := make(chan *listing, 1)
	if list {
		s.onSent(prefix, func() {
			c.tasks.run(func() {
				names, _, err := s.conn.Children(dir)
				behind <- &listing{names, s.explain(err)}
			})
		})
		defer s.onSent(prefix, nil)
	}
	answer := make(chan made, 1)
	c.tasks.run(func() {
		var m made
		if container {
			m = c.createInside(s, dir, prefix, data)
		} else {
			m.path, m.err = s.conn.Create(prefix, data, zk.FlagEphemeralSequential, c.cfg.ACL)
		}
		answer <- m
	})
	n, err := c.awaitMade(ctx, s, dir, id, box, answer)
	if err == nil && list && s.czxid(box) != 0 { // otherwise nobody can tell whether it was sent
		select {
		case n.queue = <-behind:
		case <-s.dead:
		case <-ctx.Done():
		}
	}
	return n, err
}

// errParents: neither a container nor a node in it was made.
var errParents = errors.New("the parents have changed")

// createInside makes dir as a container and a node in it.
func (c *Client) createInside(s *session, dir, prefix string, data []byte) made {
	results, err := s.conn.Multi(
		&zk.CreateRequest{Path: dir, Acl: c.cfg.ACL, Flags: zk.FlagContainer},
		&zk.CreateRequest{Path: prefix, Data: data, Acl: c.cfg.ACL, Flags: zk.FlagEphemeralSequential})
	op, opErr := claim.FailedOp(results, err)
	switch {
	case err == nil:
		return secondOf(results)
	case op == 0 && errors.Is(opErr, zk.ErrNodeExists):
		c.noteKnown(dir)
	case op == 0 && errors.Is(opErr, zk.ErrNoNode):
		c.forgetKnown(path.Dir(dir))
	case op == 0 && errors.Is(opErr, zk.ErrBadArguments), isUnimplemented(opErr), isUnreadable(opErr):
		c.makeApart()
	case errors.Is(opErr, zk.ErrShortBuffer): // larger than a request may be: one after the other
	default:
		return made{err: opErr}
	}
	return made{err: errParents}
}

// madeTogether draws the conclusions from a transaction that had to make a container and
// a node in it, sent on w: a server that cannot read it might end the connection, and
// must not be asked again and again.
func (c *Client) madeTogether(w *wire.Conn, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.cut = nil
	case !errors.Is(err, errAbsent) || c.cut == w:
	case c.cut == nil:
		c.cut = w
	default: // the second connection in a row
		c.apart = true
	}
}

// makeApart has containers made by themselves from now on: the ensemble takes none in a
// transaction.
func (c *Client) makeApart() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.apart = true
}

// Plain is of wire.Events.
func (s *session) Plain(p string) {
	s.c.makeApart()
	s.c.log.Warn("zklock: the ensemble makes no containers in transactions; an empty lock path will stay", "path", p)
}

// isUnimplemented says whether a server does not know a request.
func isUnimplemented(err error) bool { return err != nil && err.Error() == "unknown error: -6" }

// isUnreadable says whether a server could not read a request.
func isUnreadable(err error) bool { return err != nil && err.Error() == "unknown error: -5" }

// joined waits for a create that went along with a delete. errAbsent if it was not
// carried out.
func (c *Client) joined(ctx context.Context, s *session, dir string, j *joining) (*node, error) {
	if s != j.s {
		c.abandonJoining(dir, j)
		return nil, errAbsent
	}
	return c.awaitMade(ctx, s, dir, j.id, j.box, j.answer)
}

// awaitMade waits for the answer to a create that was sent, and finds out what came of
// it if there is none.
func (c *Client) awaitMade(ctx context.Context, s *session, dir, id string, box *czxidBox, answer <-chan made) (*node, error) {
	select {
	case m := <-answer:
		switch {
		case m.err == nil:
			if token := s.czxid(box); token != 0 {
				return s.madeNode(m.path, token)
			}
			// The reply passed the wrapper unseen. It is found by its uuid like one
			// whose reply was lost.
			return c.settle(ctx, s, dir, id, errNoToken)
		case errors.Is(m.err, errAbsent), errors.Is(m.err, errParents), answered(m.err):
			return nil, m.err
		}
		return c.settle(ctx, s, dir, id, m.err)
	case <-ctx.Done():
		c.abandon(s, dir, id, answer)
		return nil, context.Cause(ctx)
	case <-s.dead:
		c.abandon(s, dir, id, answer)
		return nil, sessionGone(s, nil)
	}
}

// settle finds a node whose create was not answered. The search runs on the session
// that sent the create, behind it, so an empty result is an answer.
func (c *Client) settle(ctx context.Context, s *session, dir, id string, cause error) (*node, error) {
	for {
		name, err := c.search(ctx, s, dir, id)
		switch {
		case err == nil && name == "":
			if unknownCode(cause) {
				return nil, cause // it was refused, as it turns out
			}
			// The server may still be reading what the old connection sent: any later
			// listing that shows the uuid deletes its node.
			c.remember(s, id)
			return nil, errAbsent
		case err == nil:
			r, err := get(ctx, s, dir+"/"+name)
			if err == nil {
				return s.madeNode(dir+"/"+name, Token(r.stat.Czxid))
			}
			if errors.Is(err, zk.ErrNoNode) {
				return nil, errAbsent
			}
			if answered(err) || unknownCode(err) {
				c.abandon(s, dir, id, nil)
				return nil, err
			}
		case answered(err) || unknownCode(err):
			c.abandon(s, dir, id, nil)
			return nil, err
		}
		err = s.awaitUp(ctx)
		if err == nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			c.abandon(s, dir, id, nil)
			return nil, sessionGone(s, err)
		}
	}
}

// transient says whether a request that failed with err is worth sending again on
// the same session: the connection broke, and the next one will do.
func (c *Client) transient(ctx context.Context, s *session, err error) bool {
	return err != nil && !answered(err) && !unknownCode(err) && ctx.Err() == nil && !s.isOver() && !c.isClosing()
}

// search looks for a uuid in dir with a view no older than the call: "" if it is
// not there.
func (c *Client) search(ctx context.Context, s *session, dir, id string) (string, error) {
	if _, err := call(ctx, s, func(conn *zk.Conn) (string, error) { return conn.Sync(dir) }); err != nil {
		return "", err
	}
	names, err := call(ctx, s, func(conn *zk.Conn) ([]string, error) {
		names, _, err := conn.Children(dir)
		return names, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if uuidOf(name) == id {
			return name, nil
		}
	}
	return "", nil
}

// madeNode is a node at a path that the server gave.
func (s *session) madeNode(p string, token Token) (*node, error) {
	ct, ok := parseContender(path.Base(p))
	if !ok {
		return nil, fmt.Errorf("the server made %q, which is no lock node", p)
	}
	return &node{contender: ct, s: s, path: p, token: token}, nil
}

// expect asks for the czxid of the node that a create of prefix will make.
func (s *session) expect(prefix string) *czxidBox {
	box := new(czxidBox)
	s.expectIn(box, prefix)
	return box
}

func (s *session) expectIn(box *czxidBox, prefix string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.creates[prefix] = box
}

func (s *session) unexpect(prefix string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.creates, prefix)
}

// onSent has f called when a create or a delete of path has been sent; nil forgets it.
func (s *session) onSent(path string, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f == nil {
		delete(s.sent, path)
	} else {
		s.sent[path] = f
	}
}

// Sent is of wire.Events.
func (s *session) Sent(path string) {
	s.mu.Lock()
	f := s.sent[path]
	s.mu.Unlock()
	if f != nil {
		f()
	}
}

func (s *session) czxid(box *czxidBox) Token {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Token(box.zxid)
}

// nodesOwned counts the lock nodes of a live session. They end with it.
func (s *session) nodesOwned(delta int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isDead {
		s.owned += delta
		s.c.met.nodes(delta)
	}
}

// disownLocked takes the nodes of a session that ended out of the count.
func (s *session) disownLocked() {
	s.c.met.nodes(-s.owned)
	s.owned = 0
}

func (s *session) isOver() bool {
	select {
	case <-s.dead:
		return true
	default:
		return false
	}
}

// knownFor is how long a path that was seen is taken for there. Containers are
// reaped about a minute after their last child has gone; a create that fails
// because of it costs a quorum write, a look costs a read.
const (
	knownFor = time.Minute
	maxKnown = 4096
)

func (c *Client) noteKnown(path string) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.known) >= maxKnown {
		for p, seen := range c.known {
			if now.Sub(seen) > knownFor || len(c.known) > maxKnown/2 {
				delete(c.known, p)
			}
		}
	}
	c.known[path] = now
}

func (c *Client) forgetKnown(path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, path)
}

func (c *Client) isKnown(path string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen, ok := c.known[path]
	return ok && time.Since(seen) <= knownFor
}

// ensureParents makes dir and what is above it. It looks before it makes anything:
// a create that fails is a quorum write all the same. With together it leaves dir itself
// to the create of the first node in it, if that can be, and says so.
func (c *Client) ensureParents(ctx context.Context, s *session, dir string, together bool) (left bool, err error) {
	var missing []string // the deepest first
	for p := dir; p != "/" && !c.isKnown(p); p = path.Dir(p) {
		ok, err := exists(ctx, s, p)
		if err != nil {
			if c.transient(ctx, s, err) {
				return c.ensureParents(ctx, s, dir, together) // the connection broke
			}
			return false, err
		}
		if ok {
			c.noteKnown(p)
			break
		}
		missing = append(missing, p)
	}
	for i := len(missing) - 1; i >= 0; i-- {
		p := missing[i]
		if p == dir && together && c.makesTogether() {
			return true, nil
		}
		err := c.makeParent(ctx, s, p, p == dir)
		switch {
		case err == nil || errors.Is(err, zk.ErrNodeExists):
			c.noteKnown(p)
		case errors.Is(err, zk.ErrNoNode):
			// What is above it went again; the create will say so.
			c.forgetKnown(path.Dir(p))
			return false, nil
		case c.transient(ctx, s, err):
			i++ // not answered: once more
		default:
			return false, fmt.Errorf("make %s: %w", p, err)
		}
	}
	return false, nil
}

// makesTogether says whether a container can be made together with a node in it.
func (c *Client) makesTogether() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.plain && !c.apart
}

// makeParent makes one node: the lock path itself as a container, so that the
// ensemble removes it when it is empty, what is above it as persistent.
func (c *Client) makeParent(ctx context.Context, s *session, p string, container bool) error {
	c.mu.Lock()
	plain := c.plain
	c.mu.Unlock()
	if container && !plain {
		_, err := call(ctx, s, func(conn *zk.Conn) (string, error) {
			if !s.beginMaking() {
				return "", fmt.Errorf("%w: %w", errNotSent, errSessionOver)
			}
			defer s.makers.end()
			return conn.CreateContainer(p, nil, zk.FlagContainer, c.cfg.ACL)
		})
		if !isUnimplemented(err) {
			return err
		} // before 3.5
		c.mu.Lock()
		first := !c.plain
		c.plain = true
		c.mu.Unlock()
		if first {
			c.log.Warn("zklock: the ensemble has no container nodes; empty lock paths will stay", "path", p)
		}
	}
	_, err := call(ctx, s, func(conn *zk.Conn) (string, error) { return conn.Create(p, nil, 0, c.cfg.ACL) })
	return err
}

// beginMaking counts a create of a container, unless the Conn is about to be closed.
func (s *session) beginMaking() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isDead {
		return false
	}
	s.makers.begin()
	return true
}

// keyOf is the idempotency key of a lock node, for logs.
func keyOf(node string) string {
	key := path.Base(path.Dir(node))
	if plain, err := url.PathUnescape(key); err == nil {
		return plain
	}
	return key
}

// logNode logs one transition of a lock node.
func (c *Client) logNode(s *session, node string, token Token, event string, err error, more ...any) {
	level := slog.LevelInfo
	if err != nil {
		level = slog.LevelWarn
	}
	if !c.log.Enabled(context.Background(), level) {
		return // what follows is a good part of what an acquire allocates
	}
	args := []any{
		"event", event, "idempotency_key", keyOf(node), "znode_path", node,
		"session_id", hexID(s.sessionID()), "token", token.String(),
	}
	if err != nil {
		args = append(args, "error", err)
	}
	c.log.Log(context.Background(), level, "zklock: "+event, append(args, more...)...)
}
