package zklock

import (
	"container/list"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"
)

// queue is the line of one path inside this process. Only its first two have a
// node at the ensemble: the holder and the next, so that a thousand goroutines on
// one mutex cost the ensemble no more than two. The holder
// leaves when its delete has been sent: the requests of those behind it follow on the
// same connection, so the ensemble sees no third node, and a hand-over takes one round
// trip instead of two. The third gets its node in the same transaction, so a
// hand-over in a long line costs one write instead of two.
type queue struct {
	c    *Client
	path string
	line list.List // of *ticket, first come first

	seen []contender // the newest listing of the ensemble's queue by one of the line
	left *contender  // the node of the one who left last
}

// ticket is a place in a queue. Its channels are closed when the place is reached
// and stay closed.
type ticket struct {
	q    *queue
	at   *list.Element
	node chan struct{} // among the first two: may have a node
	turn chan struct{} // first: may acquire
	has  *contender    // the node it has, nil if none
	data []byte        // of its node

	join  *joining // its create, if that goes along with a delete; stays
	taken bool     // the owner waits for join, or has given it up
}

// joining is a create that goes along with the delete of another node.
type joining struct {
	s      *session
	id     string
	create *zk.CreateRequest
	box    *czxidBox
	answer chan made // gets one, always; buffered
}

// enqueue joins the line of path. With try it only joins an empty one, and returns
// nil otherwise. data is what a node of the ticket will hold.
func (c *Client) enqueue(path string, try bool, data []byte) *ticket {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.queues[path]
	if q == nil {
		q = &queue{c: c, path: path}
		c.queues[path] = q
	} else if try {
		return nil
	}
	t := &ticket{q: q, node: make(chan struct{}), turn: make(chan struct{}), data: data}
	t.at = q.line.PushBack(t)
	q.advance()
	return t
}

// enqueueFirst joins the line of path at its head, with a node that is first at the
// ensemble.
func (c *Client) enqueueFirst(path string, node *contender) *ticket {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.queues[path]
	if q == nil {
		q = &queue{c: c, path: path}
		c.queues[path] = q
	}
	t := &ticket{q: q, node: make(chan struct{}), turn: make(chan struct{}), has: node}
	t.at = q.line.PushFront(t)
	q.advance()
	return t
}

// standsWith tells the queue which node a ticket has now; nil for none.
func (t *ticket) standsWith(node *contender) {
	c := t.q.c
	c.mu.Lock()
	defer c.mu.Unlock()
	t.has = node
	if t.at != nil {
		t.q.follow()
	}
}

// follow lets the line here follow the line at the ensemble. Of the first two, the one
// behind may have the earlier node: the other's create was slower, or had to be made
// again. It goes first then; otherwise each would wait for the other. Two that had
// their nodes behind a third may be the first two only now. Callers hold c.mu.
func (q *queue) follow() {
	first := q.line.Front()
	if first == nil || first.Next() == nil {
		return
	}
	second := first.Next()
	a, b := first.Value.(*ticket).has, second.Value.(*ticket).has
	if a != nil && b != nil && b.before(*a) {
		q.line.MoveToFront(second)
		q.advance()
	}
}

// leave gives the place up. Further calls do nothing.
func (t *ticket) leave() {
	c := t.q.c
	c.mu.Lock()
	if t.at == nil {
		c.mu.Unlock()
		return
	}
	j := t.takeLocked()
	t.q.line.Remove(t.at)
	t.at = nil
	t.q.left = t.has
	if t.q.line.Len() == 0 {
		delete(c.queues, t.q.path)
	} else {
		t.q.follow()
		t.q.advance()
	}
	c.mu.Unlock()
	if j != nil {
		c.abandonJoining(t.q.path, j)
	}
}

// third makes the create of the third in line ready that is to go along with the delete
// of the first, on session s. It is nil if t is not first, if there is no third, or
// if the second might come behind the third then. The caller answers it, whatever
// happens.
func (t *ticket) third(s *session) *joining {
	c := t.q.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.at == nil || t.at.Prev() != nil || t.at.Next() == nil || t.at.Next().Next() == nil {
		return nil
	}
	second, third := t.at.Next().Value.(*ticket), t.at.Next().Next().Value.(*ticket)
	if second.has == nil && second.join == nil || third.has != nil || third.join != nil || isOpen(third.node) {
		return nil
	}
	id := uuid.NewString()
	third.join = &joining{
		s: s, id: id, box: new(czxidBox), answer: make(chan made, 1),
		create: &zk.CreateRequest{Path: nodePrefix(t.q.path, id), Data: third.data, Acl: c.cfg.ACL, Flags: zk.FlagEphemeralSequential},
	}
	return third.join
}

// saw keeps a listing of the ensemble's queue for those behind t.
func (t *ticket) saw(cs []contender) {
	t.q.c.mu.Lock()
	defer t.q.c.mu.Unlock()
	t.q.seen = nil
	if t.q.line.Len() > 1 {
		t.q.seen = cs
	}
}

// predecessor is whose node is before n at the ensemble, as far as somebody of the line
// has seen: nobody can come between the two, so it is that one until it goes. nil if
// that is not known, or if it was the one before t here, who has gone.
func (t *ticket) predecessor(n contender) *contender {
	t.q.c.mu.Lock()
	seen, left := t.q.seen, t.q.left
	t.q.c.mu.Unlock()
	listed, p := place(seen, n)
	if !listed || p == nil || left != nil && left.name == p.name {
		return nil
	}
	return p
}

// takeJoining is the ticket's create that went along with a delete, for the owner to
// wait for: once, and nil if there is none.
func (t *ticket) takeJoining() *joining {
	t.q.c.mu.Lock()
	defer t.q.c.mu.Unlock()
	return t.takeLocked()
}

func (t *ticket) takeLocked() *joining {
	if t.join == nil || t.taken {
		return nil
	}
	t.taken = true
	return t.join
}

// advance tells the first two where they are. Callers hold c.mu.
func (q *queue) advance() {
	first := q.line.Front()
	if first == nil {
		return
	}
	open(first.Value.(*ticket).node)
	open(first.Value.(*ticket).turn)
	if second := first.Next(); second != nil {
		open(second.Value.(*ticket).node)
	}
}

func open(ch chan struct{}) {
	if !isOpen(ch) {
		close(ch)
	}
}

func isOpen(ch chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// waitersWithoutNode is how many stand in line here and not at the ensemble.
func (c *Client) waitersWithoutNode(path string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q := c.queues[path]; q != nil {
		return max(q.line.Len()-2, 0)
	}
	return 0
}
