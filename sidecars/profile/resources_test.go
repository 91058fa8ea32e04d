package profile

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"istio-pod-network-controller/internal/sidecar"
)

// podRequesting returns a burstable pod whose containers request so much memory each.
func podRequesting(memory ...string) *corev1.Pod {
	pod := thePod()
	pod.Status.QOSClass = corev1.PodQOSBurstable
	for _, m := range memory {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Resources: requests(m)})
	}
	return pod
}

func requests(memory string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}}
}

func TestOOMScoreAdj_pods_isThatOfTheirSidecarContainers(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	for name, c := range map[string]struct {
		pod    *corev1.Pod
		change func(*corev1.Pod)
		limit  string
		want   int64
	}{
		"guaranteed":                       {podRequesting("1Gi"), func(p *corev1.Pod) { p.Status.QOSClass = corev1.PodQOSGuaranteed }, "0", -997},
		"critical for its node":            {podRequesting("0"), func(p *corev1.Pod) { p.Spec.PriorityClassName = "system-node-critical" }, "0", -997},
		"best effort":                      {podRequesting("0"), func(p *corev1.Pod) { p.Status.QOSClass = corev1.PodQOSBestEffort }, "1Gi", 1000},
		"nothing is requested of memory":   {podRequesting("0"), nil, "0", 999},
		"a tenth of the node":              {podRequesting("1Gi"), nil, "0", 900},
		"the smallest container counts":    {podRequesting("5Gi", "1Gi"), nil, "0", 900},
		"the proxy's limit is its request": {podRequesting("1Gi"), nil, "2Gi", 800},
		"more than the node has":           {podRequesting("20Gi"), nil, "0", 3},
		"the pod requests as a whole": {podRequesting("1Gi", "1Gi"), func(p *corev1.Pod) {
			whole := requests("7Gi")
			p.Spec.Resources = &whole
			p.Spec.InitContainers = []corev1.Container{{Resources: requests("1Gi"), RestartPolicy: &always}, {Resources: requests("9Gi")}}
		}, "0", 800},
	} {
		if c.change != nil {
			c.change(c.pod)
		}
		limit := resource.MustParse(c.limit)
		if got := oomScoreAdj(c.pod, limit.Value(), 10<<30); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestResources_noRequest_sharesAreTheLimits(t *testing.T) {
	quantity := func(text string) *resource.Quantity { q := resource.MustParse(text); return &q }
	for name, c := range map[string]struct {
		request, limit *resource.Quantity
		want           sidecar.Resources
	}{
		"both":      {quantity("100m"), quantity("2"), sidecar.Resources{CPUMilli: 2000, ShareMilli: 100}},
		"a limit":   {nil, quantity("2"), sidecar.Resources{CPUMilli: 2000, ShareMilli: 2000}},
		"a request": {quantity("100m"), nil, sidecar.Resources{ShareMilli: 100}},
		"neither":   {nil, nil, sidecar.Resources{}},
	} {
		p := compiled(t)
		p.Spec.Resources.CPURequest, p.Spec.Resources.CPULimit = c.request, c.limit
		got := resources(p.Spec.Resources, podRequesting("0"))
		if c.want.OOMScoreAdj = got.OOMScoreAdj; got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
