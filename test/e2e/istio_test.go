package e2e

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// istioVersion is the version of the charts in Istio's source.
const istioVersion = "1.0.0"

// installIstio installs real Istio from charts of a repository, as a user has it: istiod, and istio-cni if wanted. Its proxies run the test proxy
// in Envoy's place. It injects the pods of the test's namespace. Without dual stack it would leave IPv6 alone.
func (m *migration) installIstio(t *testing.T, cni bool, values ...string) {
	t.Helper()
	m.makeIstioSystem(t)
	m.serveCharts(t)
	t.Cleanup(func() {
		m.helm(t, "uninstall", "istio-cni", "istiod", "-n", "istio-system", "--ignore-not-found", "--wait")
		m.awaitChain(t, "istio-cni", false)
	})
	if cni {
		m.helm(t, append([]string{"install", "istio-cni", "istio/cni"}, istioArgs(values...)...)...)
		m.awaitChain(t, "istio-cni", true)
		values = append(values, "--set", "pilot.cni.enabled=true")
	}
	m.installIstiod(t, "istiod", values...)
	_, err := m.api.CoreV1().Namespaces().Patch(t.Context(), m.name, types.MergePatchType, []byte(`{"metadata":{"labels":{"istio-injection":"enabled"}}}`), metav1.PatchOptions{})
	must(t, err)
}

// installIstiod installs a control plane, which Helm knows by the release's name.
func (m *migration) installIstiod(t *testing.T, release string, values ...string) {
	t.Helper()
	const dualStack = "pilot.env.ISTIO_DUAL_STACK=true,meshConfig.defaultConfig.proxyMetadata.ISTIO_DUAL_STACK=true"
	m.helm(t, append([]string{"install", release, "istio/istiod", "--set-string", dualStack, "--set", "autoscaleEnabled=false", "--set", "pilot.resources.requests.memory=128Mi"},
		istioArgs(values...)...)...)
}

// istioArgs are Helm's arguments for all charts of Istio's.
func istioArgs(values ...string) []string {
	return append([]string{"-n", "istio-system", "--wait", "--timeout", "3m", "--set", "global.hub=localhost", "--set", "global.tag=istio"}, values...)
}

// serveCharts makes the repository "istio", for helm in the test and in the page's commands.
func (m *migration) serveCharts(t *testing.T) {
	t.Helper()
	dir := os.Getenv("E2E_ISTIO")
	if dir == "" {
		t.Fatal("E2E_ISTIO is not set: hack/e2e.sh sets it in the round istio")
	}
	charts := filepath.Join(dir, "charts")
	server := httptest.NewServer(http.FileServer(http.Dir(charts)))
	t.Cleanup(server.Close)
	home := t.TempDir()
	m.env = append(m.env, "ISTIO="+istioVersion, "HELM_REPOSITORY_CONFIG="+filepath.Join(home, "repositories.yaml"), "HELM_REPOSITORY_CACHE="+filepath.Join(home, "cache"))
	m.helm(t, "repo", "index", charts)
	m.helm(t, "repo", "add", "istio", server.URL)
}

// helm runs Helm with the repository, also while the test cleans up.
func (m *migration) helm(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(cleanup(t), helmProgram(t), args...)
	cmd.Env = append(os.Environ(), m.env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("helm %v: %v\n%s", args, err, out)
	}
}

// wantIstios wants all pods to have Istio's rules, and both directions to pass the proxy.
func (m *migration) wantIstios(t *testing.T) {
	t.Helper()
	for _, one := range slices.Concat(m.migrants, m.canaries) {
		if rules := m.listRules(t, m.podOf(t, one)); !strings.Contains(strings.ToLower(rules), "istio") {
			t.Errorf("pod of %s has no rules of Istio's:\n%s", one.name(), rules)
		}
	}
	for _, one := range m.migrants {
		m.wantCaptured(t, one)
	}
}

// earlyPod has an init container that needs the network, as a user.
func earlyPod(name string, user *int64) *corev1.Pod {
	pod := newPod(name, map[string]string{"sidecar.istio.io/nativeSidecar": "false"}, toolsContainer())
	init := toolsContainer()
	init.Name, init.Args, init.Ports, init.ReadinessProbe = "early", []string{"get", "http://" + families()[0].at(5, worldPort).String() + "/"}, nil, nil
	init.SecurityContext = &corev1.SecurityContext{RunAsUser: user}
	pod.Spec.InitContainers = []corev1.Container{init}
	return pod
}

