package admissiontest

import (
	"bytes"
	"flag"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
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
		if err != nil {
			t.Fatal(err)
		}
	}
	s.policies(t, everything, "annotation", 1)
	t.Run("by annotation", func(t *testing.T) { s.checkShapes(t, "annotation", annotationShapes()) })
	t.Run("what is added", func(t *testing.T) { s.adds(t) })
	t.Run("a dry run", func(t *testing.T) { s.dryRun(t) })
	t.Run("beside an injector", func(t *testing.T) { s.checkWithInjector(t) })
	s.policies(t, everything, "injected", 2)
	t.Run("by injection", func(t *testing.T) { s.checkShapes(t, "injected", injectedShapes()) })
	s.policies(t, everything, "either", 3)
	t.Run("by either, by annotation", func(t *testing.T) { s.checkShapes(t, "either", annotationShapes()) })
	t.Run("by either, by injection", func(t *testing.T) { s.checkShapes(t, "either", injectedShapes()) })
	t.Run("switched off", func(t *testing.T) { s.switchedOff(t) })
	t.Run("opting out", func(t *testing.T) { s.optsOut(t) })
	t.Run("the agent", func(t *testing.T) { s.restrictsAgent(t) })
	t.Run("leaving a proxy", func(t *testing.T) { s.leavesProxies(t) })
	t.Run("the label of Istio", func(t *testing.T) { s.setsTLSMode(t) })
	t.Run("the sidecars", func(t *testing.T) { s.definesSidecars(t) })
	t.Run("tokens for sidecars", func(t *testing.T) { s.narrowsTokens(t) })
	t.Run("reports on proxies", func(t *testing.T) { s.restrictsReports(t) })
	t.Run("every two values", func(t *testing.T) { s.takesEveryTwoValues(t) })
}

