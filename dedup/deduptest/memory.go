package deduptest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/go-zklock/zklock/dedup/driver"
)

// Limits of a Memory.
const (
	// MemoryMaxOutcome is what Memory.MaxOutcome returns, in bytes.
	MemoryMaxOutcome = 1 << 20
	// MemoryTimeout is how long claims outlive Suspend.
	MemoryTimeout = 5 * time.Second
)

// Memory is a driver.Store that keeps everything in memory, for unit tests of what is
// built on package dedup:
//
//	guard, err := dedup.NewWithStore(deduptest.NewMemory(), dedup.Config{})
//
// It passes Run. It is one process of those that share its data; Another is the next.
// Time is that of package time, so it works under testing/synctest. Close the guard
// first, and then the Memory, if it is closed at all: it has no goroutines.
type Memory struct {
	d *memoryData

	// Guarded by d.mu.
	suspended bool
	deadline  time.Time                 // of the claims, while suspended
	expiry    *time.Timer               // at the deadline
	closed    bool                      // or killed
	changed   chan struct{}             // closed and replaced with each change of the above
	claims    map[*memoryClaim]struct{} // that are in a queue
	pending   []func(err error)         // ends of claims, until the connection is back
	closing   chan struct{}
}

// memoryData is what processes share.
type memoryData struct {
	mu      sync.Mutex
	records map[string]*memoryRecord
	token   int64
	swept   time.Time
}

// memoryRecord is a record and the queue for its claim, whose first has it.
type memoryRecord struct {
	data             []byte
	version          int64
	created, updated time.Time
	queue            []*memoryClaim
}

var _ driver.Store = (*Memory)(nil)

// NewMemory makes an empty store.
func NewMemory() *Memory {
	return (&memoryData{records: make(map[string]*memoryRecord)}).open()
}

func (d *memoryData) open() *Memory {
	return &Memory{d: d, changed: make(chan struct{}), claims: make(map[*memoryClaim]struct{}), closing: make(chan struct{})}
}

// Another opens the same data as another process would.
func (m *Memory) Another() *Memory { return m.d.open() }

// Close ends the process in good order. Its claims are gone.
func (m *Memory) Close() {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	if m.closed {
		return
	}
	close(m.closing)
	m.endLocked(driver.ErrClosed)
}

// Kill ends the process without a word. Its claims are gone, and calls fail.
func (m *Memory) Kill() {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	m.endLocked(driver.ErrClosed)
}

func (m *Memory) endLocked(err error) {
	m.closed = true
	if m.expiry != nil {
		m.expiry.Stop()
	}
	m.loseLocked(err)
	m.changedLocked()
}

// Lose takes the claims of the process away. It goes on, and its claims say that they
// are lost.
func (m *Memory) Lose() {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	m.loseLocked(driver.ErrClaimLost)
}

func (m *Memory) loseLocked(err error) {
	for c := range m.claims {
		c.leaveLocked()
		c.overLocked(err)
	}
	m.settleLocked(err)
}

// Suspend cuts the process's connection: its calls wait, and its claims are lost after
// MemoryTimeout. resume puts it back.
func (m *Memory) Suspend() (resume func()) {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	if !m.suspended && !m.closed {
		m.suspended, m.deadline = true, time.Now().Add(MemoryTimeout)
		m.expiry = time.AfterFunc(MemoryTimeout, m.Lose)
		m.changedLocked()
	}
	return m.resume
}

func (m *Memory) resume() {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	if !m.suspended || m.closed {
		return
	}
	m.suspended = false
	m.expiry.Stop()
	m.settleLocked(nil)
	m.changedLocked()
}

// settleLocked ends the claims whose end was waiting.
func (m *Memory) settleLocked(err error) {
	pending := m.pending
	m.pending = nil
	for _, end := range pending {
		end(err)
	}
}

func (m *Memory) changedLocked() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// Put writes the bytes of a record past the driver, as a person or another build would.
func (m *Memory) Put(key string, data []byte) {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	rec := m.d.records[key]
	if rec == nil {
		rec = newMemoryRecord()
		m.d.records[key] = rec
	}
	rec.write(slices.Clone(data))
}

