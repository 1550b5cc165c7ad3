package wire

import (
	"io"
	"net"
	"testing"
	"time"
)

// nobody is told nothing.
type nobody struct{}

func (nobody) Handshake(*Conn, Handshake) (time.Duration, error) { return time.Second, nil }
func (nobody) Up(*Conn)                                          {}
func (nobody) Down(*Conn, error)                                 {}
func (nobody) Touch(*Conn, time.Time, time.Time)                 {}
func (nobody) Proof(*Conn, time.Time)                            {}
func (nobody) Created(string, int64)                             {}
func (nobody) Plain(string)                                      {}
func (nobody) Sent(string)                                       {}
func (nobody) WatchEvent()                                       {}
func (nobody) Answered(string, time.Duration)                    {}
func (nobody) Expired(*Conn)                                     {}

// echo takes every request and gives one reply to it.
type echo struct {
	net.Conn
	reply []byte
	left  []byte
}

func (e *echo) Write(p []byte) (int, error) {
	e.left = e.reply
	return len(p), nil
}

func (e *echo) Read(p []byte) (int, error) {
	if len(e.left) == 0 {
		return 0, io.EOF
	}
	n := copy(p, e.left)
	e.left = e.left[n:]
	return n, nil
}

func (e *echo) SetDeadline(time.Time) error { return nil }
func (e *echo) Close() error                { return nil }

// BenchmarkFrames is what the wrapper adds to a request and its reply.
func BenchmarkFrames(b *testing.B) {
	path := str("/dedup/key/_c_00000000-0000-0000-0000-000000000000-lock-")
	for _, kind := range []struct {
		name           string
		request, reply []byte
	}{
		{"create", requestFrame(1, opCreate, path), replyFrame(1, 42, 0, path)},
		{"delete", requestFrame(1, opDelete, path, i32(-1)), replyFrame(1, 42, 0)},
		{"list", requestFrame(1, opGetChildren2, str("/dedup/key"), []byte{0}), replyFrame(1, 42, 0, make([]byte, 200))},
		{"proof", requestFrame(1, opMulti, i32(opCheck), []byte{0}, i32(-1), path, i32(-1)), replyFrame(1, 42, 0, multiOK(1))},
	} {
		b.Run(kind.name, func(b *testing.B) {
			raw := &echo{reply: connectResponse(7, 12_000)}
			c := New(raw, "zk1:2181", nil, time.Minute, time.Now, nobody{})
			buffer := make([]byte, 4096)
			exchange := func(request []byte) {
				if _, err := c.Write(request); err != nil {
					b.Fatal(err)
				}
				if _, err := c.Read(buffer); err != nil {
					b.Fatal(err)
				}
			}
			exchange(requestFrame(0, 0))
			raw.reply = kind.reply
			b.ReportAllocs()
			for b.Loop() {
				exchange(kind.request)
			}
		})
	}
}
