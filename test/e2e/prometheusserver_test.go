package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// chartFiles has the alerts and the dashboard.
const chartFiles = "../../chart/" + agentName + "/files/"

// scraped is how Prometheus reads the agent here: as docs/monitoring.md says, but every second.
const scraped = `global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [alerts.yaml]
scrape_configs:
  - job_name: istio-pod-network-controller
    static_configs: [{targets: ["%s:15079"], labels: {node: %s}}]
`

// prometheus is a Prometheus that scrapes the agent. It ends with the test.
type prometheus struct{ api string }

// startPrometheus starts Debian's. Alerts fire at once instead of after minutes.
func (c *cluster) startPrometheus(t *testing.T) prometheus {
	t.Helper()
	rules, err := os.ReadFile(chartFiles + "alerts.yaml")
	must(t, err)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"alerts.yaml":     regexp.MustCompile(`(?m)^( +for:) .*$`).ReplaceAllString(string(rules), "$1 1s"),
		"prometheus.yaml": fmt.Sprintf(scraped, c.node.ip(), c.node.NodeName),
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	address := freeAddress(t)
	cmd := exec.CommandContext(t.Context(), "prometheus", "--config.file="+filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--query.lookback-delta=10s", "--log.level=warn")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Stderr = t.Output()
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() }) // the test's context has ended it
	p := prometheus{api: "http://" + address + "/api/v1/"}
	eventually(t, "Prometheus' first scrape", func(ctx context.Context) error {
		found, err := p.query(ctx, `up{job="istio-pod-network-controller"} == 1`)
		if err == nil && len(found) == 0 {
			err = errors.New("the agent has not been scraped")
		}
		return err
	})
	return p
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// get asks Prometheus' API, and decodes the data of its answer.
func (p prometheus) get(ctx context.Context, path string, query url.Values, data any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.api+path+"?"+query.Encode(), http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return fmt.Errorf("read Prometheus' answer: %w", err)
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s of %s: %s", path, query.Get("query"), answer.Error)
	}
	return nil
}

// timeSeries is one of the series that answer a query.
type timeSeries struct {
	Metric map[string]string `json:"metric"`
}

// query answers with the series of now.
func (p prometheus) query(ctx context.Context, expr string) ([]timeSeries, error) {
	var data struct{ Result []timeSeries }
	err := p.get(ctx, "query", url.Values{"query": {expr}}, &data)
	return data.Result, err
}

// firing is how many alerts of a name fire.
func (p prometheus) firing(ctx context.Context, name string) (int, error) {
	var data struct {
		Alerts []struct {
			State  string
			Labels map[string]string
		}
	}
	err := p.get(ctx, "alerts", nil, &data)
	n := 0
	for _, a := range data.Alerts {
		if a.Labels["alertname"] == name && a.State == "firing" {
			n++
		}
	}
	return n, err
}

// awaitFiring waits until an alert fires, or no longer does.
func (p prometheus) awaitFiring(t *testing.T, name string, want bool) {
	t.Helper()
	eventually(t, fmt.Sprintf("alert %s fires: %t", name, want), func(ctx context.Context) error {
		n, err := p.firing(ctx, name)
		if err == nil && (n > 0) != want {
			err = fmt.Errorf("%d of it fire", n)
		}
		return err
	})
}

// brokenRules are the rules that Prometheus could not evaluate.
func (p prometheus) brokenRules(ctx context.Context) ([]string, error) {
	var data struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	err := p.get(ctx, "rules", nil, &data)
	var broken []string
	rules := 0
	for _, g := range data.Groups {
		for _, r := range g.Rules {
			rules++
			if r.Health != "ok" {
				broken = append(broken, strings.TrimSpace(r.Name+" is "+r.Health+" "+r.LastError))
			}
		}
	}
	if err == nil && rules == 0 {
		err = errors.New("Prometheus has no rules")
	}
	return broken, err
}
