package zktest

import (
	"hash/fnv"
	"slices"
	"strings"
)

// Imitates ZooKeeper 3.8 and 3.9: DataTree and DataNode.

// Stat is what the server tells about a node, with the fields and units of ZooKeeper's own Stat.
type Stat struct {
	Czxid          int64 // transaction that created the node
	Mzxid          int64 // transaction that last set its data
	Ctime          int64 // when it was created, milliseconds since 1970
	Mtime          int64 // when its data was last set, milliseconds since 1970
	Version        int32 // number of times its data was set
	Cversion       int32 // number of changes of its children
	Aversion       int32 // number of changes of its ACL
	EphemeralOwner int64 // session of an ephemeral node, otherwise 0
	DataLength     int32 // bytes
	NumChildren    int32
	Pzxid          int64 // transaction that last changed its children
}

type nodeKind uint8

const (
	kindPersistent nodeKind = iota
	kindEphemeral
	kindContainer
	kindTTL
)

type node struct {
	data                []byte
	acl                 []ACL
	czxid, mzxid, pzxid int64
	ctime, mtime        int64
	version, aversion   int32
	creates             int32 // children ever created: the sequence counter, and the base of Stat.Cversion
	kind                nodeKind
	owner               int64 // session, for kindEphemeral
	ttl                 int64 // milliseconds, for kindTTL
	children            map[string]struct{}
}

// stat translates the counter of creations into the count of all changes: each create that is not listed any
// more has been deleted since.
func (n *node) stat() Stat {
	kids := int32(len(n.children))
	return Stat{
		Czxid: n.czxid, Mzxid: n.mzxid, Ctime: n.ctime, Mtime: n.mtime,
		Version: n.version, Cversion: n.creates*2 - kids, Aversion: n.aversion,
		EphemeralOwner: n.owner, DataLength: int32(len(n.data)), NumChildren: kids, Pzxid: n.pzxid,
	}
}

// tree is one server's copy of the nodes. It knows nothing of sessions, watches or connections.
type tree struct {
	nodes      map[string]*node
	ephemerals map[int64]map[string]struct{}
	reapable   map[string]struct{} // containers and TTL nodes
	zxid       int64               // last transaction applied
}

// The nodes every server has from the start; none of them can be deleted.
const (
	rootPath   = "/"
	systemPath = "/zookeeper"
	quotaPath  = "/zookeeper/quota"
	configPath = "/zookeeper/config"
)

func newTree() *tree {
	t := &tree{
		nodes:      map[string]*node{},
		ephemerals: map[int64]map[string]struct{}{},
		reapable:   map[string]struct{}{},
	}
	world := WorldACL()
	t.nodes[rootPath] = &node{data: []byte{}, acl: world, children: set("zookeeper")}
	t.nodes[systemPath] = &node{data: []byte{}, acl: world, children: set("quota", "config")}
	t.nodes[quotaPath] = &node{data: []byte{}, acl: world}
	t.nodes[configPath] = &node{data: []byte{}, acl: []ACL{{PermRead, "world", "anyone"}}, aversion: -1}
	return t
}

func set(names ...string) map[string]struct{} {
	m := make(map[string]struct{}, len(names))
	for _, n := range names {
		m[n] = struct{}{}
	}
	return m
}

// get finds a node. The empty path is the root, as in the real server.
func (t *tree) get(path string) *node {
	if path == "" {
		path = rootPath
	}
	return t.nodes[path]
}

// count is the number of nodes as the four-letter words give it: the root counts twice, under "" and under "/".
func (t *tree) count() int { return len(t.nodes) + 1 }

// childNames lists the children in an order that is the same each time and not sorted, so that a client that
// counts on sorted answers is found out.
func (n *node) childNames() []string {
	type keyed struct {
		key  uint64
		name string
	}
	list := make([]keyed, 0, len(n.children))
	for name := range n.children {
		h := fnv.New64a()
		h.Write([]byte(name))
		list = append(list, keyed{h.Sum64(), name})
	}
	slices.SortFunc(list, func(a, b keyed) int {
		if a.key != b.key {
			if a.key < b.key {
				return -1
			}
			return 1
		}
		return strings.Compare(a.name, b.name)
	})
	names := make([]string, len(list))
	for i, k := range list {
		names[i] = k.name
	}
	return names
}

// parentOf splits a path; the parent of a top-level node is the root.
func parentOf(path string) (parent, name string) {
	i := strings.LastIndexByte(path, '/')
	if i <= 0 {
		return rootPath, path[i+1:]
	}
	return path[:i], path[i+1:]
}

