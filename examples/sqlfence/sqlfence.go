// Package sqlfence keeps an SQL table right when a worker writes after it has lost its lock.
//
// A gate cannot help a process that is stopped between the gate and the write. The token can: the table keeps the
// largest one seen for each key, and takes no write with another.
package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/go-zklock/zklock"
)

// Schema makes the table.
const Schema = `
CREATE TABLE charges (
    key    text   PRIMARY KEY,
    token  bigint NOT NULL, -- the largest seen
    amount bigint           -- NULL until charged
)
`

// ErrStale is returned when the table has seen a larger token: somebody else has the lock.
var ErrStale = errors.New("stale token")

// Begin is the first statement under the lock. It raises the fence and reads, in one statement: between two, a late
// write of the previous holder could slip in.
func Begin(ctx context.Context, db *sql.DB, key string, token zklock.Token) (charged bool, err error) {
	err = db.QueryRowContext(ctx, `
		INSERT INTO charges (key, token) VALUES ($1, $2)
		ON CONFLICT (key) DO UPDATE SET token = excluded.token
			WHERE charges.token <= excluded.token
		RETURNING amount IS NOT NULL`,
		key, int64(token)).Scan(&charged)
	if errors.Is(err, sql.ErrNoRows) {
		return false, fmt.Errorf("begin %s with %s: %w", key, token, ErrStale)
	}
	return charged, err
}

// Charge writes, if nobody has begun since. After an error that leaves open whether it was carried out it may be
// called again.
func Charge(ctx context.Context, db *sql.DB, key string, token zklock.Token, amount int64) error {
	res, err := db.ExecContext(ctx, `
		UPDATE charges SET amount = $3
		WHERE key = $1 AND token = $2`,
		key, int64(token), amount)
	if err != nil {
		return err
	}
	switch n, err := res.RowsAffected(); {
	case err != nil:
		return err
	case n == 0:
		return fmt.Errorf("charge %s with %s: %w", key, token, ErrStale)
	default:
		return nil
	}
}
