package main

import (
	"fmt"
	"time"

	"github.com/go-zklock/zklock/zktest"
)

// serveCmd is zklock serve.
type serveCmd struct {
	Listen string        `default:"127.0.0.1:2181" placeholder:"HOST:PORT" help:"Where to listen; port 0 takes any free one. Default ${default}."`
	Tick   time.Duration `default:"2s" placeholder:"2s" help:"The server's tickTime; sessions last for 2 to 20 of them. Default ${default}."`
}

// Help is what zklock serve --help says at length.
func (*serveCmd) Help() string {
	return `Runs a server that speaks ZooKeeper's protocol, for trying things out. It keeps nothing:
what it holds is gone when it ends. It has no access control to speak of; leave it on a
loopback address.

    zklock serve &
    export ZKLOCK_SERVERS=127.0.0.1
    zklock run --key k -- sleep 60 &
    zklock ls --watch`
}

// Validate is called by kong.
func (c *serveCmd) Validate() error {
	if c.Tick < time.Millisecond {
		return fmt.Errorf("--tick %v: has to be at least 1ms", c.Tick)
	}
	return validAddress("--listen", c.Listen)
}

// Run is called by kong.
func (c *serveCmd) Run(std *streams) error {
	ctx, stop := interactive()
	defer stop()
	srv, err := zktest.Start(zktest.Config{Listen: c.Listen, TickTime: c.Tick, FourLetterWords: []string{"*"}})
	if err != nil {
		return exitf(exitUnavailable, "%w", err)
	}
	defer srv.Close()
	fmt.Fprintf(std.out, "%s\n", srv.Addr())
	fmt.Fprintf(std.err, "zklock: a server for trying things out; export ZKLOCK_SERVERS=%s in other shells, Ctrl-C ends it\n", srv.Addr())
	<-ctx.Done()
	return nil
}
