// The settlement with go-zookeeper's Lock, as it was before.
package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

func main() {
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		log.Fatal(err)
	}
}

func run(servers string, invoices []string) error {
	conn, events, err := zk.Connect(strings.Split(servers, ","), 12*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	var doubt atomic.Bool // the connection is gone, or the session
	go func() {
		for e := range events {
			if e.State == zk.StateDisconnected || e.State == zk.StateExpired {
				doubt.Store(true)
			}
		}
	}()

	lock := zk.NewLock(conn, "/locks/settlement", zk.WorldACL(zk.PermAll))
	if err := lock.Lock(); err != nil { // for as long as it takes
		return err
	}
	defer func() {
		if err := lock.Unlock(); err != nil {
			log.Print("unlock: ", err)
		}
	}()

	for _, invoice := range invoices {
		if doubt.Load() {
			return errors.New("somebody else may have the lock")
		}
		settle(invoice)
	}
	return nil
}

func settle(invoice string) {
	fmt.Println("begin", invoice)
	time.Sleep(20 * time.Millisecond)
	fmt.Println("end", invoice)
}
