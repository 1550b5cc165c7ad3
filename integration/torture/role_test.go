package torture

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/go-zklock/zklock/integration/internal/figures"
	"github.com/go-zklock/zklock/integration/zkcluster"
)

// envRole makes this binary one of the programs that the test runs as processes of their own.
const envRole = "ZKLOCK_TORTURE_ROLE"

var minutes = flag.Float64("minutes", 2, "how long faults are made")

func TestMain(m *testing.M) {
	switch role := os.Getenv(envRole); role {
	case "":
	case "worker":
		os.Exit(workerMain())
	case "store":
		os.Exit(storeMain())
	default:
		fmt.Fprintf(os.Stderr, "%s=%q: it must be worker or store\n", envRole, role)
		os.Exit(2)
	}
	code := zkcluster.Main(m)
	if err := figures.WriteTables(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}
