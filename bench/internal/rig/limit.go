package rig

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

// limitNode is what the limit checks and reads.
const limitNode = "/limit"

// Limit is what no recipe can be quicker than: writes that are committed and change nothing, and reads from the memory
// of the server, through the client library that zklock uses, on the server that it uses.
type Limit struct {
	conn   *zk.Conn
	number atomic.Int64 // of recipes, so that each has paths of its own
	line   []string     // nodes of HandOver
}

const (
	bareNode   = "/bare"
	bareQueues = 64
)

func newLimit(ctx context.Context, server string) (*Limit, error) {
	conn, err := connect(ctx, server)
	if err != nil {
		return nil, err
	}
	paths := []string{bareNode, bareNode + "/line", bareNode + "/index"}
	for i := range bareQueues {
		paths = append(paths, fmt.Sprintf("%s/%d", bareNode, i))
	}
	for _, p := range paths {
		if _, err := conn.Create(p, nil, 0, world); err != nil {
			conn.Close()
			return nil, fmt.Errorf("making %s: %w", p, err)
		}
	}
	return &Limit{conn: conn}, nil
}

// once makes so many writes and reads, one after the other.
func (l *Limit) once(writes, reads int) error {
	for range writes {
		if _, err := l.conn.Multi(&zk.CheckVersionRequest{Path: limitNode, Version: -1}); err != nil {
			return err
		}
	}
	for range reads {
		if _, _, err := l.conn.Get(limitNode); err != nil {
			return err
		}
	}
	return nil
}

// Sequence makes so many writes and reads, n times, and says how long each time took.
func (l *Limit) Sequence(n, writes, reads int) ([]time.Duration, error) {
	return l.repeat(n, func() error { return l.once(writes, reads) })
}

// Together lets so many workers do it at the same time, n times each, and says how often a second it was done.
func (l *Limit) Together(workers, n, writes, reads int) (took []time.Duration, rate float64, err error) {
	return l.together(workers, n, func() error { return l.once(writes, reads) })
}

// Recipe is the requests of something that zklock does, one after the other, without anything else.
type Recipe func(l *Limit) error

// Bare does a recipe n times, and says how long each time took.
func (l *Limit) Bare(n int, do Recipe) ([]time.Duration, error) {
	return l.repeat(n, func() error { return do(l) })
}

// BareTogether lets so many workers do it at the same time, n times each, and says how often a second it was done.
func (l *Limit) BareTogether(workers, n int, do Recipe) (took []time.Duration, rate float64, err error) {
	return l.together(workers, n, func() error { return do(l) })
}

func (l *Limit) repeat(n int, do func() error) ([]time.Duration, error) {
	took := make([]time.Duration, 0, n)
	for range n {
		begun := time.Now()
		if err := do(); err != nil {
			return nil, err
		}
		took = append(took, time.Since(begun))
	}
	return took, nil
}

func (l *Limit) together(workers, n int, do func() error) (took []time.Duration, rate float64, err error) {
	var mu sync.Mutex
	var group sync.WaitGroup
	begun := time.Now()
	for range workers {
		group.Go(func() {
			t, e := l.repeat(n, do)
			mu.Lock()
			defer mu.Unlock()
			took = append(took, t...)
			if e != nil {
				err = e
			}
		})
	}
	group.Wait()
	return took, float64(workers*n) / time.Since(begun).Seconds(), err
}

var (
	world = zk.WorldACL(zk.PermAll)

	// What is written is as large as what zklock writes.
	nodeData, recordData, outcomeData, entryData = make([]byte, 90), make([]byte, 190), make([]byte, 260), make([]byte, 16)
)

// AcquireAndRelease makes a node, lists the queue and deletes the node.
func AcquireAndRelease(l *Limit) error {
	dir := fmt.Sprintf("%s/%d", bareNode, l.number.Add(1)%bareQueues)
	node, err := l.conn.Create(dir+"/_c_x-lock-", nodeData, zk.FlagEphemeralSequential, world)
	if err != nil {
		return err
	}
	if _, _, err := l.conn.Children(dir); err != nil {
		return err
	}
	return l.conn.Delete(node, -1)
}

// HandOver deletes the first of two nodes and makes another in one transaction, and lists the queue.
func HandOver(l *Limit) error {
	const dir = bareNode + "/line"
	create := &zk.CreateRequest{Path: dir + "/_c_x-lock-", Data: nodeData, Acl: world, Flags: zk.FlagEphemeralSequential}
	for len(l.line) < 2 {
		node, err := l.conn.Create(create.Path, create.Data, create.Flags, world)
		if err != nil {
			return err
		}
		l.line = append(l.line, node)
	}
	results, err := l.conn.Multi(&zk.DeleteRequest{Path: l.line[0], Version: -1}, create)
	if err != nil {
		return err
	}
	l.line = append(l.line[1:], results[1].String)
	_, _, err = l.conn.Children(dir)
	return err
}

// FreshKey looks for a record, makes it with its claim and its entry in the index, and writes the outcome.
func FreshKey(l *Limit) error {
	key := fmt.Sprint(l.number.Add(1))
	record := bareNode + "/k" + key
	if _, _, err := l.conn.Get(record); !errors.Is(err, zk.ErrNoNode) {
		return fmt.Errorf("%s: %w", record, err)
	}
	results, err := l.conn.Multi(
		&zk.CreateRequest{Path: record, Data: recordData, Acl: world},
		&zk.CreateRequest{Path: record + "/_c_x-lock-", Data: nodeData, Acl: world, Flags: zk.FlagEphemeralSequential},
		&zk.CreateRequest{Path: bareNode + "/index/" + key, Data: entryData, Acl: world})
	if err != nil {
		return err
	}
	claim := results[1].String
	_, err = l.conn.Multi(
		&zk.CheckVersionRequest{Path: claim, Version: -1},
		&zk.SetDataRequest{Path: record, Data: outcomeData, Version: 0},
		&zk.DeleteRequest{Path: claim, Version: -1})
	return err
}
