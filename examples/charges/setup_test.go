package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience bounds each wait for an event.
const patience = time.Minute

// shared are the stores of all tests.
var shared = sync.OnceValues(func() (*stores, error) {
	return startStores(settings{database: os.Getenv("DATABASE_URL"), zookeeper: os.Getenv("ZOOKEEPER")}, os.Stderr)
})

// TestMain runs the tests, or an instance: the tests start this program again with -serve.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-serve" {
		main()
		return
	}
	code := m.Run()
	if st, err := shared(); err == nil {
		st.stop()
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// storesOf are PostgreSQL and ZooKeeper. Without them there is nothing to test, and that is a failure.
func storesOf(t *testing.T) *stores {
	t.Helper()
	st, err := shared()
	if err != nil {
		t.Fatalf("the test needs PostgreSQL: %v", err)
	}
	return st
}

func ledgerOf(t *testing.T) *ledger {
	t.Helper()
	l, err := openLedger(t.Context(), storesOf(t).database)
	if err != nil {
		t.Fatalf("PostgreSQL at %s: %v", storesOf(t).database, err)
	}
	t.Cleanup(l.Close)
	return l
}

var keys atomic.Int64

// uniqueKey is a key that no other run uses, also in a database that stays.
func uniqueKey(name string) string {
	return fmt.Sprintf("%s-%x-%d", name, time.Now().UnixNano(), keys.Add(1))
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// charges counts the rows of a key. The key in the ledger ends with the one in the header.
func charges(t *testing.T, l *ledger, key string) (rows int) {
	t.Helper()
	if err := l.pool.QueryRow(t.Context(), `SELECT count(*) FROM charges WHERE key LIKE '%' || $1`, key).Scan(&rows); err != nil {
		t.Fatal(err)
	}
	return rows
}

// buffer is a log for a failure.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *buffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *buffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
