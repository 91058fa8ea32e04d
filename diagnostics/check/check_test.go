package check

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/intent"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// goodFacts are a cluster of two nodes on which all is well.
func goodFacts() *Facts {
	status := func(node string) Agent {
		return Agent{Namespace: "agents", Name: "agent-" + node, Node: node, Ready: true, Status: &agentstatus.Status{
			Version: "0.1.0", Ready: true, Hook: []agentstatus.Hook{{Name: "watch", Up: true}, {Name: "nri", Up: true}},
		}}
	}
	node := func(name string) corev1.Node {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		n.Status.NodeInfo = corev1.NodeSystemInfo{OperatingSystem: "linux", KernelVersion: "6.18.0-1-amd64", ContainerRuntimeVersion: "containerd://2.4.2", OSImage: "Debian GNU/Linux 12"}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))}}
		return n
	}
	daemonSet := daemonSetOf("agents", "agent", "registry/agent:1")
	daemonSet.Labels = map[string]string{"app.kubernetes.io/name": "istio-pod-network-controller"}
	daemonSet.Spec.Template.Spec.HostNetwork = true
	daemonSet.Status = appsv1.DaemonSetStatus{DesiredNumberScheduled: 2, NumberReady: 2, UpdatedNumberScheduled: 2}
	f := &Facts{
		Client: "0.1.0", Version: "v1.36.3", APIs: APIs{Validating: true, Mutating: true}, Now: now,
		DaemonSets: []appsv1.DaemonSet{daemonSet},
		Agents:     []Agent{status("n1"), status("n2")}, Nodes: []corev1.Node{node("n1"), node("n2")},
		Namespaces: map[string]map[string]string{"shop": {intent.KeyInitialize: "true"}},
		Pods: []Pod{{
			Namespace: "shop", Name: "cart", Node: "n1", Injected: true, Families: 1, Asked: true, Redirect: true, Status: "initialized",
			Running: true, Since: now.Add(-time.Hour), OutboundPort: 15001, InboundPort: 15006,
		}},
		Policies: []Policy{{"agent", "ValidatingAdmissionPolicy", true}, {"agent", "MutatingAdmissionPolicy", true}},
		Istio:    Istio{Revisions: []Revision{{OutboundPort: 15001, InboundPort: 15006, CNI: new(true)}}},
	}
	withFlags(f, "--envoy-port=15001", "--envoy-inbound-port=15006", "--startup-taint=true", "--ipv6=capture")
	return f
}

// withFlags gives the agents these flags instead of theirs.
func withFlags(f *Facts, args ...string) {
	f.DaemonSets[0].Spec.Template.Spec.Containers[0].Args = args
}

// daemonSetOf is a DaemonSet with an image.
func daemonSetOf(namespace, name, image string) appsv1.DaemonSet {
	d := appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "agent", Image: image}}
	return d
}

func find(results []Result, name string) Result {
	for _, r := range results {
		if r.Check == name {
			return r
		}
	}
	return Result{}
}

func TestRun_goodCluster_isOK(t *testing.T) {
	for _, pre := range []bool{false, true} {
		f := goodFacts()
		if pre {
			f.DaemonSets, f.Agents, f.Policies = nil, nil, nil
		}
		results := Run(f, pre)
		if Worst(results) != OK || len(results) < 12 {
			t.Errorf("before the installation %v: %s", pre, Text(results))
		}
	}
}

// changed is a case of TestChecks: one thing of the good cluster is different, and one check says so, with a part of its message.
type changed struct {
	change func(*Facts)
	pre    bool
	check  string
	level  Level
	want   string
}

// plural matches a sentence about one thing with a verb for many.
var plural = regexp.MustCompile(`\b1 (?:Windows )?(pod|node|namespace|agent|proxy|image|key)\b( [a-z]+){0,3}( \(\S+\))? (have|are|ask|get|run|report|do|give|say|end|lack|use)\b`)

func TestChecks(t *testing.T) {
	for _, cases := range []map[string]changed{clusterCases(), nodeCases(), meshCases(), registryCases(), podCases(), proxyCases()} {
		for name, tc := range cases {
			t.Run(name, func(t *testing.T) {
				f := goodFacts()
				tc.change(f)
				r := find(Run(f, tc.pre), tc.check)
				if r.Level != tc.level || !strings.Contains(r.Message, tc.want) {
					t.Errorf("%+v, want %s with %q", r, tc.level, tc.want)
				}
				if plural.MatchString(r.Message) {
					t.Errorf("%q: one thing in the plural", r.Message)
				}
				if r.Level != OK && (r.Do == "" || r.Doc == "") {
					t.Errorf("%+v says neither what to do nor where to read", r)
				}
			})
		}
	}
}

func TestRun_unreadSource_warnsOnceWithTheRight(t *testing.T) {
	f := goodFacts()
	f.failed = []unread{{sourcePods, "list pods in all namespaces", errors.New("forbidden")}}
	results := Run(f, false)
	var found []Result
	for _, r := range results {
		if r.Check == "missing-rights" {
			found = append(found, r)
		}
	}
	if len(found) != 1 || found[0].Level != Warn || !strings.Contains(found[0].Do, "list pods in all namespaces") {
		t.Errorf("%+v", found)
	}
	if r := find(results, "pods-programmed"); r != (Result{}) {
		t.Errorf("asked without its facts: %+v", r)
	}
	if r := find(results, "kernel"); r.Level != OK {
		t.Errorf("%+v", r)
	}
}

func TestChecks_names_equalTheDocsHeadings(t *testing.T) {
	raw, err := os.ReadFile("../../docs/check.md")
	if err != nil {
		t.Fatal(err)
	}
	headings := []string{}
	for line := range strings.Lines(string(raw)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "### "); ok {
			headings = append(headings, name)
		}
	}
	names := []string{"missing-rights"}
	for _, c := range slices.Concat(checks(), removals()) {
		names = append(names, c.name)
	}
	for _, r := range RunNode(&NodeFacts{}) {
		names = append(names, r.Check)
	}
	slices.Sort(names)
	slices.Sort(headings)
	if diff := cmp.Diff(names, headings); diff != "" {
		t.Errorf("-checks +docs/check.md:\n%s", diff)
	}
}

func TestTextHasNoControlCharacters(t *testing.T) {
	if r := newResult("s", "c", fine(strings.Repeat("é", 5000))); len(r.Message) > maxMessage+3 {
		t.Errorf("%d bytes", len(r.Message))
	}
	text := Text([]Result{newResult("s", "c", failing("a\x1b[2Jb\nc\u202e\u009b", "do\r"))})
	if strings.ContainsAny(text, "\x1b\r\u202e\u009b") || !strings.Contains(text, "a?[2Jb c") || !strings.Contains(text, "1 fail") {
		t.Errorf("%q", text)
	}
}
