// Package zkproxy is a TCP proxy that understands ZooKeeper's protocol: it stands between a client and a server,
// counts what they say by kind, and loses, delays or holds back what a test tells it to.
//
// It works on whole frames. So a fault never tears one, and what a client sees is what a network and a
// server could have done between two frames: a reply that did not come, a connection that broke before it,
// silence. TLS is not decoded.
//
//	Cut, CutSession   the connections break
//	Hold, Pass        silence, and then the backlog in order, as TCP delivers it after a partition
//	Discard, Pass     silence, and what was sent is gone; a real network does this only to a connection that dies
//	Delay             every frame comes later
//	Lose              the next frames of a kind are lost, and the connection with them or not
//	Refuse            new connections are closed at once
//
// A fault is for all connections of a proxy. A test that breaks one of several clients gives each its own.
package zkproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"
)

// Direction says which way a frame goes.
type Direction int

// The two directions.
const (
	ToServer Direction = iota
	ToClient
)

func (d Direction) String() string {
	if d == ToServer {
		return "to the server"
	}
	return "to the client"
}

// Loss says how a frame is lost.
type Loss int

const (
	// Swallow takes the frame out; the connection stays. The client waits for an answer that never comes.
	Swallow Loss = iota
	// Break breaks the connection in place of the frame, which is how replies get lost on a real network. A
	// request whose reply is lost this way was carried out.
	Break
)

const acceptPause = 10 * time.Millisecond

// gate is the state of a direction.
type gate struct {
	hold    bool
	discard bool
	delay   time.Duration
}

// rule loses frames; it is spent when left is 0.
type rule struct {
	dir  Direction
	kind Kind
	how  Loss
	left int
	done chan struct{}
}

// Proxy is a listening proxy. Its methods are safe for concurrent use.
type Proxy struct {
	listener net.Listener
	running  sync.WaitGroup

	mu      sync.Mutex
	target  string
	refuse  bool
	closed  bool
	gates   [2]gate
	rules   []*rule
	links   []*link
	lastID  int
	changed chan struct{} // closed and made anew whenever something was counted
}

// New starts a proxy on a loopback port in front of the server at target (host:port). It ends with the test.
func New(t testing.TB, target string) *Proxy {
	t.Helper()
	p, err := Start(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the proxy in front of %s saw: %s", target, p.Snapshot().Total)
		}
		p.Close()
	})
	return p
}

// Start starts a proxy outside a test. Close must be called.
func Start(target string) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("zkproxy: listening: %w", err)
	}
	p := &Proxy{listener: listener, target: target, changed: make(chan struct{})}
	p.running.Add(1)
	go p.accept()
	return p, nil
}

// Close breaks all connections and returns when every goroutine of the proxy has ended. It may be called again.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.cut(func(*link) bool { return true })
	p.mu.Unlock()
	p.listener.Close()
	p.running.Wait()
}

// Addr returns the address for clients as host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// SetTarget changes which server new connections are led to.
func (p *Proxy) SetTarget(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// Refuse says whether new connections are closed as soon as they are made. Those that stand are left alone.
func (p *Proxy) Refuse(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = on
}

// Cut breaks all connections. Clients may connect again at once.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut(func(*link) bool { return true })
}

// CutSession breaks the connections of a session.
func (p *Proxy) CutSession(id int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut(func(l *link) bool { return l.session == id })
}

func (p *Proxy) cut(which func(*link) bool) {
	for _, l := range p.links {
		if which(l) {
			l.abort()
		}
	}
}

// Hold keeps back all frames of a direction, and the news that a side has closed, until Pass.
func (p *Proxy) Hold(d Direction) { p.setGate(d, func(g *gate) { g.hold = true }) }

// Discard drops all frames of a direction from now on, with those that Hold kept. Until Pass neither side
// hears that the other has closed.
func (p *Proxy) Discard(d Direction) { p.setGate(d, func(g *gate) { g.discard, g.hold = true, false }) }

// Delay passes every frame of a direction this much later than it came, in order. 0 ends it.
func (p *Proxy) Delay(d Direction, by time.Duration) { p.setGate(d, func(g *gate) { g.delay = by }) }

// Pass ends Hold, Discard and Delay of a direction. What Hold kept is delivered.
func (p *Proxy) Pass(d Direction) { p.setGate(d, func(g *gate) { *g = gate{} }) }

func (p *Proxy) setGate(d Direction, change func(*gate)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.gates[d])
	for _, l := range p.links {
		l.queues[d].poke()
	}
}

// Lose loses the next n frames of a kind that go in a direction: requests to the server, or to the client the
// replies to requests of that kind, or WatchEventFrame. The returned channel is closed when the last of them
// is lost. Several calls are worked off in their order.
func (p *Proxy) Lose(d Direction, kind Kind, n int, how Loss) <-chan struct{} {
	r := &rule{dir: d, kind: kind, how: how, left: n, done: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n < 1 {
		close(r.done)
		return r.done
	}
	p.rules = append(p.rules, r)
	return r.done
}

// loses tells whether a rule takes this frame. p.mu is held.
func (p *Proxy) loses(d Direction, kind Kind) (how Loss, lost bool) {
	for i, r := range p.rules {
		if r.dir != d || r.kind != kind {
			continue
		}
		if r.left--; r.left == 0 {
			close(r.done)
			p.rules = append(p.rules[:i:i], p.rules[i+1:]...)
		}
		return r.how, true
	}
	return 0, false
}

// Snapshot returns what passed since the proxy began or was last reset.
func (p *Proxy) Snapshot() Snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.snapshot()
}

func (p *Proxy) snapshot() Snapshot {
	s := Snapshot{Total: newCounts()}
	for _, l := range p.links {
		s.Total.add(l.counts)
		s.Conns = append(s.Conns, ConnSnapshot{
			ID: l.id, Session: l.session, Timeout: l.timeout, Greeting: l.greeting, Open: !l.aborted, Counts: l.counts.clone(),
		})
	}
	return s
}

// Reset begins to count anew, forgets connections that are closed, and returns what was counted until then.
func (p *Proxy) Reset() Snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.snapshot()
	var open []*link
	for _, l := range p.links {
		if !l.aborted {
			l.counts = newCounts()
			open = append(open, l)
		}
	}
	p.links = open
	return s
}

// Await returns when the counts are as a test wants them; ok is called with what passed so far, and again after
// every frame.
func (p *Proxy) Await(ctx context.Context, ok func(Snapshot) bool) error {
	for {
		p.mu.Lock()
		changed, s := p.changed, p.snapshot()
		p.mu.Unlock()
		if ok(s) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("zkproxy: waiting for traffic, so far %s: %w", s.Total, context.Cause(ctx))
		}
	}
}

// counted wakes Await. p.mu is held.
func (p *Proxy) counted() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Proxy) accept() {
	defer p.running.Done()
	for {
		client, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of file descriptors, most likely: that may pass, and must not be asked in a tight loop.
			time.Sleep(acceptPause)
			continue
		}
		p.mu.Lock()
		if p.closed || p.refuse {
			p.mu.Unlock()
			client.Close()
			continue
		}
		p.lastID++
		l := newLink(p, p.lastID, client)
		p.links = append(p.links, l)
		p.running.Add(1)
		go l.run(p.target)
		p.mu.Unlock()
	}
}