// change is one effect of a transaction, complete enough to be applied to any copy of the tree.
type change struct {
	op      Op // OpCreate, OpDelete, OpSetData, OpSetACL or OpCheck, which changes nothing
	path    string
	data    []byte
	acl     []ACL
	kind    nodeKind
	owner   int64
	ttl     int64
	version int32 // new version (setData) or new aversion (setACL)
	creates int32 // the parent's counter after a create

	// The lists of the node and of its parent at that moment, which say who may be told; see witness.
	nodeACL, parentACL []ACL
}

// witness notes who may be told of a change that is about to be made.
func (t *tree) witness(ch change) change {
	ch.nodeACL = ch.acl // a create makes the node with its list
	if n := t.get(ch.path); n != nil {
		ch.nodeACL = n.acl
	}
	parentPath, _ := parentOf(ch.path)
	if parent := t.get(parentPath); parent != nil {
		ch.parentACL = parent.acl
	}
	return ch
}

// apply makes one change and returns the node's Stat after it (zero for a delete) and a function that takes it
// back, for a multi that fails later on. The change has been checked, so it cannot fail.
func (t *tree) apply(ch change, zxid, now int64) (Stat, func()) {
	switch ch.op {
	case OpCreate:
		return t.create(ch, zxid, now)
	case OpDelete:
		return Stat{}, t.remove(ch.path, zxid)
	case OpSetData:
		n := t.get(ch.path)
		before := *n
		n.data, n.version, n.mzxid, n.mtime = ch.data, ch.version, zxid, now
		return n.stat(), func() {
			n.data, n.version, n.mzxid, n.mtime = before.data, before.version, before.mzxid, before.mtime
		}
	case OpSetACL:
		n := t.get(ch.path)
		acl, aversion := n.acl, n.aversion
		n.acl, n.aversion = ch.acl, ch.version
		return n.stat(), func() { n.acl, n.aversion = acl, aversion }
	}
	return Stat{}, func() {}
}

func (t *tree) create(ch change, zxid, now int64) (Stat, func()) {
	parentPath, name := parentOf(ch.path)
	parent := t.get(parentPath)
	creates, pzxid := parent.creates, parent.pzxid
	n := &node{
		data: ch.data, acl: ch.acl, kind: ch.kind, owner: ch.owner, ttl: ch.ttl,
		czxid: zxid, mzxid: zxid, pzxid: zxid, ctime: now, mtime: now,
	}
	if parent.children == nil {
		parent.children = map[string]struct{}{}
	}
	parent.children[name] = struct{}{}
	parent.creates, parent.pzxid = ch.creates, zxid
	t.link(ch.path, n)
	return n.stat(), func() {
		t.unlink(ch.path, n)
		delete(parent.children, name)
		parent.creates, parent.pzxid = creates, pzxid
	}
}

func (t *tree) remove(path string, zxid int64) func() {
	n := t.get(path)
	parentPath, name := parentOf(path)
	parent := t.get(parentPath)
	pzxid := parent.pzxid
	t.unlink(path, n)
	delete(parent.children, name)
	parent.pzxid = zxid
	return func() {
		t.link(path, n)
		parent.children[name] = struct{}{}
		parent.pzxid = pzxid
	}
}

func (t *tree) link(path string, n *node) {
	t.nodes[path] = n
	switch n.kind {
	case kindEphemeral:
		if t.ephemerals[n.owner] == nil {
			t.ephemerals[n.owner] = map[string]struct{}{}
		}
		t.ephemerals[n.owner][path] = struct{}{}
	case kindContainer, kindTTL:
		t.reapable[path] = struct{}{}
	}
}

func (t *tree) unlink(path string, n *node) {
	delete(t.nodes, path)
	switch n.kind {
	case kindEphemeral:
		delete(t.ephemerals[n.owner], path)
		if len(t.ephemerals[n.owner]) == 0 {
			delete(t.ephemerals, n.owner)
		}
	case kindContainer, kindTTL:
		delete(t.reapable, path)
	}
}

// validPath applies the rules for a whole path, in terms of Java's 16-bit characters: everything outside the basic
// plane is a surrogate pair there and therefore refused.
func validPath(path string) bool {
	if path == "" || path[0] != '/' {
		return false
	}
	if path == rootPath {
		return true
	}
	for _, r := range path {
		if r <= 0x1f || r >= 0x7f && r <= 0x9f || r >= 0xd800 && r <= 0xf8ff || r >= 0xfff0 {
			return false
		}
	}
	for part := range strings.SplitSeq(path[1:], "/") {
		if part == "" || part == "." || part == ".." {
			return false
		}
	}
	return true
}