// wantFound starts two pods that cannot be moved as they are, and wants check to name them before the agent is installed. It removes them.
func (m *migration) wantFound(t *testing.T, words ...string) {
	t.Helper()
	taken := newPod("taken", nil, toolsContainer())
	taken.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: new(int64(1337)), RunAsGroup: new(int64(1337))}
	m.create(t, taken)
	m.await(t, "taken", isReadyNow)
	got := finish(t, program, "check", "--pre")
	for _, want := range append(words, m.name+"/taken: the proxy cannot be distinguished from the application") {
		if !strings.Contains(got.out, want) {
			t.Errorf("check says not %q, but:\n%s%s", want, got.out, got.errOut)
		}
	}
	m.mustKubectl(t, "delete", "pod", "taken", "-n", m.name, "--now")
}

//e2e:rounds istio
func TestMigrateFromIstioCNI(t *testing.T) {
	m := newMigration(t, nil, migrant{mode: redirectMode, flavour: native}, migrant{mode: tproxyMode, flavour: native})
	m.installIstio(t, true, "--set", "global.nativeNftables=true")
	m.deployAll(t)
	m.watchAll(t)
	m.before["install"] = func() {
		m.wantFound(t, "Istio's injector leaves the rules to others", "Istio's CNI plugin (istio-system/istio-cni-node)")
	}
	m.after["install"] = func() {
		m.wantReasons(t, "ProgrammedByOthers")
		// A pod that is made while both are installed.
		late := migrant{mode: tproxyMode, flavour: "late"}
		m.deploy(t, late.deployment(0))
		m.wantCaptured(t, late)
		m.wantReason(t, late, "ProgrammedByOthers")
		m.migrants = append(m.migrants, late)
		m.watched = append(m.watched, m.watchPod(t, late))
	}
	m.after["remove"] = func() { m.awaitChain(t, "istio-cni", false) }
	m.before["restart"] = func() { m.leave(t) }
	m.before["back"] = func() {
		m.arrive(t)
		m.wantListed(t, "list", "Initialized")
	}
	t.Cleanup(func() { _ = os.Remove("/tmp/istio-cni-values.yaml") }) // a step of the page writes it
	m.follow(t, "migrate-istio-cni.md")
	m.wantIstios(t)
}

//e2e:rounds istio
func TestMigrateFromIstioInit(t *testing.T) {
	m := newMigration(t, nil, migrant{mode: redirectMode, flavour: byIptables}, migrant{mode: tproxyMode, flavour: byIptables})
	m.installIstio(t, false)
	m.deployAll(t)
	m.watchAll(t)
	m.create(t, earlyPod("early", nil))
	m.await(t, "early", isReadyNow)
	m.after["search-init"] = func() {
		if got, want := m.printed["search-init"], "early: early istio-init\n"; got != want {
			t.Errorf("found is %q, want %q", got, want)
		}
		m.wantFound(t, "pilot.cni.enabled is false in ConfigMap istio-sidecar-injector", m.name+"/early (early)")
		m.mustKubectl(t, "delete", "pod", "early", "-n", m.name, "--now")
	}
	m.after["install"] = func() { m.wantReasons(t, "NotRequired") }
	m.before["restart"] = func() { m.leave(t) }
	m.before["back"] = func() {
		m.arrive(t)
		m.wantListed(t, "list", "Initialized")
	}
	m.follow(t, "migrate-istio-init.md")
	if m.printed["search"] == "" || m.printed["search-again"] != "" {
		t.Errorf("pods with istio-init before: %q, and at the end: %q", m.printed["search"], m.printed["search-again"])
	}
	m.wantIstios(t)
}

// An application's init container with the proxy's user reaches the network, as Istio documents it, and another one does not: the proxy, a regular
// container, does not listen yet.
//
//e2e:rounds istio
func TestIstioInitContainers_asTheProxy_reachTheNetwork(t *testing.T) {
	s := newSpace(t, nil)
	m := &migration{guide: s.newGuide(t)}
	m.installIstio(t, false, "--set", "pilot.cni.enabled=true")
	s.create(t, earlyPod("as-the-proxy", new(int64(1337))))
	s.create(t, earlyPod("as-itself", nil))
	pod := s.await(t, "as-the-proxy", isReadyNow)
	if details := pod.Annotations[keyDetails]; !strings.Contains(details, "runs as the proxy (uid 1337)") {
		t.Errorf("its report is %s", details)
	}
	s.await(t, "as-itself", func(pod *corev1.Pod) error {
		for _, c := range pod.Status.InitContainerStatuses {
			if c.Name == "early" && (c.State.Terminated != nil && c.State.Terminated.ExitCode != 0 || c.LastTerminationState.Terminated != nil) {
				return nil
			}
		}
		return errors.New("its init container has not failed")
	})
}
