package zkstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	"golang.org/x/sync/errgroup"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup/driver"
	"github.com/go-zklock/zklock/internal/claim"
)

const (
	sweepReaders = 16 // reads in flight
	sweepBatch   = 50 // records removed by one transaction
	// countEvery is how many passes go by between two counts of the whole index, which
	// cost one read for each bucket.
	countEvery = 10
	// putOff is when an entry that cannot be settled now is looked at again.
	putOff = time.Hour
)

// Sweep implements driver.Store. One pass of one process at a time, which holds a
// lock for it; everything it removes is fenced by that lock's node.
func (st *Store) Sweep(ctx context.Context, opts driver.SweepOptions) (driver.SweepReport, error) {
	report := driver.SweepReport{Records: -1}
	s, err := st.c.Live(ctx)
	if err != nil {
		return report, st.refine(err)
	}
	clock := st.index + "/clock"
	data, stat, err := s.Get(ctx, clock)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		if err := ensure(ctx, s, clock); err != nil {
			return report, st.refine(err)
		}
		stat = &zk.Stat{}
	case err != nil:
		return report, st.refine(err)
	}
	var was place
	_ = json.Unmarshal(data, &was) // nothing of it is needed
	report.Records = was.Records
	st.mu.Lock()
	another := st.passes >= 0 && st.passes != stat.Version
	st.passes = stat.Version
	st.mu.Unlock()
	if another && opts.Interval > 0 {
		return report, driver.ErrClaimed // somebody has swept since we last looked
	}

	m, err := zklock.NewInterProcessMutex(st.client, st.bare+"/sweeper")
	if err != nil {
		return report, err
	}
	lease, err := m.TryAcquire(ctx)
	if err != nil {
		return report, st.refine(err)
	}
	defer func() { _ = lease.Release(ctx) }() // goes on in the background if ctx ends
	p := &pass{st: st, s: s, lease: lease, opts: opts, report: &report}
	err = p.run(ctx, clock, was, stat.Version)
	return report, st.refine(err)
}

// pass is one sweep under the sweeper's lock.
type pass struct {
	st     *Store
	s      claim.Session
	lease  *zklock.Lease
	opts   driver.SweepOptions
	report *driver.SweepReport
	now    time.Time // the ensemble's
}

func (p *pass) run(ctx context.Context, clock string, was place, version int32) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(p.lease.Context(), func() { stop(context.Cause(p.lease.Context())) })()

	// The time comes from a node that has just been written, not from this machine.
	stat, err := p.mark(ctx, clock, was)
	if err != nil {
		return err
	}
	p.now, p.report.Time = time.UnixMilli(stat.Mtime), time.UnixMilli(stat.Mtime)
	p.st.mu.Lock()
	p.st.passes = stat.Version
	p.st.mu.Unlock()

	names, err := p.s.Children(ctx, p.st.index)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		if due, ok := parseBucket(name); ok && !due.After(p.now) {
			if err := p.sweepBucket(ctx, p.st.index+"/"+name); err != nil {
				p.report.Remaining = true
				return err
			}
		}
	}
	next := place{Swept: p.report.Swept, Records: was.Records, Unknown: p.report.Unknown}
	if version%countEvery == 0 || p.report.Swept > 0 {
		if next.Records, err = p.count(ctx); err != nil {
			return err
		}
	}
	p.report.Records = next.Records
	if next == was {
		return nil
	}
	stat, err = p.mark(ctx, clock, next)
	if err == nil {
		p.st.mu.Lock()
		p.st.passes = stat.Version
		p.st.mu.Unlock()
	}
	return err
}

// mark writes the place and so learns the time.
func (p *pass) mark(ctx context.Context, clock string, at place) (*zk.Stat, error) {
	data, err := json.Marshal(at)
	if err != nil {
		return nil, err
	}
	results, err := p.s.Multi(ctx, p.lease.Guard(), &zk.SetDataRequest{Path: clock, Data: data, Version: -1})
	if err != nil {
		_, err = claim.FailedOp(results, err)
		return nil, err
	}
	return results[1].Stat, nil
}

