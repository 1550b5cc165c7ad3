package dedup_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
)

// values reads every sample of a registry, the histogram by its count.
func values(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "dedup_") {
			continue
		}
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += fmt.Sprintf("{%s=%s}", l.GetName(), l.GetValue())
			}
			all[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return all
}

// Every metric moves by what has happened, and by nothing else.
func TestMetrics(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		reg := prometheus.NewRegistry()
		p := b.start(hour, func(_ *zklock.Config, c *dedup.Config) { c.Registerer = reg; c.MaxOutcome = 50 })
		q := b.start(hour)
		was := values(t, reg)
		moved := func(what string, want map[string]float64) {
			t.Helper()
			is := values(t, reg)
			got := map[string]float64{}
			for name, v := range is {
				if d := v - was[name]; d != 0 {
					got[name] = d
				}
			}
			was = is
			if !maps.Equal(got, want) {
				t.Errorf("%s: moved %v, want %v", what, got, want)
			}
		}
		requests := func(outcome string) string { return "dedup_requests_total{outcome=" + outcome + "}" }
		const commits, unknown, lost = "dedup_commit_latency_ms", "dedup_indeterminate_total", "dedup_claims_lost_total"

		_, _ = p.do(t.Context(), "k", says("one"))
		moved("a run", map[string]float64{requests("executed"): 1, commits: 1})
		_, _ = p.do(t.Context(), "k", says("one"))
		moved("a replay", map[string]float64{requests("replayed"): 1})
		_, err := dedup.Do(t.Context(), p.Guard, dedup.Key{ID: "k"}, dedup.Payload([]byte("payload")), func(context.Context, *dedup.Claim) (int, error) {
			t.Error("the function ran")
			return 0, nil
		})
		var notAnInt *json.UnmarshalTypeError
		if !errors.As(err, &notAnInt) {
			t.Errorf("%v, want what the codec says", err)
		}
		moved("a replay of another type", map[string]float64{requests("unusable"): 1})
		_, _ = dedup.Do(t.Context(), p.Guard, dedup.Key{ID: "k"}, dedup.Payload([]byte("other")), mustNotRun(t))
		moved("another payload", map[string]float64{requests("key_reused"): 1})
		_, _ = p.do(t.Context(), "f", fails(dedup.Permanent(errors.New("for good"))))
		moved("a failure for good", map[string]float64{requests("failed"): 1, commits: 1})
		_, _ = p.do(t.Context(), "f", mustNotRun(t))
		moved("its replay", map[string]float64{requests("failed_replayed"): 1})
		_, _ = p.do(t.Context(), "o", fails(errors.New("broken")))
		moved("an error", map[string]float64{requests("error"): 1})
		_, _ = p.do(t.Context(), "large", says(strings.Repeat("x", 51)))
		moved("an outcome that is too large", map[string]float64{requests("too_large"): 1, commits: 1})
		b.unknown(p, "u")
		moved("a panic", map[string]float64{requests("panic"): 1, unknown: 1})
		_, _ = p.do(t.Context(), "u", mustNotRun(t))
		moved("an unknown outcome", map[string]float64{requests("indeterminate"): 1, unknown: 1})
		_, _ = p.do(t.Context(), "n", func(ctx context.Context, _ *dedup.Claim) (string, error) {
			_, err := p.do(ctx, "n", mustNotRun(t))
			return "", err
		})
		moved("a call in itself", map[string]float64{requests("nested"): 2})
		_, _ = p.do(t.Context(), "", mustNotRun(t))
		moved("no key", map[string]float64{requests("invalid"): 1})
		l := q.lock(t, "k9")
		_, _ = p.do(t.Context(), "k9", mustNotRun(t), dedup.NoWait())
		moved("a key in use", map[string]float64{requests("in_progress"): 1})
		release(t, l)
		_, _ = p.do(t.Context(), uuidv7(time.Now().Add(-2*time.Hour)), mustNotRun(t))
		moved("a late retry", map[string]float64{requests("key_expired"): 1, "dedup_late_retry_total": 1})
		_ = b.srv.Set("/dedup/k", []byte("rubbish"))
		_, _ = q.do(t.Context(), "k", mustNotRun(t))
		_, _ = p.do(t.Context(), "k", mustNotRun(t))
		moved("a corrupt record", map[string]float64{requests("unusable"): 1})
		_ = b.srv.Delete("/dedup/k")

		started := make(chan struct{})
		first := p.goDo(t.Context(), "lost", func(ctx context.Context, _ *dedup.Claim) (string, error) {
			close(started)
			<-ctx.Done()
			return "", nil
		})
		<-started
		b.srv.Expire(p.client.SessionID())
		<-first
		moved("a loss", map[string]float64{requests("indeterminate"): 1, unknown: 1, lost: 1})
		_, _ = p.do(t.Context(), "away", mustNotRun(t))
		moved("no ensemble", map[string]float64{requests("unavailable"): 1})

		time.Sleep(2 * time.Hour)
		was["dedup_swept_total"] = 0
		r, err := p.Sweep(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		moved("a sweep", map[string]float64{"dedup_swept_total": float64(r.Swept), "dedup_premature_eviction_total": 1, "dedup_table_size": float64(r.Records)})
		if r.Swept == 0 || r.Records == 0 {
			t.Errorf("%+v", r)
		}
		_ = p.Close(t.Context())
		_, _ = p.do(t.Context(), "k", mustNotRun(t))
		moved("a closed guard", map[string]float64{requests("closed"): 1})
	})
}

