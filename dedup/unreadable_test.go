package dedup_test

import (
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
)

// A record that the sweeper may not read stays, and keeps nobody else's.
func TestRecordThatMayNotBeReadDoesNotStopTheSweeper(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start(func(_ *zklock.Config, c *dedup.Config) { c.Retention = time.Hour })
		if _, err := p.do(t.Context(), "a", says("one")); err != nil {
			t.Fatal(err)
		}
		conn := p.client.Conn()
		if _, err := conn.Create("/dedup/odd", []byte("x"), 0, zk.DigestACL(zk.PermAll, "somebody", "else")); err != nil {
			t.Fatal(err)
		}
		for _, name := range b.srv.Children("/dedup-expiry") {
			if strings.Contains(name, "-") {
				if _, err := conn.Create("/dedup-expiry/"+name+"/odd_x", []byte("odd"), 0, zk.WorldACL(zk.PermAll)); err != nil {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(time.Hour + time.Minute)
		r, err := p.Sweep(t.Context())
		if err != nil || r.Swept != 1 || r.Unusable != 1 {
			t.Errorf("%+v, %v; want one swept and one unusable", r, err)
		}
		if !b.srv.Exists("/dedup/odd") {
			t.Error("the record that may not be read is gone")
		}
		unreadable := 0
		for i, err := range p.Records(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if i.Err != nil {
				unreadable++
			}
		}
		if unreadable != 1 {
			t.Errorf("%d unreadable records are listed, want 1", unreadable)
		}
	})
}
