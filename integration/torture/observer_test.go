package torture

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock/integration/internal/report"
)

// head is a time for which a node was first in its queue: it was so at some moment before from and at some moment
// after until, and nobody gets before the first.
type head struct {
	node        string
	from, until int64
}

// observer reads the queues over and over. Before each round it writes: the answer comes from a server that has
// applied all that was committed before. (A sync alone could be answered by a leader that has been deposed.)
type observer struct {
	conn  *zk.Conn
	own   string
	heads map[string][]head   // by path
	queue map[string][]string // as last seen
	seen  map[string]int64    // by node: a moment not after the one when it was last seen
	gone  map[string]int64    // by node: a moment not before the one when it was first missed
}

// lookPause is how long the observer rests between two rounds.
const lookPause = 10 * time.Millisecond

func newObserver(ctx context.Context, servers []string, own string) (*observer, error) {
	conn, events, err := zk.Connect(servers, 20*time.Second, zk.WithLogger(silent{}))
	if err != nil {
		return nil, err
	}
	for {
		select {
		case ev := <-events:
			if ev.State != zk.StateHasSession {
				continue
			}
		case <-ctx.Done():
			conn.Close()
			return nil, fmt.Errorf("no session for the observer: %w", context.Cause(ctx))
		}
		break
	}
	for i := 1; i <= len(own); i++ {
		if i == len(own) || own[i] == '/' {
			if _, err := conn.Create(own[:i], nil, 0, zk.WorldACL(zk.PermAll)); err != nil && !errors.Is(err, zk.ErrNodeExists) {
				conn.Close()
				return nil, err
			}
		}
	}
	return &observer{
		conn: conn, own: own, heads: make(map[string][]head), queue: make(map[string][]string),
		seen: make(map[string]int64), gone: make(map[string]int64),
	}, nil
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// watch looks until ctx ends. What cannot be read at a time is read later.
func (o *observer) watch(ctx context.Context, paths []string) {
	for ctx.Err() == nil {
		for _, path := range paths {
			begin := report.Now()
			nodes, err := o.read(path)
			if err != nil {
				break
			}
			o.note(path, nodes, begin, report.Now())
		}
		select {
		case <-time.After(lookPause):
		case <-ctx.Done():
		}
	}
}

// read reads the lock nodes of a path in their order.
func (o *observer) read(path string) ([]string, error) {
	if _, err := o.conn.Set(o.own, nil, -1); err != nil {
		return nil, err
	}
	children, _, err := o.conn.Children(path)
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var nodes []string
	for _, child := range children {
		if strings.Contains(child, "-lock-") {
			nodes = append(nodes, path+"/"+child)
		}
	}
	slices.SortFunc(nodes, func(a, b string) int { return cmp.Compare(sequence(a), sequence(b)) })
	return nodes, nil
}

func sequence(node string) int {
	n, err := strconv.Atoi(node[len(node)-10:])
	if err != nil {
		panic(fmt.Sprintf("the node %q has no number", node))
	}
	return n
}

// note keeps what the queue of a path was at some moment between begin and end.
func (o *observer) note(path string, nodes []string, begin, end int64) {
	for _, node := range nodes {
		o.seen[node] = begin
	}
	for _, node := range o.queue[path] {
		if !slices.Contains(nodes, node) {
			o.gone[node] = end
		}
	}
	o.queue[path] = nodes
	if len(nodes) == 0 {
		return
	}
	if heads := o.heads[path]; len(heads) > 0 && heads[len(heads)-1].node == nodes[0] {
		heads[len(heads)-1].until = begin
		return
	}
	o.heads[path] = append(o.heads[path], head{node: nodes[0], from: end, until: begin})
}
