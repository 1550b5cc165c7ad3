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
		{"create", opCreate, 0, str("/a-1"), "sent /a, answered create 0s, created /a 0x2a, touch 1 1, proof 0"},
		{"create with stat", opCreate2, 0, str("/a-1"), "sent /a, answered create 0s, created /a 0x2a, touch 1 1, proof 0"},
		{"container", opCreateContainer, 0, str("/a"), "sent /a, answered create 0s, created /a 0x2a, touch 1 1, proof 0"},
		{"TTL node", opCreateTTL, 0, str("/a"), "sent /a, answered create 0s, created /a 0x2a, touch 1 1, proof 0"},
		{"create refused", opCreate, -110, nil, "sent /a, answered create 0s, touch 1 1"},
		{"delete", opDelete, 0, nil, "sent /a, answered delete 0s, touch 1 1, proof 0"},
		{"delete refused", opDelete, -101, nil, "sent /a, answered delete 0s, touch 1 1"},
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

// anchorBench sends requests at given times and looks at what they prove.
type anchorBench struct {
	*bench
	xid int32
}

func newAnchorBench(t *testing.T) *anchorBench {
	return &anchorBench{bench: newBench(t).open()} // R = 2 s, T = 12 s
}

// ping is a touch that the leader knows nothing of.
func (b *anchorBench) ping(sent, answered float64) {
	b.at(sent)
	b.send(ping)
	b.at(answered)
	b.answer(pong(1))
	b.events()
}

// request sends a request and returns what was seen of its answer.
func (b *anchorBench) request(op int32, sent, answered float64, code int32, body ...[]byte) string {
	b.xid++
	b.at(sent)
	b.send(requestFrame(b.xid, op, str("/")))
	b.at(answered)
	b.answer(replyFrame(b.xid, 1, code, body...))
	return b.events()
}

func (b *anchorBench) sync(sent, answered float64) { b.request(opSync, sent, answered, 0) }

// prove sends a write; anchor is the one wanted, "" for none.
func (b *anchorBench) prove(sent, answered float64, anchor string) {
	b.t.Helper()
	ev := b.request(opMulti, sent, answered, 0, multiOK(1))
	switch _, got, proof := strings.Cut(ev, "proof "); {
	case got != anchor, proof != (anchor != ""):
		b.t.Errorf("a proof sent at %v: %s; want the anchor %q", sent, ev, anchor)
	}
}

// The anchor of a proof is the newest touch that was answered at least R before the
// proof was sent, and at least 3R/4 before something was sent that the leader has
// answered meanwhile. It is the connect exchange if there is none.
func TestAnchors(t *testing.T) {
	b := newAnchorBench(t)
	b.prove(0.5, 0.5, "0") // the connect exchange needs no delay
	b.ping(1, 1.2)
	b.prove(1.5, 1.6, "0")
	b.sync(2.5, 2.5)
	b.prove(3.1, 3.1, "0.5") // the first proof, answered at 0.5, is a touch as well
	b.sync(3.15, 3.15)
	b.prove(3.2, 3.2, "1") // exactly R after the answer
	b.ping(3.5, 3.6)
	b.sync(5.2, 5.2)
	b.prove(5.5, 5.5, "3.2")
	b.prove(5.6, 5.6, "3.5")
	// Anchored when it was sent: what is answered while it is under way is too new.
	b.ping(6, 6.1)
	b.sync(7.9, 7.9)
	b.prove(8, 10, "5.6") // answered after exactly R
	// One that was answered later may come from a leader that was stopped.
	b.prove(10.5, 12.6, "")
	b.sync(19, 19)
	b.prove(20, 20, "10.5")
	// A request that was answered late was heard of no earlier than that.
	b.ping(21, 26)
	b.sync(27.8, 27.8)
	b.prove(27.9, 27.9, "20")
	b.prove(28, 28, "21")
}

// A leader that was stopped commits what piled up before it hears what its followers
// have to report. That it ran after the report was due has to be seen in another
// answer of its, since the answer to the proof does not tell before or after.
func TestAnchorNeedsAnAnswerOfTheLeader(t *testing.T) {
	const touched = 4.0
	for _, tc := range []struct {
		name  string
		leads func(b *anchorBench)
		want  string
	}{
		{"nothing", func(*anchorBench) {}, "0"},
		{"pings", func(b *anchorBench) { b.ping(6, 6); b.ping(7, 7); b.ping(8, 8) }, "0"},
		{"a read", func(b *anchorBench) { b.request(opGetData, 6, 6, 0) }, "0"},
		{"a sync", func(b *anchorBench) { b.sync(6, 6) }, "4"},
		{"a write", func(b *anchorBench) { b.request(opSetData, 6, 6, 0) }, "4"},
		{"a delete", func(b *anchorBench) { b.request(opDelete, 6, 6, 0) }, "4"},
		{"a proof", func(b *anchorBench) { b.prove(6, 6, "0") }, "4"},
		{"a refused write", func(b *anchorBench) { b.request(opSetData, 6, 6, -101) }, "0"},
		{"a refused multi", func(b *anchorBench) { b.request(opMulti, 6, 6, 0, multiFailed(-101)) }, "0"},
		{"a refused sync", func(b *anchorBench) { b.request(opSync, 6, 6, -4) }, "0"},
		{"a sync sent 3R/4 later", func(b *anchorBench) { b.sync(5.5, 6) }, "4"},
		{"a sync sent a little sooner", func(b *anchorBench) { b.sync(5.49, 6) }, "0"},
		{"a sync answered R/100 before", func(b *anchorBench) { b.sync(6, 8.98) }, "4"},
		{"a sync answered later", func(b *anchorBench) { b.sync(6, 8.99) }, "0"},
		{"a sync that is too new, and one before it", func(b *anchorBench) { b.sync(6, 6); b.sync(8.99, 8.99) }, "4"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newAnchorBench(t)
			b.ping(touched, touched)
			tc.leads(b)
			b.prove(9, 9, tc.want)
		})
	}
}

