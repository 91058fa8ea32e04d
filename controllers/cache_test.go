package controllers

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// An agent that watched the cluster's pods would cost the API server a cluster's worth of events on each node.
func TestTheCacheIsThatOfOneNode(t *testing.T) {
	got := map[string]string{}
	for obj, by := range CacheOptions("node-1").ByObject {
		if by.Field != nil {
			got[fmt.Sprintf("%T", obj)] = by.Field.String()
		}
	}
	if got["*v1.Pod"] != "spec.nodeName=node-1" || got["*v1.Node"] != "metadata.name=node-1" {
		t.Errorf("fields %v", got)
	}
	if !CacheOptions("node-1").ReaderFailOnMissingInformer {
		t.Error("whatever is read by mistake is watched in the whole cluster")
	}
}

// What the core reads of a pod in addition to its intent.
func TestTheCacheKeepsWhatTheCoreReads(t *testing.T) {
	pod := askingPod()
	pod.Annotations[keyMirror], pod.Annotations[KeyStatus], pod.Annotations[KeyDetails] = "hash", "initialized", "{}"
	pod.Status.PodIPs = []corev1.PodIP{{IP: "192.0.2.1"}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: Condition}, {Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}}
	pod.Status.Phase = corev1.PodPending
	pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: Condition}}
	now := metav1Now()
	pod.DeletionTimestamp, pod.Status.StartTime = &now, &now
	stripped, err := stripPod(pod.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	got := stripped.(*corev1.Pod)
	for what, kept := range map[string]bool{
		"mirror": got.Annotations[keyMirror] == "hash", "status": got.Annotations[KeyStatus] == "initialized", "details": got.Annotations[KeyDetails] == "{}",
		"started": started(got), "condition": findCondition(got) != nil, "phase": got.Status.Phase == corev1.PodPending, "gate": gated(got),
		"deletion": got.DeletionTimestamp != nil, "UID": got.UID == pod.UID,
		"start": got.Status.StartTime != nil,
	} {
		if !kept {
			t.Errorf("%s is not kept", what)
		}
	}
}
