package zktest

import (
	"slices"
	"strings"
	"time"
)

// Imitates ZooKeeper 3.8 and 3.9: ContainerManager. Empty containers that once had a child, and TTL nodes without
// children whose data is older than their TTL, are deleted by the leader from time to time.

func sortChanges(list []change) {
	slices.SortFunc(list, func(a, b change) int { return strings.Compare(a.path, b.path) })
}

func (cl *cluster) reapLoop() {
	cl.after(cl.cfg.ContainerInterval, cl.reapLoop)
	if !cl.canCommit() {
		return
	}
	var due []string
	for path := range cl.leader.tree.reapable {
		n := cl.leader.tree.get(path)
		if len(n.children) > 0 {
			continue
		}
		old := time.Since(time.UnixMilli(n.mtime)) > time.Duration(n.ttl)*time.Millisecond
		if n.kind == kindContainer && n.creates > 0 || n.kind == kindTTL && old {
			due = append(due, path)
		}
	}
	slices.Sort(due)
	for _, path := range due {
		cl.reap(path)
	}
}

// reap deletes a node as the container manager does.
func (cl *cluster) reap(path string) {
	t := cl.newTxn(OpDeleteContainer, 0, nil)
	t.path = path
	cl.internal(t, change{op: OpDelete, path: path, owner: cl.leader.tree.get(path).owner})
}

// internal commits a change that no client asked for.
func (cl *cluster) internal(t *txn, ch change) {
	ch = cl.leader.tree.witness(ch)
	cl.leader.tree.apply(ch, t.zxid, t.time)
	t.changes = append(t.changes, ch)
	cl.commit(t)
}
