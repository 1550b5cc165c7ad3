package payments

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/go-zklock/zklock"
)

// ErrStale is what the ledger answers to a token that is smaller than one it has seen for the key: the lock has
// been given to somebody else since.
var ErrStale = errors.New("refused by the ledger: the token is stale")

// Entry is one line of the ledger.
type Entry struct {
	// Op is "begin", the first word of a holder about a key, or "charge".
	Op     string       `json:"op"`
	Key    string       `json:"key"`
	Token  zklock.Token `json:"token"`
	Worker string       `json:"worker"`
	// Of a charge.
	Account  string `json:"account,omitempty"`
	Amount   int64  `json:"amount,omitempty"`
	Currency string `json:"currency,omitempty"`
}

// Ledger is where charges go, for any number of processes on one machine. It stands in for a payment provider's
// or a database's fence: of each key it remembers the largest token, and refuses smaller ones.
//
// It is a file that is only ever appended to, an entry a line. Whether an entry counts follows from the entries
// before it, by a rule that every reader applies alike: one whose key has a larger token further up is refused.
// So nobody locks the file, and a process that is stopped in the middle of something holds up nobody. The file
// has to be on a local file system, where appended lines do not mix.
//
// It does not reject a second charge of a key, as most of the world outside does not: telling from Begin's answer
// that there is nothing left to do is the holder's part.
type Ledger struct {
	path  string
	fence bool

	mu   sync.Mutex
	f    *os.File
	read int64 // how much of the file book has
	book *Book
}

// OpenLedger opens the ledger in the file called path, which it makes if there is none. With fence off it takes
// any token, to show what that leads to.
func OpenLedger(path string, fence bool) (*Ledger, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	return &Ledger{path: path, fence: fence, f: f, book: newBook(fence)}, nil
}

// Path is the file's name.
func (l *Ledger) Path() string { return l.path }

// Close closes the file.
func (l *Ledger) Close() error { return l.f.Close() }

// Charged says whether the key has been charged. It is a look without a token and so it decides nothing; Begin does.
func (l *Ledger) Charged(key string) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.catchUp(nil); err != nil {
		return false, err
	}
	return len(l.book.Charges[key]) > 0, nil
}

// Begin is a holder's first word about a key. It raises the fence to the token and, in the same step, says whether
// the key has been charged. In two steps an older holder's charge could slip in between them.
func (l *Ledger) Begin(key string, token zklock.Token, worker string) (charged bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	err = l.append(Entry{Op: "begin", Key: key, Token: token, Worker: worker})
	return len(l.book.Charges[key]) > 0, err
}

// Charge charges ev. After ErrStale nothing was charged.
func (l *Ledger) Charge(ev Event, token zklock.Token, worker string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.append(Entry{
		Op: "charge", Key: ev.Key, Token: token, Worker: worker,
		Account: ev.Account, Amount: ev.Amount, Currency: ev.Currency,
	})
}

// Book returns what the ledger says as of now.
func (l *Ledger) Book() (*Book, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.catchUp(nil)
	return l.book.clone(), err
}

// append writes e and finds out, by reading on to it, whether it counts.
func (l *Ledger) append(e Entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if _, err := l.f.Write(append(line, '\n')); err != nil { // one write: lines do not mix
		return err
	}
	verdict := fmt.Errorf("%s: the entry is not there after it was written", l.path)
	err = l.catchUp(func(got Entry, refused error) {
		if got == e {
			verdict = refused
		}
	})
	if err != nil {
		return err
	}
	return verdict
}

// catchUp reads what has been appended since, complete lines only: the last one may be half written.
func (l *Ledger) catchUp(each func(e Entry, refused error)) error {
	tail, err := io.ReadAll(io.NewSectionReader(l.f, l.read, 1<<62))
	if err != nil {
		return err
	}
	end := bytes.LastIndexByte(tail, '\n') + 1
	l.read += int64(end)
	return l.book.replay(l.path, bytes.NewReader(tail[:end]), each)
}

// Book is what a ledger says.
type Book struct {
	Charges map[string][]Entry // that count, by key
	Begun   map[string]Entry   // the newest holder that has begun, by key
	Refused []Entry            // charges with a stale token

	fence   bool
	largest map[string]zklock.Token
	line    int
}

func newBook(fence bool) *Book {
	return &Book{
		Charges: make(map[string][]Entry), Begun: make(map[string]Entry),
		fence: fence, largest: make(map[string]zklock.Token),
	}
}

// clone is deep enough: entries are only ever added.
func (b *Book) clone() *Book {
	c := *b
	c.Charges, c.Begun, c.largest = maps.Clone(b.Charges), maps.Clone(b.Begun), maps.Clone(b.largest)
	c.Refused = slices.Clone(b.Refused)
	return &c
}

// replay applies the rule to a ledger's next lines.
func (b *Book) replay(name string, r io.Reader, each func(e Entry, refused error)) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 2*maxLine)
	for lines.Scan() {
		b.line++
		var e Entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("%s:%d: not a ledger entry: %w", name, b.line, err)
		}
		if e.Op != "begin" && e.Op != "charge" {
			return fmt.Errorf("%s:%d: op %q is neither begin nor charge", name, b.line, e.Op)
		}
		refused := b.apply(e)
		if each != nil {
			each(e, refused)
		}
	}
	return lines.Err()
}

func (b *Book) apply(e Entry) error {
	if largest := b.largest[e.Key]; e.Token < largest {
		if b.fence {
			if e.Op == "charge" {
				b.Refused = append(b.Refused, e)
			}
			return fmt.Errorf("%w: %s has seen %s, and this is %s", ErrStale, e.Key, largest, e.Token)
		}
	} else {
		b.largest[e.Key] = e.Token
	}
	if e.Op == "begin" {
		b.Begun[e.Key] = e
	} else {
		b.Charges[e.Key] = append(b.Charges[e.Key], e)
	}
	return nil
}

// Check says whether every one of keys was charged exactly once, and nothing else was charged.
func (b *Book) Check(keys []string) error {
	var errs []error
	wanted := make(map[string]bool, len(keys))
	for _, key := range keys {
		wanted[key] = true
		switch charges := b.Charges[key]; len(charges) {
		case 0:
			errs = append(errs, fmt.Errorf("%s was not charged", key))
		case 1:
		default:
			var by []string
			for _, c := range charges {
				by = append(by, fmt.Sprintf("by %s with token %s", c.Worker, c.Token))
			}
			errs = append(errs, fmt.Errorf("%s was charged %d times: %s", key, len(charges), strings.Join(by, ", ")))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(b.Charges)) {
		if !wanted[key] {
			errs = append(errs, fmt.Errorf("%s was charged, and no event asks for it", key))
		}
	}
	return errors.Join(errs...)
}
