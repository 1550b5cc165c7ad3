package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/dedup/driver"
	"github.com/go-zklock/zklock/internal/hosts"
)

// What ls and show look at, in the shape that --json prints.

// keyView is one key: its lock and its record.
type keyView struct {
	Key     string          `json:"key"`
	Path    string          `json:"path"` // without the chroot
	Holder  *contenderView  `json:"holder,omitempty"`
	Waiting []contenderView `json:"waiting,omitempty"` // in the order in which they will hold
	Record  *recordView     `json:"record,omitempty"`
}

// contenderView is one lock node.
type contenderView struct {
	Identifier string       `json:"identifier"`
	Host       string       `json:"host,omitempty"`
	PID        int          `json:"pid,omitempty"`
	Session    string       `json:"session"`
	Token      zklock.Token `json:"token"`
	Since      time.Time    `json:"since"`
	Node       string       `json:"node"` // with the chroot
}

// recordView is what package dedup keeps of a key.
type recordView struct {
	State     string        `json:"state"` // running, open, done, failed, unknown, unreadable
	Attempt   int           `json:"attempt,omitempty"`
	Token     zklock.Token  `json:"token,omitempty"`
	Owner     string        `json:"owner,omitempty"`
	Message   string        `json:"message,omitempty"`
	Outcome   string        `json:"outcome,omitempty"`        // if it is text
	Bytes     []byte        `json:"outcome_base64,omitempty"` // if it is not
	Retention time.Duration `json:"retention_ns,omitempty"`
	Created   time.Time     `json:"created,omitzero"`
	Updated   time.Time     `json:"updated,omitzero"`
}

// viewer reads an ensemble.
type viewer struct {
	client *zklock.Client
	chroot string
	root   string // "" for /
}

func newViewer(client *zklock.Client, f *ensembleFlags) (*viewer, error) {
	list, err := hosts.Parse([]string{f.Servers})
	if err != nil {
		return nil, err
	}
	return &viewer{client: client, chroot: list.Chroot, root: strings.TrimRight(f.Root, "/")}, nil
}

// errAway ends what waits for an ensemble that does not answer.
var errAway = errors.New("the ensemble does not answer")

// away says whether err is no answer of the ensemble, but that there was none.
func away(err error) bool {
	return slices.ContainsFunc([]error{
		errAway, zk.ErrConnectionClosed, zk.ErrClosing, zk.ErrNoServer, zk.ErrSessionExpired, zk.ErrSessionMoved, dedup.ErrUnavailable,
	}, func(e error) bool { return errors.Is(err, e) })
}

// there says whether a client has a connection on which it gets answers.
func there(client *zklock.Client) bool {
	state := client.State()
	return state == zklock.Connected || state == zklock.Reconnected
}

// whileThere ends ctx, with errAway, when the ensemble has been away for longer than
// patience. Requests would wait for it as long as it takes.
func whileThere(ctx context.Context, client *zklock.Client, patience time.Duration) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var mu sync.Mutex
	var timer *time.Timer // runs while it is away
	look := func() {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case there(client) && timer != nil:
			timer.Stop()
			timer = nil
		case !there(client) && timer == nil:
			timer = time.AfterFunc(patience, func() { cancel(errAway) })
		}
	}
	forget := client.OnStateChange(func(zklock.StateChange) { look() })
	look()
	return ctx, func() {
		forget()
		mu.Lock()
		defer mu.Unlock()
		if timer != nil {
			timer.Stop()
		}
		cancel(nil)
	}
}

