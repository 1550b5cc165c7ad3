// Package figures writes what tests measured into one folder: every value as a line of figures.csv, the least, the
// median and the largest of each group as a table in figures.md, and time lines as PNG files.
package figures

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// EnvFolder is the environment variable that names the folder. Without it nothing is written.
const EnvFolder = "ZKLOCK_REPORT"

// Measure is what a value says.
type Measure string

// The measures.
const (
	// Lead is how long before its node was gone a holder had stepped down, at least.
	Lead Measure = "lead"
	// HandOver is the time from the end of one hold, or from the fault that ended it, to the next grant.
	HandOver Measure = "hand-over"
	// Recovery is the time from the end of a fault until everything was as it should be.
	Recovery Measure = "recovery"
)

const csvName, tableName = "figures.csv", "figures.md"

var mu sync.Mutex

// Folder is where to write, or "" for nowhere.
func Folder() string { return os.Getenv(EnvFolder) }

// Record notes values of a test. Several processes may do so at a time.
func Record(t testing.TB, fault, version string, m Measure, values ...time.Duration) {
	t.Helper()
	if err := record(t.Name(), fault, version, m, values); err != nil {
		t.Errorf("figures: %v", err)
	}
}

func record(test, fault, version string, m Measure, values []time.Duration) error {
	if Folder() == "" || len(values) == 0 {
		return nil
	}
	test, _, _ = strings.Cut(test, "/")
	var b strings.Builder
	w := csv.NewWriter(&b)
	for _, v := range values {
		if err := w.Write([]string{test, fault, version, string(m), strconv.FormatFloat(v.Seconds(), 'f', 6, 64)}); err != nil {
			return err
		}
	}
	w.Flush()
	mu.Lock()
	defer mu.Unlock()
	if err := os.MkdirAll(Folder(), 0o755); err != nil { //nolint:gosec // for everybody to read
		return err
	}
	file, err := os.OpenFile(filepath.Join(Folder(), csvName), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec // likewise
	if err != nil {
		return err
	}
	_, err = file.WriteString(b.String()) // in one write, which does not mix with another's
	return errors.Join(err, file.Close())
}

// group is what one line of the table is about.
type group struct{ test, fault, version, measure string }

// WriteTables writes the table of all values in the folder. Every package's tests do so when they end, so the last
// ones write about all.
func WriteTables() error {
	if Folder() == "" {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(Folder(), csvName))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	lines, err := csv.NewReader(strings.NewReader(string(text))).ReadAll()
	if err != nil {
		return err
	}
	values := make(map[group][]float64)
	var order []group
	for _, l := range lines {
		if len(l) != 5 {
			return fmt.Errorf("%s has a line of %d fields: %q", csvName, len(l), l)
		}
		g := group{l[0], l[1], l[2], l[3]}
		v, err := strconv.ParseFloat(l[4], 64)
		if err != nil {
			return err
		}
		if values[g] == nil {
			order = append(order, g)
		}
		values[g] = append(values[g], v)
	}
	slices.SortStableFunc(order, func(a, b group) int { return cmp.Compare(a.test, b.test) })
	var b strings.Builder
	b.WriteString("# Figures of the integration tests\n\nSeconds. *Lead*: how long before its node was gone a holder had stepped down, at least. " +
		"*Hand-over*: from the end of a hold, or the fault that ended it, to the next grant. *Recovery*: from the end of the fault until all was as it should be.\n\n" +
		"| Test | Fault | ZooKeeper | Measure | Values | Smallest | Median | Largest |\n|---|---|---|---|---:|---:|---:|---:|\n")
	for _, g := range order {
		v := values[g]
		slices.Sort(v)
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %d | %.3f | %.3f | %.3f |\n", g.test, g.fault, g.version, g.measure, len(v), v[0], v[len(v)/2], v[len(v)-1])
	}
	return os.WriteFile(filepath.Join(Folder(), tableName), []byte(b.String()), 0o644) //nolint:gosec // for everybody to read
}
