package conformance_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/go-zklock/zklock/internal/conformance"
	"github.com/go-zklock/zklock/zktest"
)

// imitated are the versions that were recorded, in full.
var imitated = map[string]string{"3.8": "3.8.0", "3.9": "3.9.3"}

// TestReplay runs every case against zktest, as each version, and compares with what real servers answered.
func TestReplay(t *testing.T) {
	t.Parallel()
	files, err := conformance.Load("testdata")
	if err != nil {
		t.Fatal(err)
	}
	manual := zktestDoc(t)
	for _, f := range files {
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			for _, c := range f.Cases {
				for _, version := range conformance.Versions {
					t.Run(strings.ReplaceAll(c.Name, " ", "_")+"/"+version, func(t *testing.T) {
						got := replay(t, f.Settings, c, version)
						diff := compare(c, got, version)
						reason := c.Differs[version]
						switch {
						case reason == "" && diff != "":
							t.Error(diff)
						case reason != "" && diff == "":
							t.Errorf("zktest answers as the real server does, although the case says: %s", reason)
						case reason != "" && !strings.Contains(manual, reason):
							t.Errorf("the documentation of zktest does not say: %s", reason)
						}
					})
				}
			}
		})
	}
}

// TestFiles holds the files to the form in which the recorder writes them.
func TestFiles(t *testing.T) {
	t.Parallel()
	files, err := conformance.Load("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f.Path)
		if err != nil {
			t.Fatal(err)
		}
		if f.String() != string(text) {
			t.Errorf("%s is not as the recorder writes it", f.Path)
		}
	}
}

// replay runs a case in virtual time.
func replay(t *testing.T, s conformance.Settings, c *conformance.Case, version string) (got [][]string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		dial := serve(t, s, version)
		r := &conformance.Runner{Dial: dial, Together: s.Together}
		var err error
		if got, err = r.Run(c); err != nil {
			t.Error(err)
		}
	})
	return got
}

func serve(t *testing.T, s conformance.Settings, version string) func(server int) (net.Conn, error) {
	t.Helper()
	option := func(c *zktest.Config) {
		c.Version = imitated[version]
		c.TickTime, c.ContainerInterval = conformance.Tick, conformance.Tick
		c.ExtendedTypes = s.ExtendedTypes
		c.FourLetterWords = []string{"*"}
		c.Logf = func(string, ...any) {}
	}
	servers := []*zktest.Server{}
	if s.Servers == 1 {
		servers = append(servers, zktest.NewServer(t, option))
	} else {
		servers = zktest.NewEnsemble(t, s.Servers, option).Servers()
	}
	return func(n int) (net.Conn, error) {
		srv := servers[n-1]
		return srv.Dial(context.Background(), "tcp", srv.Addr())
	}
}

// compare says in which command a run differs from the record.
func compare(c *conformance.Case, got [][]string, version string) string {
	var b strings.Builder
	for i, step := range c.Steps {
		want := step.Answers[version]
		if i < len(got) && slices.Equal(got[i], want) {
			continue
		}
		fmt.Fprintf(&b, "%s\n", step.Text)
		for _, line := range want {
			fmt.Fprintf(&b, "    recorded: %s\n", line)
		}
		if i < len(got) {
			for _, line := range got[i] {
				fmt.Fprintf(&b, "    zktest:   %s\n", line)
			}
		}
	}
	return b.String()
}

// zktestDoc returns the text of zktest's package comment on one line.
func zktestDoc(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../zktest/doc.go")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(strings.ReplaceAll(string(text), "//", " ")), " ")
}
