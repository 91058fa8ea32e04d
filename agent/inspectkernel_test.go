package agent

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/diagnostics/inspect"
	"istio-pod-network-controller/diagnostics/inspectserver"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/iptables/kernel"
	"istio-pod-network-controller/test/kerneltest"
)

// cachedPod is a cache with one pod.
type cachedPod struct{ client.Reader }

func (cachedPod) Get(ctx context.Context, _ types.NamespacedName, into client.Object, _ ...client.GetOption) error {
	pod, err := startedPods{}.Pod(ctx, podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "uid-1"})
	if to, ok := into.(*corev1.Pod); ok && err == nil {
		*to = *pod
	}
	return err
}

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

// realPod is a pod with a real namespace, in which it was programmed.
type realPod struct {
	sandbox podnet.Sandbox
	core    *controllers.Programmer
	looker  *inspectserver.Looker
	kept    *keptReports
}

func newRealPod(t *testing.T, backend kernel.Backend, ns *netns.NS) realPod {
	t.Helper()
	ledger := controllers.NewLedger()
	counters, err := controllers.NewMetrics(prometheus.NewRegistry(), ledger)
	if err != nil {
		t.Fatal(err)
	}
	p := realPod{sandbox: podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "uid-1", ID: "sandbox-1", NetNS: ns.Path()}, kept: &keptReports{}}
	p.core = &controllers.Programmer{
		Config:  intent.Config{Select: intent.SelectAnnotation, Defaults: intent.StandardDefaults()},
		Backend: backend, BackendName: "real", Namespaces: backend, Pods: startedPods{}, Reporter: p.kept, Ledger: ledger, Metrics: counters,
	}
	p.looker = inspectserver.NewLooker("node1", "", func() inspect.Agent { return inspect.Agent{Backend: backend.Name()} }, backend, func() (inspectserver.Core, client.Reader, error) { return p.core, cachedPod{}, nil })
	p.ensure(t, controllers.NRI, controllers.Changed)
	return p
}

func (p realPod) ensure(t *testing.T, by controllers.Hook, want controllers.Result) {
	t.Helper()
	if result, err := p.core.Ensure(t.Context(), by, p.sandbox); result != want || err != nil {
		t.Fatalf("result %s, error %v, want %s", result, err, want)
	}
}

func (p realPod) look(t *testing.T) inspect.Document {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	doc, err := p.looker.Document(ctx, "shop", "cart")
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// wantRepair has a check repair what somebody has changed, and wants the last event to say so.
func (p realPod) wantRepair(t *testing.T, events int, kinds string, words ...string) {
	t.Helper()
	p.ensure(t, controllers.Verify, controllers.Changed)
	p.ensure(t, controllers.Verify, controllers.Unchanged)
	if len(p.kept.events) != events || p.kept.last.LastRepair.Kinds != kinds || p.kept.last.Status != podreport.StatusInitialized {
		t.Fatalf("events %q, report %+v", p.kept.events, p.kept.last)
	}
	for _, word := range words {
		if !strings.Contains(p.kept.events[events-1], word) {
			t.Errorf("event %q does not say %q", p.kept.events[events-1], word)
		}
	}
}

// What somebody does to the rules of a pod is shown, and repaired by the next check, whose event says what it was.
func TestDriftInARealNamespace_isShownAndRepaired(t *testing.T) {
	flush := map[string]string{
		"nftables":        "nft flush ruleset",
		"iptables nft":    "for i in iptables-nft ip6tables-nft; do for t in nat mangle raw; do $i -t $t -F; $i -t $t -X; done; done",
		"iptables legacy": "for i in iptables-legacy ip6tables-legacy; do for t in nat mangle raw; do $i -t $t -F; $i -t $t -X; done; done",
	}
	for name, backend := range allBackends(t) {
		t.Run(name, func(t *testing.T) {
			ns := kerneltest.New(t)
			p := newRealPod(t, backend, ns)
			p.ensure(t, controllers.Verify, controllers.Unchanged)
			wantUnheard(t, p.look(t))
			listen(t, ns)
			doc := p.look(t)
			if doc.Agreement.Verdict != inspect.Agree || doc.Failing() || len(doc.Programmed.Rules) == 0 || doc.Programmed.Backend != backend.Name() {
				t.Fatalf("document %+v", doc)
			}
			if doc.Asked.Settings[0].Source == "" || len(doc.Asked.Summary) == 0 {
				t.Errorf("asked %+v", doc.Asked)
			}
			mustRun(t, ns, "ip -6 addr del ::6/128 dev lo")
			for range 2 { // to look mends nothing
				wantDifference(t, p.look(t), "::6/128")
			}
			p.wantRepair(t, 1, "address", "addresses on lo", "::6/128")
			mustRun(t, ns, flush[name])
			doc = p.look(t)
			wantDifference(t, doc, "")
			if len(doc.Programmed.Rules) > 0 {
				t.Errorf("after all rules are gone: %+v", doc.Programmed.Rules)
			}
			p.wantRepair(t, 2, "absent", "repaired")
		})
	}
}

// wantUnheard wants to be told that nobody listens on the proxy's ports.
func wantUnheard(t *testing.T, doc inspect.Document) {
	t.Helper()
	if want := []uint16{15001, 15006}; !slices.Equal(doc.Programmed.Unheard, want) || !doc.Failing() {
		t.Errorf("nobody listens yet: unheard %v, failing %v", doc.Programmed.Unheard, doc.Failing())
	}
}

// listen has a proxy listen in a namespace.
func listen(t *testing.T, ns *netns.NS) {
	t.Helper()
	for _, address := range []string{"127.0.0.1:15001", "[::]:15006"} {
		go kerneltest.Answer(kerneltest.ListenTCP(t, ns, kerneltest.Owner{UID: 1337, GID: 1337}, false, address), "x")
	}
}

func wantDifference(t *testing.T, doc inspect.Document, words string) {
	t.Helper()
	if doc.Agreement.Verdict != inspect.Differ || !doc.Failing() || !strings.Contains(strings.Join(doc.Agreement.Differences, "\n"), words) {
		t.Fatalf("agreement %+v", doc.Agreement)
	}
}

// Rules of others are named, before ours and instead of ours.
func TestInspectNamesRulesOfOthers(t *testing.T) {
	backend := allBackends(t)["nftables"]
	ns := kerneltest.New(t)
	p := newRealPod(t, backend, ns)
	mustRun(t, ns, "nft add table inet theirs && nft 'add chain inet theirs early { type filter hook output priority -400; }' && nft add rule inet theirs early tcp dport 80 drop")
	doc := p.look(t)
	if len(doc.Others.Preempting) != 1 || !strings.Contains(doc.Others.Preempting[0], "theirs") || !doc.Failing() {
		t.Errorf("others %+v, failing %v", doc.Others, doc.Failing())
	}
	mustRun(t, ns, "iptables-nft -t nat -N ISTIO_OUTPUT && iptables-nft -t nat -A OUTPUT -j ISTIO_OUTPUT")
	if doc = p.look(t); doc.Others.Owner != "Istio" {
		t.Errorf("others %+v", doc.Others)
	}
}

func TestInspectNeverLooksIntoTheHostsNamespace(t *testing.T) {
	backend := allBackends(t)["nftables"]
	if _, err := backend.Look(t.Context(), podnet.Place{Path: "/proc/self/ns/net"}, nil); err == nil || !strings.Contains(err.Error(), "host's own") {
		t.Errorf("error %v", err)
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
