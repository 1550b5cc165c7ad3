// Package zktest is a ZooKeeper server inside a Go process, for tests. It speaks the protocol that real clients speak,
// over TCP or over in-memory connections with latency, and keeps time with package time alone, so that under
// testing/synctest a session of thirty seconds expires in microseconds.
package zktest