// checkShapes creates a pod of every shape, and compares the policy's decision with the wanted one and the agent's.
func (s *server) checkShapes(t *testing.T, selection string, shapes map[string]shape) {
	t.Helper()
	for name, shape := range shapes {
		t.Run(name, func(t *testing.T) {
			pod := shape.pod()
			created, err := s.create(t.Context(), pod, false)
			if err != nil {
				t.Fatal(err)
			}
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
	if diff := cmp.Diff(append(gates(pod), gate...), gates(created), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("readiness gates (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(append(first, initContainers(pod)...), initContainers(created), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("init containers (-want +got):\n%s", diff)
	}
	want := maps.Clone(annotations)
	if want == nil {
		want = map[string]string{}
	}
	maps.Copy(want, pod.Annotations)
	if diff := cmp.Diff(want, created.Annotations, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	name := func(c corev1.Container) string { return c.Name }
	if diff := cmp.Diff(names(pod.Spec.Containers, name), names(created.Spec.Containers, name)); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(pod.OwnerReferences, created.OwnerReferences); diff != "" {
		t.Errorf("owners (-want +got):\n%s", diff)
	}
}

// again creates what was created once more, as people do with what they have read from a cluster: nothing is added twice.
func (s *server) again(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	copied := pod.DeepCopy()
	copied.ObjectMeta = metav1.ObjectMeta{
		Namespace: pod.Namespace, GenerateName: "again-", Annotations: pod.Annotations, Labels: pod.Labels, OwnerReferences: pod.OwnerReferences,
	}
	created, err := s.create(t.Context(), copied, false)
	if err != nil {
		t.Fatal(err)
	}
	expectAdded(t, copied, created, nil, nil, nil)
	if diff := cmp.Diff(copied.Spec.InitContainers, created.Spec.InitContainers, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("init containers of a second pass (-want +got):\n%s", diff)
	}
}

// agentSelects asks the agent's own tool whether it would redirect a pod.
func (s *server) agentSelects(t *testing.T, pod *corev1.Pod, selection string) bool {
	t.Helper()
	ns, err := s.admin.CoreV1().Namespaces().Get(t.Context(), pod.Namespace, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
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

// adds looks at the init container, and at a port of the pod's own.
func (s *server) adds(t *testing.T) {
	t.Helper()
	no, yes, user := false, true, int64(65532)
	share := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("32Mi")}
	for port, annotation := range map[string]string{"15006": "", "16006": "16006", "65535": "65535"} {
		pod := asking()
		if annotation != "" {
			annotate("pod-network-controller.istio.io/envoy-inbound-port", annotation)(pod)
		}
		created, err := s.create(t.Context(), pod, false)
		if err != nil {
			t.Fatal(err)
		}
		want := corev1.Container{
			Name: waitName, Image: "localhost/istio-pod-network-controller:0.1.0", ImagePullPolicy: corev1.PullIfNotPresent,
			Command:                  []string{"/istio-pod-network-wait"},
			Args:                     waitArgs(port),
			Env:                      []corev1.EnvVar{ofAnnotation("MODE", "sidecar.istio.io/interceptionMode"), ofAnnotation("IPV6", "pod-network-controller.istio.io/ipv6")},
			Resources:                corev1.ResourceRequirements{Requests: share, Limits: share},
			TerminationMessagePath:   "/dev/termination-log",
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user,
				Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
		}
		// The API server mounts the account's token into every container of a pod, also into this one, which makes no use of it.
		want.VolumeMounts = created.Spec.Containers[0].VolumeMounts
		if diff := cmp.Diff(want, created.Spec.InitContainers[0]); diff != "" {
			t.Errorf("port %s: container (-want +got):\n%s", port, diff)
		}
	}
	for _, wrong := range []string{"http", "-1", "015006", "1500600", `15006", "--once`, ""} {
		pod := asking()
		annotate("pod-network-controller.istio.io/envoy-inbound-port", wrong)(pod)
		created, err := s.create(t.Context(), pod, false)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(waitArgs("15006"), created.Spec.InitContainers[0].Args); diff != "" {
			t.Errorf("a port %q: arguments (-want +got):\n%s", wrong, diff)
		}
	}
	s.inherits(t)
	listed := asking()
	annotate(plugins, `["another"]`)(listed)
	created, err := s.create(t.Context(), listed, false)
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

// inherits looks at the init container of pods whose namespace has defaults for what it proves.
func (s *server) inherits(t *testing.T) {
	t.Helper()
	const port, mode, ipv6 = "pod-network-controller.istio.io/envoy-inbound-port", "sidecar.istio.io/interceptionMode", "pod-network-controller.istio.io/ipv6"
	s.namespace(t, "inheriting", nil, map[string]string{initialize: "true", port: "17006", mode: "NONE", ipv6: "direct"})
	for own, want := range map[string]string{"": "17006", "16006": "16006", "http": "15006"} {
		pod := asking()
		pod.Namespace = "inheriting"
		if own != "" {
			annotate(port, own)(pod)
		}
		created, err := s.create(t.Context(), pod, false)
		if err != nil {
			t.Fatal(err)
		}
		args := []string{"--timeout=60001ms", "--port=" + want, "--mode=NONE", "--mode=$(MODE)", "--ipv6=direct", "--ipv6=$(IPV6)"}
		if diff := cmp.Diff(args, created.Spec.InitContainers[0].Args); diff != "" {
			t.Errorf("a port %q in a namespace with defaults: arguments (-want +got):\n%s", own, diff)
		}
	}
}

func (s *server) dryRun(t *testing.T) {
	t.Helper()
	count := func() int {
		list, err := s.admin.CoreV1().Pods("silent").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Items)
	}
	before := count()
	created, err := s.create(t.Context(), asking(), true)
	if err != nil || !hasGate(created) || !slices.Equal(initContainers(created), []string{waitName}) {
		t.Errorf("gates %q, init containers %q, error %v", gates(created), initContainers(created), err)
	}
	if after := count(); after != before {
		t.Errorf("a dry run made %d pods", after-before)
	}
}

// waitArgs are the arguments of the container that waits: what holds for all or the namespace's defaults, and then what the pod's annotations say.
func waitArgs(port string) []string {
	return []string{"--timeout=60001ms", "--port=" + port, "--mode=REDIRECT", "--mode=$(MODE)", "--ipv6=capture", "--ipv6=$(IPV6)"}
}

func ofAnnotation(name, key string) corev1.EnvVar {
	ref := &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.annotations['" + key + "']"}
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: ref}}
}
