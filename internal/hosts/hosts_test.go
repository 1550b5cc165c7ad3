package hosts

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		in     []string
		addrs  string
		chroot string
		err    string // part of the message; it has to name the value
	}{
		{in: []string{"zk1:2181", "zk2:2182"}, addrs: "zk1:2181 zk2:2182"},
		{in: []string{"zk1,zk2:99/app/locks/"}, addrs: "zk1:2181 zk2:99", chroot: "/app/locks"},
		{in: []string{"zk1:2181/"}, addrs: "zk1:2181"},
		{in: []string{" zk1 , zk2 "}, addrs: "zk1:2181 zk2:2181"},
		{in: []string{"[::1]:2181", "[fe80::1]"}, addrs: "[::1]:2181 [fe80::1]:2181"},
		{in: []string{"zk1:2181", "zk1:2181"}, addrs: "zk1:2181"},
		{in: nil, err: "no servers"},
		{in: []string{""}, err: "empty"},
		{in: []string{"zk1:2181,,zk2"}, err: "empty"},
		{in: []string{"::1:2181"}, err: "brackets"},
		{in: []string{"zk1:port"}, err: `"port"`},
		{in: []string{"zk1:0"}, err: `"0"`},
		{in: []string{"zk1:65536"}, err: `"65536"`},
		{in: []string{":2181"}, err: "host is missing"},
		{in: []string{"zk 1:2181"}, err: "character"},
		{in: []string{"zk1/a", "zk2/b"}, err: "two chroots"},
	} {
		l, err := Parse(tc.in)
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("Parse(%q): error %v, want one with %q", tc.in, err, tc.err)
			}
			continue
		}
		if err != nil || strings.Join(l.Addrs, " ") != tc.addrs || l.Chroot != tc.chroot {
			t.Errorf("Parse(%q) = %v, %v; want %s and chroot %q", tc.in, l, err, tc.addrs, tc.chroot)
		}
	}
}

func TestPauseOnlyBetweenRounds(t *testing.T) {
	p := NewProvider([]string{"a:1", "b:1", "c:1"}, 7)
	var pauses []time.Duration
	for range 9 {
		pauses = append(pauses, p.Pause())
	}
	for i, d := range pauses {
		round := i / 3
		switch {
		case i%3 != 0 || round == 0:
			if d != 0 {
				t.Errorf("dial %d: pause %v inside a round", i, d)
			}
		default:
			full := minPause << (round - 1)
			if d < full/2 || d > full {
				t.Errorf("dial %d: pause %v, want %v to %v", i, d, full/2, full)
			}
		}
	}
	p.Connected()
	if d := p.Pause(); d != 0 {
		t.Errorf("the first dial after a success waits %v", d)
	}
}

func TestSameSeedSameOrder(t *testing.T) {
	run := func() (s string) {
		p := NewProvider([]string{"a:1", "b:1", "c:1", "d:1"}, 42)
		for range 12 {
			s += p.Next() + p.Pause().String() + " "
		}
		return s
	}
	if a, b := run(), run(); a != b {
		t.Errorf("two runs of one seed differ:\n%s\n%s", a, b)
	}
}

// What is drawn does not depend on what others drew before.
func TestRandomValuesDoNotDependOnTheOrderOfCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := func(jitters int) (pauses [8]time.Duration, jitter time.Duration) {
			p := NewProvider([]string{"a:1"}, 42)
			for i := range pauses {
				for range jitters {
					p.Jitter("/other", time.Hour)
				}
				pauses[i] = p.Pause()
			}
			return pauses, p.Jitter("/lock", time.Hour)
		}
		p0, j0 := run(0)
		p5, j5 := run(5)
		if p0 != p5 || j0 != j5 {
			t.Errorf("pauses %v and %v, jitter %v and %v", p0, p5, j0, j5)
		}
		p := NewProvider([]string{"a:1"}, 42)
		seen := map[time.Duration]bool{p.Jitter("/lock", time.Hour): true, p.Jitter("/other", time.Hour): true}
		time.Sleep(time.Nanosecond)
		seen[p.Jitter("/lock", time.Hour)] = true
		seen[NewProvider([]string{"a:1"}, 43).Jitter("/lock", time.Hour)] = true
		if len(seen) != 4 {
			t.Errorf("another purpose, time or seed gives the same: %v", seen)
		}
		if d := p.Jitter("/lock", 0); d != 0 {
			t.Errorf("a part of nothing is %v", d)
		}
	})
}
