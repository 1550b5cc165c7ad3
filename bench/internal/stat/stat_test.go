package stat

import (
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	values := []time.Duration{5, 1, 4, 2, 3}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 3, 0.99: 5, 1: 5} {
		if got := Quantile(values, q); got != want {
			t.Errorf("%v-quantile of %v is %v, want %v", q, values, got, want)
		}
	}
	if got := Median([]float64(nil)); got != 0 {
		t.Errorf("median of nothing is %v", got)
	}
	if values[0] != 5 {
		t.Error("the values were sorted in place")
	}
}

func TestRatioOfNothing(t *testing.T) {
	if r := Ratio(3.0, 0); r != 0 || Times(r) != "" {
		t.Errorf("3/0 is %v, printed %q", r, Times(r))
	}
}
