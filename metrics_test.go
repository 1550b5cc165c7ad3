package zklock

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sort"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/go-zklock/zklock/zktest"
)

// samples gathers a registry: `name{label="value",…}` to the value, or to the
// number of observations.
func samples(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	must(t, err)
	got := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			key := f.GetName()
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+`="`+l.GetValue()+`"`)
			}
			if len(labels) > 0 {
				key += "{" + strings.Join(labels, ",") + "}"
			}
			switch {
			case m.GetHistogram() != nil:
				got[key] = float64(m.GetHistogram().GetSampleCount())
			case m.GetGauge() != nil:
				got[key] = m.GetGauge().GetValue()
			case m.GetCounter() != nil:
				got[key] = m.GetCounter().GetValue()
			default:
				t.Errorf("%s is neither histogram, gauge nor counter", key)
			}
		}
	}
	return got
}

// sample is the value of one metric, which has to be there.
func sample(t *testing.T, reg *prometheus.Registry, key string) float64 {
	t.Helper()
	v, ok := samples(t, reg)[key]
	if !ok {
		t.Errorf("%s is absent", key)
	}
	return v
}

func metered(reg *prometheus.Registry) func(*Config) {
	return func(cfg *Config) { cfg.Registerer = reg }
}

// The names that the README lists, with kind and labels. A dashboard depends on each.
func TestMetricNames(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		reg := prometheus.NewRegistry()
		c := b.connect(metered(reg), func(cfg *Config) { cfg.Root = "/app" })
		m := b.mutex(c, "/app/secret-key")
		l := b.acquire(m)
		_, err := m.TryAcquire(t.Context())
		wantErr(t, err, ErrHeld)
		time.Sleep(10 * time.Second) // proofs, and the poll of the ensemble
		b.release(l)

		families, err := reg.Gather()
		must(t, err)
		var got []string
		for _, f := range families {
			labels := make(map[string]bool)
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					labels[l.GetName()] = true
					if strings.Contains(l.GetValue(), "secret") {
						t.Errorf("%s has the label %s=%q: a key", f.GetName(), l.GetName(), l.GetValue())
					}
					if l.GetName() == "prefix" && l.GetValue() != "/app" {
						t.Errorf("%s has the prefix %q, want Config.Root", f.GetName(), l.GetValue())
					}
				}
			}
			name := f.GetName() + " " + strings.ToLower(f.GetType().String())
			for l := range labels {
				name += " " + l
			}
			got = append(got, name)
			if f.GetHelp() == "" {
				t.Errorf("%s has no help", f.GetName())
			}
		}
		want := []string{
			"zk_session_expired_total counter",
			"zk_watch_notifications_total counter prefix",
			"zk_ephemeral_nodes_total gauge prefix",
			"zk_quorum_size gauge",
			"zk_ensemble_size gauge",
			"zk_operation_latency_ms histogram op",
			"zklock_acquire_seconds histogram outcome",
			"zklock_hold_seconds histogram",
			"zklock_waiters gauge",
			"zklock_held gauge",
			"zklock_lost_total counter reason",
			"zklock_suspended_seconds_total counter",
			"zklock_proof_seconds histogram",
			"zklock_pending_deletes gauge",
			"zklock_listener_panics_total counter",
			"zklock_queue_length_max gauge prefix",
		}
		sort.Strings(got)
		sort.Strings(want)
		if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
			t.Errorf("metrics:\n%s\nwant:\n%s", g, w)
		}
		for op, n := range map[string]float64{"create": 1, "getChildren": 1, "exists": 2, "getData": 1, "delete": 1, "multi": 4} {
			if v := sample(t, reg, `zk_operation_latency_ms{op="`+op+`"}`); v < n {
				t.Errorf("%v requests of kind %s observed, want at least %v", v, op, n)
			}
		}
	})
}

