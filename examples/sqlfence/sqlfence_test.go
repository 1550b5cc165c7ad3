package sqlfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/go-zklock/zklock"
)

// table is a database/sql driver for exactly the two statements of this package, with the meaning that PostgreSQL and
// SQLite give them. It shows that the functions read the answers right, not that the SQL is.
type table struct {
	token   int64
	amount  any
	present bool
}

func (tb *table) Open(string) (driver.Conn, error)             { return tb, nil }
func (tb *table) Connect(context.Context) (driver.Conn, error) { return tb, nil }
func (tb *table) Driver() driver.Driver                        { return tb }
func (tb *table) Prepare(query string) (driver.Stmt, error)    { return &statement{tb, query}, nil }
func (tb *table) Close() error                                 { return nil }
func (tb *table) Begin() (driver.Tx, error)                    { return nil, errors.ErrUnsupported }
func (s *statement) Close() error                              { return nil }
func (s *statement) NumInput() int                             { return -1 } // not checked

type statement struct {
	*table
	query string
}

func (s *statement) Exec(args []driver.Value) (driver.Result, error) {
	if !strings.Contains(s.query, "UPDATE charges SET amount = $3") {
		return nil, fmt.Errorf("what is %s", s.query)
	}
	if !s.present || s.token != args[1] {
		return driver.RowsAffected(0), nil
	}
	s.amount = args[2]
	return driver.RowsAffected(1), nil
}

func (s *statement) Query(args []driver.Value) (driver.Rows, error) {
	if !strings.Contains(s.query, "INSERT INTO charges") {
		return nil, fmt.Errorf("what is %s", s.query)
	}
	if token, ok := args[1].(int64); !ok || s.present && s.token > token {
		return &rows{done: true}, nil
	}
	s.token, s.present = args[1].(int64), true
	return &rows{value: s.amount != nil}, nil
}

type rows struct {
	value bool
	done  bool
}

func (r *rows) Columns() []string { return []string{"charged"} }
func (r *rows) Close() error      { return nil }
func (r *rows) Next(dest []driver.Value) error {
	if r.done {
		return io.EOF
	}
	r.done, dest[0] = true, r.value
	return nil
}

func TestFence(t *testing.T) {
	ctx := t.Context()
	db := sql.OpenDB(&table{})
	defer func() { _ = db.Close() }()
	begin := func(token zklock.Token, charged bool, want error) {
		t.Helper()
		if got, err := Begin(ctx, db, "k", token); got != charged || !errors.Is(err, want) {
			t.Errorf("Begin with %s: %v, %v; want %v, %v", token, got, err, charged, want)
		}
	}
	charge := func(token zklock.Token, want error) {
		t.Helper()
		if err := Charge(ctx, db, "k", token, 5); !errors.Is(err, want) {
			t.Errorf("Charge with %s: %v, want %v", token, err, want)
		}
	}
	begin(7, false, nil)
	begin(9, false, nil)
	charge(7, ErrStale)
	begin(7, false, ErrStale)
	charge(9, nil)
	charge(9, nil) // again, as after a lost answer
	begin(11, true, nil)
	charge(9, ErrStale)
}
