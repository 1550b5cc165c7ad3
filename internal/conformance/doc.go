// Package conformance holds zktest against real ZooKeeper servers. Its cases are text files of commands; beneath each
// command stands what real servers of two versions answered. A test of the integration module writes those answers, and
// fails when they are no longer what the servers say. A test of this package runs the same commands against zktest, in
// virtual time. The client is the package's own: it shares no code with zktest, and shows every frame that arrives.
//
// # A case
//
//	case a data watch fires once
//	a connect
//	    a connected timeout=10000 session=a password=16 bytes readOnly=false
//	a create /n "one"
//	    a #1 +2 ok "/n"
//	a getData /n watch
//	    a #2 +2 ok "one" czxid=+2 mzxid=+2 pzxid=+2 ctime=now mtime=ctime versions=0/0/0 owner=none len=3 children=0
//	a setData /n "two" -1
//	    a event NodeDataChanged "/n" SyncConnected zxid=+3
//	    a #3 +3 ok czxid=+2 …
//
// Commands start at the margin with the name of a connection. Answers are indented by four blanks; one that only one
// version gave is marked "3.8|" or "3.9|". Lines that start with "#" are comments. After each command the client pings on
// every connection and waits for the answer, so what the command brought about, on any connection, stands beneath it:
// that of the connection which spoke first, then the others in the order in which they were opened, each in the order of
// arrival. These pings are not shown.
//
// A file may begin with "server" and settings: extendedTypes (TTL nodes), servers=3 (an ensemble; "connect server=2" says
// which), together (the cases may run at the same time: each has a node of its own, $, and transaction ids are shown as
// "*"). The tick is 500 ms, containers are looked after every 500 ms.
//
// "differs 3.9: reason" after the head of a case says that zktest answers otherwise on purpose. The reason must stand in
// the documentation of zktest, and the answers must differ indeed.
//
// # What is made comparable
//
//   - A transaction id is shown relative to the start of the case, "+1" being the first transaction of it; 0 and -1 are
//     themselves, anything else before the case is "before". Ids of different servers can so be compared, steps included.
//   - A session is named after the connection that opened it. A password is "16 bytes" when new, "same" when it is the
//     session's, "zero" when it is all zeros.
//   - ctime is "now" when the machine's clock says about the same, mtime is "ctime" when both are of one transaction and
//     equal, and "later" when the transaction is a later one and the time is not an earlier one.
//   - versions is version/cversion/aversion, len is dataLength, children is numChildren.
//   - The names of children are sorted.
//   - In a case marked "unordered", the events that one command brings to one connection are sorted: several nodes of one
//     session go in the order of a hash table.
//
// # Time
//
// The end of a session is compared in ticks. A server counts ticks from its start; the client finds out where they begin
// by letting a session expire. "begin 0.3" waits until three tenths of a tick have passed since one began, and makes that
// the tick 0 of the case. "until 2.4" waits for a point in time on this scale. "silence a" stops the pings on a. "a wait"
// waits for the next frame, or the end of the connection, and shows when it came: in whole ticks, rounded to the nearest.
// Servers act when a tick begins, so this leaves half a tick, 250 ms, for delays of either side.
package conformance
