package zklock

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
)

// wantErr checks that err matches target and that its message has every part: the
// value that was refused, and the rule.
func wantErr(t *testing.T, err, target error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want %q with %q", target, parts)
		return
	}
	if !errors.Is(err, target) {
		t.Errorf("error %q does not match %q", err, target)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q does not say %q", err, p)
		}
	}
}

func TestConfigDefaults(t *testing.T) {
	r, err := Config{Servers: []string{"zk1"}}.resolve()
	if err != nil {
		t.Fatal(err)
	}
	host, _ := os.Hostname()
	for _, tc := range []struct {
		what      string
		got, want any
	}{
		{"Servers", fmt.Sprint(r.hosts.Addrs), "[zk1:2181]"},
		{"SessionTimeout", r.SessionTimeout, 12 * time.Second},
		{"Root", r.Root, "/dedup"},
		{"Trust", r.Trust, TrustQuorum},
		{"ACL", fmt.Sprint(r.ACL), fmt.Sprint(zk.WorldACL(zk.PermAll))},
		{"MaxBuffer", r.MaxBuffer, 1048575},
		{"DialTimeout", r.DialTimeout, 5 * time.Second},
		{"Identifier", r.Identifier, fmt.Sprintf("%s-%d", host, os.Getpid())},
		{"Logger", r.Logger.Handler(), slog.DiscardHandler},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: default %v, want %v", tc.what, tc.got, tc.want)
		}
	}
	if r.Seed == 0 || r.Clock == nil || r.Dial == nil {
		t.Errorf("no default for Seed (%d), Clock (%v) or Dial", r.Seed, r.Clock)
	}
	// The clock stands for CLOCK_BOOTTIME: it never goes back.
	if a, b := r.Clock.Now(), r.Clock.Now(); b.Before(a) {
		t.Errorf("the default clock went from %v to %v", a, b)
	}
}

func TestDialTimeoutDefault(t *testing.T) {
	for _, tc := range []struct {
		timeout time.Duration
		servers int
		want    time.Duration
	}{
		{12 * time.Second, 1, 5 * time.Second}, // never over 5 s
		{12 * time.Second, 3, 2 * time.Second},
		{6 * time.Second, 3, time.Second},
		{2 * time.Second, 5, 500 * time.Millisecond}, // never under 500 ms
	} {
		cfg := Config{SessionTimeout: tc.timeout}
		for i := range tc.servers {
			cfg.Servers = append(cfg.Servers, fmt.Sprintf("zk%d", i))
		}
		r, err := cfg.resolve()
		if err != nil || r.DialTimeout != tc.want {
			t.Errorf("T %v, %d servers: %v, %v; want %v", tc.timeout, tc.servers, r.DialTimeout, err, tc.want)
		}
	}
}

func TestReportDelay(t *testing.T) {
	for _, tc := range []struct{ tick, granted, want time.Duration }{
		{0, 12 * time.Second, 3 * time.Second},
		{0, 4 * time.Second, 2 * time.Second}, // never over half of T
		{2 * time.Second, 12 * time.Second, 2 * time.Second},
		{6 * time.Second, 12 * time.Second, 6 * time.Second}, // a set value is used as it is
		{5 * time.Second, 4 * time.Second, 5 * time.Second},
	} {
		r := resolved{Config: Config{TickTime: tc.tick}}
		if got := r.reportDelay(tc.granted); got != tc.want {
			t.Errorf("tick %v, T %v: %v, want %v", tc.tick, tc.granted, got, tc.want)
		}
	}
}

