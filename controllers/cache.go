package controllers

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podreport"
)

// NewInformer makes an informer of a kind, as cache.Options.NewInformer does.
type NewInformer = func(toolscache.ListerWatcher, runtime.Object, time.Duration, toolscache.Indexers) toolscache.SharedIndexInformer

// CacheOptions limit the watch cache to one node: the node itself, its pods, and all namespaces, without the fields that are not
// read. To read a kind that is not watched is an error. Objects that are read are not copies, and must not be changed. newInformer makes the
// informers. labels keeps the labels of namespaces, by which ProxyProfiles select them: an agent without proxies saves their memory.
func CacheOptions(node string, labels bool, newInformer NewInformer) cache.Options {
	return cache.Options{
		DefaultUnsafeDisableDeepCopy: new(true),
		DefaultTransform:             cache.TransformStripManagedFields(),
		NewInformer:                  newInformer,
		ReaderFailOnMissingInformer:  true,
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:       {Field: fields.OneTermEqualSelector("spec.nodeName", node), Transform: stripPod},
			&corev1.Namespace{}: {Transform: stripNamespace(labels)}, // asked for as metadata only
			&corev1.Node{}:      {Field: fields.OneTermEqualSelector("metadata.name", node), Transform: stripNode},
		},
	}
}

// staticPrefix starts the annotations that the kubelet puts on static pods and their mirror pods.
const staticPrefix = "kubernetes.io/config."

// stripPod keeps the fields that intent and reports need, and fields that change with a new sandbox. A pod's owner may write 256 KiB of
// annotations; the others are dropped.
func stripPod(obj any) (any, error) {
	if pod, ok := obj.(*corev1.Pod); ok {
		return StripPod(pod), nil
	}
	return obj, nil
}

// StripPod returns the parts of a pod that the cache keeps.
func StripPod(pod *corev1.Pod) *corev1.Pod {
	out := intent.Strip(pod)
	out.Annotations = intent.Only(pod.Annotations, keepsAnnotation)
	out.UID, out.ResourceVersion, out.DeletionTimestamp = pod.UID, pod.ResourceVersion, pod.DeletionTimestamp
	out.Spec.NodeName, out.Spec.RuntimeClassName = pod.Spec.NodeName, pod.Spec.RuntimeClassName
	if gated(pod) {
		out.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: podreport.Condition}}
	}
	out.Status.PodIPs, out.Status.StartTime = slices.Clone(pod.Status.PodIPs), pod.Status.StartTime.DeepCopy()
	for _, c := range pod.Status.Conditions {
		if slices.Contains([]corev1.PodConditionType{podreport.Condition, corev1.PodInitialized, corev1.PodReadyToStartContainers}, c.Type) {
			out.Status.Conditions = append(out.Status.Conditions, c)
		}
	}
	isProxy := func(s corev1.ContainerStatus) bool { return s.Name == intent.ProxyContainer }
	if kept := slices.IndexFunc(out.Status.InitContainerStatuses, isProxy); kept >= 0 { // a native sidecar
		whole := slices.IndexFunc(pod.Status.InitContainerStatuses, isProxy)
		out.Status.InitContainerStatuses[kept].State.Running = pod.Status.InitContainerStatuses[whole].State.Running
	}
	out.Status.ContainerStatuses = nil
	for i := range pod.Status.ContainerStatuses {
		s := &pod.Status.ContainerStatuses[i]
		out.Status.ContainerStatuses = append(out.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: s.Name, ContainerID: s.ContainerID, State: corev1.ContainerState{Running: s.State.Running}, User: intent.StripUser(s.User),
		})
	}
	return out
}

func keepsAnnotation(key string) bool {
	return intent.Reads(key) || key == podreport.KeyStatus || key == podreport.KeyDetails || strings.HasPrefix(key, staticPrefix)
}

// stripNamespace returns a transform that keeps the annotations that are read, and also the labels if they are wanted.
func stripNamespace(labels bool) toolscache.TransformFunc {
	return func(obj any) (any, error) {
		meta, ok := obj.(*metav1.PartialObjectMetadata)
		if !ok {
			return obj, nil
		}
		out := &metav1.PartialObjectMetadata{
			TypeMeta: meta.TypeMeta,
			ObjectMeta: metav1.ObjectMeta{
				Name: meta.Name, UID: meta.UID, ResourceVersion: meta.ResourceVersion, DeletionTimestamp: meta.DeletionTimestamp,
				Annotations: intent.Only(meta.Annotations, intent.ReadsOfNamespace),
			},
		}
		if labels {
			out.Labels = meta.Labels
		}
		return out, nil
	}
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
