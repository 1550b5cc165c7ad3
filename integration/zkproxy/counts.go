package zkproxy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Counts say what passed the proxy, in one connection or in all.
type Counts struct {
	// Requests are the client's frames by kind, counted when they are read, so also those that a fault then
	// withheld from the server. Pings are among them.
	Requests map[Kind]int
	// Replies are the server's answers by the kind of the request, counted when they are read.
	Replies map[Kind]int
	// Events are the watch events that were passed on to the client, by path.
	Events map[string]int
	// Dropped are the frames that faults took out.
	Dropped int
	// Undecoded are the frames that the proxy could not read. It is 0 unless the proxy is wrong.
	Undecoded int
}

func newCounts() Counts {
	return Counts{Requests: make(map[Kind]int), Replies: make(map[Kind]int), Events: make(map[string]int)}
}

// Of returns the number of requests of the kinds.
func (c Counts) Of(kinds ...Kind) int {
	n := 0
	for _, kind := range kinds {
		n += c.Requests[kind]
	}
	return n
}

// Writes returns the number of requests that go through the quorum and change something.
func (c Counts) Writes() int { return c.Of(Writes...) }

// Reads returns the number of requests that read.
func (c Counts) Reads() int { return c.Of(Reads...) }

// Proofs returns the number of multis that only check.
func (c Counts) Proofs() int { return c.Of(Proof) }

// WatchEvents returns the number of watch events that were passed on.
func (c Counts) WatchEvents() int {
	n := 0
	for _, of := range c.Events {
		n += of
	}
	return n
}

// String lists the counts in a line, for the log of a test.
func (c Counts) String() string {
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(c.Requests)) {
		parts = append(parts, fmt.Sprintf("%s %d", kind, c.Requests[kind]))
	}
	parts = append(parts, fmt.Sprintf("watch events %d", c.WatchEvents()))
	if c.Dropped > 0 {
		parts = append(parts, fmt.Sprintf("dropped %d", c.Dropped))
	}
	if c.Undecoded > 0 {
		parts = append(parts, fmt.Sprintf("undecoded %d", c.Undecoded))
	}
	return strings.Join(parts, ", ")
}

func (c Counts) clone() Counts {
	c.Requests, c.Replies, c.Events = maps.Clone(c.Requests), maps.Clone(c.Replies), maps.Clone(c.Events)
	return c
}

func (c *Counts) add(other Counts) {
	addAll(c.Requests, other.Requests)
	addAll(c.Replies, other.Replies)
	addAll(c.Events, other.Events)
	c.Dropped += other.Dropped
	c.Undecoded += other.Undecoded
}

func addAll[K cmp.Ordered](to, from map[K]int) {
	for key, n := range from {
		to[key] += n
	}
}

// ConnSnapshot is one connection and what passed it.
type ConnSnapshot struct {
	// ID counts the connections of a proxy from 1.
	ID int
	// Session is the id that the server gave, 0 before it did.
	Session int64
	// Timeout is the session timeout that the server granted, in milliseconds.
	Timeout int32
	// Greeting is the server's answer to the request for a session, with its length in front; nil before it came.
	Greeting []byte
	// Open tells whether the connection stands.
	Open bool
	Counts
}

// Snapshot is what passed a proxy since it began or was last reset.
type Snapshot struct {
	Total Counts
	// Conns are all connections that stand or were closed since, in the order in which they came.
	Conns []ConnSnapshot
}

// Session returns the counts of one session over all its connections.
func (s Snapshot) Session(id int64) Counts {
	sum := newCounts()
	for _, conn := range s.Conns {
		if conn.Session == id {
			sum.add(conn.Counts)
		}
	}
	return sum
}
