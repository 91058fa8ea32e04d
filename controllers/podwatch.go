// Package controllers is the agent's core: it decides what to do when a hook reports a pod's sandbox, remembers the outcome, and
// reports it to the pod's owner.
//
//	podwatch.go       a hook: watches the pods of the node, and visits each when it is due
//	ensure.go         Ensure, which every hook calls
//	look.go           a read for inspect
//	attempt.go        one visit: read, decide, find, apply, report
//	failure.go        what an error means
//	keep.go           rules of pods that no longer ask
//	find.go           the sandbox and its namespace
//	visitreport.go    what a visit reports
//	apply.go          gives rules to the backend, and names what differed
//	left.go           what is left to the next check
//	listening.go      who listens in the pod
//	late.go           which pods started before their rules
//	hold.go           connections that wait for their proxy
//	proxies.go        proxies that the agent runs
//	visit.go          values: a visit, and how it ends
//	programmer.go     what the core is given, and remembers
//	startuptaint.go   the taint of a node that starts
//	metrics.go        counts
//	due.go            when a pod is checked
//	ledger.go         the newest sandbox of each pod
//	pods.go           reads pods and namespaces
//	asnode.go         reads pods and the Node as the node
//	cache.go          what the watch cache keeps of them
//	writer.go         writes reports, from a queue
//	decide.go         whether a report is written
//	queue.go          pods that are due
//	turns.go          one call at a time works on a pod
//	compiled.go       rules of each Spec
//	failurereason.go  classes of errors
//	foreignrules.go   what is said of foreign rules
//	needs.go          interfaces of the adapters
//	report.go         a report, and what a pod shows of it
//	findings.go       values: what was found in the kernel
//	contention.go     foreign programs that change rules again and again
//	hook.go           hooks and results
package controllers

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"istio-pod-network-controller/internal/jitter"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
)

// PodWatch is the hook that watches the API server, and visits each pod of the node when it is due:
//
//   - at once, when the pod, or an annotation of its namespace that is read, has changed. What the agent has written itself is no change;
//   - after a failure, after a random wait whose bound doubles up to lastBackOff;
//   - while its sandbox is not there, after a random part of the time that the pod has waited;
//   - if its annotations are wrong, or its rules are as they should be, at its next check (see schedule), whichever hook was here last.
//
// A visit at the time of a check compares the kernel with what the pod asks for: its hook is Verify. The runtime is not asked about a
// sandbox whose path is known.
type PodWatch struct {
	Client     client.Reader // the watch cache
	Programmer *Programmer

	queue *queue
}

// NewPodWatch returns a PodWatch, which is also told by the Programmer what other hooks have done.
func NewPodWatch(c client.Reader, p *Programmer) *PodWatch {
	w := &PodWatch{Client: c, Programmer: p, queue: newQueue()}
	p.requeue, p.revisit, p.tickOffset = w.queue.due, w.queue.now, jitter.Full(longestTick)
	return w
}

// SetupWithManager registers the watch.
func (w *PodWatch) SetupWithManager(mgr ctrl.Manager) error {
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"})
	return ctrl.NewControllerManagedBy(mgr).Named("pods").
		For(&corev1.Pod{}, builder.WithPredicates(relevantPods())).
		WatchesMetadata(ns, handler.EnqueueRequestsFromMapFunc(w.podsOf), builder.WithPredicates(annotationChanges())).
		WithOptions(w.queue.options()).
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

// Reconcile visits one pod, and says when it is due again. A permanent error is not returned: it stays until the pod changes.
func (w *PodWatch) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	pod, err := w.read(ctx, req)
	if errors.Is(err, podnet.ErrNoPod) {
		w.queue.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	} else if err != nil {
		return ctrl.Result{}, err
	}
	by, as := Watch, Watch
	if known, ok := w.Programmer.Ledger.Of(string(pod.UID)); ok && w.Programmer.schedule().isDue(known) {
		if by = Verify; known.Sandbox.NetNS != "" { // otherwise the runtime is asked, as after a change
			as = Verify
		}
	}
	end, limit, wait := w.queue.begin(pod, as)
	if wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	defer end()
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithValues("podUID", pod.UID, "hook", by))
	return w.result(ctx, pod, by, w.visit(ctx, pod, by, limit))
}

