package zkproxy

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"time"
)

// maxFrame is far over what a server takes (jute.maxbuffer, 1 MiB by default). A longer one means that the
// stream is not what it was taken for.
const maxFrame = 256 << 20

// item is a frame on its way, or the end of the stream.
type item struct {
	bytes  []byte // with the length in front
	kind   Kind
	path   string // of a watch event
	framed bool   // rules apply; raw bytes go by them
	end    bool
	due    time.Time
}

// queue holds what was read and not yet written in one direction. Reading never waits for writing, so a side
// that is held up does not see its own kernel fill.
type queue struct {
	items []item
	wake  chan struct{}
}

func (q *queue) poke() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// link is one client connection and its way on to the server. What is under counts is guarded by the proxy's
// mutex, with the queues.
type link struct {
	proxy  *Proxy
	id     int
	client net.Conn
	done   context.Context // ends with the link
	finish context.CancelFunc

	counts   Counts
	session  int64
	timeout  int32
	greeting []byte // never changed
	aborted  bool
	ended    [2]bool
	server   net.Conn
	queues   [2]*queue
	pending  map[int32]Kind // by xid
	greeted  bool           // the server's first frame, which answers connect, was seen
}

func newLink(p *Proxy, id int, client net.Conn) *link {
	l := &link{
		proxy: p, id: id, client: client, counts: newCounts(), pending: make(map[int32]Kind),
		queues: [2]*queue{{wake: make(chan struct{}, 1)}, {wake: make(chan struct{}, 1)}},
	}
	l.done, l.finish = context.WithCancel(context.Background())
	return l
}

// run leads the link until one side has closed or it is cut.
func (l *link) run(target string) {
	defer l.proxy.running.Done()
	server, err := new(net.Dialer).DialContext(l.done, "tcp", target)
	l.proxy.mu.Lock()
	if l.server = server; err != nil || l.aborted {
		l.abort()
		l.proxy.mu.Unlock()
		return
	}
	l.proxy.mu.Unlock()

	var parts sync.WaitGroup
	parts.Go(func() { l.readClient() })
	parts.Go(func() { l.readServer() })
	parts.Go(func() { l.write(ToServer, server) })
	parts.Go(func() { l.write(ToClient, l.client) })
	parts.Wait()
}

// abort closes both sides. The proxy's mutex is held.
func (l *link) abort() {
	l.aborted = true
	l.finish()
	l.client.Close()
	if l.server != nil {
		l.server.Close()
	}
	l.proxy.counted()
}

// readClient reads the client's frames. The first one asks for a session, unless the connection carries a
// four-letter word, which has no frames.
func (l *link) readClient() {
	defer l.push(ToServer, item{end: true})
	var first [4]byte
	if _, err := io.ReadFull(l.client, first[:]); err != nil {
		return
	}
	if isWord(first) {
		l.count(func(c *Counts) { c.Requests[FourLetterWord]++ })
		l.push(ToServer, item{bytes: first[:]})
		l.raw(ToServer, l.client)
		return
	}
	for head, connecting := first, true; ; connecting = false {
		frame, ok := l.frame(ToServer, l.client, head)
		if !ok {
			return
		}
		kind := Connect
		l.count(func(c *Counts) {
			if !connecting {
				var xid int32
				xid, kind = request(frame[4:])
				l.pending[xid] = kind
			}
			c.Requests[kind]++
			if kind == UnknownRequest {
				c.Undecoded++
			}
		})
		l.push(ToServer, item{bytes: frame, kind: kind, framed: true})
		if _, err := io.ReadFull(l.client, head[:]); err != nil {
			return
		}
	}
}

// readServer reads the server's frames. What the client sent first has been read by then, so it is known
// whether there are frames.
func (l *link) readServer() {
	defer l.push(ToClient, item{end: true})
	for {
		var head [4]byte
		n, err := io.ReadFull(l.server, head[:])
		if l.speaksWords() {
			l.push(ToClient, item{bytes: head[:n]})
			if err == nil {
				l.raw(ToClient, l.server)
			}
			return
		}
		if err != nil {
			return
		}
		frame, ok := l.frame(ToClient, l.server, head)
		if !ok {
			return
		}
		l.push(ToClient, l.answer(frame))
	}
}

func (l *link) speaksWords() bool {
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	return l.counts.Requests[FourLetterWord] > 0
}

