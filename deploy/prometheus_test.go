package deploy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// server is a real Prometheus that scrapes twice a second.
type server struct{ base string }

// startPrometheus starts one that scrapes targets as the job worker and evaluates alerts.yaml.
func startPrometheus(t *testing.T, targets []string) *server {
	t.Helper()
	binary := program(t, "prometheus")
	dir := t.TempDir()
	rules, err := filepath.Abs("alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "prometheus.yaml")
	text := fmt.Sprintf(`global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs:
  - job_name: worker
    static_configs:
      - targets: ["%s"]
`, rules, strings.Join(targets, `", "`))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	address := freeAddress(t)
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, binary, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--log.level=warn")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	var log bytes.Buffer // read once the process has ended
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // interrupted, or its log says why
		close(ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		if t.Failed() {
			t.Logf("prometheus:\n%s", &log)
		}
	})
	s := &server{base: "http://" + address}
	eventually(t, "prometheus is ready", func() bool {
		select {
		case <-ended:
			t.Fatal("prometheus has ended")
		default:
		}
		resp, err := http.Get(s.base + "/-/ready")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return s
}

// freeAddress is one that nobody listened on a moment ago.
func freeAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// get decodes what the API says.
func (s *server) get(t *testing.T, path string, into any) {
	t.Helper()
	resp, err := http.Get(s.base + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Status string          `json:"status"`
		Data   json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Status != "success" {
		t.Fatalf("%s: %v %s", path, err, body)
	}
	if err := json.Unmarshal(answer.Data, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// sample is one element of a query's result.
type sample struct {
	Metric map[string]string `json:"metric"`
	Value  [2]any            `json:"value"` // time, and the number as a string
}

func (s *server) query(t *testing.T, expr string) []sample {
	t.Helper()
	var data struct {
		ResultType string
		Result     []sample
	}
	s.get(t, "/api/v1/query?query="+url.QueryEscape(expr), &data)
	return data.Result
}

// shows says whether the expression has a number.
func (s *server) shows(t *testing.T, expr string) bool {
	t.Helper()
	for _, sample := range s.query(t, expr) {
		if sample.Value[1] != "NaN" {
			return true
		}
	}
	return false
}

// eventually waits for up to half a minute.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
		time.Sleep(200 * time.Millisecond)
	}
}
