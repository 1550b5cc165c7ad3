// Package peers runs the locks of other libraries, and zklock beside them, as programs that all speak one line
// protocol: Curator's InterProcessMutex (Java), kazoo's Lock (Python), go-zookeeper's Lock and zklock (Go). What is
// compared or has to live together is driven the same way.
//
// A program takes the connect string, the session timeout in milliseconds and the ensemble's tick in milliseconds as
// arguments. It reads commands, one a line:
//
//	acquire PATH MS          takes the lock, waiting at most MS milliseconds (0: for as long as it takes)
//	release PATH             gives it back
//	loop PATH N MS [nodes]   N times: takes the lock, keeps it for MS milliseconds, gives it back; with "nodes" it
//	                         also says on which node
//	status                   says what the client believes, how many calls wait, and how much memory it uses
//
// and, for measuring, with the lines about it at the end of a command, so that writing them takes no time of it:
//
//	cycle PREFIX FIRST KEYS N   takes the lock of the next of KEYS paths, PREFIX/FIRST and so on, and gives it back at
//	                            once; all that N times
//	try PATH N                  asks for a lock that others hold, without waiting, N times; go-zookeeper's Lock cannot
//	guard PREFIX FIRST KEYS N   makes sure that the next of KEYS keys has an outcome, N times. With zklock that is
//	                            package dedup. With the others: take the lock, look for the record, write it if it is
//	                            not there, give the lock back. The record of PREFIX/KEY is PREFIX/KEY-record, a
//	                            persistent node
//
// A program ends its session and itself when there are no more. Commands do not wait for one another, except those of one
// path. It writes JSON objects, one a line, as package report describes them; their times are of the machine's
// monotonic clock, which all processes read alike, those in containers included. "suspended", "reconnected" and
// "lost" come when the library tells its user so.
//
// Each program does what its library's documents advise; docs/comparison.md says what that is.
package peers
