package admissiontest

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

var binary = flag.String("binary", "../../../../build/istio-pod-network-controller", "the agent, whose judgement is compared with the policy's")

const everything = ", requiredPlugins: true"

func TestAdmission(t *testing.T) {
	s := startServer(t)
	asks := map[string]string{initialize: "true"}
	s.namespace(t, "default", nil, nil)
	s.namespace(t, "silent", nil, nil)
	s.namespace(t, "asking", nil, asks)
	s.namespace(t, "meshed", nil, map[string]string{keySidecar: "edge"})
	s.namespace(t, "typo", nil, map[string]string{initialize: "yes"})
	s.namespace(t, "restricted", map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}, asks)
	s.namespace(t, release, nil, asks)
	s.namespace(t, "kube-system", nil, nil)
	for _, class := range []string{"kata-qemu", "nvidia"} {
		_, err := s.admin.NodeV1().RuntimeClasses().Create(t.Context(),
			&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Handler: class}, metav1.CreateOptions{})
		must(t, err)
	}
	s.policies(t, everything, "annotation", 1)
	t.Run("by annotation", func(t *testing.T) { s.checkShapes(t, "annotation", annotationShapes()) })
	t.Run("what is added", func(t *testing.T) { s.adds(t) })
	t.Run("beside an injector", func(t *testing.T) { s.checkWithInjector(t) })
	s.policies(t, everything, "injected", 2)
	t.Run("by injection", func(t *testing.T) { s.checkShapes(t, "injected", injectedShapes()) })
	s.policies(t, everything, "either", 3)
	t.Run("by either, by annotation", func(t *testing.T) { s.checkShapes(t, "either", annotationShapes()) })
	t.Run("by either, by injection", func(t *testing.T) { s.checkShapes(t, "either", injectedShapes()) })
	t.Run("switched off", func(t *testing.T) { s.switchedOff(t) })
	t.Run("opting out", func(t *testing.T) { s.optsOut(t) })
	t.Run("the agent", func(t *testing.T) { s.restrictsAgent(t) })
	t.Run("the label of Istio", func(t *testing.T) { s.setsTLSMode(t) })
	t.Run("the sidecars", func(t *testing.T) { s.definesSidecars(t) })
	t.Run("probes", func(t *testing.T) { s.rewritesProbes(t) })
	t.Run("tokens for sidecars", func(t *testing.T) { s.narrowsTokens(t) })
	t.Run("reports on proxies", func(t *testing.T) { s.restrictsReports(t) })
	t.Run("every two values", func(t *testing.T) { s.takesEveryTwoValues(t) })
}

// checkShapes creates a pod of every shape, and compares the policy's decision with the wanted one and the agent's.
func (s *server) checkShapes(t *testing.T, selection string, shapes map[string]shape) {
	for name, shape := range shapes {
		t.Run(name, func(t *testing.T) {
			pod := shape.pod()
			created, err := s.create(t.Context(), pod, false)
			must(t, err)
			if hasGate(created) != shape.want {
				t.Fatalf("gates %q, want ours: %v", gates(created), shape.want)
			}
			if agents := s.agentSelects(t, pod, selection); shape.differs == "" && agents != shape.want {
				t.Errorf("the agent redirects it: %v, the policy holds it: %v", agents, shape.want)
			}
			if !shape.want {
				expectAdded(t, pod, created, nil, nil, nil)
				return
			}
			expectAdded(t, pod, created, []string{condition}, []string{waitName}, map[string]string{plugins: `["` + release + `"]`})
			s.again(t, created)
		})
	}
}

// expectAdded wants all of a pod kept, and gates, init containers and annotations added.
func expectAdded(t *testing.T, pod, created *corev1.Pod, gate, first []string, annotations map[string]string) {
	t.Helper()
	same(t, append(gates(pod), gate...), gates(created), "readiness gates")
	same(t, append(first, initContainers(pod)...), initContainers(created), "init containers")
	want := maps.Clone(annotations)
	if want == nil {
		want = map[string]string{}
	}
	maps.Copy(want, pod.Annotations)
	same(t, want, created.Annotations, "annotations")
	name := func(c corev1.Container) string { return c.Name }
	same(t, names(pod.Spec.Containers, name), names(created.Spec.Containers, name), "containers")
	same(t, pod.OwnerReferences, created.OwnerReferences, "owners")
}

// again creates what was created once more, as people do with what they have read from a cluster: nothing is added twice.
func (s *server) again(t *testing.T, pod *corev1.Pod) {
	copied := pod.DeepCopy()
	copied.ObjectMeta = metav1.ObjectMeta{
		Namespace: pod.Namespace, GenerateName: "again-", Annotations: pod.Annotations, Labels: pod.Labels, OwnerReferences: pod.OwnerReferences,
	}
	created, err := s.create(t.Context(), copied, false)
	must(t, err)
	expectAdded(t, copied, created, nil, nil, nil)
	same(t, copied.Spec.InitContainers, created.Spec.InitContainers, "init containers of a second pass")
}

// agentSelects asks the agent's own tool whether it would redirect a pod.
func (s *server) agentSelects(t *testing.T, pod *corev1.Pod, selection string) bool {
	t.Helper()
	ns, err := s.admin.CoreV1().Namespaces().Get(t.Context(), pod.Namespace, metav1.GetOptions{})
	must(t, err)
	ns.Kind, ns.APIVersion = "Namespace", "v1"
	manifest := pod.DeepCopy()
	manifest.Kind, manifest.APIVersion = "Pod", "v1"
	namespaceText, errNS := yaml.Marshal(ns)
	podText, errPod := yaml.Marshal(manifest)
	file := filepath.Join(t.TempDir(), "namespace.yaml")
	if errNS != nil || errPod != nil || os.WriteFile(file, namespaceText, 0o600) != nil {
		t.Fatalf("write manifests: %v, %v", errNS, errPod)
	}
	cmd := exec.CommandContext(t.Context(), *binary, "rules", "show", "--pod=-", "--namespace="+file, "--select="+selection,
		"--exclude-namespaces=kube-system,"+release)
	cmd.Stdin = bytes.NewReader(podText)
	out, err := cmd.CombinedOutput()
	if err != nil && !strings.Contains(string(out), "is not redirected: ") && !strings.Contains(string(out), initialize) {
		t.Fatalf("ask the agent (`make build` builds it): %v\n%s", err, out)
	}
	return err == nil
}

