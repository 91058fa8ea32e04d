package e2e

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// samplePort is where the samples' applications listen.
const samplePort uint16 = 9080

// sampleTests has what each file of config/samples is to show. A file without an entry is a mistake.
func sampleTests() map[string]func(t *testing.T, file string) {
	return map[string]func(t *testing.T, file string){
		// On the real cluster, each until it is ready and its traffic goes where the file says.
		"deployment.yaml":               runsSample(asked(), (*space).showsRedirected),
		"opt-out.yaml":                  runsSample(asked(), (*space).showsDirect),
		"exclude.yaml":                  runsSample(asked(), (*space).showsExcluded),
		"listening-ports.yaml":          runsSample(asked(), (*space).showsListening),
		"tproxy.yaml":                   runsSample(asked(), (*space).showsClient),
		"dns-capture.yaml":              runsSample(asked(), (*space).showsLookups),
		"proxy-ports.yaml":              runsSample(asked(), (*space).showsRedirected, "-outbound=16001", "-inbound=16006"),
		"readiness-gate.yaml":           runsSample(asked(), (*space).showsGate),
		"wait-container.yaml":           runsSample(asked(), (*space).showsWait),
		"native-sidecar.yaml":           runsSample(asked(), (*space).showsNative),
		"dual-stack.yaml":               runsSample(asked(), (*space).showsBothFamilies),
		"pod.yaml":                      runsSample(nil, (*space).showsRedirected),
		"static-pod.yaml":               runsStaticPod,
		"managed-proxy-deployment.yaml": runsManaged,

		// For other platforms, or applied above: checked by the API server.
		"namespace.yaml":                  appliesSample,
		"openshift-nonroot.yaml":          appliesSample,
		"status-reader.yaml":              appliesSample, // TestStatusTellsTheTruth uses its rights
		"proxy-profile.yaml":              appliesSample,
		"proxy-profile-envoy.yaml":        appliesSample,
		"proxy-profile-nginx.yaml":        appliesSample, // TestReusePortHandover runs it
		"proxy-profile-egress.yaml":       appliesSample, // TestEgress... run it
		"egress-policies.yaml":            appliesSample,
		"proxy-profile-istio.yaml":        appliesSample,
		"proxy-profile-shared-envoy.yaml": appliesSample,
		"proxy-profile-shared.yaml":       appliesSample, // TestSidecarShared... run it

		// Not for this API server: every field is known.
		"istio-values.yaml":              readsIstioValues,
		"istio-operator.yaml":            readsIstioOperator,
		"karpenter-nodepool.yaml":        readsNodePool,
		"cluster-autoscaler-values.yaml": readsAutoscalerValues,
		"values-startup-taint.yaml":      rendersChart("--startup-taint=true"),
		"values-shared-proxy.yaml":       rendersChart("name: " + agentName + "-shared-haproxy-shared"),
	}
}