func TestConfigRules(t *testing.T) {
	long := strings.Repeat("i", maxIdentifier+1)
	for _, tc := range []struct {
		name  string
		set   func(*Config)
		parts []string
	}{
		{"no servers", func(c *Config) { c.Servers = nil }, []string{"Servers", "no servers", "host:port"}},
		{"empty server", func(c *Config) { c.Servers = []string{"zk1", ""} }, []string{"Servers", `""`, "empty"}},
		{"bad port", func(c *Config) { c.Servers = []string{"zk1:x"} }, []string{`"zk1:x"`, "1 to 65535"}},
		{"bad host", func(c *Config) { c.Servers = []string{"zk 1:2181"} }, []string{`"zk 1:2181"`, "' '"}},
		{"URL", func(c *Config) { c.Servers = []string{"zk://zk1:2181"} }, []string{`"zk://zk1:2181"`}},
		{"bad chroot", func(c *Config) { c.Servers = []string{"zk1/a//b"} }, []string{"chroot", `"/a//b"`, "empty element"}},
		{"two chroots", func(c *Config) { c.Servers = []string{"zk1/a", "zk2/b"} }, []string{`"/a"`, `"/b"`, "two chroots"}},
		{"negative timeout", func(c *Config) { c.SessionTimeout = -time.Second }, []string{"SessionTimeout", "-1s", "from 1ms"}},
		{"tiny timeout", func(c *Config) { c.SessionTimeout = time.Microsecond }, []string{"SessionTimeout", "1µs", "from 1ms"}},
		{"huge timeout", func(c *Config) { c.SessionTimeout = 1 << 62 }, []string{"SessionTimeout", "to 2147483647ms"}},
		{"negative tick", func(c *Config) { c.TickTime = -1 }, []string{"TickTime", "-1ns", "negative"}},
		{"relative root", func(c *Config) { c.Root = "dedup" }, []string{"Root", `"dedup"`, "absolute"}},
		{"unknown trust", func(c *Config) { c.Trust = 7 }, []string{"Trust", "TrustMode(7)", "TrustQuorum"}},
		{"no scheme", func(c *Config) { c.Auth = []Auth{{Scheme: "digest"}, {}} }, []string{"Auth[1].Scheme", `""`, "empty"}},
		{"negative dial timeout", func(c *Config) { c.DialTimeout = -time.Second }, []string{"DialTimeout", "-1s", "negative"}},
		{"tiny buffer", func(c *Config) { c.MaxBuffer = 10 }, []string{"MaxBuffer", "10", "4096"}},
		{"long identifier", func(c *Config) { c.Identifier = long }, []string{"Identifier", "(1025 bytes)", "longer than 1024 bytes"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := Config{Servers: []string{"zk1"}}
			tc.set(&cfg)
			// Refused before anything is dialled: the names could not even be resolved.
			c, err := Connect(t.Context(), cfg)
			wantErr(t, err, ErrInvalidConfig, tc.parts...)
			if c != nil {
				t.Error("a client was returned beside an error")
			}
		})
	}
}

// All that is wrong is said at once.
func TestConfigErrorsAreJoined(t *testing.T) {
	_, err := Config{TickTime: -1, MaxBuffer: 1, Root: "x"}.resolve()
	wantErr(t, err, ErrInvalidConfig, "Servers", "TickTime", "MaxBuffer", "Root")
}

func TestConnectStrings(t *testing.T) {
	for _, tc := range []struct {
		servers []string
		addrs   string
		chroot  string
	}{
		{[]string{"zk1:2181,zk2:2182/app/locks"}, "[zk1:2181 zk2:2182]", "/app/locks"},
		{[]string{"zk1,zk2:99/app/"}, "[zk1:2181 zk2:99]", "/app"},
		{[]string{"zk1:2181/"}, "[zk1:2181]", ""},
		{[]string{"zk1", "zk2", "zk1:2181"}, "[zk1:2181 zk2:2181]", ""},
		{[]string{"[::1]:21811"}, "[[::1]:21811]", ""},
	} {
		r, err := Config{Servers: tc.servers}.resolve()
		if err != nil || fmt.Sprint(r.hosts.Addrs) != tc.addrs || r.hosts.Chroot != tc.chroot {
			t.Errorf("%q: %v, chroot %q, %v; want %v, %q", tc.servers, r.hosts.Addrs, r.hosts.Chroot, err, tc.addrs, tc.chroot)
		}
	}
}

func TestConstantNames(t *testing.T) {
	for want, got := range map[string]fmt.Stringer{
		"TrustQuorum": TrustQuorum, "TrustConnection": TrustConnection, "TrustMode(9)": TrustMode(9),
		"Connected": Connected, "Suspended": Suspended, "Reconnected": Reconnected, "Lost": Lost, "Closed": Closed,
		"ConnectionState(0)": ConnectionState(0),
		"Held":               LeaseHeld, "LeaseState(9)": LeaseState(9), "Released": LeaseReleased,
		"0x10000002a": Token(0x10000002a), "0xffffffffffffffff": Token(-1),
	} {
		if got.String() != want {
			t.Errorf("%#v prints as %q, want %q", got, got.String(), want)
		}
	}
	if LeaseSuspended.String() != "Suspended" || LeaseLost.String() != "Lost" {
		t.Errorf("lease states print as %q and %q", LeaseSuspended, LeaseLost)
	}
}
