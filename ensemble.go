package zklock

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"time"
)

// The ensemble's size for the metrics. It is polled only with a Registerer.
const (
	pollInterval = 5 * time.Second
	configNode   = "/zookeeper/config"
)

func (c *Client) pollEnsemble() {
	defer c.met.ensemble(-1, -1) // nobody looks any more
	configured := -1
	for {
		ctx, cancel := context.WithTimeout(context.Background(), pollInterval/2)
		var modes []string
		var wg sync.WaitGroup
		wg.Go(func() { modes = c.serverModes(ctx) })
		// Without a quorum the configuration cannot be read, and that is when the sizes
		// matter most: then it is what it was before.
		if n := c.votersConfigured(ctx); n >= 0 {
			configured = n
		}
		wg.Wait()
		cancel()
		c.met.ensemble(ensembleSizes(configured, modes))
		if !c.pause(pollInterval) {
			return
		}
	}
}

// ensembleSizes returns how many servers vote by configuration, and how many of
// them are in the quorum now; -1 for what cannot be known. Servers are counted in the
// quorum by their own word (srvr), so all of them have to be among Config.Servers.
// configured is -1 for a server that has no configuration: one that stands alone.
func ensembleSizes(configured int, modes []string) (size, quorum int) {
	voting, answered := 0, 0
	for _, mode := range modes {
		switch mode {
		case "standalone":
			if len(modes) == 1 {
				return 1, 1
			}
			return -1, -1 // not one ensemble
		case "leader", "follower":
			voting++
			answered++
		case "observer":
			answered++
		case "down":
			answered++ // it says so itself, or nobody is there
		}
	}
	if configured < 0 || answered < len(modes) || len(modes) < configured {
		return configured, -1
	}
	return configured, voting
}

// votersConfigured counts the participants in the dynamic configuration.
func (c *Client) votersConfigured(ctx context.Context) int {
	s, err := c.live(ctx)
	if err != nil {
		return -1
	}
	d, err := get(ctx, s, configNode)
	if err != nil {
		return -1
	}
	n := 0
	lines := bufio.NewScanner(bytes.NewReader(d.data))
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasPrefix(line, "server.") {
			continue
		}
		// server.1=host:2888:3888:participant;host:2181, the role optional.
		spec, _, _ := strings.Cut(line, ";")
		if !strings.HasSuffix(spec, ":observer") {
			n++
		}
	}
	if n == 0 {
		return -1
	}
	return n
}

// serverModes asks every server of Config.Servers with the four-letter word srvr:
// "leader", "follower", "observer", "standalone", "down" for one that does not serve,
// "" for one that does not say.
func (c *Client) serverModes(ctx context.Context) []string {
	modes := make([]string, len(c.cfg.hosts.Addrs))
	var wg sync.WaitGroup
	for i, addr := range c.cfg.hosts.Addrs {
		wg.Go(func() { modes[i] = c.serverMode(ctx, addr) })
	}
	wg.Wait()
	return modes
}

func (c *Client) serverMode(ctx context.Context, addr string) string {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.DialTimeout)
	defer cancel()
	conn, err := c.cfg.dialRaw(ctx, "tcp", addr)
	if err != nil {
		return "down"
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	if conn.SetDeadline(deadline) != nil {
		return ""
	}
	if _, err := conn.Write([]byte("srvr")); err != nil {
		return "down"
	}
	answer, err := io.ReadAll(io.LimitReader(conn, 64<<10))
	if err != nil && len(answer) == 0 {
		return "down"
	}
	for line := range strings.Lines(string(answer)) {
		if mode, ok := strings.CutPrefix(strings.TrimSpace(line), "Mode: "); ok {
			return mode
		}
	}
	if bytes.Contains(answer, []byte("not currently serving requests")) {
		return "down"
	}
	return "" // not in the whitelist, most likely
}
