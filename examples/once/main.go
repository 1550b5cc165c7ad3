// Once handles a webhook that is delivered three times, and charges once:
//
//	go run ./examples/once
//
// It starts a ZooKeeper server for tests in its own process. With an argument it uses
// an ensemble:
//
//	go run ./examples/once zk1:2181,zk2:2181,zk3:2181
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/zktest"
)

func main() {
	if err := start(); err != nil {
		log.Fatal(err)
	}
}

func start() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if len(os.Args) > 1 {
		return run(ctx, zklock.Config{Servers: os.Args[1:]}, os.Stdout)
	}
	srv, err := zktest.Start(zktest.Config{})
	if err != nil {
		return err
	}
	defer srv.Close()
	return run(ctx, zklock.Config{Servers: []string{srv.Addr()}, Dial: srv.Dial}, os.Stdout)
}

// Payment is the body of the webhook.
type Payment struct {
	ID     string
	Amount int
}

// Receipt is what the first delivery comes to, and every other one gets.
type Receipt struct {
	Number string
	Amount int
}

func run(ctx context.Context, cfg zklock.Config, out io.Writer) error {
	client, err := zklock.Connect(ctx, cfg)
	if err != nil {
		return err
	}
	defer client.Close()
	guard, err := dedup.New(client, dedup.Config{Policy: dedup.Refuse, Retention: 24 * time.Hour})
	if err != nil {
		return err
	}
	defer guard.Close(ctx) // before the client

	payment := Payment{ID: "01945d2e-7c1a-4d0e-9f3b-2a6c8e5f1d47", Amount: 4200}
	for delivery := range 3 {
		key := dedup.Key{Scope: "charge", ID: payment.ID}
		res, err := dedup.Do(ctx, guard, key, dedup.PayloadJSON(payment),
			func(ctx context.Context, claim *dedup.Claim) (Receipt, error) {
				if err := claim.Await(ctx); err != nil { // the gate, before each step
					return Receipt{}, err
				}
				return charge(payment, claim.Token(), out)
			})
		if err != nil {
			return err // errors.Is: dedup.ErrInProgress, dedup.ErrIndeterminate, dedup.ErrUnavailable, …
		}
		fmt.Fprintf(out, "delivery %d: receipt %s, replayed: %v\n", delivery+1, res.Value.Number, res.Replayed)
	}
	return nil
}

// charge stands for the work. A real one hands the token to the bank, or writes it
// with the charge.
func charge(p Payment, token zklock.Token, out io.Writer) (Receipt, error) {
	fmt.Fprintf(out, "charging %d, token %s\n", p.Amount, token)
	return Receipt{Number: "R-" + token.String(), Amount: p.Amount}, nil
}
