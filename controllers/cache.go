package controllers

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"istio-pod-network-controller/internal/intent"
)

// CacheOptions keep the agent's memory that of one node: itself, its pods, and namespaces, without all that nobody reads. Only
// what is asked for is watched.
func CacheOptions(node string) cache.Options {
	return cache.Options{
		DefaultTransform:            cache.TransformStripManagedFields(),
		ReaderFailOnMissingInformer: true,
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:       {Field: fields.OneTermEqualSelector("spec.nodeName", node), Transform: stripPod},
			&corev1.Namespace{}: {Transform: stripNamespace}, // asked for as metadata only
			&corev1.Node{}:      {Field: fields.OneTermEqualSelector("metadata.name", node), Transform: stripNode},
		},
	}
}

// stripPod keeps what the intent and the reports are made of, and what tells that a sandbox has been made anew.
func stripPod(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	delete(pod.Annotations, corev1.LastAppliedConfigAnnotation)
	out := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			Labels: pod.Labels, Annotations: pod.Annotations, DeletionTimestamp: pod.DeletionTimestamp,
		},
		Spec: corev1.PodSpec{
			HostNetwork: pod.Spec.HostNetwork, OS: pod.Spec.OS, NodeName: pod.Spec.NodeName, ReadinessGates: pod.Spec.ReadinessGates,
			SecurityContext: pod.Spec.SecurityContext,
			Containers:      stripContainers(pod.Spec.Containers), InitContainers: stripContainers(pod.Spec.InitContainers),
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, PodIPs: pod.Status.PodIPs},
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == Condition || c.Type == corev1.PodReadyToStartContainers {
			out.Status.Conditions = append(out.Status.Conditions, c)
		}
	}
	for _, s := range pod.Status.ContainerStatuses {
		out.Status.ContainerStatuses = append(out.Status.ContainerStatuses, corev1.ContainerStatus{Name: s.Name, ContainerID: s.ContainerID})
	}
	return out, nil
}

// stripContainers keeps names, and of the proxy what it is asked for.
func stripContainers(in []corev1.Container) []corev1.Container {
	var out []corev1.Container
	for _, c := range in {
		kept := corev1.Container{Name: c.Name}
		if c.Name == intent.ProxyContainer {
			kept.Args, kept.Env, kept.SecurityContext = c.Args, c.Env, c.SecurityContext
		}
		out = append(out, kept)
	}
	return out
}

func stripNamespace(obj any) (any, error) {
	meta, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj, nil
	}
	kept := map[string]string{}
	if v, ok := meta.Annotations[intent.KeyInitialize]; ok {
		kept[intent.KeyInitialize] = v
	}
	return &metav1.PartialObjectMetadata{
		TypeMeta: meta.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Name: meta.Name, UID: meta.UID, ResourceVersion: meta.ResourceVersion, Annotations: kept, DeletionTimestamp: meta.DeletionTimestamp,
		},
	}, nil
}

func stripNode(obj any) (any, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion},
		Spec:       corev1.NodeSpec{Taints: node.Spec.Taints},
	}, nil
}
