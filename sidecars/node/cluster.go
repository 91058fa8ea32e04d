package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars"
	"istio-pod-network-controller/sidecars/istio"
	"istio-pod-network-controller/sidecars/profile"
)

type sidecarCluster struct {
	pods     controllers.Reader
	profiles *profiles
	routes   *routes
}

// CurrentPod returns a pod as the API server has it: the cache leaves out most labels and annotations.
func (c sidecarCluster) CurrentPod(ctx context.Context, s podnet.Sandbox) (*corev1.Pod, error) {
	return c.pods.Current(ctx, s)
}

const istiosRight = "the chart's value proxies.istio gives the agent this right"

// ConfigMapOf returns a ConfigMap of an Istio, nil if it is missing.
func (c sidecarCluster) ConfigMapOf(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	found := &corev1.ConfigMap{}
	err := c.pods.Live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, found)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case apierrors.IsForbidden(err):
		err = fmt.Errorf("%w: %s", err, istiosRight)
	}
	return found, err
}

// ProxyConfigs returns Istio's objects of that kind: none where the API server does not know it.
func (c sidecarCluster) ProxyConfigs(ctx context.Context) ([]istio.ProxyConfig, error) {
	found := &unstructured.UnstructuredList{}
	found.SetGroupVersionKind(istio.ProxyConfigKind)
	err := c.pods.Live.List(ctx, found)
	switch {
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
		return nil, nil
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("%w: %s", err, istiosRight)
	case err != nil:
		return nil, fmt.Errorf("list Istio's ProxyConfigs: %w", err)
	}
	out := make([]istio.ProxyConfig, len(found.Items))
	for i := range found.Items {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(found.Items[i].Object, &out[i]); err != nil {
			return nil, fmt.Errorf("ProxyConfig %s/%s: %w", found.Items[i].GetNamespace(), found.Items[i].GetName(), err)
		}
	}
	return out, nil
}

// Choice returns what a pod has chosen, or the profile whose proxy it keeps.
func (c sidecarCluster) Choice(ctx context.Context, s podnet.Sandbox) (sidecars.Choice, error) {
	pod, err := c.pods.Pod(ctx, s)
	if err != nil {
		return sidecars.Choice{}, err
	}
	ns, err := c.pods.Namespace(ctx, s.Namespace)
	if err != nil {
		return sidecars.Choice{}, err
	}
	finished := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	out := sidecars.Choice{
		Ending: finished || pod.DeletionTimestamp != nil, Finished: finished,
		OptedOut: pod.Annotations[intent.KeySidecar] == intent.SidecarNone || pod.Annotations[intent.KeyInitialize] == "false",
	}
	if out.OptedOut {
		return out, nil
	}
	name, err := intent.ProxyProfile(pod, ns)
	if err != nil { // the pod's report says what is wrong with its annotation; its proxy stays
		name = ""
	}
	has, found, refusal, err := c.profileOf(ctx, s, name, pod, ns)
	if has == "" {
		return out, err
	}
	out.Namespace, out.Name, out.Hash, out.Refusal, out.Held = ns, has, found.hash, refusal, found.held
	if err == nil && refusal == "" {
		out.Profile, out.Later = found.usable, c.isLater(s, found, pod)
		if found.err != nil {
			out.Hash, out.Unusable = found.usable.Hash, fmt.Sprintf("the present version of the ProxyProfile %q cannot be used, and the last one is: %v", has, found.err)
		}
	}
	out.Restart = sidecars.Wish(profile.Wish(out.Profile, pod.Annotations[intent.KeyRestartProxy], ns))
	return out, err
}

// startTime is how long a pod counts as starting after its containers have started.
const startTime = 30 * time.Second

// isLater reports whether a pod has chosen its first proxy after it had started. Its rules come once that is ready: until then its connections work as
// they did. A pod that starts gets its rules at once.
func (c sidecarCluster) isLater(s podnet.Sandbox, found readProfile, pod *corev1.Pod) bool {
	if to, _ := c.routes.of(s); to.Profile != "" || found.shared() || pod.Status.Phase != corev1.PodRunning {
		return false
	}
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.State.Running != nil && time.Since(c.State.Running.StartedAt.Time) > startTime
	})
}

// profileOf returns the profile of a pod's proxy, and why the pod cannot have a proxy of it. name is the pod's choice. It counts unless the rules lead to
// a proxy of another profile, which the pod keeps. Without a choice the pod keeps the proxy to which its rules lead, until it opts out itself.
func (c sidecarCluster) profileOf(ctx context.Context, s podnet.Sandbox, name string, pod *corev1.Pod, ns *corev1.Namespace) (of string, found readProfile, refusal string, err error) {
	if name == "" {
		name = c.routes.last(s.UID).Profile
	}
	if name == "" {
		return "", found, "", nil
	}
	found, refusal, err = c.profiles.forPod(ctx, name, pod, ns)
	if keeps, why := c.routes.keeps(s, found); why != "" {
		name = keeps.Profile
		if found, refusal, err = c.profiles.forPod(ctx, name, pod, ns); refusal != "" {
			refusal = why + "; but " + refusal
		}
	}
	return name, found, refusal, err
}

// ownCluster is what the manager of the pods' own proxies reads of the cluster.
type ownCluster struct{ sidecarCluster }

// Choice returns what a pod has chosen, as far as proxies of its own are concerned. A pod with the choice of none, or of a shared proxy, has opted
// out of them once its rules lead to a shared proxy, or to none. As long as they lead elsewhere, or that is not known, running proxies stay.
func (c ownCluster) Choice(ctx context.Context, s podnet.Sandbox) (sidecars.Choice, error) {
	chosen, err := c.sidecarCluster.Choice(ctx, s)
	if err != nil {
		return chosen, err
	}
	has, known := c.routes.of(s)
	leftBehind := known && (has.Shared || has.Profile == "")
	if chosen.Name == "" {
		chosen.OptedOut = leftBehind
	} else if to, _ := c.profiles.last(ctx, chosen.Name); to.shared() || has.Shared {
		return sidecars.Choice{Ending: chosen.Ending, Finished: chosen.Finished, OptedOut: leftBehind}, nil
	}
	return chosen, nil
}
