package examples

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// The table of docs/choosing.md is what its formulas say, for ticks of 2 s.
func TestChoosingTable(t *testing.T) {
	const tick = 2.0
	// The share of T that a healthy holder's deadline stays ahead, by the ticks that T has (package comment).
	ahead := func(ticks float64) float64 {
		switch {
		case ticks >= 6:
			return 0.4
		case ticks >= 3:
			return 0.3
		default:
			return 0.1
		}
	}
	number := func(x float64) string {
		return strings.TrimSuffix(strings.TrimRight(strconv.FormatFloat(x, 'f', 2, 64), "0"), ".")
	}
	text := read(t, "docs/choosing.md")
	for _, timeout := range []float64{4, 6, 12, 30, 40} {
		row := fmt.Sprintf("| %s s | %s | %s s | %s s | %s s | %s s | %s |\n", number(timeout), number(timeout/tick), number(timeout/6),
			number(timeout+1.5*tick), number(ahead(timeout/tick)*timeout), number(timeout/12), number(100/(timeout/6)))
		if !strings.Contains(text, row) {
			t.Errorf("docs/choosing.md lacks the row\n%s", row)
		}
	}
	if !strings.Contains(read(t, "doc.go"), "at least 0.1 T with 2 ticks, the shortest that\n// servers grant, 0.3 T with 3 and 0.4 T from 6 on") {
		t.Error("the package comment has other shares of T")
	}
}
