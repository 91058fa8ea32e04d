package agent

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/diagnostics/inspect"
	"istio-pod-network-controller/diagnostics/inspectserver"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
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

// inspected returns a function that inspects a pod's real namespace, after the pod was programmed there.
func inspected(t *testing.T, backend kernel.Backend, ns *netns.NS) func() inspect.Document {
	t.Helper()
	ledger := controllers.NewLedger()
	counters, err := controllers.NewMetrics(prometheus.NewRegistry(), ledger)
	if err != nil {
		t.Fatal(err)
	}
	p := &controllers.Programmer{
		Config:  intent.Config{Select: intent.SelectAnnotation, Defaults: intent.StandardDefaults()},
		Backend: backend, BackendName: "real", Namespaces: backend, Pods: startedPods{}, Reporter: &keptReports{}, Ledger: ledger, Metrics: counters,
	}
	s := podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "uid-1", ID: "sandbox-1", NetNS: ns.Path()}
	if result, err := p.Ensure(t.Context(), controllers.NRI, s); result != controllers.Changed || err != nil {
		t.Fatalf("result %s, error %v", result, err)
	}
	l := inspectserver.NewLooker("node1", "", inspect.Agent{Backend: backend.Name()}, backend, func() (inspectserver.Core, client.Reader, error) { return p, cachedPod{}, nil })
	return func() inspect.Document {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		doc, err := l.Document(ctx, "shop", "cart")
		if err != nil {
			t.Fatal(err)
		}
		return doc
	}
}

// What somebody does to the rules of a pod is shown, and not put back.
func TestInspectShowsDriftInARealNamespace(t *testing.T) {
	flush := map[string]string{
		"nftables":        "nft flush ruleset",
		"iptables nft":    "for i in iptables-nft ip6tables-nft; do for t in nat mangle raw; do $i -t $t -F; $i -t $t -X; done; done",
		"iptables legacy": "for i in iptables-legacy ip6tables-legacy; do for t in nat mangle raw; do $i -t $t -F; $i -t $t -X; done; done",
	}
	for name, backend := range allBackends(t) {
		t.Run(name, func(t *testing.T) {
			ns := kerneltest.New(t)
			look := inspected(t, backend, ns)
			doc := look()
			wantUnheard(t, doc)
			listen(t, ns)
			doc = look()
			if doc.Agreement.Verdict != inspect.Agree || doc.Failing() || len(doc.Programmed.Rules) == 0 || doc.Programmed.Backend != backend.Name() {
				t.Fatalf("document %+v", doc)
			}
			if doc.Asked.Settings[0].Source == "" || len(doc.Asked.Summary) == 0 {
				t.Errorf("asked %+v", doc.Asked)
			}
			mustRun(t, ns, "ip -6 addr del ::6/128 dev lo")
			for range 2 { // to look mends nothing
				wantDifference(t, look(), "::6/128")
			}
			mustRun(t, ns, flush[name])
			doc = look()
			wantDifference(t, doc, "")
			if len(doc.Programmed.Rules) > 0 {
				t.Errorf("after all rules are gone: %+v", doc.Programmed.Rules)
			}
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
	look := inspected(t, backend, ns)
	mustRun(t, ns, "nft add table inet theirs && nft 'add chain inet theirs early { type filter hook output priority -400; }' && nft add rule inet theirs early tcp dport 80 drop")
	doc := look()
	if len(doc.Others.Preempting) != 1 || !strings.Contains(doc.Others.Preempting[0], "theirs") || !doc.Failing() {
		t.Errorf("others %+v, failing %v", doc.Others, doc.Failing())
	}
	mustRun(t, ns, "iptables-nft -t nat -N ISTIO_OUTPUT && iptables-nft -t nat -A OUTPUT -j ISTIO_OUTPUT")
	if doc = look(); doc.Others.Owner != "Istio" {
		t.Errorf("others %+v", doc.Others)
	}
}

func TestInspectNeverLooksIntoTheHostsNamespace(t *testing.T) {
	backend := allBackends(t)["nftables"]
	if _, err := backend.Look(t.Context(), podnet.Place{Path: "/proc/self/ns/net"}, nil); err == nil || !strings.Contains(err.Error(), "host's own") {
		t.Errorf("error %v", err)
	}
}
