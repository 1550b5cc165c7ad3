// Charges is an HTTP service that charges cards once: POST /charge with an Idempotency-Key, two instances behind one
// address, the charges in PostgreSQL.
//
//	cd examples/charges && go run .
//	curl -i -d '{"account":"1041","amount":1999}' -H 'Idempotency-Key: 1' http://127.0.0.1:8080/charge
//
// Sent again, the same request gets the same receipt, whichever instance is asked and whatever was killed meanwhile.
// The answers are kept in ZooKeeper, for as long as clients retry; what makes a second attempt harmless is that the
// charge and the claim's token are booked in one transaction, which refuses a smaller token (ledger.go).
//
// The program starts all it needs: PostgreSQL by postgres.sh, unless DATABASE_URL names one, and a ZooKeeper server for
// tests in its own process, unless ZOOKEEPER has a connect string.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-zklock/zklock/zktest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "charges:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var s settings
	f := flag.NewFlagSet("charges", flag.ContinueOnError)
	one := f.Bool("serve", false, "run one instance only; needs -zookeeper and -database")
	f.StringVar(&s.listen, "listen", "127.0.0.1:8080", "address to listen on")
	f.StringVar(&s.zookeeper, "zookeeper", os.Getenv("ZOOKEEPER"), "connect string; default: $ZOOKEEPER, else a server for tests")
	f.StringVar(&s.database, "database", os.Getenv("DATABASE_URL"), "URL; default: $DATABASE_URL, else a server that is thrown away")
	f.DurationVar(&s.session, "session", 12*time.Second, "session timeout")
	f.DurationVar(&s.before, "before", 0, "time that a charge takes before it is booked")
	f.DurationVar(&s.after, "after", 0, "time that a charge takes after it is booked")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *one {
		return serve(ctx, s, slog.New(slog.NewJSONHandler(os.Stdout, nil)))
	}
	return demo(ctx, s)
}

// demo runs two instances behind one address.
func demo(ctx context.Context, s settings) error {
	st, err := startStores(s, os.Stderr)
	if err != nil {
		return err
	}
	defer st.stop()
	var addresses []string
	for _, name := range []string{"a", "b"} {
		in, err := startInstance(ctx, name, os.Stderr, st.args(s)...)
		if err != nil {
			return err
		}
		defer in.stop()
		addresses = append(addresses, in.address)
	}
	l, err := net.Listen("tcp", s.listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: newProxy(addresses...), ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	fmt.Printf("curl -i -d '{\"account\":\"1041\",\"amount\":1999}' -H 'Idempotency-Key: 1' http://%s/charge\n", l.Addr())
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return server.Close()
	}
}

// stores are what instances share.
type stores struct {
	postgres  *postgres
	database  string
	server    *zktest.Server // nil: it is somebody else's
	zookeeper string
}

func startStores(s settings, log io.Writer) (*stores, error) {
	st := &stores{database: s.database, zookeeper: s.zookeeper}
	var err error
	if st.database == "" {
		if st.postgres, err = startPostgres(log); err != nil {
			return nil, err
		}
		st.database = st.postgres.url
	}
	if st.zookeeper == "" {
		if st.server, err = zktest.Start(zktest.Config{Listen: "127.0.0.1:0"}); err != nil {
			st.stop()
			return nil, err
		}
		st.zookeeper = st.server.Addr()
	}
	return st, nil
}

func (st *stores) stop() {
	if st.server != nil {
		st.server.Close()
	}
	if st.postgres != nil {
		_ = st.postgres.stop() // it has said why, if it failed
	}
}

// args are those of an instance.
func (st *stores) args(s settings) []string {
	return []string{
		"-zookeeper", st.zookeeper, "-database", st.database,
		"-session", s.session.String(), "-before", s.before.String(), "-after", s.after.String(),
	}
}
