package e2e

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Tests whose names begin with TestLifecycle install and remove the chart themselves: no other test may run beside them or rely on what
// they leave. hack/e2e.sh says by variables where the charts are.

// release is what the tests do with Helm, and which charts they do it with.
type release struct{ helm, before, now string }

func newRelease(t *testing.T) release {
	t.Helper()
	r := release{helm: os.Getenv("HELM"), before: os.Getenv("E2E_CHART_BEFORE"), now: os.Getenv("E2E_CHART")}
	if r.helm == "" || r.before == "" || r.now == "" {
		t.Fatal("HELM, E2E_CHART_BEFORE and E2E_CHART must say where Helm and the two charts are: E2E_BACKENDS=none E2E_HOOKS=lifecycle hack/e2e.sh")
	}
	return r
}

// do waits until the agents are as wanted.
func (r release) do(t *testing.T, verb string, args ...string) {
	t.Helper()
	r.run(t, verb, append(args, "--wait", "--timeout", "2m")...)
}

// run runs Helm, also while the test cleans up.
func (r release) run(t *testing.T, verb string, args ...string) {
	t.Helper()
	start := time.Now()
	all := append([]string{verb, agentName, "--namespace", agentName}, args...)
	out, err := exec.CommandContext(cleanup(t), r.helm, all...).CombinedOutput()
	if err != nil {
		t.Fatalf("helm %s: %v\n%s", strings.Join(all, " "), err, out)
	}
	t.Logf("helm %s took %s", verb, time.Since(start).Round(100*time.Millisecond))
}

// The chart goes to the next version, back, to it again, and away, under load: no connection is lost and none passes the proxy. What
// the chart made is gone then; the rules of the pod are not.
//
// Not parallel: it is alone on the node.
//
//e2e:rounds lifecycle
func TestLifecycleUpgradeRollbackRemoval(t *testing.T) {
	r := newRelease(t)
	s := newQuietSpace(t, asked())
	s.remove(t, r)
	objects, files := s.objects(t), s.files(t)
	// What people have set comes along.
	r.do(t, "upgrade", r.before, "--install", "--create-namespace", "--set", "kubernetesDistribution=Kubernetes", "--set", "hooks.cni.mode=install")
	s.wantAgent(t, "before")

	pod := s.startMesh(t, newPod("loaded", nil, toolsContainer(), proxyContainer("istio-proxy")))
	f := families()[0]
	text, counted := s.settledRules(t, pod), counts(t, pod)[outbound]
	in, out := loadInbound(t, at(pod, f, appPort), f.passthrough), s.loadOutbound(t, pod, f.at(1, worldPort))
	r.do(t, "upgrade", r.now, "--reset-then-reuse-values")
	s.wantAgent(t, "now")
	r.do(t, "rollback", "1")
	s.wantAgent(t, "before")
	r.do(t, "upgrade", r.now, "--reset-then-reuse-values")
	s.remove(t, r)
	in.stop(t)
	sent := out.stop(t)

	if in.asked < 100 || in.failed != nil || in.bypassed > 0 {
		t.Errorf("inbound: of %d connections %d bypassed the proxy; failed: %v", in.asked, in.bypassed, in.failed)
	}
	if got := counts(t, pod)[outbound]; sent.OK < 100 || sent.Failed > 0 || got.OK-counted.OK != sent.OK {
		t.Errorf("outbound: %d connections were answered, %d failed: %v; the proxy took %d", sent.OK, sent.Failed, sent.Errors, got.OK-counted.OK)
	}
	t.Logf("%d inbound and %d outbound connections went on meanwhile", in.asked, sent.OK)
	if after := s.listRules(t, pod); after != text {
		t.Errorf("the rules, or their handles, have changed\nfrom:\n%s\nto:\n%s", text, after)
	}
	s.wantAfterwards(t, pod.Name)
	// Helm leaves the namespace that it has made, with what Kubernetes puts into each, and definitions, for which Kubernetes makes an APIService.
	wantNothingElse(t, "objects of the cluster", objects, s.objects(t), "Namespace <none> "+agentName,
		"ConfigMap "+agentName+" kube-root-ca.crt", "ServiceAccount "+agentName+" default",
		"CustomResourceDefinition <none> managedproxies.pod-network-controller.istio.io", "CustomResourceDefinition <none> proxyprofiles.pod-network-controller.istio.io",
		"APIService <none> v1alpha1.pod-network-controller.istio.io")
	wantNothingElse(t, "files of the node", files, s.files(t), "/opt/cni/bin/istio-pod-network-cni", "/run/istio-pod-network-controller", "/run/crio")
}

