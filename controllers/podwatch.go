package controllers

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"istio-pod-network-controller/internal/podnet"
)

// ensureTimeout bounds one call of Ensure, with the runtime's and the kernel's answers.
const ensureTimeout = 10 * time.Second

// concurrency bounds how many pods are worked on at once.
const concurrency = 4

// PodWatch is the entrance that watches the API server. It calls the Programmer for a pod of the node when the pod, or our
// annotation of its namespace, has changed.
type PodWatch struct {
	Client     client.Reader // the watch cache
	Programmer *Programmer

	waiting waiting
}

// SetupWithManager registers the watch.
func (w *PodWatch) SetupWithManager(mgr ctrl.Manager) error {
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"})
	return ctrl.NewControllerManagedBy(mgr).Named("pods").
		For(&corev1.Pod{}, builder.WithPredicates(relevantPods())).
		WatchesMetadata(ns, handler.EnqueueRequestsFromMapFunc(w.podsOf), builder.WithPredicates(annotationChanges())).
		WithOptions(watchOptions()).
		WithLogConstructor(podLogger(mgr.GetLogger())).
		Complete(w)
}

// podLogger returns loggers that name the pod once. controller-runtime's own name it three times, which costs more than reading the pod.
func podLogger(log logr.Logger) func(*reconcile.Request) logr.Logger {
	return func(r *reconcile.Request) logr.Logger {
		if r == nil {
			return log.WithValues("controller", "pods")
		}
		return log.WithValues("pod", r.String())
	}
}

func watchOptions() controller.Options {
	return controller.Options{MaxConcurrentReconciles: concurrency, RateLimiter: backOff[reconcile.Request]()}
}

// Reconcile calls Ensure for one pod. If the pod's sandbox does not run yet, it is called again after a delay; after a permanent error,
// when the pod changes. Any other error is retried with back-off.
func (w *PodWatch) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var pod corev1.Pod
	if err := w.Client.Get(ctx, req.NamespacedName, &pod); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	} else if err != nil {
		w.waiting.done(req.NamespacedName)
		w.Programmer.forgetOthers(req.Namespace, req.Name, "")
		return ctrl.Result{}, nil
	}
	// One event may stand for the deletion of an older pod and the creation of this one.
	w.Programmer.forgetOthers(req.Namespace, req.Name, string(pod.UID))
	ctx, cancel := context.WithTimeout(ctx, ensureTimeout)
	defer cancel()
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithValues("podUID", pod.UID, "entrance", Watch))
	_, err := w.Programmer.Ensure(ctx, Watch, podnet.Sandbox{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)})
	if absent(err) && pod.DeletionTimestamp == nil {
		return ctrl.Result{RequeueAfter: w.delay(&pod)}, nil
	}
	w.waiting.done(req.NamespacedName)
	switch {
	case absent(err):
		return ctrl.Result{}, nil
	case Permanent(err):
		// The pod's owner has a report. Returning the error would log it again at each status update by the kubelet.
		log.FromContext(ctx).Info("pod not redirected", "reason", err.Error())
		return ctrl.Result{}, nil
	}
	return ctrl.Result{}, err
}

// delay returns how long to wait before the runtime is asked again for a pod's sandbox. While NRI or CNI reports every sandbox, it is
// lastDelay: when many pods start, asking more often would cost more than all other work of the agent.
func (w *PodWatch) delay(pod *corev1.Pod) time.Duration {
	if w.Programmer.announced() && pod.Annotations[keyMirror] == "" {
		return lastDelay
	}
	return w.waiting.delay(client.ObjectKeyFromObject(pod), time.Now())
}

// podsOf returns a request for each pod of this node in a namespace.
func (w *PodWatch) podsOf(ctx context.Context, ns client.Object) []reconcile.Request {
	var pods corev1.PodList
	if err := w.Client.List(ctx, &pods, client.InNamespace(ns.GetName())); err != nil {
		log.FromContext(ctx).Error(err, "pods not listed", "namespace", ns.GetName())
		return nil
	}
	out := make([]reconcile.Request, 0, len(pods.Items))
	for i := range pods.Items {
		out = append(out, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: ns.GetName(), Name: pods.Items[i].Name}})
	}
	return out
}

// relevantPods accepts every change except those that the agent itself has written. The cache transform has already dropped fields
// that do not matter, so any other change concerns the pod's annotations or its sandbox.
func relevantPods() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok1 := e.ObjectOld.(*corev1.Pod)
		after, ok2 := e.ObjectNew.(*corev1.Pod)
		return !ok1 || !ok2 || differ(withoutReport(before), withoutReport(after))
	}}
}

// differ reports whether two versions of a pod differ. What changes most is compared first, and the spec, which is the longest, last. They
// are compared in their form on the wire, which takes a quarter of the time of reflection and a tenth of its memory.
func differ(a, b *corev1.Pod) bool {
	return differOnWire(&a.Status, &b.Status) || differOnWire(&a.ObjectMeta, &b.ObjectMeta) || differOnWire(&a.Spec, &b.Spec)
}

// differOnWire reports whether two messages differ, or cannot be compared. Maps are sorted on the wire.
func differOnWire(a, b interface{ Marshal() ([]byte, error) }) bool {
	textA, errA := a.Marshal()
	textB, errB := b.Marshal()
	return errA != nil || errB != nil || !bytes.Equal(textA, textB)
}

func withoutReport(pod *corev1.Pod) *corev1.Pod {
	out := *pod
	out.ResourceVersion = ""
	out.Annotations = maps.Clone(pod.Annotations)
	delete(out.Annotations, KeyStatus)
	delete(out.Annotations, KeyDetails)
	out.Status.Conditions = nil
	for _, c := range pod.Status.Conditions {
		if c.Type != Condition {
			out.Status.Conditions = append(out.Status.Conditions, c)
		}
	}
	return &out
}

func annotationChanges() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false }, // the namespace's pods have events of their own
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, after := e.ObjectOld.GetAnnotations(), e.ObjectNew.GetAnnotations()
			return slices.ContainsFunc(namespaceKeys(), func(key string) bool { return before[key] != after[key] })
		},
	}
}
