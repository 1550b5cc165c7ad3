package wire

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"testing"
)

// wholeFrames returns the part of b that consists of whole frames.
func wholeFrames(b []byte) int {
	n := 0
	for len(b)-n >= 4 {
		size := int(binary.BigEndian.Uint32(b[n:]))
		if size > len(b)-n-4 {
			break
		}
		n += 4 + size
	}
	return n
}

// FuzzServerAnswers feeds bytes as a server's answers, before and after a proper
// connect exchange. Whatever they are, the wrapper does not panic, passes on whole
// frames unchanged and in order, reports its end once, and takes no more memory than
// the bytes that arrived call for.
func FuzzServerAnswers(f *testing.F) {
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), false)
	f.Add(connectResponse(1, 4000), false)
	f.Add(connectResponse(0, 0), false)
	f.Add(frame(cat(i32(0), i32(4000), i64(1), i32(1<<30))), false)
	f.Add(cat(connectResponse(1, 4000), replyFrame(xidAuth, 0, 0), replyFrame(xidAuth, 0, -115)), false)
	f.Add(cat(replyFrame(1, 7, 0, str("/a-0000000001")), replyFrame(2, 8, 0, multiOK(2)), replyFrame(3, 9, 0, multiFailed(0, -101, -2))), true)
	f.Add(cat(pong(1), pong(2), replyFrame(xidWatch, -1, 0, i32(2), i32(3), str("/a")), replyFrame(4, 1, -112)), true)
	f.Add(cat(replyFrame(4, 1, -118), replyFrame(5, 1, 0)), true)
	f.Add(i32(MaxReplyFrame), true)
	f.Add(cat(i32(1<<30), make([]byte, 64)), true)
	f.Add(i32(-1), true)
	f.Add(frame(nil), true)
	f.Fuzz(func(t *testing.T, answers []byte, ready bool) {
		b := newBench(t, Auth{"digest", []byte("u:p")}, Auth{"ip", nil})
		if ready {
			b.c.auth = nil
			b.open()
			b.c.MaxReply = 1 << 30 // what is larger is replaced, and frames are not passed on unchanged
			b.send(requestFrame(1, opCreate, str("/a"), i32(0)), requestFrame(2, opMulti), requestFrame(3, opMulti), requestFrame(4, opGetData, str("/a")), requestFrame(5, opClose), ping)
		} else {
			b.send(frame(make([]byte, 44)))
		}
		b.events()
		b.raw.push(answers)
		// A reader of its own size, so that what is counted is the wrapper's.
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		var got []byte
		p := make([]byte, 4096)
		var err error
		for err == nil {
			var n int
			n, err = b.c.Read(p)
			got = append(got, p[:n]...)
		}
		runtime.ReadMemStats(&after)
		if grew := after.TotalAlloc - before.TotalAlloc; grew > 4<<20+32*uint64(len(answers)) {
			t.Errorf("%d bytes allocated for %d that arrived", grew, len(answers))
		}
		passed := got
		if !ready && len(got) > 0 {
			// Of the exchange only the connect response is passed on.
			n := 4 + int(binary.BigEndian.Uint32(got))
			if !bytes.HasPrefix(answers, got[:n]) {
				t.Fatalf("the connect response %x is not what the server sent", got[:n])
			}
			passed = got[n:]
			answers = answers[n:]
			for range b.c.auth {
				answers = answers[4+binary.BigEndian.Uint32(answers):]
			}
		}
		if !bytes.HasPrefix(answers, passed) || wholeFrames(passed) != len(passed) {
			t.Fatalf("passed on %x of %x", passed, answers)
		}
		_ = b.c.Close()
		down := 0
		for _, ev := range b.log {
			if len(ev) >= 4 && ev[:4] == "down" {
				down++
			}
		}
		if down != 1 {
			t.Fatalf("down %d times: %q", down, b.log)
		}
	})
}

// FuzzRequests feeds bytes as what the library writes.
func FuzzRequests(f *testing.F) {
	f.Add(cat(requestFrame(1, opCreate, str("/a")), ping))
	f.Add(requestFrame(1, opCreate, i32(-1)))
	f.Add(i32(8))
	f.Fuzz(func(t *testing.T, p []byte) {
		b := newBench(t).open()
		b.at(1)
		if n, err := b.c.Write(p); n != len(p) || err != nil {
			t.Fatalf("Write = %d, %v", n, err)
		}
		if !bytes.Equal(b.raw.writes[1], p) {
			t.Fatalf("%x goes out as %x", p, b.raw.writes[1])
		}
		for xid := range b.c.pending {
			b.answer(replyFrame(xid, 1, 0))
		}
	})
}