// Each number follows what happens, and all gauges are back at rest.
func TestMetricValues(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		reg := prometheus.NewRegistry()
		c := b.connect(metered(reg))
		m := b.mutex(c, "/dedup/a")
		want := func(when, key string, v float64) {
			t.Helper()
			synctest.Wait()
			if got := sample(t, reg, key); got != v {
				t.Errorf("%s: %s is %v, want %v", when, key, got, v)
			}
		}
		const nodes = `zk_ephemeral_nodes_total{prefix="/dedup"}`
		l := b.acquire(m)
		want("held", "zklock_held", 1)
		want("held", nodes, 1)
		want("held", `zklock_acquire_seconds{outcome="acquired"}`, 1)
		again, err := m.Acquire(l.Context())
		must(t, err)
		want("held twice by one hold", "zklock_held", 1)
		var waiters []<-chan result
		for range 4 {
			waiters = append(waiters, acquireAsync(b.within(10*time.Minute), m))
			time.Sleep(10 * time.Millisecond) // so that they stand in this order
		}
		short := b.within(time.Second)
		_, err = m.Acquire(short)
		wantErr(t, err, ErrNotAcquired)
		want("four wait", "zklock_waiters", 4)
		want("four wait", nodes, 2) // the holder's and the next one's
		want("one gave up", `zklock_acquire_seconds{outcome="timeout"}`, 1)
		_, err = m.TryAcquire(t.Context())
		wantErr(t, err, ErrHeld)
		want("one tried", `zklock_acquire_seconds{outcome="held"}`, 1)
		b.release(again)
		want("one handle is left", "zklock_held", 1)
		b.release(l)
		want("released", "zklock_hold_seconds", 1)
		for _, w := range waiters {
			r := <-w
			must(t, r.err)
			b.release(r.l)
		}
		want("all done", "zklock_waiters", 0)
		want("all done", "zklock_held", 0)
		want("all done", nodes, 0)
		want("all done", "zklock_hold_seconds", 5)
		want("all done", "zklock_pending_deletes", 0)
		// The whole line under the key: the holder, four that wait, and the one that gave up.
		if n := sample(t, reg, `zklock_queue_length_max{prefix="/dedup"}`); n < 2 || n > 6 {
			t.Errorf("the longest queue had %v", n)
		}

		before := sample(t, reg, `zk_watch_notifications_total{prefix="/dedup"}`)
		l = b.acquire(m)
		time.Sleep(time.Second)
		must(t, b.srv.Delete(l.Path()))
		b.awaitLost(l)
		want("deleted by hand", `zklock_lost_total{reason="node_deleted"}`, 1)
		want("deleted by hand", "zklock_held", 0)
		want("deleted by hand", `zk_watch_notifications_total{prefix="/dedup"}`, before+1)
		_ = l.Release(t.Context())
		want("deleted by hand", nodes, 0)

		l = b.acquire(m)
		b.srv.Refuse(true)
		b.srv.CutConnections()
		time.Sleep(3 * time.Second)
		b.srv.Refuse(false)
		must(t, l.Await(t.Context()))
		if s := sample(t, reg, "zklock_suspended_seconds_total"); s < 2.9 || s > 6 {
			t.Errorf("suspended for %v s, want about 3", s)
		}
		expire(b, c, nil)
		b.awaitLost(l)
		time.Sleep(5 * time.Second)
		want("expired", `zklock_lost_total{reason="session_expired"}`, 1)
		want("expired", "zk_session_expired_total", 1)
		want("expired", "zklock_held", 0)
		want("expired", nodes, 0)
		_ = l.Release(t.Context())

		l = b.acquire(m)
		must(t, c.Close())
		want("closed", `zklock_lost_total{reason="client_closed"}`, 1)
		want("closed", "zklock_held", 0)
		want("closed", nodes, 0)
		want("closed", "zk_session_expired_total", 1) // to end a session is not to lose it
		want("closed", "zklock_pending_deletes", 0)
		wantErr(t, l.Release(t.Context()), ErrLost)
		want("released after Close", nodes, 0)
	})
}

// A node whose delete is on its way, or not possible now, counts as pending.
func TestPendingDeletes(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		reg := prometheus.NewRegistry()
		c := b.connect(metered(reg))
		l := b.acquire(b.mutex(c, "/dedup/a"))
		b.srv.Refuse(true)
		b.srv.CutConnections()
		time.Sleep(time.Second)
		err := l.Release(b.within(time.Second))
		wantErr(t, err, ErrPending, l.Path())
		wantErr(t, err, context.DeadlineExceeded)
		if n := sample(t, reg, "zklock_pending_deletes"); n != 1 {
			t.Errorf("%v pending deletes, want 1", n)
		}
		b.srv.Refuse(false)
		must(t, l.Release(t.Context())) // again: it waits for the same thing
		synctest.Wait()
		if n := sample(t, reg, "zklock_pending_deletes"); n != 0 || b.srv.Exists(l.Path()) {
			t.Errorf("%v pending deletes at the end; the node is there: %v", n, b.srv.Exists(l.Path()))
		}
	})
}

// Two clients in one process add up, and a registry that has something else of one
// of the names is a bad Config.
func TestSharedRegisterer(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		reg := prometheus.NewRegistry()
		c1, c2 := b.connect(metered(reg)), b.connect(metered(reg), func(cfg *Config) { cfg.Root = "/jobs" })
		l1, l2 := b.acquire(b.mutex(c1, "/dedup/a")), b.acquire(b.mutex(c2, "/jobs/a"))
		if n := sample(t, reg, "zklock_held"); n != 2 {
			t.Errorf("%v held by two clients, want 2", n)
		}
		for _, key := range []string{`zk_ephemeral_nodes_total{prefix="/dedup"}`, `zk_ephemeral_nodes_total{prefix="/jobs"}`} {
			if n := sample(t, reg, key); n != 1 {
				t.Errorf("%s is %v, want 1", key, n)
			}
		}
		b.release(l1)
		b.release(l2)
		must(t, c1.Close())
		// What is left works for the other one.
		b.release(b.acquire(b.mutex(c2, "/jobs/a")))

		taken := prometheus.NewRegistry()
		taken.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "zklock_held", Help: "another thing"}))
		_, err := Connect(t.Context(), Config{Servers: []string{"zk1"}, Registerer: taken})
		wantErr(t, err, ErrInvalidConfig, "Registerer", "zklock_held")
	})
}

