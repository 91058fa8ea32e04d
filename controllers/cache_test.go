package controllers

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/outage"
	"istio-pod-network-controller/internal/podreport"
)

// An agent that watched the cluster's pods would cost the API server a cluster's worth of events on each node.
func TestTheCacheIsThatOfOneNode(t *testing.T) {
	got := map[string]string{}
	for obj, by := range CacheOptions("node-1", false, &outage.Contact{}).ByObject {
		if by.Field != nil {
			got[fmt.Sprintf("%T", obj)] = by.Field.String()
		}
	}
	if got["*v1.Pod"] != "spec.nodeName=node-1" || got["*v1.Node"] != "metadata.name=node-1" {
		t.Errorf("fields %v", got)
	}
	if !CacheOptions("node-1", false, &outage.Contact{}).ReaderFailOnMissingInformer {
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
	stripped, err := stripPod(pod.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	got := stripped.(*corev1.Pod)
	for what, kept := range map[string]bool{
		"mirror": got.Annotations[keyMirror] == "hash", "status": got.Annotations[podreport.KeyStatus] == "initialized", "details": got.Annotations[podreport.KeyDetails] == "{}",
		"started": started(got), "condition": findCondition(got) != nil, "phase": got.Status.Phase == corev1.PodPending, "gate": gated(got),
		"deletion": got.DeletionTimestamp != nil, "UID": got.UID == pod.UID,
		"start": got.Status.StartTime != nil, "host's processes": got.Spec.HostPID, "host's users": got.Spec.HostUsers != nil,
		"ports": len(got.Spec.Containers) == 1 && len(got.Spec.Containers[0].Ports) == 1,
	} {
		if !kept {
			t.Errorf("%s is not kept", what)
		}
	}
}
