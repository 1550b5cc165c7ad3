package conformance

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// prepare makes the server ready for a case, with the node root if it is to have one, and returns the last transaction
// before it.
func (r *Runner) prepare(root string) (int64, error) {
	nc, err := r.Dial(1)
	if err != nil {
		return 0, err
	}
	defer func() { _ = nc.Close() }()
	o := &operator{c: newConn("operator", 1, nc)}
	o.c.send(helloFrame(0, 20*Tick, 0, make([]byte, 16), true))
	if _, err := o.next(); err != nil {
		return 0, err
	}
	if root != "" {
		var w writer
		q := args{list: []word{{text: root}, {quoted: true}}}
		q.body(&w, "create", 0)
		if code, _, err := o.ask(1, 1, w.b); err != nil || code != 0 {
			return 0, fmt.Errorf("creating %s: %s, %w", root, errorName(code), err)
		}
	} else if r.Sweep {
		var w writer
		w.int32(0)
		w.string("digest")
		w.string("super:" + SuperPassword)
		if code, _, err := o.ask(100, -4, w.b); err != nil || code != 0 {
			return 0, fmt.Errorf("super: %s, %w", errorName(code), err)
		}
		if err := o.sweep("/"); err != nil {
			return 0, err
		}
	}
	if _, _, err := o.ask(-11, 1, nil); err != nil {
		return 0, err
	}
	for f := range o.c.frames {
		if f.body == nil {
			break
		}
	}
	return o.zxid, nil
}

// operator is a session beside the case, which sees and deletes everything.
type operator struct {
	c    *conn
	zxid int64 // of the last answer
}

func (o *operator) next() ([]byte, error) {
	select {
	case f := <-o.c.frames:
		if f.body == nil {
			return nil, errors.New("the server has closed the connection")
		}
		return f.body, nil
	case <-time.After(patience):
		return nil, errors.New("the server does not answer")
	}
}

func (o *operator) ask(op, xid int32, body []byte) (code int32, r *reader, err error) {
	o.c.send(append(request{op: op, xid: xid}.header(), body...))
	answer, err := o.next()
	if err != nil {
		return 0, nil, err
	}
	r = &reader{b: answer}
	r.int32()
	o.zxid, code = r.int64(), r.int32()
	return code, r, r.err
}

// sweep deletes everything below a path.
func (o *operator) sweep(path string) error {
	var w writer
	w.string(path)
	w.bool(false)
	code, r, err := o.ask(8, 2, w.b)
	if err != nil || code != 0 {
		return err
	}
	for _, name := range r.strings() {
		child := strings.TrimSuffix(path, "/") + "/" + name
		if child == "/zookeeper" {
			continue
		}
		if err := o.sweep(child); err != nil {
			return err
		}
		var w writer
		w.string(child)
		w.int32(-1)
		// A container may be gone by now.
		if code, _, err := o.ask(2, 3, w.b); err != nil || code != 0 && code != -101 {
			return fmt.Errorf("deleting %s: %s, %w", child, errorName(code), err)
		}
	}
	return nil
}

// FindTick finds out when ticks begin: a session that is not heard any more ends exactly then.
func (r *Runner) FindTick() error {
	if !r.boundary.IsZero() {
		return nil
	}
	nc, err := r.Dial(1)
	if err != nil {
		return err
	}
	defer func() { _ = nc.Close() }()
	c := newConn("clock", 1, nc)
	c.send(helloFrame(0, 2*Tick, 0, make([]byte, 16), true))
	for f := range c.frames {
		if f.body == nil {
			r.boundary = f.at
		}
	}
	return nil
}

// waitUntil waits for a point in time: with begin, a part of a tick after the beginning of one, which becomes tick 0;
// with until, a time after that tick.
func (x *execution) waitUntil(list []word) error {
	if len(list) != 2 {
		return errors.New("a number of ticks is wanted")
	}
	n, err := strconv.ParseFloat(list[1].text, 64)
	if err != nil {
		return err
	}
	after := time.Duration(n * float64(Tick))
	if list[0].text == "begin" {
		x.zero = x.r.boundary
		for x.zero.Add(after).Before(time.Now()) {
			x.zero = x.zero.Add(Tick)
		}
	} else if x.zero.IsZero() {
		return errors.New("no begin before")
	}
	late := time.Since(x.zero.Add(after))
	if late > 0 {
		return fmt.Errorf("%v late", late)
	}
	time.Sleep(-late)
	return nil
}
