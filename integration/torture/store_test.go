package torture

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/go-zklock/zklock/integration/internal/report"
)

// The events of the store.
const (
	listening report.Event = "listening" // State is its URL
	accepted  report.Event = "accepted"
	refused   report.Event = "refused"
)

// storeMain keeps the largest token of each key, refuses a smaller one, and writes down what it did, until its input
// ends.
func storeMain() int {
	out := report.NewWriter(os.Stdout)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var mu sync.Mutex
	largest := make(map[string]int64)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.URL.Query().Get("key")
		token, err := strconv.ParseInt(r.URL.Query().Get("token"), 10, 64)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if token < largest[key] {
			out.Line(report.Line{Event: refused, Path: key, Token: token})
			http.Error(w, "a larger token was seen", http.StatusConflict)
			return
		}
		largest[key] = token
		out.Line(report.Line{Event: accepted, Path: key, Token: token})
	})}
	go func() { _ = server.Serve(listener) }() // ends with the process
	out.Line(report.Line{Event: listening, State: "http://" + listener.Addr().String()})
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}
