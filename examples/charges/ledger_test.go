package main

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/go-zklock/zklock"
)

func TestLedgerBooksOnceAndRefusesSmallerTokens(t *testing.T) {
	l := ledgerOf(t)
	key := uniqueKey("fence")
	o := order{Account: "1041", Amount: 1999}
	first, found, err := l.charge(t.Context(), key, 7, o)
	if err != nil || found || first.Number == 0 || first.Account != "1041" || first.Amount != 1999 {
		t.Fatalf("%+v, %v, %v", first, found, err)
	}
	for _, token := range []zklock.Token{7, 9, 9} {
		again, found, err := l.charge(t.Context(), key, token, o)
		if err != nil || !found || again != first {
			t.Errorf("token %v: %+v, %v, %v; want %+v", token, again, found, err, first)
		}
	}
	if _, _, err := l.charge(t.Context(), key, 8, o); !errors.Is(err, errStale) {
		t.Errorf("%v, want errStale", err)
	}
	if n := charges(t, l, key); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
}

// Whatever comes at once, one row is booked. The same without the fence books a row each: nothing else in the table
// would have prevented it.
func TestLedgerWithManyAtOnce(t *testing.T) {
	const many = 10
	l := ledgerOf(t)
	o := order{Account: "1041", Amount: 1999}
	key := uniqueKey("many")
	var mu sync.Mutex
	receipts := make(map[receipt]int)
	var wg sync.WaitGroup
	for i := range 5 * many {
		wg.Go(func() {
			r, _, err := l.charge(t.Context(), key, zklock.Token(i+1), o)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				receipts[r]++
			case !errors.Is(err, errStale):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := charges(t, l, key); n != 1 || len(receipts) != 1 {
		t.Errorf("%d rows, receipts %v; want one of both", n, receipts)
	}

	control := uniqueKey("control")
	var looked sync.WaitGroup
	looked.Add(many)
	for range many {
		wg.Go(func() {
			err := pgx.BeginFunc(t.Context(), l.pool, func(tx pgx.Tx) error {
				var n int
				err := tx.QueryRow(t.Context(), `SELECT count(*) FROM charges WHERE key = $1`, control).Scan(&n)
				looked.Done()
				looked.Wait()
				if err != nil || n > 0 {
					return err
				}
				_, err = tx.Exec(t.Context(), `INSERT INTO charges (key, account, amount, token) VALUES ($1, $2, $3, 1)`, control, o.Account, o.Amount)
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := charges(t, l, control); n != many {
		t.Errorf("without the fence: %d rows, want %d: the control shows nothing", n, many)
	}
}

// A process that is stopped in its transaction does not keep the key from others.
func TestStoppedTransactionIsEnded(t *testing.T) {
	l := ledgerOf(t)
	key := uniqueKey("stopped")
	tx, err := l.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), `INSERT INTO fences (key, token) VALUES ($1, 1)`, key); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if _, _, err := l.charge(bounded(t), key, 2, order{Account: "1041", Amount: 1}); err != nil {
		t.Fatalf("after %v: %v", time.Since(began), err)
	}
	t.Logf("it waited for %v", time.Since(began).Round(time.Millisecond))
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("the stopped transaction was committed")
	}
}
