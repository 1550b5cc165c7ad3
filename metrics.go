package zklock

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the collectors that the README lists. A nil *metrics counts nothing.
// No label is ever a key or a full path: prefix is Config.Root.
type metrics struct {
	prefix string

	sessionExpired prometheus.Counter
	watches        *prometheus.CounterVec
	ephemerals     *prometheus.GaugeVec
	ensembleSize   *prometheus.GaugeVec
	quorumSize     *prometheus.GaugeVec
	latency        *prometheus.HistogramVec
	acquireSeconds *prometheus.HistogramVec
	holdSeconds    prometheus.Histogram
	waiters        prometheus.Gauge
	held           prometheus.Gauge
	lostTotal      *prometheus.CounterVec
	suspendedTotal prometheus.Counter
	proofSeconds   prometheus.Histogram
	pendingDeletes prometheus.Gauge
	panics         prometheus.Counter
	queueMax       *maxGauge
}

// Buckets. Lock waits reach from a round trip to hours; requests from a fraction of
// a millisecond to a session timeout.
var (
	latencyBuckets = []float64{0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384}
	waitBuckets    = []float64{0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3600}
	proofBuckets   = []float64{0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10}
)

func newMetrics(reg prometheus.Registerer, prefix string) (*metrics, error) {
	if reg == nil {
		return nil, nil
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	gaugeVec := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	counterVec := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	}
	histogramVec := func(name, help, label string, buckets []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{label})
	}
	m := &metrics{
		prefix:         prefix,
		sessionExpired: counter("zk_session_expired_total", "ZooKeeper sessions lost, whoever found out first."),
		watches:        counterVec("zk_watch_notifications_total", "Watch notifications received.", "prefix"),
		ephemerals:     gaugeVec("zk_ephemeral_nodes_total", "Lock nodes that this process owns.", "prefix"),
		ensembleSize:   gaugeVec("zk_ensemble_size", "Voting servers in the ensemble's configuration, when it was last read; absent where it never could be."),
		quorumSize:     gaugeVec("zk_quorum_size", "Voting servers that take part in the quorum now, as seen from here; absent where not all can be asked."),
		latency:        histogramVec("zk_operation_latency_ms", "Time from request to reply, in milliseconds.", "op", latencyBuckets),
		acquireSeconds: histogramVec("zklock_acquire_seconds", "Time in Acquire and TryAcquire by outcome.", "outcome", waitBuckets),
		holdSeconds:    histogram("zklock_hold_seconds", "Time from grant to release or loss.", waitBuckets),
		waiters:        gauge("zklock_waiters", "Calls that wait for a lock."),
		held:           gauge("zklock_held", "Locks held, suspended ones included."),
		lostTotal:      counterVec("zklock_lost_total", "Locks lost while held, by reason.", "reason"),
		suspendedTotal: counter("zklock_suspended_seconds_total", "Time spent suspended."),
		proofSeconds:   histogram("zklock_proof_seconds", "Time from proof to answer.", proofBuckets),
		pendingDeletes: gauge("zklock_pending_deletes", "Lock nodes that the background deleter works on."),
		panics:         counter("zklock_listener_panics_total", "Panics of state listeners, contained."),
		queueMax:       newMaxGauge("zklock_queue_length_max", "The longest queue seen under one key."),
	}
	err := errors.Join(
		register(reg, &m.sessionExpired), register(reg, &m.watches), register(reg, &m.ephemerals),
		register(reg, &m.ensembleSize), register(reg, &m.quorumSize), register(reg, &m.latency),
		register(reg, &m.acquireSeconds), register(reg, &m.holdSeconds), register(reg, &m.waiters),
		register(reg, &m.held), register(reg, &m.lostTotal), register(reg, &m.suspendedTotal),
		register(reg, &m.proofSeconds), register(reg, &m.pendingDeletes), register(reg, &m.panics),
		register(reg, &m.queueMax),
	)
	if err != nil {
		return nil, fmt.Errorf("%w: Registerer: %w", ErrInvalidConfig, err)
	}
	// There from the start, so that a rate can be taken of the first event.
	m.watches.WithLabelValues(prefix)
	m.ephemerals.WithLabelValues(prefix)
	for _, r := range []Reason{SessionExpired, SessionReplaced, TrustExpired, NodeDeleted, ClientClosed, AuthFailed, Revoked} {
		m.lostTotal.WithLabelValues(string(r))
	}
	return m, nil
}

