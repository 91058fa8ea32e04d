package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A release goes through people's tools, one after the other: Helm 3, kubectl, Helm 4, `helm test`, and away. Then kubectl applies what Helm renders, twice. Nothing conflicts that nobody has changed, nothing differs for ever, and what is left is what
// docs/removal.md says, profiles of people included.
//
// Not parallel: it is alone on the node.
//
//e2e:rounds lifecycle
func TestLifecycleThroughTools(t *testing.T) {
	r := newRelease(t)
	s := newQuietSpace(t, nil)
	s.remove(t, r)
	objects := s.objects(t)
	r.do(t, "upgrade", r.now, "--install", "--create-namespace", "--set", "proxies.enabled=true")
	mine := newManaged(t)
	r.do(t, "upgrade", r.now, "--reset-then-reuse-values", "--set", "agent.logLevel=debug")
	s.wantArgument(t, "--log-level=debug")

	const daemonSet = "daemonset/" + agentName
	s.mustKubectl(t, "-n", agentName, "rollout", "restart", daemonSet)
	s.mustKubectl(t, "-n", agentName, "set", "env", daemonSet, "GOMAXPROCS=2")
	s.mustKubectl(t, "-n", agentName, "rollout", "status", daemonSet, "--timeout", "2m")
	r.do(t, "upgrade", r.now, "--reset-then-reuse-values", "--set", "agent.logLevel=info")
	s.wantArgument(t, "--log-level=info")
	four := r
	if four.helm = os.Getenv("E2E_HELM4"); four.helm == "" {
		t.Fatal("E2E_HELM4 names no program of Helm 4: see hack/e2e.sh")
	}
	four.do(t, "upgrade", r.now, "--reset-then-reuse-values", "--set", "agent.logLevel=error")
	s.wantArgument(t, "--log-level=error")
	four.do(t, "rollback", "1")
	s.wantArgument(t, "--log-level=info")
	if got := finish(t, four.helm, "test", agentName, "--namespace", agentName, "--timeout", "2m"); got.code != 0 {
		t.Errorf("helm test: exit code %d: %s%s", got.code, got.out, got.errOut)
	}
	s.remove(t, four)
	s.wantLeft(t, objects)
	if _, err := mine.objects.Resource(sidecarKind("proxyprofiles")).Get(t.Context(), mine.profile, metav1.GetOptions{}); err != nil {
		t.Errorf("the profile %s went with the release: %v", mine.profile, err)
	}
	mine.deleteProfile(t)

	s.appliesTemplates(t, r)
	s.wantLeft(t, objects)
	s.removeDefinitions(t, mine.objects)
}

// appliesTemplates has kubectl apply what Helm renders, twice, and remove it.
func (s *space) appliesTemplates(t *testing.T, r release) {
	t.Helper()
	const policies = "admissionregistration.k8s.io/v1/"
	dir := t.TempDir()
	crds, all := filepath.Join(dir, "crds.yaml"), filepath.Join(dir, "all.yaml")
	must(t, os.WriteFile(crds, []byte(helm(t, "show", "crds", r.now)), 0o600))
	must(t, os.WriteFile(all, []byte(helm(t, "template", agentName, r.now, "--namespace", agentName, "--no-hooks",
		"--set", "proxies.enabled=true", "--api-versions", policies+"ValidatingAdmissionPolicy", "--api-versions", policies+"MutatingAdmissionPolicy")), 0o600))
	for range 2 {
		s.mustKubectl(t, "apply", "--server-side", "-f", crds)
		s.mustKubectl(t, "apply", "--server-side", "-f", all)
		s.mustKubectl(t, "-n", agentName, "rollout", "status", "daemonset/"+agentName, "--timeout", "2m")
		if got := finish(t, "kubectl", "diff", "--server-side", "-f", crds, "-f", all); got.code != 0 {
			t.Errorf("it differs from what is there: %s%s", got.out, got.errOut)
		}
	}
	s.agent(t)
	s.mustKubectl(t, "delete", "-f", all, "--wait")
	s.mustKubectl(t, "-n", agentName, "wait", "--for=delete", "pod", "--all", "--timeout", "2m")
}

// wantArgument wants an argument of the agent.
func (s *space) wantArgument(t *testing.T, argument string) {
	t.Helper()
	if args := s.agent(t).Spec.Containers[0].Args; !strings.Contains(strings.Join(args, " ")+" ", argument+" ") {
		t.Errorf("arguments are %q, want %s", args, argument)
	}
}

// wantLeft wants nothing of a release to be left but what docs/removal.md says.
func (s *space) wantLeft(t *testing.T, before map[string]string) {
	t.Helper()
	const group = ".pod-network-controller.istio.io"
	now := s.objects(t)
	for name := range now {
		if strings.HasPrefix(name, "ProxyProfile ") {
			delete(now, name) // the test's own
		}
	}
	wantNothingElse(t, "objects of the cluster", before, now, "Namespace <none> "+agentName,
		"ConfigMap "+agentName+" kube-root-ca.crt", "ServiceAccount "+agentName+" default",
		"CustomResourceDefinition <none> managedproxies"+group, "CustomResourceDefinition <none> proxyprofiles"+group, "APIService <none> v1alpha1"+group)
}
