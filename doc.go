// Package zklock is a lock for ZooKeeper, with the recipe and the names of Curator's
// InterProcessMutex and the shapes of Go.
package zklock