func TestGuardsShareTheirMetrics(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		reg := prometheus.NewRegistry()
		set := func(c *zklock.Config, _ *dedup.Config) { c.Registerer = reg }
		p := b.start(set)
		second, err := dedup.New(p.client, dedup.Config{SweepInterval: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = second.Close(t.Context()) }()
		_, _ = p.do(t.Context(), "k", says("one"))
		_, _ = (&process{second, p.client, ""}).do(t.Context(), "k", says("one"))
		if v := values(t, reg); v["dedup_requests_total{outcome=executed}"] != 1 || v["dedup_requests_total{outcome=replayed}"] != 1 {
			t.Errorf("%v", v)
		}
		other := prometheus.NewRegistry()
		other.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "dedup_swept_total", Help: "Something else."})) //nolint:promlinter // another kind of metric under our name
		if _, err := dedup.New(p.client, dedup.Config{Registerer: other}); !errors.Is(err, dedup.ErrInvalidConfig) {
			t.Errorf("%v, want ErrInvalidConfig", err)
		}
	})
}

// The log tells of each transition once, with the fields that all have.
func TestLogEvents(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		p := b.start(hour)
		k := dedup.Key{Scope: "tenant", ID: "a key"}
		var token zklock.Token
		for range 2 {
			r, err := dedup.Do(t.Context(), p.Guard, k, dedup.NoFingerprint, says("one"))
			if err != nil {
				t.Fatal(err)
			}
			token = r.Token
		}
		time.Sleep(2 * time.Hour)
		p.sweep(t, 1)
		synctest.Wait() // the client's log is written behind its back
		log := b.log.String()
		for _, event := range []string{"committed", "duplicate_detected", "evicted", "swept"} {
			var lines []string
			for line := range strings.Lines(log) {
				if strings.Contains(line, "event="+event+" ") {
					lines = append(lines, line)
				}
			}
			if len(lines) != 1 {
				t.Fatalf("%d lines of %s: %q", len(lines), event, lines)
			}
			fields := []string{
				"level=INFO", "scope=tenant", `idempotency_key="a key"`, fmt.Sprintf("znode_path=%q ", "/dedup/"+k.String()),
				fmt.Sprintf("session_id=0x%x ", p.client.SessionID()), "token=" + token.String() + " ", "attempt=1", "state=done",
			}
			switch event {
			case "evicted":
				fields[0] = "level=DEBUG"
			case "swept":
				fields = []string{"level=INFO", "swept=1"}
			}
			for _, field := range fields {
				if !strings.Contains(lines[0], field) {
					t.Errorf("%s is not in %s", field, lines[0])
				}
			}
		}
	})
}

// A server that refuses is told of, and is not asked for ever.
func TestNodesThatTheEnsembleRefuses(t *testing.T) {
	inBubble(t, func(b *bundle) {
		t := b.t
		owner := b.start(func(c *zklock.Config, _ *dedup.Config) {
			c.Auth = []zklock.Auth{{Scheme: "digest", Credentials: []byte("owner:secret")}}
			c.ACL = zk.DigestACL(zk.PermAll, "owner", "secret")
		})
		stranger := b.start()
		if _, err := owner.do(t.Context(), "k", says("one")); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for _, id := range []string{"k", "new"} {
			if _, err := stranger.do(t.Context(), id, mustNotRun(t)); !errors.Is(err, dedup.ErrUnavailable) {
				t.Errorf("%s: %v, want ErrUnavailable", id, err)
			}
		}
		if err := stranger.Resolve(t.Context(), dedup.Key{ID: "k"}, dedup.NotDone()); err == nil || errors.Is(err, dedup.ErrDetermined) {
			t.Errorf("Resolve: %v, want a refusal", err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
		if r, err := owner.do(t.Context(), "k", mustNotRun(t)); err != nil || r.Value != "one" {
			t.Errorf("%+v, %v", r, err)
		}
	})
}
