package zktest

import "time"

type serverStats struct{ received, sent int64 }

type connStats struct {
	established    time.Time
	received, sent int64
	lastCxid       int64
	lastOp         Op
	lastZxid       int64
	watched        map[string]struct{}
}

func isCommand(w string) bool { return w == "ruok" }

func (c *conn) command(w string) {
	c.push(frame{b: []byte("imok")})
	c.finish("command")
}
