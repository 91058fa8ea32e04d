package controllers

import (
	"net/http"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/internal/wire"
)

// TrimPodWatch returns next, except that pods come from watches without the fields that the cache drops: environment, volumes, managed fields
// and others are two thirds of what it takes to decode a pod. It only saves work: the cache's transform decides what is kept.
func TrimPodWatch(next http.RoundTripper) http.RoundTripper {
	return wire.TrimWatches(next, "/api/v1/pods", "Pod", podFields())
}

// podFields are the fields that stripPod reads, by their numbers in generated.proto of k8s.io/api/core/v1 and of
// k8s.io/apimachinery/pkg/apis/meta/v1.
func podFields() wire.Message {
	whole := wire.Field{}
	return wire.Message{
		1: {Inside: wire.Message{ // metadata
			1: whole, 3: whole, 5: whole, 6: whole, 9: whole, // name, namespace, uid, resourceVersion, deletionTimestamp
			11: {Only: intent.ReadsLabel}, 12: {Only: keepsAnnotation},
		}},
		2: {Inside: wire.Message{ // spec
			2: {Inside: containerFields()}, 20: {Inside: containerFields()}, // containers, initContainers
			34: {Inside: wire.Message{1: {Inside: containerFields()}}}, // ephemeralContainers: their common part
			6:  whole, 10: whole, 11: whole, 12: whole, 14: whole,      // dnsPolicy, nodeName, hostNetwork, hostPID, securityContext
			26: whole, 28: whole, 29: whole, 36: whole, 37: whole, // dnsConfig, readinessGates, runtimeClassName, os, hostUsers
		}},
		3: {Inside: wire.Message{ // status
			1: whole, 7: whole, 12: whole, // phase, startTime, podIPs
			2: {Only: wire.Names(string(podreport.Condition), string(corev1.PodReadyToStartContainers))}, // conditions
			8: {Inside: wire.Message{1: whole, 8: whole}},                                                // containerStatuses: name, containerID
		}},
	}
}

func containerFields() wire.Message {
	whole := wire.Field{}
	return wire.Message{
		1: whole, 4: whole, 6: whole, 15: whole, 24: whole, // name, args, ports, securityContext, restartPolicy
		7: {Only: intent.ReadsEnv}, // env
	}
}
