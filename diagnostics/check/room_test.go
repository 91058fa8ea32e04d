package check

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestMemoryRoom_ofPods(t *testing.T) {
	limit := func(memory string) corev1.ResourceRequirements {
		if memory == "" {
			return corev1.ResourceRequirements{}
		}
		return corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}}
	}
	app := func(memory string) corev1.Container { return corev1.Container{Name: "app", Resources: limit(memory)} }
	always := corev1.ContainerRestartPolicyAlways
	ofPod, overhead := limit("512Mi"), corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
	for name, c := range map[string]struct {
		spec    corev1.PodSpec
		room    int64
		limited bool
	}{
		"a container without a limit":       {corev1.PodSpec{Containers: []corev1.Container{app("128Mi"), app("")}}, 0, false},
		"limits of all containers":          {corev1.PodSpec{Containers: []corev1.Container{app("128Mi"), app("128Mi")}}, 0, true},
		"an init container without a limit": {corev1.PodSpec{InitContainers: []corev1.Container{{Name: "first"}}, Containers: []corev1.Container{app("128Mi")}}, 0, true},
		"a sidecar container without a limit": {corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "beside", RestartPolicy: &always}}, Containers: []corev1.Container{app("128Mi")},
		}, 0, false},
		"an overhead":                      {corev1.PodSpec{Overhead: overhead, Containers: []corev1.Container{app("128Mi")}}, 64 << 20, true},
		"a limit of the pod":               {corev1.PodSpec{Resources: &ofPod, Containers: []corev1.Container{app("128Mi")}}, 384 << 20, true},
		"a limit of the pod, and overhead": {corev1.PodSpec{Resources: &ofPod, Overhead: overhead, Containers: []corev1.Container{app("128Mi")}}, 448 << 20, true},
	} {
		t.Run(name, func(t *testing.T) {
			if room, limited := memoryRoom(&corev1.Pod{Spec: c.spec}); room != c.room || limited != c.limited {
				t.Errorf("room %d, limited %v, want %d, %v", room, limited, c.room, c.limited)
			}
		})
	}
}
