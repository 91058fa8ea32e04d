package home

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestKeepPod_environment_isLeftOut(t *testing.T) {
	secret := []corev1.EnvVar{{Name: "TOKEN", Value: "hunter2"}}
	debugger := corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debugger", Env: secret}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "cart", Labels: map[string]string{"app": "cart"}}, Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "init", Env: secret}}, Containers: []corev1.Container{{Name: "app", Env: secret}},
		EphemeralContainers: []corev1.EphemeralContainer{debugger},
	}}
	want := &corev1.Pod{ObjectMeta: pod.ObjectMeta, Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "init"}}, Containers: []corev1.Container{{Name: "app"}},
	}}
	h := Home{t.TempDir()}
	if err := KeepPod(h, pod); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, KeptPod(h)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	text, err := os.ReadFile(podFile(h))
	if err != nil || strings.Contains(string(text), "hunter2") || pod.Spec.Containers[0].Env == nil {
		t.Errorf("%s, error %v; the pod is %+v", text, err, pod)
	}
}