// answer says what a server's frame is.
func (l *link) answer(frame []byte) item {
	it := item{bytes: frame, framed: true}
	body := frame[4:]
	l.count(func(c *Counts) {
		if !l.greeted {
			// protocol version, granted timeout, session id
			l.greeted, it.kind = true, Connect
			c.Replies[Connect]++
			if len(body) < 16 {
				c.Undecoded++
				return
			}
			l.timeout = int32(binary.BigEndian.Uint32(body[4:]))
			l.session = int64(binary.BigEndian.Uint64(body[8:]))
			l.greeting = frame
			return
		}
		xid, ok := replyXid(body)
		if !ok {
			c.Undecoded++
			return
		}
		switch xid {
		case xidWatchEvent:
			it.kind = WatchEventFrame
			var err error
			if it.path, err = eventPath(body); err != nil {
				c.Undecoded++
			}
			return // it is counted when it is passed on
		case xidPing:
			it.kind = Ping
		default:
			it.kind = l.pending[xid]
			if it.kind == "" {
				it.kind = UnknownRequest
				c.Undecoded++
			}
			delete(l.pending, xid)
		}
		c.Replies[it.kind]++
	})
	return it
}

// frame reads the rest of a frame whose length was read. What cannot be a frame goes on as raw bytes.
func (l *link) frame(d Direction, from net.Conn, head [4]byte) ([]byte, bool) {
	size := int32(binary.BigEndian.Uint32(head[:]))
	if size < 0 || size > maxFrame {
		l.count(func(c *Counts) { c.Undecoded++ })
		l.push(d, item{bytes: head[:]})
		l.raw(d, from)
		return nil, false
	}
	frame := make([]byte, 4+int(size))
	copy(frame, head[:])
	_, err := io.ReadFull(from, frame[4:])
	return frame, err == nil
}

// raw passes bytes on until the stream ends.
func (l *link) raw(d Direction, from net.Conn) {
	for {
		chunk := make([]byte, 32<<10)
		n, err := from.Read(chunk)
		if n > 0 {
			l.push(d, item{bytes: chunk[:n]})
		}
		if err != nil {
			return
		}
	}
}

func (l *link) count(f func(*Counts)) {
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	f(&l.counts)
	l.proxy.counted()
}

func (l *link) push(d Direction, it item) {
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	if by := l.proxy.gates[d].delay; by > 0 {
		it.due = time.Now().Add(by)
	}
	l.queues[d].items = append(l.queues[d].items, it)
	l.queues[d].poke()
}

// write passes on what is in the queue of a direction, as the gate and the rules say.
func (l *link) write(d Direction, to net.Conn) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		it, wait, ready := l.next(d)
		if !ready {
			var due <-chan time.Time
			if wait > 0 {
				timer.Reset(wait)
				due = timer.C
			}
			select {
			case <-l.queues[d].wake:
			case <-due:
			case <-l.done.Done():
				return
			}
			continue
		}
		if it.end {
			l.end(d, to)
			return
		}
		if _, err := to.Write(it.bytes); err != nil {
			l.proxy.mu.Lock()
			l.abort()
			l.proxy.mu.Unlock()
			return
		}
	}
}

// next takes the next item that is to be written. Without one it says how long to wait, 0 for until something
// changes.
func (l *link) next(d Direction) (it item, wait time.Duration, ready bool) {
	p, q := l.proxy, l.queues[d]
	p.mu.Lock()
	defer p.mu.Unlock()
	for !l.aborted && len(q.items) > 0 && !p.gates[d].hold {
		it = q.items[0]
		if p.gates[d].discard {
			if it.end {
				return it, 0, false // the silence covers the end too
			}
			q.items = q.items[1:]
			l.counts.Dropped++
			p.counted()
			continue
		}
		if wait = time.Until(it.due); wait > 0 && p.gates[d].delay > 0 {
			return it, wait, false
		}
		q.items = q.items[1:]
		if it.framed {
			if how, lost := p.loses(d, it.kind); lost {
				l.counts.Dropped++
				if how == Break {
					l.abort()
				}
				p.counted()
				continue
			}
		}
		if it.kind == WatchEventFrame {
			l.counts.Events[it.path]++
			p.counted()
		}
		return it, 0, true
	}
	return it, 0, false
}

// end passes on that a side has closed. When both have, the link is over.
func (l *link) end(d Direction, to net.Conn) {
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // fails when the side is gone already
	}
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	l.ended[d] = true
	if l.ended[ToServer] && l.ended[ToClient] {
		l.abort()
	}
}
