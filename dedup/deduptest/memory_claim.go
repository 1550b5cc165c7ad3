package deduptest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-zklock/zklock/dedup/driver"
)

// errOver is what the gates of a claim say after Complete or GiveUp.
var errOver = errors.New("the claim is over")

// memoryClaim is a place in the queue of a record.
type memoryClaim struct {
	m       *Memory
	key     string
	id      string
	token   int64
	granted chan struct{}
	ctx     context.Context // ends with the claim, and says why
	cancel  context.CancelCauseFunc

	// Guarded by m.d.mu.
	queue *memoryRecord // nil: in none
	rec   driver.Record
}

func (c *memoryClaim) enqueueLocked(r *memoryRecord) {
	c.queue = r
	c.m.claims[c] = struct{}{}
	r.queue = append(r.queue, c)
	r.grantLocked()
}

// grantLocked tells the first in the queue that it is.
func (r *memoryRecord) grantLocked() {
	if len(r.queue) == 0 {
		return
	}
	select {
	case <-r.queue[0].granted:
	default:
		close(r.queue[0].granted)
	}
}

// leaveLocked takes the claim out of its queue.
func (c *memoryClaim) leaveLocked() {
	if c.queue == nil {
		return
	}
	r := c.queue
	c.queue = nil
	delete(c.m.claims, c)
	r.queue = slices.DeleteFunc(r.queue, func(other *memoryClaim) bool { return other == c })
	r.grantLocked()
}

func (c *memoryClaim) overLocked(err error) { c.cancel(err) }

// readLocked reads the record, if the claim is held.
func (c *memoryClaim) readLocked() error {
	if c.queue == nil {
		return driver.ErrClaimLost
	}
	rec, err := c.queue.read(c.key)
	c.rec = rec
	return err
}

// ID implements driver.Claim.
func (c *memoryClaim) ID() string { return c.id }

// Token implements driver.Claim.
func (c *memoryClaim) Token() int64 { return c.token }

// Record implements driver.Claim.
func (c *memoryClaim) Record() driver.Record {
	c.m.d.mu.Lock()
	defer c.m.d.mu.Unlock()
	return c.rec
}

// Await implements driver.Claim.
func (c *memoryClaim) Await(ctx context.Context) error {
	for {
		c.m.d.mu.Lock()
		err, suspended, changed := c.errLocked(), c.m.suspended, c.m.changed
		c.m.d.mu.Unlock()
		if err != nil || !suspended {
			return err
		}
		select {
		case <-changed:
		case <-c.ctx.Done():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Err implements driver.Claim.
func (c *memoryClaim) Err() error {
	c.m.d.mu.Lock()
	defer c.m.d.mu.Unlock()
	return c.errLocked()
}

func (c *memoryClaim) errLocked() error {
	if c.m.suspended && !time.Now().Before(c.m.deadline) {
		return driver.ErrClaimLost
	}
	return context.Cause(c.ctx)
}

// Deadline implements driver.Claim.
func (c *memoryClaim) Deadline() time.Time {
	c.m.d.mu.Lock()
	defer c.m.d.mu.Unlock()
	if c.m.suspended {
		return c.m.deadline
	}
	return time.Now().Add(MemoryTimeout)
}

// Bind implements driver.Claim.
func (c *memoryClaim) Bind(ctx context.Context) (context.Context, context.CancelFunc) {
	bound, cancel := context.WithCancelCause(context.WithValue(ctx, memoryNested{c.m, c.key}, c))
	stop := context.AfterFunc(c.ctx, func() { cancel(context.Cause(c.ctx)) })
	return bound, func() { stop(); cancel(nil) }
}

// writeLocked writes a record, if the claim is held and the record as it was.
func (c *memoryClaim) writeLocked(r driver.Record) error {
	if c.queue == nil {
		return driver.ErrClaimLost
	}
	if c.queue.version != c.rec.Version {
		return driver.ErrConflict
	}
	r.Claim, r.Token = c.id, c.token
	data, err := encode(r)
	if err != nil {
		return err
	}
	c.queue.write(data)
	return c.readLocked()
}

// Renew implements driver.Claim.
func (c *memoryClaim) Renew(ctx context.Context, r driver.Record) error {
	if err := c.Err(); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrClaimLost, err)
	}
	if err := c.m.lock(ctx); err != nil {
		return err
	}
	defer c.m.d.mu.Unlock()
	return c.writeLocked(r)
}

// endLocked ends the claim, with a record or without, once there is a connection.
func (c *memoryClaim) endLocked(r *driver.Record, then func(err error)) {
	end := func(err error) {
		if err == nil && r != nil {
			err = c.writeLocked(*r)
		}
		c.leaveLocked()
		then(err)
	}
	c.overLocked(errOver)
	if c.m.suspended && !c.m.closed {
		c.m.pending = append(c.m.pending, end)
		return
	}
	end(nil)
}

// Complete implements driver.Claim.
func (c *memoryClaim) Complete(ctx context.Context, r driver.Record) error {
	c.m.d.mu.Lock()
	if err := c.errLocked(); err != nil {
		c.leaveLocked()
		c.m.d.mu.Unlock()
		return fmt.Errorf("%w: %w", driver.ErrClaimLost, err)
	}
	result := make(chan error, 1)
	c.endLocked(&r, func(err error) { result <- err })
	c.m.d.mu.Unlock()
	select {
	case err := <-result:
		if errors.Is(err, driver.ErrClosed) {
			return fmt.Errorf("%w: %w", driver.ErrUnknown, err)
		}
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", driver.ErrUnknown, context.Cause(ctx))
	}
}

// GiveUp implements driver.Claim.
func (c *memoryClaim) GiveUp(r *driver.Record) <-chan struct{} {
	c.m.d.mu.Lock()
	defer c.m.d.mu.Unlock()
	ended := make(chan struct{})
	c.endLocked(r, func(error) { close(ended) })
	return ended
}
