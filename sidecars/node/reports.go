package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/jitter"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/printable"
	"istio-pod-network-controller/sidecars"
	"istio-pod-network-controller/sidecars/istio"
)

// sidecarReports writes a ManagedProxy for each proxy, and remembers which proxies are ready. It is a manager.Runnable.
type sidecarReports struct {
	client client.Client
	node   string
	// changed is called when a proxy becomes ready, or no longer is. It does not wait.
	changed func(s podnet.Sandbox)
	// gone is called for each pod that is gone, which may be more than once; it may be nil.
	gone func(podUID string)
	// event makes a Warning event of a pod.
	event func(s podnet.Sandbox, reason, message string)

	queue   workqueue.TypedRateLimitingInterface[string] // UIDs of pods
	mu      sync.Mutex
	reports map[string]sidecarReport
	chosen  map[string]choice // by the pod's UID
}

type choice struct {
	// chosen reports whether it has a proxy at all, and shared whether that is a shared one.
	chosen, shared bool
	// why says why the proxy is not of the profile that the pod has chosen, or "".
	why string
}

type sidecarReport struct {
	sandbox podnet.Sandbox
	status  sidecars.Status
	written writtenProxy
	object  types.UID // of the ManagedProxy, once it was written
	retract bool      // the pod has no proxy any more: the ManagedProxy is to be deleted
	// told reports whether it was passed on whether the proxy is ready, and ready what was passed on last.
	told, ready bool
	// labelled reports whether the pod has the label of setTLSMode by this agent, labels whether by this agent or an earlier one: a proxy of Istio's
	// was reported.
	labelled, labels bool
}

// writtenProxy is what the API server has of a proxy. It has the sandbox, since the proxy in a pod's next sandbox may have the same status.
type writtenProxy struct {
	sandbox string
	status  sidecars.Status
	why     string // of its choice
}

// writeLimit bounds the writes about one proxy: an API server that does not answer must not hold up the others' for long.
const writeLimit = 10 * time.Second

// fieldOwner owns what the agent writes into objects of proxies.
const fieldOwner = "istio-pod-network-controller"

// ReasonProxyFailed is the reason of the events about proxies that ended or could not be started.
const ReasonProxyFailed = "ProxyFailed"

func newSidecarReports(c client.Client, event func(s podnet.Sandbox, reason, message string), node string) *sidecarReports {
	const first, last = 100 * time.Millisecond, 30 * time.Second // a write that fails is tried again within half a minute
	return &sidecarReports{
		client: c, event: event, node: node, reports: map[string]sidecarReport{}, chosen: map[string]choice{},
		queue: workqueue.NewTypedRateLimitingQueue(jitter.Limiter[string]{Bounds: workqueue.NewTypedItemExponentialFailureRateLimiter[string](first, last)}),
	}
}

// Report queues a status if it is a new one.
func (r *sidecarReports) Report(s podnet.Sandbox, status sidecars.Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	report, known := r.reports[s.UID]
	if known && report.sandbox == s && report.status == status && !report.retract {
		return
	}
	report.sandbox, report.status, report.retract = s, status, false
	report.labels = report.labels || status.Labels
	r.reports[s.UID] = report
	r.queue.Add(s.UID)
}

// choose notes what a pod has chosen: a report by the manager of the other mode is not shown.
func (r *sidecarReports) choose(podUID string, now choice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if before := r.chosen[podUID]; before.why != now.why {
		r.queue.Add(podUID)
	}
	if r.chosen[podUID] = now; now == (choice{}) {
		delete(r.chosen, podUID)
	}
}

func (r *sidecarReports) chose(podUID string) choice {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.chosen[podUID]
}

// Forget drops what is known of a pod that is gone. Its ManagedProxy goes with it.
func (r *sidecarReports) Forget(podUID string) {
	r.mu.Lock()
	r.drop(podUID)
	r.mu.Unlock()
	if r.gone != nil {
		r.gone(podUID)
	}
}

