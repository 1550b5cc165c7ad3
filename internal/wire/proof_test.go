package wire

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// multiOK is the answer to a multi of n checks that was applied.
func multiOK(n int) (body []byte) {
	for range n {
		body = cat(body, i32(13), []byte{0}, i32(0))
	}
	return cat(body, i32(-1), []byte{1}, i32(-1))
}

// multiFailed is the answer to a multi whose operations got these codes.
func multiFailed(codes ...int32) (body []byte) {
	for _, c := range codes {
		body = cat(body, i32(-1), []byte{0}, i32(c), i32(c))
	}
	return cat(body, i32(-1), []byte{1}, i32(-1))
}

func TestProofs(t *testing.T) {
	b := newBench(t).open()
	b.at(1)
	xid := int32(0)
	for _, tc := range []struct {
		name string
		op   int32
		code int32
		body []byte
		want string
	}{
		{"create", opCreate, 0, str("/a-1"), "answered create 0s, created /a 0x2a, touch 1 1, proof 0"},
		{"create with stat", opCreate2, 0, str("/a-1"), "answered create 0s, created /a 0x2a, touch 1 1, proof 0"},
		{"container", opCreateContainer, 0, str("/a"), "answered create 0s, created /a 0x2a, touch 1 1, proof 0"},
		{"TTL node", opCreateTTL, 0, str("/a"), "answered create 0s, created /a 0x2a, touch 1 1, proof 0"},
		{"create refused", opCreate, -110, nil, "answered create 0s, touch 1 1"},
		{"delete", opDelete, 0, nil, "answered delete 0s, touch 1 1, proof 0"},
		{"delete refused", opDelete, -101, nil, "answered delete 0s, touch 1 1"},
		{"set", opSetData, 0, nil, "answered setData 0s, touch 1 1, proof 0"},
		{"set ACL", opSetACL, 0, nil, "answered other 0s, touch 1 1, proof 0"},
		{"multi", opMulti, 0, multiOK(3), "answered multi 0s, touch 1 1, proof 0"},
		{"an empty multi", opMulti, 0, multiOK(0), "answered multi 0s, touch 1 1, proof 0"},
		// A multi that failed says code 0 in its header.
		{"multi failed", opMulti, 0, multiFailed(0, -101, -2), "answered multi 0s, touch 1 1"},
		{"multi failed at once", opMulti, 0, multiFailed(-102), "answered multi 0s, touch 1 1"},
		{"multi refused", opMulti, -101, nil, "answered multi 0s, touch 1 1"},
		{"multi of an expired session", opMulti, 0, multiFailed(0, -112), "answered multi 0s, expired"},
		{"multi, expired after another error", opMulti, 0, multiFailed(-101, -112), "answered multi 0s, expired"},
		{"read", opGetData, 0, nil, "answered getData 0s, touch 1 1"},
		{"list", opGetChildren2, 0, nil, "answered getChildren 0s, touch 1 1"},
		{"exists", opExists, 0, nil, "answered exists 0s, touch 1 1"},
		{"sync", 9, 0, nil, "answered other 0s, touch 1 1"},
		{"set watches", 101, 0, nil, "answered other 0s, touch 1 1"},
	} {
		xid++
		b.send(requestFrame(xid, tc.op, str("/a"), i32(0)))
		b.answer(replyFrame(xid, 0x2a, tc.code, tc.body))
		b.want(tc.name, tc.want)
	}
}

// An answer that ends in the middle of an error proves nothing.
func TestCutMultiIsNoProof(t *testing.T) {
	whole := multiFailed(-101)
	for n := range whole[:13] {
		b := newBench(t).open()
		b.send(requestFrame(1, opMulti))
		b.answer(replyFrame(1, 1, 0, whole[:n]))
		if ev := b.events(); strings.Contains(ev, "proof") {
			t.Errorf("the first %d of %d bytes: %s", n, len(whole), ev)
		}
	}
}

func TestCloseAcknowledged(t *testing.T) {
	b := newBench(t).open()
	b.send(requestFrame(1, opClose))
	if b.c.CloseAcknowledged() {
		t.Error("acknowledged before the answer")
	}
	b.answer(replyFrame(1, 5, 0))
	if !b.c.CloseAcknowledged() {
		t.Error("not acknowledged")
	}
}

