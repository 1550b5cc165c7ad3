package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/dedup/httpdedup"
)

// settings of one instance.
type settings struct {
	listen    string
	zookeeper string
	database  string
	session   time.Duration // of ZooKeeper
	before    time.Duration // the card network takes, before the charge is booked
	after     time.Duration // the printing of the receipt takes, after that
}

// order is what the client asks for.
type order struct {
	Account string `json:"account"`
	Amount  int64  `json:"amount"` // in cents
}

// service is one instance.
type service struct {
	settings
	ledger *ledger
	log    *slog.Logger
}

// serve runs an instance until ctx ends.
func serve(ctx context.Context, s settings, log *slog.Logger) error {
	ledger, err := openLedger(ctx, s.database)
	if err != nil {
		return fmt.Errorf("database: %w", err)
	}
	defer ledger.Close()
	client, err := zklock.Connect(ctx, zklock.Config{Servers: []string{s.zookeeper}, SessionTimeout: s.session})
	if err != nil {
		return fmt.Errorf("zookeeper: %w", err)
	}
	defer client.Close()

	handler, guard, err := newHandler(client, &service{s, ledger, log})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", s.listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	log.Info("serving", "address", l.Addr().String())
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	// First the requests, then the guard that stores their answers, then the client that it needs.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return errors.Join(server.Shutdown(last), guard.Close(last))
}

// newHandler puts the service behind the guard.
func newHandler(client *zklock.Client, s *service) (http.Handler, *dedup.Guard, error) {
	guard, err := dedup.New(client, dedup.Config{
		// The ledger refuses smaller tokens and knows what it has booked, so an attempt whose outcome is unknown may be
		// run again.
		Policy: dedup.Reexecute,
	})
	if err != nil {
		return nil, nil, err
	}
	guarded, err := httpdedup.New(guard, httpdedup.Config{Principal: httpdedup.Everyone, UnknownRetryAfter: time.Second})
	if err != nil {
		return nil, nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /charge", guarded(http.HandlerFunc(s.charge)))
	return mux, guard, nil
}

// charge is the handler. Its effect may be repeated, since the ledger books it once, so it may answer 5xx whenever it
// does not know.
func (s *service) charge(w http.ResponseWriter, r *http.Request) {
	var o order
	body := json.NewDecoder(r.Body)
	body.DisallowUnknownFields()
	if err := body.Decode(&o); err != nil || strings.TrimSpace(o.Account) == "" || o.Amount <= 0 {
		http.Error(w, `the body has to be like {"account": "1041", "amount": 1999}`, http.StatusBadRequest)
		return
	}
	claim := httpdedup.ClaimFromContext(r.Context())
	if err := claim.Await(r.Context()); err != nil { // the gate before the effect
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	log := s.log.With("key", claim.Key().ID, "token", claim.Token().String(), "attempt", claim.Attempt())
	log.Info("charging")
	time.Sleep(s.before)

	// Behind the gate the transaction goes through or is refused by its token, also when the claim is lost meanwhile:
	// to cut it short would leave open which.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), 10*time.Second)
	defer cancel()
	receipt, found, err := s.ledger.charge(ctx, claim.Key().String(), claim.Token(), o)
	switch {
	case errors.Is(err, errStale):
		log.Info("refused", "error", err)
		http.Error(w, "another instance has taken over; retry", http.StatusServiceUnavailable)
		return
	case err != nil:
		log.Error("failed", "error", err)
		http.Error(w, "the database does not answer; retry", http.StatusServiceUnavailable)
		return
	case found:
		log.Info("found")
	default:
		log.Info("charged")
	}
	time.Sleep(s.after)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	if err := json.NewEncoder(w).Encode(receipt); err != nil {
		log.Error("failed", "error", err)
	}
}
