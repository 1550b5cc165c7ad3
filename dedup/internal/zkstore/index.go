package zkstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock/dedup/driver"
	"github.com/go-zklock/zklock/internal/claim"
)

// The index for retention:
//
//	<root>-expiry/<time>-<shard>/<hash of key>_<uuid>   data = key
//	<root>-expiry/sweeper                               the lock of the sweeper
//	<root>-expiry/clock                                 tells the ensemble's time; data = place
//
// time is when all entries of the bucket are due, in Unix seconds. An entry is made
// with its record, in one transaction, and never without one. When it comes due the
// record says whether its time is over; if not, the entry is moved on.
const (
	indexSuffix = "-expiry"
	shards      = 16
	// A bucket covers a hundredth of the retention, within these bounds, so a listing has
	// about 1/1600 of all keys, and the index itself some 1,600 children.
	bucketsPerRetention = 100
	minBucket           = time.Second
	maxBucket           = time.Hour
)

// entryFor files a record that is written now.
func (st *Store) entryFor(key string, r driver.Record) (bucket, entry string) {
	return st.entryAt(key, r.Claim, st.now().Add(r.Retention), r.Retention)
}

func (st *Store) entryAt(key, id string, due time.Time, retention time.Duration) (bucket, entry string) {
	hash := sha256.Sum256([]byte(key))
	bucket = fmt.Sprintf("%s/%010d-%x", st.index, bucketTime(due, retention).Unix(), hash[0]%shards)
	return bucket, bucket + "/" + hex.EncodeToString(hash[:8]) + "_" + id
}

// bucketTime is the end of the bucket that a due time falls into.
func bucketTime(due time.Time, retention time.Duration) time.Time {
	width := min(max((retention/bucketsPerRetention).Round(time.Second), minBucket), maxBucket)
	return due.Add(width).Truncate(width)
}

// parseBucket returns when the entries of a child of the index are due.
func parseBucket(name string) (time.Time, bool) {
	digits, shard, ok := strings.Cut(name, "-")
	if !ok || len(digits) < 10 || len(shard) != 1 {
		return time.Time{}, false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	return time.Unix(n, 0), err == nil
}

// place is the data of the clock node.
type place struct {
	Swept   int   `json:"swept"`   // by the last pass
	Records int64 `json:"records"` // in the index, when they were last counted
	Unknown int   `json:"unknown"` // left by the last pass because their outcome is unknown
}

// refile moves an entry to where it is due.
func (st *Store) refile(ctx context.Context, s claim.Session, fence *zk.CheckVersionRequest, key, entry string, due time.Time, retention time.Duration) error {
	_, id, _ := strings.Cut(path.Base(entry), "_")
	bucket, next := st.entryAt(key, id, due, retention)
	if next == entry {
		return nil
	}
	for range 3 {
		results, err := s.Multi(ctx, fence,
			&zk.CreateRequest{Path: next, Data: []byte(key), Acl: st.c.ACL()},
			&zk.DeleteRequest{Path: entry, Version: -1})
		op, opErr := claim.FailedOp(results, err)
		if op == 1 && errors.Is(opErr, zk.ErrNoNode) {
			if err := ensure(ctx, s, bucket); err != nil {
				return err
			}
			continue
		}
		if op == 2 && errors.Is(opErr, zk.ErrNoNode) {
			return nil // gone meanwhile
		}
		return opErr
	}
	return errors.New("the bucket vanishes again and again")
}