// records parses the log, which has to be JSON.
func records(t *testing.T, log string) (list []map[string]any) {
	t.Helper()
	for line := range strings.Lines(log) {
		var r map[string]any
		must(t, json.Unmarshal([]byte(line), &r))
		list = append(list, r)
	}
	return list
}

// Every transition that the README names has its fields.
func TestLogEvents(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		var log logBuffer // of this client alone
		asJSON := func(cfg *Config) {
			cfg.Logger = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelInfo}))
		}
		c := b.connect(asJSON)
		first := hexID(c.SessionID())
		key := "order/17 é"
		element, err := EscapeKey(key)
		must(t, err)
		m := b.mutex(c, "/dedup/"+element)
		holder := b.acquire(b.mutex(b.connect(), "/dedup/"+element))
		waiting := acquireAsync(b.within(10*time.Minute), m)
		time.Sleep(time.Second)
		b.release(holder)
		r := <-waiting
		must(t, r.err)
		l := r.l
		b.srv.CutConnections()
		must(t, awaitState(c, Reconnected))
		synctest.Wait() // the state shows a moment before its record is written
		b.release(l)
		doomed := b.acquire(m)
		expire(b, c, nil)
		b.awaitLost(doomed)
		must(t, awaitState(c, Reconnected))

		type event struct{ name, path, token, session string }
		want := []event{
			{"created", l.Path(), l.Token().String(), first},
			{"watch_fired", l.Path(), l.Token().String(), first},
			{"acquired", l.Path(), l.Token().String(), first},
			{"suspended", "", "", first},
			{"reconnected", "", "", first},
			{"released", l.Path(), l.Token().String(), first},
			{"created", doomed.Path(), doomed.Token().String(), first},
			{"acquired", doomed.Path(), doomed.Token().String(), first},
			{"suspended", "", "", first},
			{"lost", doomed.Path(), doomed.Token().String(), first},
			{"session_expired", "", "", first},
			{"reconnected", "", "", hexID(c.SessionID())},
		}
		var got []event
		str := func(v any) string { s, _ := v.(string); return s }
		synctest.Wait()
		for _, r := range records(t, log.String()) {
			name := str(r["event"])
			if name == "" {
				continue
			}
			got = append(got, event{name, str(r["znode_path"]), str(r["token"]), str(r["session_id"])})
			if r["znode_path"] != nil && r["idempotency_key"] != key {
				t.Errorf("%s has the key %q, want the one that the caller knows, %q", name, r["idempotency_key"], key)
			}
			if bad := name == "lost" || name == "suspended" || name == "session_expired"; bad != (r["error"] != nil) || bad != (r["level"] == "WARN") {
				t.Errorf("%s has level %v and error %v", name, r["level"], r["error"])
			}
		}
		for i := range max(len(got), len(want)) {
			var g, w event
			if i < len(got) {
				g = got[i]
			}
			if i < len(want) {
				w = want[i]
			}
			if g != w {
				t.Errorf("event %d: %+v, want %+v", i, g, w)
			}
		}
		wantErr(t, doomed.Release(t.Context()), ErrLost)
	})
}

// awaitState waits for a state by its event.
func awaitState(c *Client, state ConnectionState) error {
	ch := make(chan struct{}, 16)
	stop := c.OnStateChange(func(StateChange) { ch <- struct{}{} })
	defer stop()
	deadline := time.After(time.Minute)
	for c.State() != state {
		select {
		case <-ch:
		case <-deadline:
			return errors.New("the client stays " + c.State().String())
		}
	}
	return nil
}

// Requests of the caller's own on Conn are not locks.
func TestMetricsOfForeignRequests(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		reg := prometheus.NewRegistry()
		c := b.connect(metered(reg))
		_, err := c.Conn().Create("/mine", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
		must(t, err)
		if n := sample(t, reg, `zk_ephemeral_nodes_total{prefix="/dedup"}`); n != 0 {
			t.Errorf("%v lock nodes owned", n)
		}
	}, zktest.WithTickTime(time.Second))
}

// The label tells how ctx ended, whatever cause its owner gives for it.
func TestOutcomeOfACauseOfTheCallers(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		reg := prometheus.NewRegistry()
		holder := b.acquire(b.mutex(b.connect(), "/dedup/a"))
		m := b.mutex(b.connect(metered(reg)), "/dedup/a")
		mine := errors.New("enough")

		late, cancel := context.WithTimeoutCause(t.Context(), time.Second, mine)
		defer cancel()
		_, err := m.Acquire(late)
		wantErr(t, err, mine)
		ended, end := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { end(mine) })
		_, err = m.Acquire(ended)
		wantErr(t, err, mine)
		for outcome, want := range map[string]float64{"timeout": 1, "canceled": 1} {
			if got := sample(t, reg, `zklock_acquire_seconds{outcome="`+outcome+`"}`); got != want {
				t.Errorf("%s: %v, want %v", outcome, got, want)
			}
		}
		if _, there := samples(t, reg)[`zklock_acquire_seconds{outcome="error"}`]; there {
			t.Error("an error was counted")
		}
		b.release(holder)
	})
}
