package zklock

import (
	"fmt"
	"runtime/debug"
	"time"
)

// ConnectionState is what a Client knows about its session. The names are
// Curator's.
type ConnectionState int

const (
	// Connected: the first connection is there.
	Connected ConnectionState = iota + 1
	// Suspended: the connection is gone, or a proof was not answered before the
	// next was due. Leases are suspended; they may come back. Pause.
	Suspended
	// Reconnected: after Suspended, the session and every lease were proved; after
	// Lost, a new session is there and the old leases stay lost.
	Reconnected
	// Lost: the session is over for this process, and every lease with it. Abort. A
	// new session is being opened.
	Lost
	// Closed: Close was called.
	Closed
)

// String returns the state's name without its prefix: "Suspended", "Connected",
// "Reconnected", "Lost" or "Closed".
func (s ConnectionState) String() string {
	switch s {
	case Suspended:
		return "Suspended"
	case Connected:
		return "Connected"
	case Reconnected:
		return "Reconnected"
	case Lost:
		return "Lost"
	case Closed:
		return "Closed"
	default:
		return fmt.Sprintf("ConnectionState(%d)", int(s))
	}
}

// StateChange is what listeners get.
type StateChange struct {
	State     ConnectionState
	Previous  ConnectionState
	SessionID int64     // the session that the change is about
	At        time.Time // on Config.Clock
	Err       error     // why, for Suspended and Lost; nil otherwise
}

// State is the current state.
func (c *Client) State() ConnectionState {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// OnStateChange calls fn for every later change of state, in order, on a goroutine
// of fn's own: a slow fn delays neither other listeners nor any lease, and may call
// anything in this package. No change is left out; they queue up behind a slow fn.
// A panic in fn is logged and counted, and fn is called again for the next change.
// stop ends the calls; a call under way goes on. After Closed there are
// none. A nil fn is never called.
func (c *Client) OnStateChange(fn func(StateChange)) (stop func()) {
	l := &listener{c: c, fn: fn}
	if fn == nil {
		return func() {}
	}
	c.mu.Lock()
	c.listeners = append(c.listeners, l)
	c.mu.Unlock()
	return func() {
		c.mu.Lock()
		for i, other := range c.listeners {
			if other == l {
				c.listeners = append(c.listeners[:i:i], c.listeners[i+1:]...)
				break
			}
		}
		c.mu.Unlock()
		l.calls.stop()
	}
}

// setState moves to state and tells the listeners.
func (c *Client) setState(state ConnectionState, session int64, cause error) {
	now := c.cfg.Clock.Now()
	c.mu.Lock()
	if state == Reconnected && !c.begun {
		state = Connected
		c.begun = true
	}
	same := state == c.state || state == Reconnected && c.state == Connected
	if same || c.state == Closed {
		c.mu.Unlock()
		return
	}
	change := StateChange{State: state, Previous: c.state, SessionID: session, At: now, Err: cause}
	if c.state == Suspended && !c.suspended.IsZero() {
		c.met.suspended(now.Sub(c.suspended))
	}
	c.suspended = time.Time{}
	if state == Suspended {
		c.suspended = now
	}
	c.state = state
	// Queued under the lock, so that every listener sees the changes in order.
	for _, l := range c.listeners {
		l.calls.run(func() { l.call(change) })
	}
	c.mu.Unlock()
	if state == Reconnected {
		c.log.Info("zklock: reconnected", "event", "reconnected", "session_id", hexID(session), "previous", change.Previous.String())
	}
}

// listener delivers changes to one function.
type listener struct {
	c     *Client
	fn    func(StateChange)
	calls serial
}

func (l *listener) call(ch StateChange) {
	defer func() {
		if p := recover(); p != nil {
			l.c.met.listenerPanic()
			l.c.log.Error("zklock: a state listener panicked", "panic", fmt.Sprint(p), "state", ch.State.String(), "stack", string(debug.Stack()))
		}
	}()
	l.fn(ch)
}
