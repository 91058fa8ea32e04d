package controllers

import (
	"fmt"
	goruntime "runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/internal/intent"
)

// richPod has something in all that anyone reads, and much that nobody does.
func richPod() *corev1.Pod {
	id := int64(1337)
	sc := &corev1.SecurityContext{RunAsUser: &id, RunAsGroup: &id}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "cart", UID: "uid-1", ResourceVersion: "7", DeletionTimestamp: &metav1.Time{},
			Labels: map[string]string{"sidecar.istio.io/inject": "true", "app": "cart"},
			Annotations: map[string]string{
				intent.KeyInitialize: "true", KeyStatus: "initialized", KeyDetails: "{}", "sidecar.istio.io/status": "{}",
				"kubernetes.io/config.hash": "h", "kubernetes.io/config.mirror": "h", "kubernetes.io/config.source": "file",
				corev1.LastAppliedConfigAnnotation: "{}", "example.com/x": "y",
			},
		},
		Spec: corev1.PodSpec{
			NodeName: "node", ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "other"}, {ConditionType: Condition}},
			Volumes: []corev1.Volume{{Name: "v"}}, DNSPolicy: corev1.DNSNone, DNSConfig: &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1"}},
			SecurityContext:     &corev1.PodSecurityContext{RunAsUser: &id},
			InitContainers:      []corev1.Container{{Name: "setup", SecurityContext: sc, Image: "i"}},
			Containers:          []corev1.Container{{Name: "app"}, {Name: intent.ProxyContainer, SecurityContext: sc, Args: []string{"proxy", "sidecar", "x"}}},
			EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", SecurityContext: sc}}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}, Message: "m",
			Conditions:        []corev1.PodCondition{{Type: Condition}, {Type: corev1.PodReady}, {Type: corev1.PodReadyToStartContainers}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "app", ContainerID: "c", Image: "i"}},
		},
	}
}

func strip(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	got, err := stripPod(pod)
	if err != nil {
		t.Fatal(err)
	}
	out, ok := got.(*corev1.Pod)
	if !ok {
		t.Fatalf("%T", got)
	}
	return out
}

// The cache holds what the intent reads, what the reports are made of and compared with, and what tells of a sandbox.
func TestTheCacheHoldsWhatIsRead(t *testing.T) {
	got := strip(t, richPod())
	if d := cmp.Diff(intent.Strip(richPod()), intent.Strip(got)); d != "" {
		t.Errorf("the intent sees another pod: %s", d)
	}
	want := intent.Strip(richPod())
	whole := richPod()
	want.UID, want.ResourceVersion, want.DeletionTimestamp, want.Spec.NodeName = whole.UID, whole.ResourceVersion, whole.DeletionTimestamp, "node"
	for _, key := range []string{KeyStatus, KeyDetails, "kubernetes.io/config.hash", "kubernetes.io/config.mirror", "kubernetes.io/config.source"} {
		want.Annotations[key] = whole.Annotations[key]
	}
	want.Spec.ReadinessGates = whole.Spec.ReadinessGates[1:]
	want.Status.PodIPs = whole.Status.PodIPs
	want.Status.Conditions = []corev1.PodCondition{{Type: Condition}, {Type: corev1.PodReadyToStartContainers}}
	want.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", ContainerID: "c"}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// 250 pods with all the annotations that the API server takes would be 64 MB.
func TestTheCacheDoesNotHoldWhatNobodyReads(t *testing.T) {
	const pods, limit = 250, 2 << 20
	held := make([]*corev1.Pod, 0, pods)
	before := heap()
	for i := range pods {
		pod := richPod()
		pod.Annotations["example.com/big"] = strings.Repeat(fmt.Sprint(i%10), 256<<10)
		pod.Labels["big"] = strings.Repeat("x", 60)
		pod.Spec.Containers[1].Env = []corev1.EnvVar{{Name: "BIG", Value: strings.Repeat("y", 64<<10)}}
		pod.Spec.Containers[1].Args = append(pod.Spec.Containers[1].Args, strings.Repeat("z", 64<<10))
		held = append(held, strip(t, pod))
	}
	if grown := heap() - before; grown > limit {
		t.Errorf("%d pods take %d bytes, want at most %d", len(held), grown, limit)
	}
	goruntime.KeepAlive(held)
}

func heap() int64 {
	goruntime.GC()
	var m goruntime.MemStats
	goruntime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // far below the limit
}
