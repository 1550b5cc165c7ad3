package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/go-zklock/zklock"
)

// A key of charges is not UNIQUE, which in a service of one's own it should be: here the fence alone has to see to it,
// and the test counts.
const schema = `
SELECT pg_advisory_xact_lock(1041); -- two instances may start at once
CREATE TABLE IF NOT EXISTS fences (
    key   text   PRIMARY KEY,
    token bigint NOT NULL -- the largest seen
);
CREATE TABLE IF NOT EXISTS charges (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key     text   NOT NULL,
    account text   NOT NULL,
    amount  bigint NOT NULL, -- in cents
    token   bigint NOT NULL  -- of the claim under which it was made
)`

// errStale: the database has seen a larger token. Somebody else works on the key.
var errStale = errors.New("stale token")

// receipt is what the client gets. It follows from the row alone, so whoever finds the row gives the same.
type receipt struct {
	Number  int64  `json:"number"`
	Account string `json:"account"`
	Amount  int64  `json:"amount"`
}

// ledger is the database.
type ledger struct{ pool *pgxpool.Pool }

func openLedger(ctx context.Context, url string) (*ledger, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	// A process that is stopped in a transaction keeps the row of its key locked. The server then ends the transaction.
	cfg.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "2s"
	cfg.ConnConfig.RuntimeParams["statement_timeout"] = "5s"
	cfg.MaxConns = 16
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, schema); err != nil {
		pool.Close()
		return nil, fmt.Errorf("schema: %w", err)
	}
	return &ledger{pool}, nil
}

func (l *ledger) Close() { l.pool.Close() }

// charge books a charge once for a key: the token and the row in one transaction. found says that an earlier attempt
// has booked it. After an error that leaves open whether it was carried out, it may be called again, also by somebody
// else with a larger token.
func (l *ledger) charge(ctx context.Context, key string, token zklock.Token, o order) (r receipt, found bool, err error) {
	err = pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		// The fence first. It locks its row, so transactions of one key follow each other, and what the one before has
		// booked is seen by the next statement.
		var largest int64
		err := tx.QueryRow(ctx, `
			INSERT INTO fences (key, token) VALUES ($1, $2)
			ON CONFLICT (key) DO UPDATE SET token = excluded.token
				WHERE fences.token <= excluded.token
			RETURNING token`,
			key, int64(token)).Scan(&largest)
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("charge %s with %s: %w", key, token, errStale)
		}
		if err != nil {
			return err
		}
		err = tx.QueryRow(ctx, `SELECT id, account, amount FROM charges WHERE key = $1`, key).Scan(&r.Number, &r.Account, &r.Amount)
		if !errors.Is(err, pgx.ErrNoRows) {
			found = err == nil
			return err
		}
		r = receipt{Account: o.Account, Amount: o.Amount}
		return tx.QueryRow(ctx, `
			INSERT INTO charges (key, account, amount, token) VALUES ($1, $2, $3, $4)
			RETURNING id`,
			key, o.Account, o.Amount, int64(token)).Scan(&r.Number)
	})
	return r, found, err
}