// lock waits for the connection and takes the lock of the data.
func (m *Memory) lock(ctx context.Context) error {
	for {
		m.d.mu.Lock()
		switch {
		case m.closed:
			m.d.mu.Unlock()
			return driver.ErrClosed
		case ctx.Err() != nil:
			m.d.mu.Unlock()
			return context.Cause(ctx)
		case !m.suspended:
			return nil
		}
		changed := m.changed
		m.d.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// Available implements driver.Store.
func (m *Memory) Available() error {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	switch {
	case m.closed:
		return driver.ErrClosed
	case m.suspended:
		return errors.New("the connection is suspended")
	}
	return nil
}

// Closing implements driver.Store.
func (m *Memory) Closing() <-chan struct{} { return m.closing }

type memoryNested struct {
	m   *Memory
	key string
}

// Nested implements driver.Store.
func (m *Memory) Nested(ctx context.Context, key string) bool {
	c, _ := ctx.Value(memoryNested{m, key}).(*memoryClaim)
	return c != nil && c.ctx.Err() == nil
}

func newMemoryRecord() *memoryRecord { return &memoryRecord{version: -1} }

// write sets the bytes of a record.
func (r *memoryRecord) write(data []byte) {
	r.data, r.updated = data, time.Now()
	if r.version++; r.version == 0 {
		r.created = r.updated
	}
}

// read decodes a record. Nothing of it is shared.
func (r *memoryRecord) read(key string) (driver.Record, error) {
	rec, err := driver.ParseRecord(slices.Clone(r.data), key)
	if err != nil {
		return driver.Record{}, err
	}
	rec.Version, rec.Created, rec.Updated = r.version, r.created, r.updated
	return rec, nil
}

func (m *Memory) readLocked(key string) (*memoryRecord, driver.Record, error) {
	r := m.d.records[key]
	if r == nil {
		return nil, driver.Record{}, driver.ErrNotFound
	}
	rec, err := r.read(key)
	return r, rec, err
}

// encode is MarshalBinary with the store's limit.
func encode(r driver.Record) ([]byte, error) {
	if len(r.Outcome) > MemoryMaxOutcome {
		return nil, fmt.Errorf("%w: the outcome has %d bytes", driver.ErrTooLarge, len(r.Outcome))
	}
	return r.MarshalBinary()
}

// Lookup implements driver.Store.
func (m *Memory) Lookup(ctx context.Context, key string, _ bool) (driver.Record, error) {
	if err := m.lock(ctx); err != nil {
		return driver.Record{}, err
	}
	defer m.d.mu.Unlock()
	_, rec, err := m.readLocked(key)
	return rec, err
}

// Begin implements driver.Store. There are no strangers to wait for.
func (m *Memory) Begin(ctx context.Context, key string, r driver.Record, _ bool) (driver.Claim, error) {
	if m.Nested(ctx, key) {
		return nil, driver.ErrNested
	}
	if err := m.lock(ctx); err != nil {
		return nil, err
	}
	defer m.d.mu.Unlock()
	_, there, err := m.readLocked(key)
	switch {
	case err == nil:
		return nil, &driver.ExistsError{Record: there}
	case !errors.Is(err, driver.ErrNotFound):
		return nil, err
	}
	c := m.newClaimLocked(key)
	r.Claim, r.Token = c.id, c.token
	data, err := encode(r)
	if err != nil {
		return nil, err
	}
	rec := newMemoryRecord()
	rec.write(data)
	m.d.records[key] = rec
	c.enqueueLocked(rec)
	return c, c.readLocked()
}

// Queue implements driver.Store.
func (m *Memory) Queue(ctx context.Context, key string, wait bool) (driver.Claim, error) {
	if m.Nested(ctx, key) {
		return nil, driver.ErrNested
	}
	if err := m.lock(ctx); err != nil {
		return nil, err
	}
	rec, _, err := m.readLocked(key)
	if err == nil && !wait && len(rec.queue) > 0 {
		err = driver.ErrClaimed
	}
	if err != nil {
		m.d.mu.Unlock()
		return nil, err
	}
	c := m.newClaimLocked(key)
	c.enqueueLocked(rec)
	m.d.mu.Unlock()
	select {
	case <-c.granted:
		err = m.lock(ctx)
	case <-c.ctx.Done():
		return nil, context.Cause(c.ctx)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		m.d.mu.Lock()
	}
	defer m.d.mu.Unlock()
	if err == nil {
		err = c.readLocked()
	}
	if err != nil {
		c.leaveLocked()
		c.overLocked(err)
		return nil, err
	}
	return c, nil
}

func (m *Memory) newClaimLocked(key string) *memoryClaim {
	m.d.token++
	c := &memoryClaim{m: m, key: key, id: uuid.NewString(), token: m.d.token, granted: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	return c
}

// Sweep implements driver.Store.
func (m *Memory) Sweep(ctx context.Context, opts driver.SweepOptions) (driver.SweepReport, error) {
	if err := m.lock(ctx); err != nil {
		return driver.SweepReport{Records: -1}, err
	}
	evicted := make(map[string]driver.Record)
	defer func() { // without the lock
		for key, rec := range evicted {
			if opts.Evicted != nil {
				opts.Evicted(key, rec)
			}
		}
	}()
	defer m.d.mu.Unlock()
	now := time.Now()
	report := driver.SweepReport{Records: int64(len(m.d.records)), Time: now}
	if opts.Interval > 0 && !m.d.swept.IsZero() && now.Before(m.d.swept.Add(opts.Interval)) {
		return report, driver.ErrClaimed
	}
	m.d.swept = now
	for key, r := range m.d.records {
		rec, err := r.read(key)
		switch {
		case err != nil:
			report.Unusable++
		case now.Before(rec.Updated.Add(rec.Retention)):
		case len(r.queue) > 0:
			report.Moved++
		case rec.State == driver.Running && !opts.Unknown:
			report.Unknown++
		default:
			delete(m.d.records, key)
			evicted[key] = rec
			report.Swept++
		}
	}
	report.Records = int64(len(m.d.records))
	return report, nil
}

// Scan implements driver.Store.
func (m *Memory) Scan(ctx context.Context, f func(key string, r driver.Record, claimed bool, err error) error) error {
	if err := m.lock(ctx); err != nil {
		return err
	}
	type found struct {
		key     string
		rec     driver.Record
		claimed bool
		err     error
	}
	all := make([]found, 0, len(m.d.records))
	for key, r := range m.d.records {
		rec, err := r.read(key)
		all = append(all, found{key, rec, len(r.queue) > 0, err})
	}
	m.d.mu.Unlock()
	for _, e := range all {
		if err := f(e.key, e.rec, e.claimed, e.err); err != nil {
			return err
		}
	}
	return nil
}

// MaxOutcome implements driver.Store.
func (m *Memory) MaxOutcome(string) int { return MemoryMaxOutcome }

// Attrs implements driver.Store.
func (m *Memory) Attrs(string) []slog.Attr { return nil }