// register puts *c into reg, or replaces it by the one that is there already.
func register[C prometheus.Collector](reg prometheus.Registerer, c *C) error {
	err := reg.Register(*c)
	var there prometheus.AlreadyRegisteredError
	if errors.As(err, &there) {
		if old, ok := there.ExistingCollector.(C); ok {
			*c = old
			return nil
		}
	}
	return err
}

func (m *metrics) sessionLost() {
	if m != nil {
		m.sessionExpired.Inc()
	}
}

func (m *metrics) watchEvent() {
	if m != nil {
		m.watches.WithLabelValues(m.prefix).Inc()
	}
}

func (m *metrics) nodes(delta int) {
	if m != nil {
		m.ephemerals.WithLabelValues(m.prefix).Add(float64(delta))
	}
}

func (m *metrics) operation(op string, took time.Duration) {
	if m == nil {
		return
	}
	switch op {
	case "create", "getChildren", "exists", "getData", "delete", "multi":
		m.latency.WithLabelValues(op).Observe(float64(took) / float64(time.Millisecond))
	}
}

func (m *metrics) waiting(delta float64) {
	if m != nil {
		m.waiters.Add(delta)
	}
}

func (m *metrics) acquired(outcome string, took time.Duration) {
	if m != nil {
		m.acquireSeconds.WithLabelValues(outcome).Observe(took.Seconds())
	}
}

func (m *metrics) granted() {
	if m != nil {
		m.held.Inc()
	}
}

func (m *metrics) released(held time.Duration) {
	if m != nil {
		m.held.Dec()
		m.holdSeconds.Observe(held.Seconds())
	}
}

func (m *metrics) lost(r Reason, held time.Duration) {
	if m != nil {
		m.held.Dec()
		m.holdSeconds.Observe(held.Seconds())
		m.lostTotal.WithLabelValues(string(r)).Inc()
	}
}

// lostAtRelease counts a loss that a release found out, which has counted the rest.
func (m *metrics) lostAtRelease(r Reason) {
	if m != nil {
		m.lostTotal.WithLabelValues(string(r)).Inc()
	}
}

func (m *metrics) suspended(d time.Duration) {
	if m != nil && d > 0 {
		m.suspendedTotal.Add(d.Seconds())
	}
}

func (m *metrics) proof(took time.Duration) {
	if m != nil {
		m.proofSeconds.Observe(took.Seconds())
	}
}

func (m *metrics) pending(delta float64) {
	if m != nil {
		m.pendingDeletes.Add(delta)
	}
}

func (m *metrics) listenerPanic() {
	if m != nil {
		m.panics.Inc()
	}
}

func (m *metrics) queueLength(n int) {
	if m != nil {
		m.queueMax.observe(m.prefix, n)
	}
}

// ensemble sets the two sizes; a negative one is not known and not shown.
func (m *metrics) ensemble(size, quorum int) {
	if m == nil {
		return
	}
	for _, g := range []struct {
		vec *prometheus.GaugeVec
		n   int
	}{{m.ensembleSize, size}, {m.quorumSize, quorum}} {
		if g.n < 0 {
			g.vec.Reset()
		} else {
			g.vec.WithLabelValues().Set(float64(g.n))
		}
	}
}

// maxGauge keeps the largest value observed per prefix. Clients that share a
// Registerer share it, so the largest of all of them shows.
type maxGauge struct {
	desc *prometheus.Desc

	mu  sync.Mutex
	max map[string]int
}

func newMaxGauge(name, help string) *maxGauge {
	return &maxGauge{desc: prometheus.NewDesc(name, help, []string{"prefix"}, nil), max: make(map[string]int)}
}

func (g *maxGauge) observe(prefix string, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n > g.max[prefix] {
		g.max[prefix] = n
	}
}

// Describe makes maxGauge a prometheus.Collector.
func (g *maxGauge) Describe(ch chan<- *prometheus.Desc) { ch <- g.desc }

// Collect makes maxGauge a prometheus.Collector.
func (g *maxGauge) Collect(ch chan<- prometheus.Metric) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for prefix, n := range g.max {
		ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, float64(n), prefix)
	}
}