// The same against a plain computation, over random histories: never newer than the
// rule allows, and not much older, since near requests are not kept apart.
func TestAnchorsAgainstTheRule(t *testing.T) {
	newer := 0
	for seed := range uint64(15) {
		rng := rand.New(rand.NewPCG(seed, 1))
		b := newBench(t).open()
		b.delay = time.Duration(rng.IntN(4000)) * time.Millisecond
		b.c.delay = b.delay
		thin := b.c.timeout / maxTouches
		type event struct {
			op             int32
			xid            int32
			sent, answered time.Time
		}
		var past []event // answered
		var open []event // sent and not answered, in order
		// rule is the sent time of the anchor of a write sent at now, if the answers of the
		// leader were sent earlier by off.
		rule := func(now time.Time, off time.Duration) time.Time {
			var led time.Time
			for _, q := range past {
				if q.op != opPing && !q.answered.Add(b.delay/100).After(now) && q.sent.After(led) {
					led = q.sent
				}
			}
			anchor := epoch // sent time of the connect request
			for _, old := range past {
				if !old.answered.Add(b.delay).After(now) && !old.answered.Add(b.delay*3/4).After(led.Add(-off)) && old.sent.After(anchor) {
					anchor = old.sent
				}
			}
			return anchor
		}
		xid := int32(0)
		for range 400 {
			b.clock = b.clock.Add(time.Duration(rng.IntN(400)) * time.Millisecond)
			if len(open) == 0 || rng.IntN(5) < 2 {
				xid++
				e := event{op: []int32{opMulti, opSync, opPing, opPing}[rng.IntN(4)], xid: xid, sent: b.clock}
				if e.op == opPing {
					b.send(ping)
				} else {
					b.send(requestFrame(xid, e.op, str("/")))
				}
				open = append(open, e)
				continue
			}
			e := open[0]
			open = open[1:]
			e.answered = b.clock
			b.events()
			switch e.op {
			case opPing:
				b.answer(pong(1))
			case opSync:
				b.answer(replyFrame(e.xid, 1, 0))
			default:
				b.answer(replyFrame(e.xid, 1, 0, multiOK(1)))
			}
			most, least := rule(e.sent, 0), rule(e.sent, thin).Add(-thin)
			past = append(past, e)
			if e.op != opMulti {
				continue
			}
			var got float64
			ev := b.events()
			if late := e.answered.Sub(e.sent) > b.delay; late && most.After(epoch) {
				if strings.Contains(ev, "proof") {
					t.Fatalf("seed %d: a proof answered after more than R: %s", seed, ev)
				}
				continue
			}
			if _, err := fmt.Sscanf(ev[strings.LastIndex(ev, "proof"):], "proof %g", &got); err != nil {
				t.Fatalf("seed %d: %s: %v", seed, ev, err)
			}
			anchor := epoch.Add(time.Duration(got*float64(time.Second) + 0.5))
			old := e.sent.Sub(least) >= b.c.timeout // of no use, and not kept
			if anchor.After(most) || anchor.Before(least) && !old {
				t.Fatalf("seed %d: a proof sent at %s is anchored at %v, want %s to %s", seed, sec(e.sent), got, sec(least), sec(most))
			}
			if anchor.After(epoch) {
				newer++
			}
		}
	}
	if newer < 100 {
		t.Errorf("%d proofs are anchored at something newer than the connect exchange", newer)
	}
}

// What is kept is bounded, whatever is answered: also where the leader answers nothing,
// as to a client that sends no writes.
func TestTouchesAreThinned(t *testing.T) {
	b := newBench(t).open()
	for i := range 20000 {
		b.at(1 + float64(i)/200) // 100 s, more than eight times T
		b.send(ping)
		b.answer(pong(1))
	}
	if n := len(b.c.touches); n > maxTouches {
		t.Errorf("%d touches kept", n)
	}
	// A backlog of 100 s that the leader answers all at once.
	for i := range 20000 {
		b.at(200 + float64(i)/200)
		b.send(requestFrame(int32(i), opSync, str("/")))
	}
	for i := range 20000 {
		b.answer(replyFrame(int32(i), 1, 0))
	}
	if n, m := len(b.c.touches), len(b.c.led); n > maxTouches || m > maxTouches {
		t.Errorf("%d touches and %d answers of the leader kept", n, m)
	}
}
