package zklock

import "container/list"

// queue is the line of one path inside this process. Only its first two have a
// node at the ensemble: the holder and the next, so that a thousand goroutines on
// one mutex cost the ensemble no more than two (design section 5, step 1).
type queue struct {
	c    *Client
	path string
	line list.List // of *ticket, first come first
}

// ticket is a place in a queue. Its channels are closed when the place is reached
// and stay closed.
type ticket struct {
	q    *queue
	at   *list.Element
	node chan struct{} // among the first two: may have a node
	turn chan struct{} // first: may acquire
	has  *contender    // the node it has, nil if none
}

// enqueue joins the line of path. With try it only joins an empty one, and returns
// nil otherwise.
func (c *Client) enqueue(path string, try bool) *ticket {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.queues[path]
	if q == nil {
		q = &queue{c: c, path: path}
		c.queues[path] = q
	} else if try {
		return nil
	}
	t := &ticket{q: q, node: make(chan struct{}), turn: make(chan struct{})}
	t.at = q.line.PushBack(t)
	q.advance()
	return t
}

// standsWith tells the queue which node a ticket has now; nil for none.
//
// The line here has to follow the line at the ensemble. Of the first two, the one
// behind may get the earlier node: the other's create was slower, or had to be made
// again. It goes first then; otherwise each would wait for the other.
func (t *ticket) standsWith(node *contender) {
	c := t.q.c
	c.mu.Lock()
	defer c.mu.Unlock()
	t.has = node
	first := t.q.line.Front()
	if first == nil || first.Next() == nil || t.at == nil {
		return
	}
	second := first.Next()
	a, b := first.Value.(*ticket).has, second.Value.(*ticket).has
	if a != nil && b != nil && b.before(*a) {
		t.q.line.MoveToFront(second)
		t.q.advance()
	}
}

// leave gives the place up. Further calls do nothing.
func (t *ticket) leave() {
	c := t.q.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.at == nil {
		return
	}
	t.q.line.Remove(t.at)
	t.at = nil
	if t.q.line.Len() == 0 {
		delete(c.queues, t.q.path)
		return
	}
	t.q.advance()
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
	select {
	case <-ch:
	default:
		close(ch)
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