//e2e:rounds nri
func TestSamples(t *testing.T) {
	t.Parallel()
	serveNames(t)
	tests := sampleTests()
	files, err := os.ReadDir("../../config/samples")
	must(t, err)
	list, err := os.ReadFile(sampleFile("README.md"))
	must(t, err)
	for _, file := range files {
		name := file.Name()
		if name != "README.md" && (tests[name] == nil || !strings.Contains(string(list), "("+name+")")) {
			t.Errorf("config/samples/%s is in no test, or not in README.md", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		t.Run(strings.TrimSuffix(name, ".yaml"), func(t *testing.T) {
			t.Parallel()
			tests[name](t, name)
		})
	}
}

// runsSample makes the objects of a file in a namespace of its own, as a mesh with an injector would, and waits until the pod is ready. args
// are for the injected proxy.
func runsSample(annotations map[string]string, shows func(*space, *testing.T, *corev1.Pod), args ...string) func(*testing.T, string) {
	return func(t *testing.T, file string) {
		t.Helper()
		s := newSpace(t, annotations)
		var name string
		for _, object := range readSample(t, file) {
			switch o := object.(type) {
			case *appsv1.Deployment:
				name = s.createSampleDeployment(t, o, args)
			case *corev1.Pod:
				s.localize(t, &o.ObjectMeta, &o.Spec, nil)
				s.create(t, o)
				name = o.Name
			case *corev1.Service:
				o.Namespace = s.name
				_, err := s.api.CoreV1().Services(s.name).Create(t.Context(), o, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
				must(t, err)
			default:
				t.Fatalf("%s: nobody knows how to test a %T", file, object)
			}
		}
		shows(s, t, s.awaitAnswer(t, s.sampleReady(t, name).Name))
	}
}

func (s *space) createSampleDeployment(t *testing.T, d *appsv1.Deployment, args []string) (name string) {
	t.Helper()
	s.localize(t, &d.Spec.Template.ObjectMeta, &d.Spec.Template.Spec, args)
	d.Namespace = s.name
	_, err := s.api.AppsV1().Deployments(s.name).Create(t.Context(), d, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	must(t, err)
	return d.Name
}

// sampleReady waits until the only pod of the namespace whose name begins so is ready, and initialized if it has been asked for.
func (s *space) sampleReady(t *testing.T, name string) (pod *corev1.Pod) {
	t.Helper()
	eventually(t, "the pod of "+name, func(ctx context.Context) error {
		list, err := s.pods().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range list.Items {
			if pod = &list.Items[i]; strings.HasPrefix(pod.Name, name) {
				return errors.Join(isRunning(pod), isReadyNow(pod))
			}
		}
		return errors.New("there is none")
	})
	if pod.Annotations[keyInitialize] != "false" {
		pod = s.await(t, pod.Name, hasStatus(statusInitialized))
	}
	return pod
}

func (s *space) showsRedirected(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	f := families()[0]
	wantInbound(t, pod, f, samplePort, true)
	s.wantOutbound(t, pod, f.at(200, worldPort), true)
}

func (s *space) showsDirect(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	s.wantNoRules(t, pod)
	wantInbound(t, pod, families()[0], samplePort, false)
}

func (s *space) showsExcluded(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	for _, f := range families() {
		wantInbound(t, pod, f, samplePort, true)
		wantInbound(t, pod, f, appOtherPort, false)
		s.wantOutbound(t, pod, f.at(200, worldPort), true)
		s.wantOutbound(t, pod, f.at(3, worldPort), false)
	}
	if rules := s.listRules(t, pod); !strings.Contains(rules, "25, 587") {
		t.Errorf("the rules do not have the ports of mail servers:\n%s", rules)
	}
}

func (s *space) showsListening(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	for _, f := range families() {
		wantInbound(t, pod, f, samplePort, true)
		wantClosed(t, pod, f, 7777)
	}
}

func (s *space) showsClient(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	for _, f := range families() {
		s.wantTransparentAt(t, pod, f, samplePort)
		s.wantOutbound(t, pod, f.at(200, worldPort), true)
	}
}

func (s *space) showsLookups(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if got, err := s.lookup(t, pod, "-server=203.0.113.53:53"); !slices.Equal(got, proxysAnswer()) {
		t.Errorf("a lookup is answered by %v, %v; want the proxy", got, err)
	}
}

func (s *space) showsGate(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	s.showsRedirected(t, pod)
	// The policy adds a gate to pods that have none, and to no template.
	d, err := s.api.AppsV1().Deployments(s.name).Get(t.Context(), pod.Labels["app"], metav1.GetOptions{})
	must(t, err)
	gates := d.Spec.Template.Spec.ReadinessGates
	if c := conditionOf(pod); len(gates) != 1 || len(pod.Spec.ReadinessGates) != 1 || c.Status != corev1.ConditionTrue {
		t.Errorf("the template has the gates %v, the pod %v, the condition is %+v", gates, pod.Spec.ReadinessGates, c)
	}
}

func (s *space) showsNative(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	s.showsRedirected(t, pod)
	if c := pod.Status.InitContainerStatuses; len(c) != 1 || c[0].Name != "istio-proxy" || c[0].State.Running == nil {
		t.Errorf("the proxy is no native sidecar: %+v", c)
	}
}

func (s *space) showsWait(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	s.showsRedirected(t, pod)
	text, err := s.pods().GetLogs(pod.Name, &corev1.PodLogOptions{Container: "istio-pod-network-wait"}).DoRaw(t.Context())
	must(t, err)
	if pod.Status.InitContainerStatuses[0].Name != "istio-pod-network-wait" || !strings.Contains(string(text), "redirection is in force") {
		t.Errorf("the first container is %s, and the one that waits says %q", pod.Status.InitContainerStatuses[0].Name, text)
	}
}

func (s *space) showsBothFamilies(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	service, err := s.api.CoreV1().Services(s.name).Get(t.Context(), "search", metav1.GetOptions{})
	must(t, err)
	if len(service.Spec.ClusterIPs) != 2 {
		t.Fatalf("the Service has the addresses %v", service.Spec.ClusterIPs)
	}
	for i, f := range families() {
		wantInbound(t, pod, f, samplePort, true)
		s.wantOutbound(t, pod, f.at(200, worldPort), true)
		eventually(t, "the Service at "+service.Spec.ClusterIPs[i], func(ctx context.Context) error {
			to := netip.AddrPortFrom(netip.MustParseAddr(service.Spec.ClusterIPs[i]), samplePort)
			_, err := s.run(ctx, command{namespace: s.name, pod: pod.Name, container: "app", argv: []string{"/testapp", "get", "http://" + to.String() + "/"}})
			return err
		})
	}
}

func runsStaticPod(t *testing.T, file string) {
	t.Helper()
	s := newSpace(t, nil)
	pod := readSample(t, file)[0].(*corev1.Pod)
	s.localize(t, &pod.ObjectMeta, &pod.Spec, nil)
	pod.Name = s.name // the node's other static pods have other names
	mirror := s.runStatic(t, pod)
	s.await(t, mirror, hasStatus(statusInitialized))
	s.showsRedirected(t, s.awaitAnswer(t, mirror))
}

// runsManaged makes the Deployment beside the profile, whose name and namespaces are the test's.
func runsManaged(t *testing.T, file string) {
	t.Helper()
	m := newManaged(t) // reads proxy-profile.yaml
	d := readSample(t, file)[0].(*appsv1.Deployment)
	d.Spec.Template.Annotations[keySidecar] = m.profile
	m.createSampleDeployment(t, d, nil)
	pod := m.sampleReady(t, d.Name)
	m.awaitSidecar(t, pod.Name, isServing(0))
	var a answer
	must(t, request(t.Context(), at(pod, families()[0], samplePort), "/", &a))
	if a.peer() != families()[0].passthrough {
		t.Errorf("the application saw %s, want the proxy", a.Peer)
	}
}

func sampleFile(file string) string { return filepath.Join("../../config/samples", file) }
