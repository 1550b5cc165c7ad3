package deploy

import (
	"bytes"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// alert is a rule of alerts.yaml.
type alert struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// expr is the expression on one line.
func (a alert) expr() string { return strings.Join(strings.Fields(a.Expr), " ") }

func alerts(t *testing.T) []alert {
	t.Helper()
	var file struct {
		Groups []struct {
			Name     string  `json:"name"`
			Interval string  `json:"interval"`
			Rules    []alert `json:"rules"`
		} `json:"groups"`
	}
	if err := yaml.UnmarshalStrict([]byte(read(t, "alerts.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	var all []alert
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) < 10 {
		t.Fatalf("only %d alerts found", len(all))
	}
	return all
}

// program finds prometheus or promtool.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%v; make test-deploy fetches it from Debian's package prometheus", err)
	}
	return path
}

// ruleTests are what promtool runs.
var ruleTests = []string{"alerts_test.yaml", "quorum_test.yaml"}

// The rules are right, and each alert fires and does not fire where it should.
func TestAlertRules(t *testing.T) {
	tool := program(t, "promtool")
	for _, args := range [][]string{
		{"check", "rules", "--lint=all", "--lint-fatal", "alerts.yaml"},
		append([]string{"test", "rules"}, ruleTests...),
	} {
		if out, err := exec.Command(tool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// The tests of the rules show both of every alert.
func TestAlertsAreTestedBothWays(t *testing.T) {
	fires, quiet := make(map[string]bool), make(map[string]bool)
	for _, name := range ruleTests {
		var file struct {
			Tests []struct {
				Cases []struct {
					Alert    string `json:"alertname"`
					Expected []any  `json:"exp_alerts"`
				} `json:"alert_rule_test"`
			} `json:"tests"`
		}
		if err := yaml.Unmarshal([]byte(read(t, name)), &file); err != nil {
			t.Fatal(err)
		}
		for _, test := range file.Tests {
			for _, c := range test.Cases {
				if len(c.Expected) > 0 {
					fires[c.Alert] = true
				} else {
					quiet[c.Alert] = true
				}
			}
		}
	}
	for _, a := range alerts(t) {
		if !fires[a.Alert] || !quiet[a.Alert] {
			t.Errorf("%s: tested firing: %v, not firing: %v", a.Alert, fires[a.Alert], quiet[a.Alert])
		}
	}
}

// Every alert has its section in the runbook, and every section is about an alert.
func TestRunbook(t *testing.T) {
	const runbook = "https://github.com/go-zklock/zklock/blob/main/docs/runbook.md#"
	_, text, _ := strings.Cut(read(t, "../docs/runbook.md"), "\n## ")
	sections := make(map[string]string)
	for s := range strings.SplitSeq(text, "\n## ") {
		name, body, _ := strings.Cut(s, "\n")
		sections[name] = body
	}
	for _, a := range alerts(t) {
		body, ok := sections[a.Alert]
		if !ok {
			t.Errorf("the runbook has no section %s", a.Alert)
			continue
		}
		delete(sections, a.Alert)
		for _, part := range []string{"**Means.**", "**Look at.**", "**Do.**"} {
			if !strings.Contains(body, part) {
				t.Errorf("%s: the section lacks %s", a.Alert, part)
			}
		}
		if want := "```promql\n" + strings.TrimSpace(a.Expr) + "\n```"; !strings.Contains(body, want) {
			t.Errorf("%s: the section has not the expression\n%s", a.Alert, want)
		}
		if got, want := a.Annotations["runbook_url"], runbook+strings.ToLower(a.Alert); got != want {
			t.Errorf("%s: runbook_url %s, want %s", a.Alert, got, want)
		}
		for _, note := range []string{"summary", "description"} {
			if a.Annotations[note] == "" {
				t.Errorf("%s: no %s", a.Alert, note)
			}
		}
		if s := a.Labels["severity"]; s != "critical" && s != "warning" {
			t.Errorf("%s: severity %q", a.Alert, s)
		}
	}
	for name := range sections {
		t.Errorf("the runbook's section %s is about no alert", name)
	}
}

// The README's table is made of the rules: names, expressions, how long, and in this order.
func TestReadmeAlerts(t *testing.T) {
	var want bytes.Buffer
	for _, a := range alerts(t) {
		when := "`" + a.expr() + "`"
		if a.For != "" {
			when += " for " + a.For
		}
		fmt.Fprintf(&want, "| [%s](docs/runbook.md#%s) | %s |\n", a.Alert, strings.ToLower(a.Alert), when)
	}
	_, rest, _ := strings.Cut(read(t, "../README.md"), "\n## Metrics and alerts\n")
	section, _, _ := strings.Cut(rest, "\n## ")
	var got strings.Builder
	for _, row := range regexp.MustCompile(`(?m)^(\| \[\w+\]\(docs/runbook\.md#\w+\) \| .* \|) .+ \|$`).FindAllStringSubmatch(section, -1) {
		got.WriteString(row[1] + "\n")
	}
	if got.String() != want.String() {
		t.Errorf("the README's alerts are\n%s\nalerts.yaml has\n%s", got.String(), want.String())
	}
}

// A panel that says which alert watches it says so of one that exists.
func TestDashboardNamesAlerts(t *testing.T) {
	var known []string
	for _, a := range alerts(t) {
		known = append(known, a.Alert)
	}
	named := make(map[string]bool)
	for _, m := range regexp.MustCompile(`\b(?:Zklock|ZooKeeper|Dedup)[A-Z]\w+`).FindAllString(read(t, "dashboard.json"), -1) {
		if named[m] = true; !slices.Contains(known, m) {
			t.Errorf("the dashboard names an alert %s, which does not exist", m)
		}
	}
	for _, name := range known {
		if !named[name] {
			t.Errorf("no panel of the dashboard names %s", name)
		}
	}
}
