// Package hosts decides which server is dialled next, and when.
package hosts

import (
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// DefaultPort is ZooKeeper's client port.
const DefaultPort = 2181

// List is a parsed connect string.
type List struct {
	Addrs  []string // host:port each
	Chroot string   // "" or an absolute path without a trailing slash
}

// Parse reads servers given one by one, as connect strings
// ("zk1:2181,zk2:2181/chroot"), or both. A missing port is 2181. A chroot may
// stand behind the last server of a connect string; if several entries name one,
// it has to be the same.
func Parse(servers []string) (List, error) {
	var l List
	if len(servers) == 0 {
		return l, fmt.Errorf("no servers: give at least one host:port")
	}
	seen := make(map[string]bool)
	for _, entry := range servers {
		addrs, chroot, hasChroot := strings.Cut(entry, "/")
		if hasChroot {
			chroot = "/" + strings.TrimRight(chroot, "/")
			if chroot == "/" {
				chroot = ""
			}
			if l.Chroot != "" && chroot != l.Chroot {
				return List{}, fmt.Errorf("servers name two chroots, %q and %q", l.Chroot, chroot)
			}
			l.Chroot = chroot
		}
		for a := range strings.SplitSeq(addrs, ",") {
			addr, err := parseAddr(strings.TrimSpace(a))
			if err != nil {
				return List{}, fmt.Errorf("server %q in %q: %w", a, entry, err)
			}
			if !seen[addr] {
				seen[addr] = true
				l.Addrs = append(l.Addrs, addr)
			}
		}
	}
	return l, nil
}

func parseAddr(a string) (string, error) {
	if a == "" {
		return "", fmt.Errorf("it is empty; host:port is wanted")
	}
	host, port := a, strconv.Itoa(DefaultPort)
	switch {
	case strings.HasPrefix(a, "[") && strings.HasSuffix(a, "]"):
		host = a[1 : len(a)-1]
	case strings.Count(a, ":") > 1 && !strings.HasPrefix(a, "["):
		return "", fmt.Errorf("an IPv6 address goes in brackets, as in [::1]:%d", DefaultPort)
	case strings.Contains(a, ":"):
		var err error
		if host, port, err = net.SplitHostPort(a); err != nil {
			return "", fmt.Errorf("not host:port: %w", err)
		}
	}
	if host == "" {
		return "", fmt.Errorf("the host is missing; host:port is wanted")
	}
	if i := strings.IndexFunc(host, func(r rune) bool { return r <= ' ' || r == '@' || r == '?' || r == '#' || r == 0x7f }); i >= 0 {
		return "", fmt.Errorf("the host name has the character %q", host[i])
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", fmt.Errorf("port %q is not a number from 1 to 65535", port)
	}
	return net.JoinHostPort(host, port), nil
}

// Provider hands out addresses in turn and says how long to wait before a dial.
// It outlives the sessions of a client, so that an ensemble that refuses every
// new session is not asked without pause. Names are resolved by the dialer, at
// each dial.
type Provider struct {
	mu      sync.Mutex
	addrs   []string
	next    int
	seed    uint64
	backoff *backoff.ExponentialBackOff
	pauses  uint64    // made so far
	tried   int       // dials since the last success
	since   time.Time // of the last success
	short   int       // connections in a row that did not last
}

// Back-off between two rounds over all servers. Within the first round after a
// success there is no pause: with one address that means the first try only.
const (
	minPause = 50 * time.Millisecond
	maxPause = 2 * time.Second
	// maxShort is how many connections in a row may end before maxPause without the
	// back-off going on.
	maxShort = 3
)

// NewProvider starts at a random server; seed makes the order and the jitter
// repeatable.
func NewProvider(addrs []string, seed uint64) *Provider {
	b := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(minPause),
		backoff.WithMaxInterval(maxPause),
		backoff.WithMultiplier(2),
		backoff.WithMaxElapsedTime(0),
		// Its own jitter draws from the process's global source; ours is seeded.
		backoff.WithRandomizationFactor(0),
	)
	p := &Provider{addrs: append([]string(nil), addrs...), seed: seed, backoff: b}
	p.random("order", 0).Shuffle(len(p.addrs), func(i, j int) { p.addrs[i], p.addrs[j] = p.addrs[j], p.addrs[i] })
	return p
}

// random returns a source for one purpose and occasion. What it gives does not depend
// on what was drawn for others before: goroutines draw in any order.
func (p *Provider) random(purpose string, occasion uint64) *rand.Rand {
	h := fnv.New64a()
	_, _ = io.WriteString(h, purpose)
	return rand.New(rand.NewPCG(p.seed^h.Sum64(), occasion))
}

// Next returns the address to dial now.
func (p *Provider) Next() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.addrs[p.next%len(p.addrs)]
	p.next++
	return a
}

// Len is the number of addresses.
func (p *Provider) Len() int { return len(p.addrs) }

// Pause counts a dial and returns how long to wait before it.
func (p *Provider) Pause() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.since.IsZero() {
		if p.short++; time.Since(p.since) >= maxPause {
			p.short = 0
		}
		if p.short <= maxShort {
			p.tried = 0
			p.backoff.Reset()
		}
	}
	p.since = time.Time{}
	p.tried++
	if p.tried <= len(p.addrs) {
		return 0
	}
	if (p.tried-1)%len(p.addrs) != 0 {
		return 0 // within a round
	}
	d := p.backoff.NextBackOff()
	p.pauses++
	return d/2 + time.Duration(p.random("pause", p.pauses).Int64N(int64(d/2)+1))
}

// Connected ends the back-off, if the connection lasts.
func (p *Provider) Connected() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.since = time.Now()
}

// Jitter returns a random part of d, from 0 to d. It follows from the seed, the purpose
// and the time.
func (p *Provider) Jitter(purpose string, d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return time.Duration(p.random(purpose, uint64(time.Now().UnixNano())).Int64N(int64(d) + 1))
}
