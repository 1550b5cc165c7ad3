// Package stat reduces what was measured to figures.
package stat

import (
	"fmt"
	"slices"
	"time"
)

// Quantile is the q-quantile (0 to 1) of what was measured, 0 if nothing was. The slice need not be sorted.
func Quantile[T ~int64 | ~float64](values []T, q float64) T {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// Median is the middle one.
func Median[T ~int64 | ~float64](values []T) T { return Quantile(values, 0.5) }

// Ratio is a/b, 0 if there is no b.
func Ratio[T ~int64 | ~float64](a, b T) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// Times prints a ratio as a multiple.
func Times(r float64) string {
	if r == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f ×", r)
}

// Milliseconds prints a duration with three significant digits or so.
func Milliseconds(d time.Duration) string {
	switch ms := float64(d) / float64(time.Millisecond); {
	case d == 0:
		return ""
	case ms < 10:
		return fmt.Sprintf("%.2f ms", ms)
	case ms < 100:
		return fmt.Sprintf("%.1f ms", ms)
	default:
		return fmt.Sprintf("%.0f ms", ms)
	}
}