// count adds up the children of the buckets. Nothing is listed for it.
func (p *pass) count(ctx context.Context) (int64, error) {
	names, err := p.s.Children(ctx, p.st.index)
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, name := range names {
		if _, ok := parseBucket(name); !ok {
			continue
		}
		ok, stat, err := p.s.Exists(ctx, p.st.index+"/"+name)
		if err != nil {
			return 0, err
		}
		if ok {
			sum += int64(stat.NumChildren)
		}
	}
	return sum, nil
}

// due is an entry with what its record says.
type due struct {
	entry string
	key   string
	rec   driver.Record
	stat  *zk.Stat
	err   error // the record cannot be read; errGone: the entry is gone
}

var errGone = errors.New("the entry is gone")

func (p *pass) sweepBucket(ctx context.Context, bucket string) error {
	names, err := p.s.Children(ctx, bucket)
	if errors.Is(err, zk.ErrNoNode) {
		return nil
	}
	if err != nil {
		return err
	}
	for chunk := range slices.Chunk(names, sweepBatch) {
		entries, err := p.look(ctx, bucket, chunk)
		if err != nil {
			return err
		}
		if err := p.settle(ctx, entries); err != nil {
			return err
		}
	}
	err = p.s.Delete(ctx, bucket, -1)
	if err == nil || errors.Is(err, zk.ErrNotEmpty) || errors.Is(err, zk.ErrNoNode) {
		return nil
	}
	return err
}

// look reads entries and their records, some at a time.
func (p *pass) look(ctx context.Context, bucket string, names []string) ([]due, error) {
	entries := make([]due, len(names))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(sweepReaders)
	for i, name := range names {
		g.Go(func() error {
			var err error
			entries[i], err = p.st.readEntry(ctx, p.s, bucket+"/"+name)
			return err
		})
	}
	return entries, g.Wait()
}

// readEntry reads an entry and its record. The error is of the store, not of them.
func (st *Store) readEntry(ctx context.Context, s claim.Session, entry string) (due, error) {
	d := due{entry: entry}
	key, _, err := s.Get(ctx, entry)
	if errors.Is(err, zk.ErrNoNode) {
		d.err = errGone
		return d, nil
	}
	if err != nil {
		return d, err
	}
	d.key = string(key)
	if d.key == "" || strings.ContainsRune(d.key, '/') {
		d.key, d.err = "", &driver.CorruptError{Where: entry, Why: "its data is no key"}
		return d, nil
	}
	d.rec, d.stat, d.err = st.readStat(ctx, s, d.key, false)
	if d.err == nil || driver.Unusable(d.err) || errors.Is(d.err, driver.ErrNotFound) || errors.Is(d.err, driver.ErrRefused) {
		return d, nil // one that may not be read must not keep the others
	}
	return d, d.err
}

// settle removes what is over and moves on what is not.
func (p *pass) settle(ctx context.Context, entries []due) error {
	var over []due
	for _, d := range entries {
		until := p.now.Add(putOff)
		switch {
		case errors.Is(d.err, errGone):
			continue
		case errors.Is(d.err, driver.ErrNotFound):
			// Somebody removed the record before its time; only the sweeper takes both.
			p.report.Missing++
			if err := p.deleteEntry(ctx, d); err != nil {
				return err
			}
			continue
		case d.err != nil:
			p.report.Unusable++
		case d.stat.NumChildren > 0:
			p.report.Moved++ // somebody works on it, or queues
		case p.now.Before(d.rec.Updated.Add(d.rec.Retention)):
			p.report.Moved++
			until = d.rec.Updated.Add(d.rec.Retention)
		case d.rec.State == driver.Running && !p.opts.Unknown:
			p.report.Unknown++
			until = p.now.Add(max(d.rec.Retention, minBucket))
		default:
			over = append(over, d)
			continue
		}
		if err := p.moveOn(ctx, d, until); err != nil {
			return err
		}
	}
	return p.remove(ctx, over)
}

