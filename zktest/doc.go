// Package zktest is a ZooKeeper server inside a Go process, for tests and demonstrations. It speaks the protocol that
// real clients speak, over TCP or over in-memory connections with latency, and keeps time with package time alone:
// under testing/synctest a session of thirty seconds expires in microseconds. It needs neither Java nor Docker and
// nothing but the standard library. Nothing is written to disk: what a Server holds is gone with it.
//
// # A single server
//
//	srv := zktest.NewServer(t, zktest.WithLatency(time.Millisecond, time.Millisecond, seed))
//	client, err := zklock.Connect(ctx, zklock.Config{Servers: []string{srv.Addr()}, Dial: srv.Dial})
//
// [Start] does the same without a testing.T. With [Config].Listen other processes can connect too. Create, Set and Delete
// act as an operator would, Children, Get, Stat, EphemeralsOf, Sessions and Watches look at the server from the side,
// [Ops] counts requests, and [Config].OnTxn, for which a [History] is handy, sees every transaction.
//
// # An ensemble
//
// [NewEnsemble] gives several servers with one history. A follower answers reads from its own copy, which may lag
// (SetLag), and passes writes and syncs on. What clients do reaches the leader's session clock only by the follower's
// answer to a ping every half tick; a new or resumed session counts at once, a forwarded write does not. A follower
// that is cut off (CutFromPeers) goes on answering pings and reads for SyncLimit ticks and passes nothing on. A new
// leader starts a new epoch and all session clocks anew. Pause and Resume are SIGSTOP and SIGCONT, Stop and Restart end
// and start a process.
//
// # Faults
//
// A [Fault] is one line and knows whether it hit:
//
//	lost := srv.Inject(zktest.DropReply(zktest.OpCreate).Session(id))
//	hole := srv.Inject(zktest.Blackhole(zktest.ServerToClient).Client("worker-1"))
//	...
//	hole.Heal()
//
// Expire, Reap, SetSequence, Refuse, CutConnections, ForgetSessions and SetMaxSessionTimeout act at once.
//
// # In virtual time
//
// Make the server inside the bubble of testing/synctest. Its goroutines wait on channels and timers only, so the clock
// of the bubble moves on as soon as everybody waits. Give messages a latency: without one everything happens at the same
// instant, in an order that no seed repeats. With a jitter, the delay of a message follows from Config.Seed, the server,
// the name given to Dialer, the direction and the instant at which it is sent, whatever else is sent then: a run repeats
// up to the order within one instant. Give clients different names, or they share their delays.
//
// A client of package zklock needs the bubble's clock too. Its default is a real one, with which a lease outlives its
// session in virtual time, and every wait for its loss takes seconds of ours:
//
//	client, err := zklock.Connect(ctx, zklock.Config{Servers: …, Dial: srv.Dial, Clock: zktest.Clock{}})
//
// # Where it is like the real server, and where it is not
//
// It imitates ZooKeeper 3.8 and 3.9, and where they differ the one that [Config].Version names. A conformance suite of some
// hundred cases, recorded from real servers of both versions (3.8.0 and 3.9.3 as Debian builds them), compares replies,
// error codes, Stat fields, transaction ids, results of multis, watch events and their order, and the time of expiry in
// ticks. It differs on purpose in these points:
//
//   - Persistent and recursive watches, addWatch, removeWatches, checkWatches, multiRead, getEphemerals,
//     getAllChildrenNumber, whoAmI, SASL, X.509, quotas, observers and read-only mode are not there, and a client may not
//     send createSession and deleteContainer, which servers use among themselves. Such a request is answered as an
//     unknown operation: unimplemented, and the connection ends. Reconfig is always disabled.
//   - A null string where a path belongs cannot be decoded; real servers treat it in different ways.
//   - A createTTL whose flags have no TTL is refused; it ends the process of a real 3.9.3.
//   - Who has lost the right to read a node is not told of its events, whatever the version; real servers do so from
//     3.8.4 and 3.9.2 on, and those of some distributions before.
//   - Children are listed in an order that is always the same for the same names, and is not sorted.
//   - A transaction is committed when it reaches the leader, if a majority can be reached at that instant; the round trip
//     to the followers is left out. What a leader without a majority was asked to write waits, and is lost if the leader
//     has to step down.
//   - When a stopped leader goes on, sessions whose time is over are expired before anything is read; real ones race.
//   - Latencies are shown as 0 by the four-letter words; envi, crst, srst, dirs, gtmk, stmk and hash are never allowed.
//   - A connection that is idle for longer than its session lives ends with the session, not by itself.
package zktest
