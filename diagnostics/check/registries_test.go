package check

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestEndingImages_onlyIstiosRegistries_count(t *testing.T) {
	container := func(image string) corev1.Container { return corev1.Container{Image: image} }
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{container("gcr.io/istio-release/proxyv2:1.28.0"), container("gcr.io/istio-release-mine/a:1")},
		Containers:     []corev1.Container{container("gcr.io/istio-release/proxyv2:1.28.0"), container("registry.istio.io/release/pilot:1.30.1"), container("docker.io/istio/proxyv2:1.31.0"), container("gcr.io/google/pause")},
	}}
	want := []string{"gcr.io/istio-release/proxyv2:1.28.0", "registry.istio.io/release/pilot:1.30.1"}
	if got := endingImages(pod); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestHubOf_values_areRead(t *testing.T) {
	for text, want := range map[string]string{`{"global":{"hub":"gcr.io/istio-release"}}`: "gcr.io/istio-release", `{}`: "", `{"global":{"hub":7}}`: "", `no`: ""} {
		if got := hubOf(text); got != want {
			t.Errorf("%s: %q", text, got)
		}
	}
}
