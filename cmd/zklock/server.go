package main

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// serverSays is what one server says of itself.
type serverSays struct {
	addr string
	err  error // it cannot be reached
	srvr string
	conf string
	took time.Duration // for srvr, the connection included
}

// askServers asks all with four-letter words.
func (f *ensembleFlags) askServers(ctx context.Context, addrs []string) []serverSays {
	servers := make([]serverSays, len(addrs))
	var wg sync.WaitGroup
	for i, addr := range addrs {
		wg.Go(func() {
			s := serverSays{addr: addr}
			begun := time.Now()
			s.srvr, s.err = f.fourLetter(ctx, addr, "srvr")
			s.took = time.Since(begun)
			if s.err == nil {
				s.conf, _ = f.fourLetter(ctx, addr, "conf") // it may be forbidden
			}
			if !strings.Contains(s.srvr, "Mode: ") {
				s.srvr = ""
			}
			if !strings.Contains(s.conf, "tickTime=") {
				s.conf = ""
			}
			servers[i] = s
		})
	}
	wg.Wait()
	return servers
}

// fourLetter sends a word and returns the answer.
func (f *ensembleFlags) fourLetter(ctx context.Context, addr, word string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, min(f.ConnectTimeout, 5*time.Second))
	defer cancel()
	conn, err := f.dial(ctx, addr)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, word); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(io.LimitReader(conn, 1<<20))
	if len(answer) > 0 {
		return string(answer), nil
	}
	return "", err
}

func (f *ensembleFlags) dial(ctx context.Context, addr string) (net.Conn, error) {
	cfg, err := f.tlsConfig()
	if err != nil {
		return nil, err
	}
	if cfg == nil {
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}
	return (&tls.Dialer{Config: cfg}).DialContext(ctx, "tcp", addr)
}

// field is what stands behind a name at the beginning of a line.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name); ok {
			return value
		}
	}
	return ""
}
