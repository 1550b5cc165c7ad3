package zktest

import (
	"slices"
	"time"
)

// The calls in this file look at the server, or act on it, from the side: they need no connection, cost no client
// anything and are counted nowhere. On a server of an ensemble they look at that server's copy.

// Exists reports whether there is a node at path.
func (s *Server) Exists(path string) bool {
	s.cl.mu.Lock()
	defer s.cl.mu.Unlock()
	return s.tree.get(path) != nil
}

// Get returns a copy of a node's data, or CodeNoNode.
func (s *Server) Get(path string) ([]byte, error) {
	s.cl.mu.Lock()
	defer s.cl.mu.Unlock()
	n := s.tree.get(path)
	if n == nil {
		return nil, CodeNoNode
	}
	return slices.Clone(n.data), nil
}

// Stat returns what exists would tell a client, or CodeNoNode.
func (s *Server) Stat(path string) (Stat, error) {
	s.cl.mu.Lock()
	defer s.cl.mu.Unlock()
	n := s.tree.get(path)
	if n == nil {
		return Stat{}, CodeNoNode
	}
	return n.stat(), nil
}

// Children returns the names of a node's children, sorted; none if there is no such node.
func (s *Server) Children(path string) []string {
	s.cl.mu.Lock()
	defer s.cl.mu.Unlock()
	n := s.tree.get(path)
	if n == nil {
		return nil
	}
	names := n.childNames()
	slices.Sort(names)
	return names
}

// EphemeralsOf returns the paths of the session's ephemeral nodes, sorted.
func (s *Server) EphemeralsOf(session int64) []string {
	s.cl.mu.Lock()
	defer s.cl.mu.Unlock()
	var paths []string
	for path := range s.tree.ephemerals[session] {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return paths
}

// Watches returns how many watches are set on this server.
func (s *Server) Watches() int {
	s.cl.mu.Lock()
	defer s.cl.mu.Unlock()
	return s.watches.len()
}

// WatchedPaths returns the paths that are watched on this server, sorted.
func (s *Server) WatchedPaths() []string {
	s.cl.mu.Lock()
	defer s.cl.mu.Unlock()
	all := map[string]bool{}
	for path := range s.watches.data {
		all[path] = true
	}
	for path := range s.watches.child {
		all[path] = true
	}
	var paths []string
	for path := range all {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return paths
}

// Zxid returns the last transaction this server has applied.
func (s *Server) Zxid() int64 {
	s.cl.mu.Lock()
	defer s.cl.mu.Unlock()
	return s.tree.zxid
}

// SessionInfo describes one live session.
type SessionInfo struct {
	ID        int64
	Timeout   time.Duration // as granted by the last connect exchange seen here, otherwise by the first
	Expires   time.Time     // when it ends unless its client is heard before
	Server    string        // Addr of the server its client was last connected to
	Connected int           // open connections of the session on any server
	Client    string        // the name given to Dialer, if a connection is open
}

// Sessions returns the live sessions as the leader knows them, by id.
func (s *Server) Sessions() []SessionInfo {
	s.cl.mu.Lock()
	defer s.cl.mu.Unlock()
	var list []SessionInfo
	for _, ss := range s.cl.sessions {
		info := SessionInfo{ID: ss.id, Timeout: ss.timeout, Expires: ss.expires}
		if ss.owner != nil {
			info.Server = ss.owner.Addr()
		}
		for _, srv := range s.cl.servers {
			for _, c := range srv.sessionConns(ss.id) {
				info.Connected++
				info.Timeout, info.Client = c.timeout, c.client
			}
		}
		list = append(list, info)
	}
	slices.SortFunc(list, func(a, b SessionInfo) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return list
}

// Connections returns how many client connections are open on this server.
func (s *Server) Connections() int {
	s.cl.mu.Lock()
	defer s.cl.mu.Unlock()
	return len(s.conns)
}

// Expire ends a session now, as if it had run out: its ephemeral nodes are deleted, its connections closed. It reports
// whether there was such a session. Without a leader that can commit, it happens when there is one.
func (s *Server) Expire(session int64) bool {
	s.cl.mu.Lock()
	defer s.cl.mu.Unlock()
	if s.cl.sessions[session] == nil {
		return false
	}
	s.cl.expire(session)
	return true
}

// Reap deletes an empty container or TTL node now, as the container manager would some day. The error is CodeNoNode,
// CodeNotEmpty or, for other kinds of node, CodeBadVersion.
func (s *Server) Reap(path string) error {
	s.cl.mu.Lock()
	defer s.cl.mu.Unlock()
	if err := s.cl.operable(); err != nil {
		return err
	}
	n := s.cl.leader.tree.get(path)
	switch {
	case n == nil:
		return CodeNoNode
	case len(n.children) > 0:
		return CodeNotEmpty
	case n.kind != kindContainer && n.kind != kindTTL:
		return CodeBadVersion
	}
	s.cl.reap(path)
	return nil
}

// SetSequence sets the counter from which a parent numbers its sequential children: the next one gets n. The error is
// CodeNoNode.
func (s *Server) SetSequence(path string, n int32) error {
	s.cl.mu.Lock()
	defer s.cl.mu.Unlock()
	found := false
	for _, srv := range s.cl.servers {
		if nd := srv.tree.get(path); nd != nil {
			nd.creates = n
			found = true
		}
	}
	if !found {
		return CodeNoNode
	}
	return nil
}

// Create makes a persistent node open to everybody, as an operator at the shell would. The error is a Code.
func (s *Server) Create(path string, data []byte) error {
	return s.operate(writeOp{op: OpCreate, path: path, data: data, acl: WorldACL(), ttl: -1})
}

// Set sets a node's data whatever its version. The error is a Code.
func (s *Server) Set(path string, data []byte) error {
	return s.operate(writeOp{op: OpSetData, path: path, data: data, version: -1})
}

// Delete deletes a node without children, whoever owns it. The error is a Code.
func (s *Server) Delete(path string) error {
	return s.operate(writeOp{op: OpDelete, path: path, version: -1})
}

// operate runs an operation with all rights and without a session.
func (s *Server) operate(w writeOp) error {
	cl := s.cl
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if err := cl.operable(); err != nil {
		return err
	}
	r := &request{op: w.op, auth: []authID{{"super", ""}}}
	ch, code := cl.prepare(w, r)
	if code != CodeOK {
		return code
	}
	t := cl.newTxn(w.op, 0, nil)
	t.path = ch.path
	cl.internal(t, ch)
	return nil
}
