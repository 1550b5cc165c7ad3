package deploy

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-zklock/zklock"
	"github.com/go-zklock/zklock/dedup"
	"github.com/go-zklock/zklock/zktest"
)

// Every query of the dashboard shows something on a good day, no alert does, and each alert does once what it is
// about has been made to happen. Prometheus is a real one; how long an alert waits is for promtool's tests.
func TestRealRun(t *testing.T) {
	ensemble := zktest.NewEnsemble(t, 3, func(c *zktest.Config) { c.Logf = nil })
	fleet := []*process{startProcess(t, ensemble, "w1"), startProcess(t, ensemble, "w2")}
	var targets []string
	for _, p := range fleet {
		targets = append(targets, p.target)
	}
	prometheus := startPrometheus(t, targets)
	stop := work(t, fleet)
	defer stop()

	for _, p := range panels(t) {
		for _, target := range p.Targets {
			eventually(t, fmt.Sprintf("panel %q has an answer to %s", p.Title, target.Expr), func() bool {
				return prometheus.shows(t, query(target.Expr))
			})
		}
	}
	stop()
	checkRules(t, prometheus)
	checkSelectors(t, prometheus)
	for _, a := range alerts(t) {
		// How long requests take depends on how busy this machine is.
		if a.Alert != "ZooKeeperSlow" && a.Alert != "ZklockProofsSlow" && len(prometheus.query(t, a.Expr)) > 0 {
			t.Errorf("%s on a good day: %v", a.Alert, prometheus.query(t, a.Expr))
		}
	}
	if t.Failed() {
		return
	}

	missing := make(map[string]string)
	for _, a := range alerts(t) {
		missing[a.Alert] = a.Expr
	}
	for _, bad := range badDays(t, ensemble, fleet[0]) {
		bad.happens()
		for _, name := range bad.alerts {
			expr, ok := missing[name]
			if !ok {
				t.Fatalf("there is no alert %s", name)
			}
			eventually(t, name+" shows something", func() bool { return prometheus.shows(t, expr) })
			delete(missing, name)
		}
	}
	for name := range missing {
		t.Errorf("nothing is done to see %s", name)
	}
}

// checkRules waits until Prometheus itself has evaluated all alerts, and asks how that went.
func checkRules(t *testing.T, prometheus *server) {
	t.Helper()
	type rule struct{ Name, Health, LastError string }
	var data struct {
		Groups []struct{ Rules []rule }
	}
	eventually(t, "Prometheus has evaluated the rules", func() bool {
		prometheus.get(t, "/api/v1/rules", &data)
		return !slices.ContainsFunc(data.Groups, func(g struct{ Rules []rule }) bool {
			return slices.ContainsFunc(g.Rules, func(r rule) bool { return r.Health == "unknown" })
		})
	})
	n := 0
	for _, g := range data.Groups {
		for _, r := range g.Rules {
			if n++; r.Health != "ok" {
				t.Errorf("%s: %s: %s", r.Name, r.Health, r.LastError)
			}
		}
	}
	if n != len(alerts(t)) {
		t.Errorf("Prometheus has %d rules, alerts.yaml %d", n, len(alerts(t)))
	}
}

// checkSelectors sees that all series an alert asks for are there before anything goes wrong: an increase is not
// seen of a counter that begins with it.
func checkSelectors(t *testing.T, prometheus *server) {
	t.Helper()
	selector := regexp.MustCompile(`\b(?:zk|zklock|dedup)_\w+(?:\{[^}]*\})?`)
	for _, a := range alerts(t) {
		for _, s := range selector.FindAllString(a.Expr, -1) {
			if len(prometheus.query(t, s)) == 0 {
				t.Errorf("%s asks for %s, which is not there", a.Alert, s)
			}
		}
	}
}

// badDay is something that goes wrong, and the alerts that must notice.
type badDay struct {
	alerts  []string
	happens func()
}

