package admissiontest

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

const keyProbers = apiGroup + "/app-probers"

// rewritesProbes compares what becomes of a pod's probes with the file of which the agent's tests make pilot-agent's configuration. The profiles
// are the samples.
func (s *server) rewritesProbes(t *testing.T) {
	const data = "../../../../sidecars/istio/testdata/probed-"
	s.namespace(t, "shop", nil, nil)
	s.namespace(t, "choosing", nil, map[string]string{keySidecar: "istio"})
	probed := func(namespace string, changes ...func(*corev1.Pod)) *corev1.Pod {
		pod := podIn(t, data+"pod.yaml")
		pod.Namespace = namespace
		for _, change := range changes {
			change(pod)
		}
		return pod
	}
	s.install(t, "proxies: {enabled: true}")
	var admitted *corev1.Pod
	eventually(t, "the API server follows the policy", func(ctx context.Context) (err error) {
		if admitted, err = s.create(ctx, probed("shop"), true); err == nil && admitted.Annotations[keyProbers] == "" {
			err = errors.New("the probes are as they were")
		}
		return err
	})
	spec := corev1.PodSpec{InitContainers: admitted.Spec.InitContainers, Containers: admitted.Spec.Containers}
	got := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: admitted.Annotations}, Spec: spec}
	same(t, podIn(t, data+"admitted.yaml"), got, "what the policy makes of a pod")
	later := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "later-", Namespace: "shop", Annotations: got.Annotations}, Spec: *admitted.Spec.DeepCopy()}
	added := corev1.Container{Name: "late", Image: "a", LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(9)}}}}
	later.Spec.Containers = append(later.Spec.Containers, added)
	created, err := s.create(t.Context(), later, true)
	must(t, err)
	same(t, got.Spec.Containers, created.Spec.Containers[:len(got.Spec.Containers)], "a second pass")
	if text := strings.TrimSuffix(got.Annotations[keyProbers], "}") + `,"/app-health/late/livez":{"tcpSocket":{"port":9}}}`; created.Annotations[keyProbers] != text {
		t.Errorf("with a container that was added: %s, want %s", created.Annotations[keyProbers], text)
	}
	chooseNothing := func(p *corev1.Pod) { p.Annotations = nil }
	for name, c := range map[string]struct {
		pod      *corev1.Pod
		rewrites bool
	}{
		"chosen by the namespace":       {probed("choosing", chooseNothing), true},
		"a status port of its own":      {probed("shop", annotate("status.sidecar.istio.io/port", "15029")), true},
		"refused by Istio's annotation": {probed("shop", annotate("sidecar.istio.io/rewriteAppHTTPProbers", "False")), false},
		"another profile":               {probed("choosing", chooseNothing, annotate(keySidecar, "haproxy")), false},
		"none":                          {probed("choosing", chooseNothing, annotate(keySidecar, "none")), false},
		"not redirected":                {probed("shop", annotate(initialize, "false")), false},
		"injected":                      {probed("shop", container("istio-proxy")), false},
		"on the node's network":         {probed("shop", hostNetwork), false},
		"no profile":                    {probed("silent", chooseNothing), false},
	} {
		t.Run(name, func(t *testing.T) {
			created, err := s.create(t.Context(), c.pod, true)
			must(t, err)
			probe := created.Spec.Containers[0].ReadinessProbe
			if rewritten := probe.HTTPGet.Path == "/app-health/cart/readyz"; rewritten != c.rewrites || rewritten != (created.Annotations[keyProbers] != "") {
				t.Errorf("probe %+v, annotation %q", probe.HTTPGet, created.Annotations[keyProbers])
			}
		})
	}
}

func podIn(t *testing.T, file string) *corev1.Pod {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	pod := &corev1.Pod{}
	must(t, yaml.UnmarshalStrict(text, pod))
	return pod
}
