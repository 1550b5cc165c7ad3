// Package zklock is a lock for teams that run ZooKeeper: Curator's
// InterProcessMutex in Go's shapes, with leases that end before the ensemble can
// give the lock to somebody else.
//
// # Use
//
//	client, err := zklock.Connect(ctx, zklock.Config{Servers: []string{"zk1:2181,zk2:2181,zk3:2181"}})
//	key, err := zklock.EscapeKey(event.ID)
//	mutex, err := zklock.NewInterProcessMutex(client, "/dedup/"+key)
//	err = mutex.Do(ctx, func(ctx context.Context, lease *zklock.Lease) error {
//		if err := lease.Await(ctx); err != nil { // pauses while suspended, fails when lost
//			return err
//		}
//		return charge(ctx, event, lease.Token())
//	})
//
// A lock is an ephemeral sequential child of its path. The first in the queue
// holds the lock; each of the others watches only the one before it. A Client is
// one ZooKeeper session at a time and holds any number of locks.
//
// # A lease
//
//	              proof                     Release
//	          ┌───────────┐           ┌──────────────────► Released
//	          ▼           │           │
//	Acquire ► Held ──► Suspended ─────┤
//	          │  connection gone,     │
//	          │  or a proof overdue   │
//	          └───────────────────────┴──────────────────► Lost
//	             deadline passed, session over, node deleted, Close
//
// While a lease is Suspended its context goes on and Await blocks: pause. When it
// is Lost its context is cancelled with a *LostError as the cause and Await returns
// that error: abort. Lost and Released are final.
//
// # The trust window
//
// The ensemble expires a session when its leader has not heard of it for T, the
// session timeout that the server granted. The client cannot see what the leader
// has heard. It can compute a time until which the leader must have kept the
// session, the trust deadline
//
//	D = sent(anchor) + T − T/100
//
// where the anchor is a request that was answered at least one tick (Config.TickTime)
// before a write was sent that the ensemble has committed since. Three facts are
// behind it. A follower tells the leader which sessions it has heard from when the
// leader asks, every half tick while that runs, and nothing else does: a write that it
// forwards does not count as hearing. A server that is cut off from the others goes on
// answering pings and reads for up to syncLimit ticks, but commits no write; so the
// commit shows that the server was part of the quorum after it had reported the anchor.
// And a leader that was stopped goes on with the requests that piled up before it hears
// what its followers have to report. So two more things are asked for. Between the
// anchor and the write, the leader has answered another request, a write or a sync, that
// was sent at least three quarters of a tick after the anchor was answered: it ran when
// the report was due. And a commit that took longer than a tick is no proof. One percent
// is for clocks that run at different speeds.
//
// While something is held, a proof goes out every H = T/6: one transaction of check
// operations on the nodes held, which changes nothing and fires no watch. It costs
// about as much as a setData. While nothing is held, a sync goes out every H, which the
// leader answers and which writes nothing, so that a first lease finds a fresh anchor.
// Halfway between them goes a ping, or a sync if something is held and T is 12 ticks or
// more. A proof or sync that is unanswered when the next one is due suspends; one that
// is unanswered for 2H closes the connection, so that the client moves to another server
// and often keeps its leases or its places in line. With a short T, where the leases
// would not last until then, the connection is closed after H already.
//
// A tick here is what Config.TickTime says. The longer T is in ticks, the further ahead
// the deadline of a healthy holder stays: at least 0.1 T with 2 ticks, the shortest that
// servers grant, 0.3 T with 3 and 0.4 T from 6 on.
//
// # What is promised
//
// Safety:
//
//   - S1. At the ensemble, at most one live session owns the first node in the queue
//     of a path.
//   - S2. A lease's context is cancelled, and its gates (Await, Err, State) say lost,
//     before the ensemble can give the lock to somebody else: also when no packet
//     arrives at all, when the holder's server is cut off from the quorum and still
//     answers, and when a listener or the logger blocks. The one exception is somebody
//     who deletes the lock node by hand: that is seen as fast as a watch travels.
//   - S3. Tokens grow strictly from holder to holder of a path, for as long as the
//     ensemble lives, also when the path was removed and made again.
//   - S4. A process that was stopped (SIGSTOP, a long garbage collection, system
//     suspend) and wakes up after its deadline is told so by the first gate it passes,
//     because gates compare the clock with the deadline and wait for no event.
//
// Liveness:
//
//   - L1. No ghosts. While connected, a node of ours is gone before the call that
//     gave it up returns or one round trip after, on every path: timeout, cancel, lost
//     replies, Close. Without a connection it is gone at most T + 1.5 ticks after our
//     last packet reached a server. A change of leader restarts that time, and an
//     ensemble without a quorum expires nothing.
//   - L2. A waiter wakes within T even if every watch is lost.
//   - L3. ctx bounds every call and the requests inside it, with a silent network too.
//     It bounds the wait, never the hold. Do, which has to release, returns at most
//     100 ms after its ctx has ended and its function has returned.
//
// # What is not promised
//
//   - Code that runs between two gates is not stopped. A process that is stopped
//     right after a gate and continued a minute later does its next step before it
//     can notice anything. Only the store can refuse that step: by the token (refuse
//     a smaller one than the largest seen), or, if the store is this ensemble, by
//     Lease.Guard in the same transaction.
//   - In a virtual machine that was paused, or restored from a snapshot, even the
//     clocks may have stood still. Then the gates are wrong until the next answer
//     arrives. Only the token, or Verify, helps there.
//   - The clock that counts suspend is CLOCK_BOOTTIME, on Linux. Elsewhere the
//     monotonic clock is used, which may stand still while the system sleeps.
//   - The trust window takes it that a leader which goes on after a stop asks its
//     followers for their overdue reports within a hundredth of a tick of answering a
//     request. One that is stopped again within that time, before it has asked, and goes
//     on and commits a write before it asks then, can make the deadline late by as long
//     as it was stopped, if the holder's server is cut off from it in that very moment.
//   - With TrustConnection, S2 does not hold while the holder's server is cut off from
//     the quorum.
//   - Order is that of the sequence numbers, not of the calls: two processes that
//     call at the same time are ordered by the ensemble, and a waiter whose session is
//     lost goes to the end of the queue. Inside a process it is first come, first served.
//   - A lock does not make the second worker stop: once it holds, it runs. Whoever
//     wants a duplicate to get the first answer has to store that answer.
//
// # What the caller owes
//
//  1. TickTime must not be smaller than the ensemble's tickTime, and must be twice
//     that behind observer masters. The default is safe up to a tick of 3 s.
//  2. All servers need the same minSessionTimeout and maxSessionTimeout.
//  3. Pass a gate, or look at the context, before every step that must not be taken
//     twice; hand Lease.Token to every store that can compare it.
//  4. Give Acquire a ctx that ends.
//  5. The ACL must let this client read, create and delete in the lock path.
//  6. Do not Close the *zk.Conn that Client.Conn returns, and do not keep it.
//
// # Failures, and what happens
//
//   - Connection lost for less than the trust window: Suspended, then Held again
//     after a proof, with the same node and token. Waiters keep their place.
//   - The server cut off from the others: Suspended within 2H and on another server
//     within 3H, if there is one. Waiters move too.
//   - Connection lost for longer, or no other server: Lost with TrustExpired. The
//     client opens a new session, waiters queue again.
//   - Session expired or replaced by the ensemble: Lost with SessionExpired or
//     SessionReplaced.
//   - Reply to the create lost: the node is found by its uuid and adopted, or proved
//     absent. Reply to the delete lost: sent again; a missing node is then success.
//   - Caller's ctx ends: Acquire returns at once; the node goes in the background.
//   - Function of Do still running when its lease is lost: the node stays until it
//     returns or the session ends. A plain Lease that is lost keeps its node until
//     Release or the end of the session; so release in any case.
//
// # Cost
//
// A client sends one proof every H while it holds anything, however much that is, one
// sync every H while it holds nothing, and a ping or sync halfway.
//
// An uncontended acquire and release on a path used in the last minute are two
// writes and one read, and one more read (the watch on the own node) if the lease is
// held for 50 ms or longer. A fresh path costs a look at what exists, and no write
// more: it is made together with the first node in it. TryAcquire on a held path costs
// one read. A release wakes exactly one waiter. Goroutines of one process that wait for
// one path have at most two nodes between them, and take about 5 KiB of memory each,
// their stacks included. While three or more of them are there, a hand-over is one write
// and one read: the next but one gets its node in the transaction that deletes the
// holder's. A queue of
// 20,000 nodes is listed in one reply of 1.3 MB, which is read whole: jute.maxbuffer
// limits what a client sends. A request over Config.MaxBuffer is refused before it is
// sent; of a reply over 256 MB only the size is kept, and the call that needs it fails.
//
// # Other clients
//
// Nodes are named as Curator's InterProcessMutex names them, so services that use
// Curator, go-zookeeper's Lock (on the same path) or kazoo's Lock with
// extra_lock_patterns=["-lock-"] take turns with ours. Children of other names are
// ignored.
package zklock
