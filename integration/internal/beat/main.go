// Beat is a command for zklock run: it appends the time to a file every millisecond, in nanoseconds, so that a test can
// tell when it ran.
//
//	beat FILE      until it is ended
//	beat FILE 1    once
package main

import (
	"fmt"
	"os"
	"time"
)

func main() {
	f, err := os.OpenFile(os.Args[1], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) //nolint:gosec // the file that the test names
	if err != nil {
		fmt.Fprintln(os.Stderr, "beat:", err)
		os.Exit(1)
	}
	for {
		if _, err := fmt.Fprintln(f, time.Now().UnixNano()); err != nil {
			os.Exit(1)
		}
		if len(os.Args) > 2 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}