// read returns the pod with a name, and forgets other pods of that name: one event may stand for a pod's deletion and its successor's creation. The
// cache may be behind an early hook, and show no pod or a predecessor. So a pod with a known sandbox is forgotten only if the API server says that it
// is gone.
func (w *PodWatch) read(ctx context.Context, req ctrl.Request) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, ensureTimeout)
	defer cancel()
	pod := &corev1.Pod{}
	err := w.Client.Get(ctx, req.NamespacedName, pod)
	switch {
	case apierrors.IsNotFound(err):
		err = podnet.ErrNoPod
	case err != nil:
		return nil, err
	}
	for _, known := range w.Programmer.Ledger.Others(req.Namespace, req.Name, string(pod.UID)) {
		var now *corev1.Pod
		errNow := podnet.ErrNoPod
		if known.Sandbox.ID != "" {
			now, errNow = w.Programmer.Pods.Current(ctx, known.Sandbox)
		}
		switch {
		case errors.Is(errNow, podnet.ErrNoPod):
			w.Programmer.forgetPod(known.Sandbox.UID)
		case errNow == nil || err != nil:
			pod, err = now, errNow
		}
	}
	return pod, err
}

func (w *PodWatch) visit(ctx context.Context, pod *corev1.Pod, by Hook, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, ensureTimeout)
	defer cancel()
	s := podnet.Sandbox{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}
	_, err := w.Programmer.ensure(ctx, by, s, limit, "")
	if by == Verify && errors.Is(err, podnet.ErrGone) { // the next sandbox may run already; changes that came before were left to this check
		_, err = w.Programmer.ensure(ctx, by, s, limit, "")
	}
	return err
}

// result returns when the pod is due after a visit.
func (w *PodWatch) result(ctx context.Context, pod *corev1.Pod, by Hook, err error) (ctrl.Result, error) {
	waits := absent(err) && pod.DeletionTimestamp == nil
	switch {
	case timedOut(err):
		w.queue.unanswered(pod)
	case !waits:
		w.queue.forget(client.ObjectKeyFromObject(pod))
	}
	switch {
	case waits:
		return ctrl.Result{RequeueAfter: w.delay(pod)}, nil
	case err != nil && !absent(err) && !Permanent(err):
		return ctrl.Result{}, err
	case Permanent(err) && by == Watch:
		// The pod's owner has a report. Returning the error would log it again at each status update by the kubelet.
		log.FromContext(ctx).Info("pod not redirected", "reason", err.Error())
	}
	return ctrl.Result{RequeueAfter: w.Programmer.schedule().wait(w.Programmer.Ledger.Of(string(pod.UID))), Priority: new(handler.LowPriority)}, nil
}

// delay returns how long to wait before the runtime is asked again for a pod's sandbox. While NRI or CNI reports every sandbox, it is
// lastDelay on average: when many pods start, asking more often would cost more than all other work of the agent.
func (w *PodWatch) delay(pod *corev1.Pod) time.Duration {
	if w.Programmer.Announcers.announce() && pod.Annotations[keyMirror] == "" {
		w.queue.forget(client.ObjectKeyFromObject(pod))
		return jitter.Full(2 * lastDelay)
	}
	return w.queue.absent(pod)
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

// relevantPods accepts every change except the agent's own writes. The cache transform has already dropped fields
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
	delete(out.Annotations, podreport.KeyStatus)
	delete(out.Annotations, podreport.KeyDetails)
	out.Status.Conditions = nil
	for _, c := range pod.Status.Conditions {
		if c.Type != podreport.Condition {
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
			return !maps.Equal(before, after) // the cache keeps only annotations that are read
		},
	}
}
