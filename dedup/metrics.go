package dedup

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are those that the README lists for dedup. No label is ever a key.
type metrics struct {
	requests   *prometheus.CounterVec
	commit     prometheus.Histogram
	table      prometheus.Gauge
	lost       prometheus.Counter
	unknown    prometheus.Counter
	prematured prometheus.Counter
	late       prometheus.Counter
	swept      prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dedup_requests_total", Help: "Calls of Do by what came of them.",
		}, []string{"outcome"}),
		commit: prometheus.NewHistogram(prometheus.HistogramOpts{ //nolint:promlinter // the runbook's name
			Name: "dedup_commit_latency_ms", Help: "Time to store an outcome, in milliseconds.",
			Buckets: []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000},
		}),
		table: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "dedup_table_size", Help: "Records in the index when the sweeper last counted them.",
		}),
		lost:       counter("dedup_claims_lost_total", "Claims lost while their function ran, or before its outcome was stored."),
		unknown:    counter("dedup_indeterminate_total", "Calls that met, or left, an unknown outcome."),
		prematured: counter("dedup_premature_eviction_total", "Records found removed before their retention was over."),
		late:       counter("dedup_late_retry_total", "Calls refused because their key is older than the retention."),
		swept:      counter("dedup_swept_total", "Records removed by this process because their retention was over."),
	}
	if reg == nil {
		return m, nil
	}
	var err error
	register(reg, &m.requests, &err)
	register(reg, &m.commit, &err)
	register(reg, &m.table, &err)
	for _, c := range []*prometheus.Counter{&m.lost, &m.unknown, &m.prematured, &m.late, &m.swept} {
		register(reg, c, &err)
	}
	return m, err
}

// register registers a collector, or takes over the one that another guard has
// registered.
func register[C prometheus.Collector](reg prometheus.Registerer, c *C, failed *error) {
	err := reg.Register(*c)
	var there prometheus.AlreadyRegisteredError
	if errors.As(err, &there) {
		if other, ok := there.ExistingCollector.(C); ok {
			*c = other
			return
		}
	}
	if err != nil && *failed == nil {
		*failed = fmt.Errorf("%w: Registerer: %w", ErrInvalidConfig, err)
	}
}

func (m *metrics) request(outcome string) { m.requests.WithLabelValues(outcome).Inc() }
func (m *metrics) committed(d time.Duration) {
	m.commit.Observe(float64(d) / float64(time.Millisecond))
}
func (m *metrics) claimLost()      { m.lost.Inc() }
func (m *metrics) indeterminate()  { m.unknown.Inc() }
func (m *metrics) premature(n int) { m.prematured.Add(float64(n)) }
func (m *metrics) lateRetry()      { m.late.Inc() }
func (m *metrics) sweptSome(n int) { m.swept.Add(float64(n)) }
func (m *metrics) tableSize(n int64) {
	if n >= 0 {
		m.table.Set(float64(n))
	}
}