// The anchor of a proof is the newest touch that was answered at least R before the
// proof was sent, and the connect exchange if there is none.
func TestAnchors(t *testing.T) {
	b := newBench(t).open() // R = 2 s
	touch := func(sent, answered float64) {
		b.at(sent)
		b.send(ping)
		b.at(answered)
		b.answer(pong(1))
		b.events()
	}
	xid := int32(0)
	prove := func(sent, answered float64, anchor string) {
		t.Helper()
		xid++
		b.at(sent)
		b.send(requestFrame(xid, opMulti))
		b.at(answered)
		b.answer(replyFrame(xid, 1, 0, multiOK(1)))
		if ev := b.events(); !strings.HasSuffix(ev, "proof "+anchor) {
			t.Errorf("a proof sent at %v: %s; want the anchor %s", sent, ev, anchor)
		}
	}
	prove(0.5, 0.5, "0") // the connect exchange needs no delay
	touch(1, 1.2)
	prove(1.5, 1.6, "0")
	prove(3.1, 3.1, "0.5") // the first proof, answered at 0.5, is a touch as well
	prove(3.2, 3.2, "1")   // exactly R after the answer
	touch(3.5, 3.6)
	prove(5.5, 5.5, "3.2")
	prove(5.6, 5.6, "3.5")
	// Anchored when it was sent: what is answered while it is under way is too new.
	touch(6, 6.1)
	prove(8, 10, "5.6") // answered after exactly R
	// One that was answered later may come from a leader that was stopped.
	xid++
	b.at(10.5)
	b.send(requestFrame(xid, opMulti))
	b.at(12.6)
	b.answer(replyFrame(xid, 1, 0, multiOK(1)))
	if ev := b.events(); strings.Contains(ev, "proof") {
		t.Errorf("a proof answered after more than R: %s", ev)
	}
	prove(20, 20, "10.5")
	// A request that was answered late was heard of no earlier than that.
	touch(21, 26)
	prove(27.9, 27.9, "20")
	prove(28, 28, "21")
}

// The same against a plain computation, over random histories: never newer than the
// rule allows, and older by T/200 at most, since near touches are not kept apart.
func TestAnchorsAgainstTheRule(t *testing.T) {
	for seed := range uint64(15) {
		rng := rand.New(rand.NewPCG(seed, 1))
		b := newBench(t).open()
		b.delay = time.Duration(rng.IntN(4000)) * time.Millisecond
		b.c.delay = b.delay
		thin := b.c.timeout / maxTouches
		type event struct{ sent, answered time.Time }
		touches := []event{}
		open := []event{} // sent and not answered, in order
		var xids []int32
		xid := int32(0)
		for range 300 {
			b.clock = b.clock.Add(time.Duration(rng.IntN(400)) * time.Millisecond)
			if len(open) > 0 && rng.IntN(2) == 0 {
				e := open[0]
				open = open[1:]
				e.answered = b.clock
				want := epoch // sent time of the connect request
				for _, old := range touches {
					if !old.answered.Add(b.delay).After(e.sent) && old.sent.After(want) {
						want = old.sent
					}
				}
				b.events()
				b.answer(replyFrame(xids[0], 1, 0, multiOK(1)))
				xids = xids[1:]
				touches = append(touches, e)
				var got float64
				ev := b.events()
				if late := e.answered.Sub(e.sent) > b.delay; late && want.After(epoch) {
					if strings.Contains(ev, "proof") {
						t.Fatalf("seed %d: a proof answered after more than R: %s", seed, ev)
					}
					continue
				}
				if _, err := fmt.Sscanf(ev[strings.LastIndex(ev, "proof"):], "proof %g", &got); err != nil {
					t.Fatalf("seed %d: %s: %v", seed, ev, err)
				}
				off := want.Sub(epoch) - time.Duration(got*float64(time.Second)+0.5)
				if off < 0 || off > thin {
					t.Fatalf("seed %d: a proof sent at %s is anchored at %v, want %s (or %v older)", seed, sec(e.sent), got, sec(want), thin)
				}
				continue
			}
			xid++
			b.send(requestFrame(xid, opMulti))
			open = append(open, event{sent: b.clock})
			xids = append(xids, xid)
		}
	}
}

func TestTouchesAreThinned(t *testing.T) {
	b := newBench(t).open()
	for i := range 2000 {
		b.at(1 + float64(i)/2000)
		b.send(ping)
		b.answer(pong(1))
	}
	if n := len(b.c.touches); n > maxTouches {
		t.Errorf("%d touches kept", n)
	}
}