func badDays(t *testing.T, ensemble *zktest.Ensemble, p *process) []badDay {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	isErr := func(err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Fatalf("got %v, want %v", err, want)
		}
	}
	do := func(id string, fn func(context.Context) error) error {
		_, err := dedup.Do(ctx, p.guard, dedup.Key{ID: id}, dedup.Payload(nil),
			func(ctx context.Context, _ *dedup.Claim) (string, error) { return "", fn(ctx) })
		return err
	}
	fine := func(context.Context) error { return nil }
	var more []*zklock.Client // suspended together, they are for longer than one can be in a short test
	return []badDay{
		{[]string{"ZklockLeaseLost"}, func() {
			lease, err := p.mutex("/dedup/deleted").Acquire(ctx)
			must(err)
			eventually(t, "the own node is watched", func() bool {
				return slices.Contains(ensemble.Leader().WatchedPaths(), lease.Path()) ||
					slices.ContainsFunc(ensemble.Followers(), func(s *zktest.Server) bool { return slices.Contains(s.WatchedPaths(), lease.Path()) })
			})
			must(ensemble.Leader().Delete(lease.Path()))
			<-lease.Lost()
			_ = lease.Release(ctx)
		}},
		{[]string{"DedupClaimsLost", "DedupOutcomeUnknown", "ZklockListenerPanics"}, func() {
			p.client.OnStateChange(func(zklock.StateChange) { panic("the listener's bug") })
			err := do("unknown", func(ctx context.Context) error {
				ensemble.Leader().Expire(p.client.SessionID())
				<-ctx.Done()
				return context.Cause(ctx)
			})
			isErr(err, zklock.ErrLost)
			eventually(t, "the key is refused", func() bool { return errors.Is(do("unknown", fine), dedup.ErrIndeterminate) })
		}},
		{[]string{"ZooKeeperSessionsExpire"}, func() {
			for i := range 12 {
				client := p.connect(fmt.Sprintf("short-lived %d", i))
				id := client.SessionID()
				ensemble.Leader().Expire(id)
				eventually(t, "a new session", func() bool { return client.State() != zklock.Suspended && client.SessionID() != id })
				must(client.Close())
			}
		}},
		{[]string{"DedupPrematureEviction"}, func() {
			must(do("deleted", fine))
			must(ensemble.Leader().Delete("/dedup/deleted"))
		}},
		{[]string{"DedupLateRetries"}, func() {
			isErr(do("01890a5d-ac96-774b-bcce-b302099a8057", fine), dedup.ErrKeyExpired)
		}},
		{[]string{"ZklockQueueLong"}, func() {
			for i := range 101 {
				name := fmt.Sprintf("/dedup/crowd/_c_%08d-0000-4000-8000-000000000000-lock-%010d", i, i)
				if i == 0 {
					must(ensemble.Leader().Create("/dedup/crowd", nil))
				}
				must(ensemble.Leader().Create(name, nil))
			}
			wait, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, err := p.mutex("/dedup/crowd").Acquire(wait)
			isErr(err, zklock.ErrNotAcquired)
		}},
		{[]string{"ZklockWatchHerd"}, func() {
			conn := p.client.Conn()
			var watched []string
			for i := range 50 {
				name, err := conn.Create(fmt.Sprintf("/watched-%d", i), nil, 0, zk.WorldACL(zk.PermAll))
				must(err)
				watched = append(watched, name)
			}
			for range 60 {
				for _, name := range watched {
					_, _, _, err := conn.GetW(name)
					must(err)
				}
				for _, name := range watched {
					must(ensemble.Leader().Set(name, nil))
				}
			}
		}},
		{[]string{"ZooKeeperSlow", "ZklockProofsSlow"}, func() {
			for _, s := range ensemble.Servers() {
				s.SetLatency(600*time.Millisecond, 0)
			}
			lease, err := p.mutex("/dedup/slow").Acquire(ctx)
			must(err)
			must(pause(ctx, p.client.SessionTimeout()/2))
			must(lease.Release(ctx))
			for _, s := range ensemble.Servers() {
				s.SetLatency(0, 0)
			}
		}},
		{[]string{"ZooKeeperServerDown"}, func() { ensemble.Followers()[0].Stop() }},
		{[]string{"ZooKeeperQuorumLost", "ZklockDeletesPending"}, func() {
			lease, err := p.mutex("/dedup/pending").Acquire(ctx)
			must(err)
			for i := range 8 {
				more = append(more, p.connect(fmt.Sprintf("suspended %d", i)))
			}
			ensemble.Leader().Stop()
			released, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
			isErr(lease.Release(released), zklock.ErrPending)
		}},
		{[]string{"ZklockSuspended"}, func() {
			must(pause(ctx, 4*time.Second)) // nine clients: 36 s, where 5 % of five minutes are 15 s
			for _, s := range ensemble.Servers() {
				if role := s.Role(); role != "leader" && role != "follower" {
					s.Restart()
				}
			}
			for _, client := range more {
				eventually(t, "connected again", func() bool { return client.State() != zklock.Suspended })
				must(client.Close())
			}
		}},
	}
}
