// Package conformance holds the recorded answers of package internal/conformance against real servers.
package conformance

import (
	"context"
	"crypto/sha1" //nolint:gosec // ZooKeeper's digest
	"encoding/base64"
	"flag"
	"fmt"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zklock/zklock/integration/zkcluster"
	"github.com/go-zklock/zklock/internal/conformance"
)

var (
	record = flag.Bool("record", false, "write what the servers answer into the case files")
	only   = flag.String("file", "", "run this file of cases only")
)

func TestMain(m *testing.M) { os.Exit(zkcluster.Main(m)) }

// cases is the folder of the case files, from here.
const cases = "../../internal/conformance/testdata"

// attempts is how often a case may run until its answers are those on record: a machine that stands still for a while
// can make an expiry late.
const attempts = 5

// atOnce is how many cases run at the same time, where they may.
const atOnce = 6

// TestRecord runs every case against real servers of both versions. The answers must be those in the files; with -record
// they are written there.
func TestRecord(t *testing.T) {
	files, err := conformance.Load(cases)
	if err != nil {
		t.Fatal(err)
	}
	var book book
	groups := map[conformance.Settings][]*conformance.File{}
	for _, f := range files {
		if *only == "" || f.Name == *only {
			groups[f.Settings] = append(groups[f.Settings], f)
		}
	}
	t.Run("servers", func(t *testing.T) {
		for settings, group := range groups {
			for _, version := range conformance.Versions {
				t.Run(fmt.Sprintf("%s of %d, extendedTypes %v", version, settings.Servers, settings.ExtendedTypes), func(t *testing.T) {
					t.Parallel()
					r := start(t, settings, version)
					for _, f := range group {
						t.Run(f.Name, func(t *testing.T) {
							book.runAll(t, r, f.Cases, version)
						})
					}
				})
			}
		}
	})
	if !*record {
		return
	}
	for _, keep := range book.kept {
		keep()
	}
	for _, group := range groups {
		for _, f := range group {
			if err := os.WriteFile(f.Path, []byte(f.String()), 0o644); err != nil { //nolint:gosec // a file of the repository
				t.Fatal(err)
			}
		}
	}
}

// start starts the servers and returns what runs cases on them.
func start(t *testing.T, s conformance.Settings, version string) *conformance.Runner {
	t.Helper()
	sum := sha1.Sum([]byte("super:" + conformance.SuperPassword)) //nolint:gosec // ZooKeeper's digest
	interval := conformance.Tick.Milliseconds()
	cluster := zkcluster.Start(t, zkcluster.Options{
		Servers: s.Servers, Version: version, TickTime: conformance.Tick,
		// An ensemble on a busy machine needs more than the usual number of such short ticks.
		InitLimit: 40, SyncLimit: 20,
		JVMFlags: []string{
			"-Dzookeeper.extendedTypesEnabled=" + fmt.Sprint(s.ExtendedTypes),
			"-Dzookeeper.DigestAuthenticationProvider.superDigest=super:" + base64.StdEncoding.EncodeToString(sum[:]),
			"-Dznode.container.checkIntervalMs=" + fmt.Sprint(interval),
		},
	})
	return &conformance.Runner{
		Sweep: true, Together: s.Together,
		Dial: func(server int) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			return new(net.Dialer).DialContext(ctx, "tcp", cluster.Server(server-1).Addr())
		},
	}
}

// book collects what is new.
type book struct {
	mu   sync.Mutex
	kept []func()
}

// runAll runs the cases of one file.
func (b *book) runAll(t *testing.T, r *conformance.Runner, cases []*conformance.Case, version string) {
	t.Helper()
	if !r.Together {
		for _, c := range cases {
			b.run(t, r, c, version)
		}
		return
	}
	if err := r.FindTick(); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	places := make(chan struct{}, atOnce)
	for _, c := range cases {
		places <- struct{}{}
		all.Go(func() {
			b.run(t, r, c, version)
			<-places
		})
	}
	all.Wait()
}

// run runs one case and compares its answers with the record, or notes them for it once two runs have given the same.
func (b *book) run(t *testing.T, r *conformance.Runner, c *conformance.Case, version string) {
	t.Helper()
	var last [][]string
	var diff string
	for attempt := range attempts {
		got, err := r.Run(c)
		if err != nil {
			diff = err.Error()
			continue
		}
		if attempt > 0 {
			t.Logf("%s: attempt %d, because of\n%s", c.Name, attempt+1, diff)
		}
		if diff = differences(c, got, version); diff == "" {
			return
		}
		if *record && last != nil && reflect.DeepEqual(got, last) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.kept = append(b.kept, func() { c.Keep(version, got) })
			return
		}
		last = got
	}
	t.Errorf("%s: ZooKeeper %s answers otherwise than the record:\n%s", c.Name, version, diff)
}

func differences(c *conformance.Case, got [][]string, version string) string {
	var b strings.Builder
	for i, step := range c.Steps {
		if want := step.Answers[version]; !slices.Equal(got[i], want) {
			fmt.Fprintf(&b, "%s\n  recorded: %s\n  answered: %s\n", step.Text,
				strings.Join(want, "\n            "), strings.Join(got[i], "\n            "))
		}
	}
	return b.String()
}