// adds looks at the init container, and at pods that have some of what is added.
func (s *server) adds(t *testing.T) {
	no, yes, user := false, true, int64(65532)
	share := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("40000011")}
	created, err := s.create(t.Context(), asking(), false)
	must(t, err)
	same(t, corev1.Container{
		Name: waitName, Image: "localhost/istio-pod-network-controller:0.1.0", ImagePullPolicy: corev1.PullIfNotPresent,
		Command: []string{"/istio-pod-network-wait"}, Args: waitArgs("15006"),
		Env:                      []corev1.EnvVar{ofAnnotation("MODE", "sidecar.istio.io/interceptionMode"), ofAnnotation("IPV6", apiGroup+"/ipv6")},
		Resources:                corev1.ResourceRequirements{Requests: share, Limits: share},
		TerminationMessagePath:   "/dev/termination-log",
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user,
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		// The API server mounts the account's token into every container of a pod, also into this one, which makes no use of it.
		VolumeMounts: created.Spec.Containers[0].VolumeMounts,
	}, created.Spec.InitContainers[0], "container")
	s.inherits(t)
	listed := asking()
	annotate(plugins, `["another"]`)(listed)
	created, err = s.create(t.Context(), listed, false)
	if err != nil || created.Annotations[plugins] != `["another"]` {
		t.Errorf("a list of the pod's own became %q, %v", created.Annotations[plugins], err)
	}
	moved := asking()
	for _, name := range []string{"one", waitName, "two"} {
		initContainer(name)(moved)
	}
	created, err = s.create(t.Context(), moved, false)
	if err != nil || !slices.Equal(initContainers(created), []string{waitName, "one", "two"}) {
		t.Errorf("one that stands further back stays there: %q, %v", initContainers(created), err)
	}
}

// inherits looks at the arguments of the init container: what holds for all, or for pods of a namespace with defaults, and then what the pod says.
func (s *server) inherits(t *testing.T) {
	const port, mode, ipv6 = apiGroup + "/envoy-inbound-port", "sidecar.istio.io/interceptionMode", apiGroup + "/ipv6"
	s.namespace(t, "inheriting", nil, map[string]string{initialize: "true", port: "17006", mode: "NONE", ipv6: "direct"})
	for _, c := range []struct{ namespace, own, want string }{
		{"inheriting", "-", "17006"},
		{"inheriting", "16006", "16006"},
		{"inheriting", "http", "15006"},
		{"silent", "16006", "16006"},
		{"silent", "65535", "65535"},
		{"silent", "http", "15006"},
		{"silent", "-1", "15006"},
		{"silent", "015006", "15006"},
		{"silent", "1500600", "15006"},
		{"silent", `15006", "--once`, "15006"},
		{"silent", "", "15006"},
	} {
		pod := asking()
		pod.Namespace = c.namespace
		if c.own != "-" {
			annotate(port, c.own)(pod)
		}
		created, err := s.create(t.Context(), pod, false)
		must(t, err)
		want := waitArgs(c.want)
		if c.namespace == "inheriting" {
			want[2], want[4] = "--mode=NONE", "--ipv6=direct"
		}
		same(t, want, created.Spec.InitContainers[0].Args, "a port %q in the namespace %s: arguments", c.own, c.namespace)
	}
}

// waitArgs are the arguments of the container that waits: what holds for all or the namespace's defaults, and then what the pod's annotations say.
func waitArgs(port string) []string {
	return []string{"--timeout=60s", "--port=" + port, "--mode=REDIRECT", "--mode=$(MODE)", "--ipv6=capture", "--ipv6=$(IPV6)"}
}

func ofAnnotation(name, key string) corev1.EnvVar {
	ref := &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.annotations['" + key + "']"}
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: ref}}
}

// switchedOff takes each part away by its value, while the others stay.
func (s *server) switchedOff(t *testing.T) {
	for _, c := range []struct {
		values            string
		gate, wait, plugs bool
	}{
		{values: "{admission: {readinessGate: false, waitContainer: true}}", wait: true},
		{values: "{}", gate: true},
		{values: "{admission: {readinessGate: false, requiredPlugins: true}}", plugs: true},
		{values: "{admission: {enabled: true, waitContainer: true, requiredPlugins: true}}", gate: true, wait: true, plugs: true},
		{values: "{admission: {readinessGate: false}}"},
		{values: "{admission: {enabled: true}}", gate: true},
		{values: "{admission: {enabled: false, waitContainer: true, requiredPlugins: true}}"},
	} {
		s.install(t, c.values)
		eventually(t, "the API server follows "+c.values, func(ctx context.Context) error {
			created, err := s.create(ctx, asking(), true)
			if err != nil {
				return err
			}
			if got := parts(created); got != [3]bool{c.gate, c.wait, c.plugs} {
				return fmt.Errorf("gate, container, annotation: %v", got)
			}
			return nil
		})
	}
}

func parts(pod *corev1.Pod) [3]bool {
	_, plugs := pod.Annotations[plugins]
	return [3]bool{hasGate(pod), len(pod.Spec.InitContainers) > 0, plugs}
}