// ask makes a request that ctx bounds.
func ask[T any](ctx context.Context, request func() (T, error)) (T, error) {
	type answer struct {
		v   T
		err error
	}
	ch := make(chan answer, 1)
	go func() {
		v, err := request()
		ch <- answer{v, err}
	}()
	select {
	case a := <-ch:
		return a.v, a.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

// whole is a path with the chroot.
func (v *viewer) whole(path string) string { return cmp.Or(v.chroot+path, "/") }

// node is what a get answers.
type node struct {
	data []byte
	stat *zk.Stat
}

func (v *viewer) get(ctx context.Context, path string) (node, error) {
	return ask(ctx, func() (node, error) {
		data, stat, err := v.client.Conn().Get(v.whole(path))
		return node{data, stat}, err
	})
}

// children lists a node's, as of now; none if there is no such node.
func (v *viewer) children(ctx context.Context, path string) ([]string, error) {
	return ask(ctx, func() ([]string, error) {
		if _, err := v.client.Conn().Sync(v.whole(path)); err != nil {
			return nil, err
		}
		names, _, err := v.client.Conn().Children(v.whole(path))
		if errors.Is(err, zk.ErrNoNode) {
			return nil, nil
		}
		return names, err
	})
}

// lookAtOnce is how many keys ls asks for at a time.
const lookAtOnce = 16

// keys looks at all keys below the root that begin with prefix.
func (v *viewer) keys(ctx context.Context, prefix string) ([]keyView, error) {
	names, err := v.children(ctx, v.root)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", cmp.Or(v.root, "/"), err)
	}
	var wanted []string
	for _, name := range names {
		if strings.HasPrefix(keyOf("/"+name), prefix) {
			wanted = append(wanted, name)
		}
	}
	views := make([]*keyView, len(wanted))
	errs := make([]error, len(wanted))
	turns := make(chan struct{}, lookAtOnce)
	var wg sync.WaitGroup
	for i, name := range wanted {
		turns <- struct{}{}
		wg.Go(func() {
			views[i], errs[i] = v.key(ctx, v.root+"/"+name)
			<-turns
		})
	}
	wg.Wait()
	var found []keyView
	for _, view := range views {
		if view != nil {
			found = append(found, *view)
		}
	}
	slices.SortFunc(found, func(a, b keyView) int { return cmp.Compare(a.Key, b.Key) })
	return found, errors.Join(errs...)
}

// key looks at one; nil if there is no such node.
func (v *viewer) key(ctx context.Context, path string) (*keyView, error) {
	mutex, err := zklock.NewInterProcessMutex(v.client, path)
	if errors.Is(err, zklock.ErrInvalidPath) { // not a name that a lock can have: none of ours
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	ps, err := mutex.Participants(ctx)
	if err != nil {
		return nil, err
	}
	n, err := v.get(ctx, path)
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	view := &keyView{Key: keyOf(path), Path: path, Record: record(n, path, len(ps) > 0)}
	for i, p := range ps {
		c, err := v.contender(ctx, p)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			view.Holder = &c
		} else {
			view.Waiting = append(view.Waiting, c)
		}
	}
	return view, nil
}

// contender adds what a lock node says of its process.
func (v *viewer) contender(ctx context.Context, p zklock.Participant) (contenderView, error) {
	c := contenderView{
		Identifier: p.Identifier, Session: fmt.Sprintf("0x%x", uint64(p.SessionID)), Token: p.Token, Since: p.Since, Node: p.Path,
	}
	n, err := v.get(ctx, strings.TrimPrefix(p.Path, v.chroot))
	if err != nil && !errors.Is(err, zk.ErrNoNode) { // gone since
		return c, fmt.Errorf("read %s: %w", p.Path, err)
	}
	var says struct {
		Host string `json:"host"`
		PID  int    `json:"pid"`
	}
	if json.Unmarshal(n.data, &says) == nil {
		c.Host, c.PID = says.Host, says.PID
	}
	return c, nil
}

// record reads a node's data if it is one of package dedup's.
func record(n node, path string, claimed bool) *recordView {
	if !strings.HasPrefix(string(n.data), "zklock-dedup/") {
		return nil
	}
	r, err := driver.ParseRecord(n.data, path)
	if err != nil {
		return &recordView{State: "unreadable", Message: err.Error()}
	}
	view := &recordView{
		State: string(r.State), Attempt: r.Attempt, Token: zklock.Token(r.Token), Owner: r.Owner,
		Message: r.Message + r.Omitted, Retention: r.Retention,
		Created: time.UnixMilli(n.stat.Ctime), Updated: time.UnixMilli(n.stat.Mtime),
	}
	if r.State == driver.Running && !claimed {
		view.State = "unknown"
	}
	if utf8.Valid(r.Outcome) {
		view.Outcome = string(r.Outcome)
	} else {
		view.Bytes = r.Outcome
	}
	return view
}

// find is the path of a key that a person names: as it is, or, if there is no such node
// and it has a colon, as the scope and id of a record, which ls prints so.
func (v *viewer) find(ctx context.Context, key string) (string, error) {
	path, err := keyPath(v.root, key)
	if err != nil {
		return "", err
	}
	scope, id, colon := strings.Cut(key, ":")
	if !colon || scope == "" || id == "" {
		return path, nil
	}
	if _, err := v.get(ctx, path); !errors.Is(err, zk.ErrNoNode) {
		return path, err
	}
	scoped := v.root + "/" + dedup.Key{Scope: scope, ID: id}.String()
	if _, err := v.get(ctx, scoped); err == nil {
		return scoped, nil
	}
	return path, nil
}