// drop forgets a pod. r.mu is held.
func (r *sidecarReports) drop(podUID string) {
	delete(r.reports, podUID)
	delete(r.chosen, podUID)
}

// Retract has the ManagedProxy of a pod deleted that has no proxy any more.
func (r *sidecarReports) Retract(podUID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	report, known := r.reports[podUID]
	if !known {
		return
	}
	report.retract = true
	r.reports[podUID] = report
	r.queue.Add(podUID)
}

// Ready reports whether a sandbox's proxy is ready; known is false while nothing was reported about it.
func (r *sidecarReports) Ready(s podnet.Sandbox) (ready, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	report, known := r.reports[s.UID]
	return report.status.Ready, known && report.sandbox.ID == s.ID
}

// Start writes until ctx ends.
func (r *sidecarReports) Start(ctx context.Context) error {
	stop := context.AfterFunc(ctx, r.queue.ShutDown)
	defer stop()
	for {
		uid, ended := r.queue.Get()
		if ended {
			return nil
		}
		if err := r.work(ctx, uid); err != nil && ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Error(err, "ManagedProxy not written", "podUID", uid)
			r.queue.AddRateLimited(uid)
		} else {
			r.queue.Forget(uid)
		}
		r.queue.Done(uid)
	}
}

// work sets the label of Istio's proxies, which may take writeLimit, passes on whether the proxy is ready, and then writes the ManagedProxy.
func (r *sidecarReports) work(ctx context.Context, uid string) error {
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	r.mu.Lock()
	report, known := r.reports[uid]
	why := r.chosen[uid].why
	isNew := known && !report.retract && (!report.told || report.ready != report.status.Ready)
	if isNew {
		report.told, report.ready = true, report.status.Ready
		r.reports[uid] = report
	}
	r.mu.Unlock()
	errLabel := r.label(ctx, uid, report) // first: peers learn that the pod is ready, and send mTLS, at once
	if errLabel != nil {
		why = printable.Joined(why, errLabel.Error())
	}
	if isNew && r.changed != nil {
		r.changed(report.sandbox)
	}
	if known && report.retract {
		return r.retract(ctx, uid, report)
	}
	written := writtenProxy{report.sandbox.ID, report.status, why}
	if !known || report.written == written {
		return errLabel
	}
	object, err := r.write(ctx, report, why)
	if err != nil {
		return errors.Join(errLabel, err)
	}
	if why := report.status.Failure; why != "" && why != report.written.status.Failure {
		r.event(report.sandbox, ReasonProxyFailed, why)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch now, ok := r.reports[uid]; {
	case ok && now.status.Final && now.status == report.status:
		r.drop(uid) // nothing follows, and nobody says when the pod is deleted
	case ok:
		now.written, now.object = written, object
		r.reports[uid] = now
	}
	return errLabel
}

// label gives a pod with Istio's proxy the label once its proxy is ready for the first time, and takes it away once another profile's proxy, or
// another version's, has taken over.
func (r *sidecarReports) label(ctx context.Context, uid string, report sidecarReport) error {
	wants := report.status.Labels
	if report.retract || !report.status.Ready || wants && report.labelled || !wants && !report.labels {
		return nil
	}
	var value any
	if wants {
		value = istio.TLSModeIstio
	}
	if err := setTLSMode(ctx, r.client, report.sandbox, value); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if now, known := r.reports[uid]; known {
		now.labelled, now.labels = wants, wants
		r.reports[uid] = now
	}
	return nil
}

// deletions has the node's ManagedProxies written anew that somebody else deletes, while it follows them.
func (r *sidecarReports) deletions(api client.WithWatch) *proxyCounts {
	return &proxyCounts{api: api, labels: client.MatchingLabels{v1alpha1.LabelNode: r.node}, changed: func() {}, deleted: r.deleted}
}

// deleted queues the report whose ManagedProxy is gone, unless this agent has deleted it.
func (r *sidecarReports) deleted(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid, report := range r.reports {
		if report.sandbox.Namespace == key.Namespace && report.sandbox.Name == key.Name && report.written.sandbox != "" && !report.retract {
			report.written, report.object = writtenProxy{}, ""
			r.reports[uid] = report
			r.queue.Add(uid)
		}
	}
}

// write applies the ManagedProxy: the object first, then its status, which cannot be written to a missing object. why is part of the message.
func (r *sidecarReports) write(ctx context.Context, report sidecarReport, why string) (types.UID, error) {
	s, status := report.sandbox, report.status
	labels := map[string]any{}
	for key, value := range map[string]string{v1alpha1.LabelNode: r.node, v1alpha1.LabelProfile: status.Profile} {
		if len(validation.IsValidLabelValue(value)) == 0 { // names may be longer than labels
			labels[key] = value
		}
	}
	object := map[string]any{
		"apiVersion": v1alpha1.GroupVersion().String(), "kind": "ManagedProxy",
		"metadata": map[string]any{
			"namespace": s.Namespace, "name": s.Name,
			"labels": labels,
			"ownerReferences": []any{map[string]any{
				"apiVersion": "v1", "kind": "Pod", "name": s.Name, "uid": s.UID,
			}},
		},
		"spec": map[string]any{"profile": status.Profile, "pod": s.Name, "podUID": s.UID, "node": r.node},
	}
	uid, err := r.apply(ctx, object, false)
	if err != nil {
		return "", err
	}
	text := v1alpha1.ManagedProxyStatus{
		State: status.State, Ready: status.Ready, Sandbox: s.ID, Epoch: int32(status.Epoch), Image: status.Image, ProfileHash: status.Hash,
		FailedHash: status.FailedHash, Paused: status.Paused, Restarts: status.Restarts, Message: printable.Clip(printable.Joined(why, status.Message), v1alpha1.MaxMessage),
	}
	if !status.LastUpgrade.IsZero() {
		at := metav1.NewTime(status.LastUpgrade)
		text.LastUpgrade = &at
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&text)
	if err != nil {
		return "", fmt.Errorf("convert ManagedProxy: %w", err)
	}
	object["status"] = fields
	delete(object, "spec")
	_, err = r.apply(ctx, object, true)
	return uid, err
}

// retract deletes a ManagedProxy that this agent has written, and forgets it. A ManagedProxy that was made anew meanwhile stays.
func (r *sidecarReports) retract(ctx context.Context, uid string, report sidecarReport) error {
	if report.labels {
		if err := setTLSMode(ctx, r.client, report.sandbox, nil); err != nil {
			return err
		}
	}
	if report.object != "" {
		object := &v1alpha1.ManagedProxy{ObjectMeta: metav1.ObjectMeta{Namespace: report.sandbox.Namespace, Name: report.sandbox.Name}}
		err := r.client.Delete(ctx, object, client.Preconditions{UID: &report.object})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete ManagedProxy: %w", err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if now, known := r.reports[uid]; known && !now.retract { // the pod has a proxy again
		now.written, now.object, now.labelled, now.labels = writtenProxy{}, "", false, now.status.Labels
		r.reports[uid] = now
		return nil
	}
	delete(r.reports, uid)
	return nil
}

func (r *sidecarReports) apply(ctx context.Context, object map[string]any, status bool) (types.UID, error) {
	made := &unstructured.Unstructured{Object: maps.Clone(object)}
	what := client.ApplyConfigurationFromUnstructured(made)
	var err error
	if status {
		err = r.client.Status().Apply(ctx, what, client.FieldOwner(fieldOwner), client.ForceOwnership)
	} else {
		err = r.client.Apply(ctx, what, client.FieldOwner(fieldOwner), client.ForceOwnership)
	}
	if err != nil {
		return "", fmt.Errorf("apply ManagedProxy: %w", err)
	}
	return made.GetUID(), nil
}