// remove uninstalls the chart, and waits until the agents have ended: Helm waits for the DaemonSet only.
func (s *space) remove(t *testing.T, r release) {
	t.Helper()
	r.do(t, "uninstall", "--ignore-not-found")
	eventually(t, "the end of the agents", func(ctx context.Context) error {
		agents, err := s.api.CoreV1().Pods(agentName).List(ctx, metav1.ListOptions{})
		if err == nil && len(agents.Items) > 0 {
			err = fmt.Errorf("%d are left", len(agents.Items))
		}
		return err
	})
}

// wantAgent wants the agent of the chart "before", whose image has the tag 0.0.9 that hack/e2e.sh makes, or of the chart "now".
func (s *space) wantAgent(t *testing.T, want string) {
	t.Helper()
	got, image := "now", s.agent(t).Spec.Containers[0].Image
	if strings.HasSuffix(image, ":0.0.9") {
		got = "before"
	}
	if got != want {
		t.Errorf("the agent's image is %s, of the chart %s; want that of %s", image, got, want)
	}
}

// wantAfterwards wants what docs/removal.md says of pods when there is no agent any more.
func (s *space) wantAfterwards(t *testing.T, programmed string) {
	t.Helper()
	s.await(t, programmed, isReadyNow)
	gated := newPod("gated", asked(), appContainer())
	gated.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: condition}}
	s.create(t, gated)
	late := s.start(t, newPod("late", asked(), appContainer()))
	if len(late.Spec.ReadinessGates) > 0 || late.Annotations[keyStatus] != "" {
		t.Errorf("a new pod has the gates %v and the status %q", late.Spec.ReadinessGates, late.Annotations[keyStatus])
	}
	s.await(t, "late", isReadyNow)
	if pod := s.await(t, "gated", isRunning); isReady(pod) {
		t.Error("a pod whose own template has the gate is ready, though nobody sets its condition")
	}
}

// objects are all objects of the cluster, but those that come and go by themselves and those of tests.
func (c *cluster) objects(t *testing.T) map[string]string {
	t.Helper()
	kinds, err := exec.CommandContext(t.Context(), "kubectl", "api-resources", "--verbs=list", "-o", "name").Output()
	must(t, err)
	stay := slices.DeleteFunc(strings.Fields(string(kinds)), func(kind string) bool {
		name, _, _ := strings.Cut(kind, ".")
		return slices.Contains([]string{"events", "leases", "componentstatuses", "endpoints"}, name)
	})
	list, err := exec.CommandContext(t.Context(), "kubectl", "get", strings.Join(stay, ","), "-A", "--no-headers", "--ignore-not-found",
		"-o", "custom-columns=KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name").Output()
	must(t, err)
	found := map[string]string{}
	for line := range strings.Lines(string(list)) {
		if fields := strings.Fields(line); !strings.Contains(line, " e2e-") {
			found[strings.Join(fields, " ")] = ""
		}
	}
	return found
}

// files are those of the node that the chart has to do with: what is in them by its hash, directories as such.
func (c *cluster) files(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, dir := range []string{"/etc/cni", "/opt/cni", "/run/istio-pod-network-controller", "/run/crio", "/run/nri"} {
		err := filepath.WalkDir(c.node.NodeRoot+dir, func(path string, entry fs.DirEntry, err error) error {
			if os.IsNotExist(err) {
				return nil
			}
			if err != nil {
				return err
			}
			if path == c.node.NodeRoot+keptDir {
				return fs.SkipDir
			}
			what := entry.Type().String()
			if entry.Type().IsRegular() {
				text, err := os.ReadFile(path) //nolint:gosec // of the node
				if err != nil {
					return err
				}
				what = fmt.Sprintf("%x", sha256.Sum256(text))
			}
			found[strings.TrimPrefix(path, c.node.NodeRoot)] = what
			return nil
		})
		must(t, err)
	}
	return found
}

// wantNothingElse wants after to be before, except for new entries that are allowed.
func wantNothingElse(t *testing.T, what string, before, after map[string]string, allowed ...string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(after)) {
		was, there := before[name]
		switch {
		case !there && slices.Contains(allowed, name):
			t.Logf("%s: %s is left, as the docs say", what, name)
		case !there:
			t.Errorf("%s: %s is left", what, name)
		case was != after[name]:
			t.Errorf("%s: %s has changed", what, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if _, there := after[name]; !there {
			t.Errorf("%s: %s is gone", what, name)
		}
	}
}
