package agent

import (
	"context"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/iptables/kernel"
	"istio-pod-network-controller/test/kerneltest"
)

// keptReports keeps the last report, and all events.
type keptReports struct {
	last   controllers.Report
	events []string
}

func (r *keptReports) Report(report controllers.Report) { r.last = report }
func (r *keptReports) Forget(string)                    {}

func (r *keptReports) Event(_ podnet.Sandbox, reason, message string) {
	r.events = append(r.events, reason+": "+message)
}

// ensureIn returns a function that has a Programmer look at one pod's namespace, and checks the result.
func ensureIn(t *testing.T, backend kernel.Backend, kept *keptReports, path string) func(controllers.Hook, controllers.Result) {
	t.Helper()
	ledger := controllers.NewLedger()
	counters, err := controllers.NewMetrics(prometheus.NewRegistry(), ledger)
	if err != nil {
		t.Fatal(err)
	}
	p := &controllers.Programmer{
		Config:  intent.Config{Select: intent.SelectAnnotation, Defaults: intent.StandardDefaults()},
		Backend: backend, BackendName: "real", Namespaces: backend, Pods: startedPods{}, Reporter: kept, Ledger: ledger, Metrics: counters,
	}
	s := podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "uid-1", ID: "sandbox-1", NetNS: path}
	return func(by controllers.Hook, want controllers.Result) {
		t.Helper()
		if result, err := p.Ensure(t.Context(), by, s); result != want || err != nil {
			t.Fatalf("result %s, error %v, want %s", result, err, want)
		}
	}
}

// What somebody does to the rules in a real namespace is put back, and the event says what it was.
func TestRepairsSayWhatDiffered(t *testing.T) {
	for name, backend := range allBackends(t) {
		t.Run(name, func(t *testing.T) {
			ns, kept := kerneltest.New(t), &keptReports{}
			ensure := ensureIn(t, backend, kept, ns.Path())
			ensure(controllers.NRI, controllers.Changed)
			ensure(controllers.Verify, controllers.Unchanged)
			if len(kept.events) > 0 {
				t.Fatalf("the first programming is an event: %q", kept.events)
			}
			mustRun(t, ns, "ip -6 addr del ::6/128 dev lo")
			ensure(controllers.Verify, controllers.Changed)
			ensure(controllers.Verify, controllers.Unchanged)
			if len(kept.events) != 1 || !strings.Contains(kept.events[0], "addresses on lo") || !strings.Contains(kept.events[0], "::6/128") {
				t.Errorf("events %q", kept.events)
			}
			if kept.last.LastRepair.Kinds != "address" || kept.last.Status != podreport.StatusInitialized {
				t.Errorf("report %+v", kept.last)
			}
			tamper := map[string]string{
				"nftables": "nft flush ruleset", "iptables nft": "iptables-nft -t nat -F", "iptables legacy": "iptables-legacy -t nat -F",
			}[name]
			mustRun(t, ns, tamper)
			ensure(controllers.Verify, controllers.Changed)
			if len(kept.events) != 2 || !strings.Contains(kept.events[1], "put back") {
				t.Errorf("events %q", kept.events)
			}
		})
	}
}

// startedPods are pods that ask for redirection and run.
type startedPods struct{}

func (startedPods) Pod(_ context.Context, s podnet.Sandbox) (*corev1.Pod, error) {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, UID: types.UID(s.UID), Annotations: map[string]string{intent.KeyInitialize: "true"}},
		Status:     corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "192.0.2.1"}}},
	}, nil
}

func (p startedPods) Current(ctx context.Context, s podnet.Sandbox) (*corev1.Pod, error) {
	return p.Pod(ctx, s)
}

func (startedPods) Namespace(context.Context, string) (*corev1.Namespace, error) { return nil, nil }

func (startedPods) CurrentNamespace(context.Context, string) (*corev1.Namespace, error) {
	return nil, nil
}
