package controllers

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/randfill"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podreport"
)

// An agent that watched the cluster's pods would cost the API server a cluster's worth of events on each node.
func TestTheCacheIsThatOfOneNode(t *testing.T) {
	got := map[string]string{}
	for obj, by := range CacheOptions("node-1", false, nil).ByObject {
		if by.Field != nil {
			got[fmt.Sprintf("%T", obj)] = by.Field.String()
		}
	}
	if got["*v1.Pod"] != "spec.nodeName=node-1" || got["*v1.Node"] != "metadata.name=node-1" {
		t.Errorf("fields %v", got)
	}
	if !CacheOptions("node-1", false, nil).ReaderFailOnMissingInformer {
		t.Error("whatever is read by mistake is watched in the whole cluster")
	}
}

// What the core and the proxies read of a pod in addition to its intent.
func TestTheCacheKeepsWhatTheCoreReads(t *testing.T) {
	pod := askingPod()
	pod.Annotations[keyMirror], pod.Annotations[podreport.KeyStatus], pod.Annotations[podreport.KeyDetails] = "hash", "initialized", "{}"
	pod.Status.PodIPs = []corev1.PodIP{{IP: "192.0.2.1"}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: podreport.Condition}, {Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}}
	pod.Status.Phase = corev1.PodPending
	pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: podreport.Condition}}
	now := metav1Now()
	pod.DeletionTimestamp, pod.Status.StartTime = &now, &now
	pod.Spec.HostPID, pod.Spec.HostUsers = true, new(bool)
	pod.Spec.Containers = []corev1.Container{{Name: "app", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}}}}
	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{
		Name: intent.ProxyContainer, User: &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: 1337}},
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
	}}
	stripped, err := stripPod(pod.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	got := stripped.(*corev1.Pod)
	for what, kept := range map[string]bool{
		"mirror": got.Annotations[keyMirror] == "hash", "status": got.Annotations[podreport.KeyStatus] == "initialized", "details": got.Annotations[podreport.KeyDetails] == "{}",
		"started": started(got), "condition": findCondition(got) != nil, "phase": got.Status.Phase == corev1.PodPending, "gate": gated(got),
		"a native sidecar's start": runsFor(got, now.Add(time.Hour)) == time.Hour,
		"deletion":                 got.DeletionTimestamp != nil, "UID": got.UID == pod.UID,
		"start": got.Status.StartTime != nil, "host's processes": got.Spec.HostPID, "host's users": got.Spec.HostUsers != nil,
		"ports": len(got.Spec.Containers) == 1 && len(got.Spec.Containers[0].Ports) == 1,
	} {
		if !kept {
			t.Errorf("%s is not kept", what)
		}
	}
}

// Whatever a pod has, it asks for the same as the cache holds it, and what the cache holds has nothing more to strip.
func TestStripPod_anyPod_asksForTheSame(t *testing.T) {
	for seed := range int64(300) {
		pod := filledPod(seed)
		once, err := stripPod(pod)
		if err != nil {
			t.Fatal(err)
		}
		twice, err := stripPod(once)
		if diff := cmp.Diff(once, twice); err != nil || diff != "" {
			t.Fatalf("seed %d: error %v, the second time differs:\n%s", seed, err, diff)
		}
		c := intent.Config{Select: intent.SelectEither, Defaults: intent.StandardDefaults()}
		want, errWant := intent.Of(pod, nil, c)
		got, errGot := intent.Of(once.(*corev1.Pod), nil, c)
		if diff := cmp.Diff(fmt.Sprint(want, errWant), fmt.Sprint(got, errGot)); diff != "" {
			t.Fatalf("seed %d: %s", seed, diff)
		}
	}
}

// filledPod returns a pod with something in every field, and in some of them what the agent reads.
func filledPod(seed int64) *corev1.Pod {
	fill := randfill.NewWithSeed(seed).NilChance(0.2).NumElements(1, 3).MaxDepth(12)
	fill.Funcs(
		func(f *metav1.FieldsV1, _ randfill.Continue) { f.SetRawBytes([]byte("{}")) },
		func(v *corev1.EnvVar, _ randfill.Continue) { v.Name, v.Value = "ISTIO_META_DNS_CAPTURE", "true" },
	)
	pod := &corev1.Pod{}
	fill.Fill(pod)
	pod.Annotations = map[string]string{intent.KeyInitialize: "true", podreport.KeyStatus: "initialized", staticPrefix + "hash": "x", "other": "y"}
	pod.Spec.HostNetwork, pod.Status.Phase, pod.Spec.OS = false, corev1.PodRunning, nil
	for i := range pod.Spec.Containers {
		pod.Spec.Containers[i].Name = intent.ProxyContainer
	}
	for i := range pod.Status.Conditions {
		pod.Status.Conditions[i].Type = []corev1.PodConditionType{podreport.Condition, corev1.PodReady}[i%2]
	}
	return pod
}
