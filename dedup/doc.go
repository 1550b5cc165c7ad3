// Package dedup runs a function once for a key and keeps its outcome, so that a
// duplicate gets the first answer and not a second run. It is a guard for workers and
// services on top of package zklock: a lock keeps two workers apart, and does not make
// the second one stop.
//
//	guard, err := dedup.New(client, dedup.Config{})
//	defer guard.Close(ctx) // before client.Close
//
//	key := dedup.Key{Scope: "charge", ID: request.IdempotencyKey}
//	res, err := dedup.Do(ctx, guard, key, dedup.Payload(request.Body),
//		func(ctx context.Context, claim *dedup.Claim) (Receipt, error) {
//			return charge(ctx, request, claim.Token())
//		})
//	// res.Value is the receipt; res.Replayed says that it is an earlier one.
//
// # How it works
//
// A key has one record, and at most one claim: a lock node in the record's node,
// with everything that package zklock promises of a lease. The record and the claim of
// a fresh key are made in one transaction, which makes the claim the first in its
// queue. The outcome is stored and the claim removed in one transaction too, and only
// if the claim still exists and the record is as the claim wrote it. So whoever gets
// the claim next sees what the one before has stored, and an outcome once stored is
// never changed.
//
//	               Do                fn returned a value
//	(no record) ──────► running ────────────────────────► done
//	                    │  ▲   │     fn returned Permanent(err)
//	  fn returned an    │  │   └────────────────────────► failed
//	  error, or was     ▼  │ the next Do, attempt + 1
//	  never called     open
//
// "Running" without a claim means that the holder died, panicked or lost its claim:
// fn may have run, and nobody knows what came of it.
//
// # What a call gets
//
//   - Same key and payload, done: the stored outcome, with Result.Replayed.
//   - Same key, another payload, in any state: ErrKeyReused, before anything else.
//   - In progress elsewhere: it waits, up to WaitLimit, then ErrInProgress; NoWait does
//     not wait.
//   - Callers of one key in one process share one wait and one claim, and not ctx,
//     error or function. One of them runs its fn; each decodes its own value.
//   - fn returned an error: the call gets it, the record is open, the next call (or the
//     next caller that waits) runs. Permanent(err): stored as failed; every duplicate
//     gets a *FailedError.
//   - fn panicked: the outcome is unknown, and the panic goes on.
//   - fn returned Indeterminate(err), since it does not know whether it had its effect:
//     the outcome is unknown, and the call gets ErrIndeterminate joined with err.
//   - The outcome is unknown: ErrIndeterminate under Refuse, the default, until
//     somebody calls Resolve; under Reexecute fn runs again, with Attempt + 1, a larger
//     token, and Claim.Prior saying so.
//   - The outcome is too large, or cannot be encoded: the record says that the work is
//     done, without its outcome. This call gets ErrOutcomeTooLarge and the value, every
//     duplicate ErrOutcomeTooLarge.
//   - A call for the key inside its own fn, or under a lock on its path: ErrNested.
//   - The ensemble is away, or the client is suspended: ErrUnavailable at once, and
//     nothing runs. A call that has begun waits up to WaitLimit.
//   - The retention is over: the key runs again, with a larger token. A key that is a
//     UUIDv7 older than the retention and has no record is refused with ErrKeyExpired.
//   - The record has a newer format, or is corrupt: an error that says so, and the
//     record stays as it is.
//
// # What is promised
//
//   - At most one outcome is stored for a key within its retention, and every replay
//     is that outcome.
//   - fn does not run after an outcome was stored, and a call never runs fn again once
//     its commit may have been applied.
//   - Two runs of fn for one key do not overlap, as far as a lock can promise that; the
//     limits are those of package zklock. fn's ctx ends before the claim can pass on.
//   - An unknown outcome is never hidden: it is reported, counted, kept beyond its
//     retention, and listed by Unresolved.
//
// # What is not
//
// The store cannot decide the one case in which fn has had its effect, and the process
// died or lost its claim before the outcome was stored. No store can, unless the effect
// is made in it. What a caller can do, best first:
//
//  1. Write the effect and the claim's token in one transaction of the database that
//     has the effect, and refuse a smaller token than the largest written. A second run
//     finds the effect and returns it; a late first run is refused. With that,
//     Reexecute is safe. examples/charges does it.
//  2. Pass the key, or one derived from it, downstream to a service that is idempotent
//     by itself, and use Reexecute.
//  3. Keep Refuse, look downstream what happened, and call Resolve: by a reconciler
//     that goes through Unresolved, or by hand.
//
// Close the guard before the client. A client that is closed takes the claims of
// running functions with it, and their outcomes are unknown then.
//
// A plain lock on a record's path, and a record on the path of a plain lock, work:
// they queue with each other. A lock's path that is empty of others is replaced by the
// record, since the ensemble would remove a container.
//
// Tokens and records live as long as the ensemble's data. A record is not a backup of
// the outcome: keep what matters in a database.
//
// # Cost
//
// A fresh key is two quorum writes and one read, without the read with
// Config.ClaimFirst; a replay is one read; a hundred simultaneous duplicates in one
// process are what one is. A function that runs for 50 ms or longer costs one read
// more, the watch on its claim. The first key of each bucket of the index (16 for each
// hundredth of the retention) costs two writes more. The sweeper reads two nodes for
// each record that comes due, and removes up to 50 of them in one transaction.
//
// What grows with the number of keys is the ensemble's memory, and nothing else: about
// 1.2 KB a record with a small outcome in the in-process server of package zktest, which
// is the path, the record, and its entry in the index. The client keeps nothing for a
// key. The root is never listed; the largest listing is that of a bucket, about 1/1600 of
// the keys of one retention. Measured over a virtual day, made and swept (go test
// -run TestManyKeys -keys 200000 -v): 2,000 keys cost 3.2 writes each to make, 20,000
// keys 2.16 and 200,000 keys 2.02; the largest reply had 19, 26 and 26 KB; sweeping
// took 2.4, 2.0 and 2.0 reads and 1.0, 0.12 and 0.03 transactions a key.
//
// # Storage
//
// The protocol is apart from its storage: package driver says what it asks of one, and
// package deduptest tests one, and has one in memory for unit tests. The records of New are described there, and print as
// text:
//
//	<root>/<key>                                   zklock-dedup/1 {"state":"done",…}
//	<root>/<key>/_c_<uuid>-lock-<sequence>         the claim
//	<root>-expiry/<time>-<shard>/<hash>_<uuid>     the index for retention
package dedup