func (p *pass) moveOn(ctx context.Context, d due, until time.Time) error {
	if d.key == "" {
		return nil // it stays where a person can find it
	}
	return p.st.refile(ctx, p.s, p.lease.Guard(), d.key, d.entry, until, d.rec.Retention)
}

func (p *pass) deleteEntry(ctx context.Context, d due) error {
	results, err := p.s.Multi(ctx, p.lease.Guard(), &zk.DeleteRequest{Path: d.entry, Version: -1})
	if op, opErr := claim.FailedOp(results, err); op != 1 || !errors.Is(opErr, zk.ErrNoNode) {
		return opErr
	}
	return nil
}

// remove deletes records with their entries: all at once, and one by one if one of
// them stands in the way.
func (p *pass) remove(ctx context.Context, over []due) error {
	if len(over) == 0 {
		return nil
	}
	ops := []any{p.lease.Guard()}
	for _, d := range over {
		ops = append(ops,
			&zk.DeleteRequest{Path: p.st.dir(d.key), Version: int32(d.rec.Version)},
			&zk.DeleteRequest{Path: d.entry, Version: -1})
	}
	results, err := p.s.Multi(ctx, ops...)
	if err == nil {
		p.report.Swept += len(over)
		if p.opts.Evicted != nil {
			for _, d := range over {
				p.opts.Evicted(d.key, d.rec)
			}
		}
		return nil
	}
	op, opErr := claim.FailedOp(results, err)
	switch {
	case op == 0:
		return fmt.Errorf("the sweeper's lock is gone: %w", opErr)
	case op < 0:
		return opErr
	case len(over) > 1:
		for _, d := range over {
			if err := p.remove(ctx, []due{d}); err != nil {
				return err
			}
		}
		return nil
	case errors.Is(opErr, zk.ErrNotEmpty), errors.Is(opErr, zk.ErrBadVersion), errors.Is(opErr, zk.ErrNoNode):
		p.report.Moved++ // somebody came; the next pass sees
		return nil
	}
	return opErr
}

// Scan implements driver.Store. It goes through the index, so it lists no more than a
// bucket at a time.
func (st *Store) Scan(ctx context.Context, f func(key string, r driver.Record, claimed bool, err error) error) error {
	s, err := st.c.Live(ctx)
	if err != nil {
		return st.refine(err)
	}
	if err := s.Sync(ctx, st.index); err != nil {
		return st.refine(err)
	}
	p := &pass{st: st, s: s}
	through := make(map[string]bool)
	for {
		names, err := s.Children(ctx, st.index)
		if errors.Is(err, zk.ErrNoNode) {
			return nil
		}
		if err != nil {
			return st.refine(err)
		}
		// The sweeper moves entries from the first buckets to later ones, so one that is
		// moved meanwhile is met there, unless its bucket was made after the listing: hence
		// another. (It would have to be moved twice to get past both.) A caller who finds a
		// new bucket every time is slower than keys are made.
		names = slices.DeleteFunc(names, func(name string) bool {
			_, ok := parseBucket(name)
			return !ok || through[name]
		})
		if len(names) == 0 {
			return nil
		}
		slices.Sort(names)
		for _, name := range names {
			through[name] = true
			if err := p.scanBucket(ctx, st.index+"/"+name, f); err != nil {
				return err
			}
		}
	}
}

func (p *pass) scanBucket(ctx context.Context, bucket string, f func(key string, r driver.Record, claimed bool, err error) error) error {
	children, err := p.s.Children(ctx, bucket)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return p.st.refine(err)
	}
	for chunk := range slices.Chunk(children, sweepBatch) {
		entries, err := p.look(ctx, bucket, chunk)
		if err != nil {
			return p.st.refine(err)
		}
		for _, d := range entries {
			if errors.Is(d.err, errGone) || errors.Is(d.err, driver.ErrNotFound) {
				continue
			}
			if err := f(d.key, d.rec, d.stat != nil && d.stat.NumChildren > 0, d.err); err != nil {
				return err
			}
		}
	}
	return nil
}
