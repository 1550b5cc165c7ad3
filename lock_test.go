package zklock

import (
	"testing"
	"time"
)

func TestAcquireAndRelease(t *testing.T) {
	inBubble(t, func(b *bundle) {
		c := b.connect()
		m := b.mutex(c, "/dedup/a")
		l := b.acquire(m)
		if err := l.Await(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := len(b.nodes("/dedup/a")); n != 1 {
			t.Fatalf("%d nodes", n)
		}
		time.Sleep(30 * time.Second)
		if err := l.Await(t.Context()); err != nil {
			t.Fatalf("after 30s: %v\n%s", err, b.log)
		}
		b.release(l)
		if n := len(b.nodes("/dedup/a")); n != 0 {
			t.Fatalf("%d nodes", n)
		}
		t.Logf("%+v", b.srv.Ops())
	})
}
