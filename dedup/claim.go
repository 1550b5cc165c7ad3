package dedup

import (
	"context"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup/driver"
)

// Claim is the right of one run of fn to work on its key. It ends when fn returns.
type Claim struct {
	key   Key
	c     driver.Claim
	ctx   context.Context
	prior *Prior
}

// Prior is what the attempt before this one left.
type Prior struct {
	Attempt int          // its number
	Token   zklock.Token // its token: a store that knows it has seen something of it
	Unknown bool         // it may have done its work; otherwise it failed, or never began
	Message string       // what its fn returned, if it failed
	At      time.Time    // when it was last heard of, by the ensemble's clock
}

// Key is the key of the call.
func (c *Claim) Key() Key { return c.key }

// Token is the fencing token: it grows strictly from claim to claim of a key. Hand it
// to every store that can refuse a smaller one.
func (c *Claim) Token() zklock.Token { return zklock.Token(c.c.Token()) }

// Attempt counts the runs of fn for this key, from 1.
func (c *Claim) Attempt() int { return c.c.Record().Attempt }

// Prior is what the last attempt left; nil for the first one.
func (c *Claim) Prior() *Prior { return c.prior }

// Context is the ctx that fn was given.
func (c *Claim) Context() context.Context { return c.ctx }

// Await is the gate to pass before every step that must not be taken twice: nil while
// the claim is held; it waits while the claim is suspended, and fails once it is lost
// (*zklock.LostError) or ctx is over. It compares the clock with the deadline and
// sends nothing.
func (c *Claim) Await(ctx context.Context) error { return c.c.Await(ctx) }

// Err is nil while the claim is held or suspended. Like Await it looks at the clock.
func (c *Claim) Err() error { return c.c.Err() }

// Deadline is when the claim is lost unless the ensemble proves it again. It is for
// planning; the gates decide.
func (c *Claim) Deadline() time.Time { return c.c.Deadline() }
