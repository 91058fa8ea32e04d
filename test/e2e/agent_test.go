package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// agentName is the release, and with it the namespace, the DaemonSet and the program in the image.
const agentName = "istio-pod-network-controller"

const metricPrefix = "istio_pod_network_controller_"

// agent gives the one pod of the DaemonSet on the node, once it is ready.
func (c *cluster) agent(t testing.TB) *corev1.Pod {
	t.Helper()
	var agent *corev1.Pod
	eventually(t, "the agent", func(ctx context.Context) (err error) {
		agent, err = c.findAgent(ctx)
		return err
	})
	return agent
}

func (c *cluster) findAgent(ctx context.Context) (*corev1.Pod, error) {
	list, err := c.api.CoreV1().Pods(agentName).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + agentName})
	if err != nil {
		return nil, err
	}
	// A pod without a node may come to any.
	agents := slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.Spec.NodeName != "" && p.Spec.NodeName != c.node.NodeName })
	switch {
	case len(agents) != 1:
		return nil, fmt.Errorf("there are %d pods of it", len(agents))
	case agents[0].DeletionTimestamp != nil:
		return nil, errors.New("it is being deleted")
	case !isReady(&agents[0]):
		return nil, errors.New("it is not ready")
	}
	return &agents[0], nil
}

// view is what `rules show -o json` prints.
type view struct {
	Chains []struct {
		Name  string `json:"name"`
		Rules []struct {
			Rule    string `json:"rule"`
			Packets uint64 `json:"packets"`
		} `json:"rules"`
	} `json:"chains"`
}

// contains tells whether some rule has words in it.
func (v view) contains(words string) bool {
	for _, c := range v.Chains {
		for _, r := range c.Rules {
			if strings.Contains(r.Rule, words) {
				return true
			}
		}
	}
	return false
}

// text is all rules without their counters, a line each.
func (v view) text() string {
	var b strings.Builder
	for _, c := range v.Chains {
		for _, r := range c.Rules {
			fmt.Fprintf(&b, "%s: %s\n", c.Name, r.Rule)
		}
	}
	return b.String()
}

// rules reads what the pod's namespace holds, by the agent's own tool; ok is false where that is nothing.
func (c *cluster) rules(t testing.TB, pod *corev1.Pod) (v view, ok bool) {
	t.Helper()
	out, err := c.run(t.Context(), command{
		namespace: agentName, pod: c.agent(t).Name, container: "agent",
		argv: []string{"/" + agentName, "rules", "show", "-o", "json", "--netns", c.sandboxOf(t, pod).NetNS},
	})
	if err != nil && strings.Contains(err.Error(), "holds no rules of ours") {
		return view{}, false
	}
	must(t, err)
	return decode[view](t, out), true
}

// wantNoRules wants a pod whose namespace holds nothing of the agent.
func (c *cluster) wantNoRules(t testing.TB, pod *corev1.Pod) {
	t.Helper()
	if v, ok := c.rules(t, pod); ok {
		t.Errorf("pod %s holds rules: %+v", pod.Name, v)
	}
}

// metrics are the agent's, by their name with labels.
type metrics map[string]float64

func (c *cluster) metrics(t testing.TB) metrics {
	t.Helper()
	m, err := c.readMetrics(t.Context())
	must(t, err)
	return m
}

func (c *cluster) readMetrics(ctx context.Context) (metrics, error) {
	return readMetricsAt(ctx, c.node.ip()+":15079")
}

func readMetricsAt(ctx context.Context, address string) (metrics, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	m := metrics{}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), "} ")
		if !strings.Contains(name, "{") {
			name, value, _ = strings.Cut(lines.Text(), " ")
		}
		if n, err := strconv.ParseFloat(value, 64); err == nil {
			m[name] += n
		}
	}
	return m, lines.Err()
}

// sum adds up the series of a metric that have all of the labels, each as key="value".
func (m metrics) sum(name string, labels ...string) float64 {
	total := 0.0
series:
	for series, n := range m {
		if series != name && !strings.HasPrefix(series, name+"{") {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(series, l) {
				continue series
			}
		}
		total += n
	}
	return total
}

// ensured is how often the agent came to a result.
func (m metrics) ensured(result string) float64 {
	return m.sum(metricPrefix+"ensure_total", `result="`+result+`"`)
}

// writes is how many requests the agent has sent to the API server that change something, but those about itself.
func (m metrics) writes(methods ...string) float64 {
	total := 0.0
	if slices.Contains(methods, "PATCH") {
		total = -m[metricPrefix+"own_status_writes_total"]
	}
	for _, method := range methods {
		total += m.sum("rest_client_requests_total", `method="`+method+`"`)
	}
	return total
}
