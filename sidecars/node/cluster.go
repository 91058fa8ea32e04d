package node

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars"
)

// sidecarCluster is what the sidecar manager reads of the cluster.
type sidecarCluster struct {
	pods     controllers.Reader
	profiles *profiles
	moves    *moves // nil: there are none
}

// Pod returns a pod as the API server has it: the cache leaves out most labels and annotations.
func (c sidecarCluster) Pod(ctx context.Context, s podnet.Sandbox) (*corev1.Pod, error) {
	return c.pods.Current(ctx, s)
}

// Choice returns what a pod has chosen.
func (c sidecarCluster) Choice(ctx context.Context, s podnet.Sandbox) (sidecars.Choice, error) {
	pod, ns, err := c.read(ctx, s)
	if err != nil {
		return sidecars.Choice{}, err
	}
	finished := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	out := sidecars.Choice{
		Ending: finished || pod.DeletionTimestamp != nil, Finished: finished,
		OptedOut: pod.Annotations[intent.KeySidecar] == intent.SidecarNone || pod.Annotations[intent.KeyInitialize] == "false",
	}
	name, err := intent.SidecarProfile(pod, ns)
	if err != nil || name == "" || out.OptedOut {
		return out, nil //nolint:nilerr // the pod's report says what is wrong with its annotation; its proxy stays
	}
	out.Name = name
	found, refusal, err := c.profiles.forPod(ctx, name, pod, ns)
	if err != nil {
		return out, err
	}
	if refusal == "" {
		refusal = c.moves.refusal(ctx, s, found)
	}
	out.Generation, out.Refusal = found.generation, refusal
	if refusal == "" {
		out.Profile = found.usable
	}
	return out, nil
}

// ownCluster is what the manager of the pods' own proxies reads of the cluster: for it, a pod that has chosen a shared proxy leaves.
type ownCluster struct {
	sidecarCluster
	reports *sidecarReports
}

// Choice returns what a pod has chosen, as far as proxies of its own are concerned.
func (c ownCluster) Choice(ctx context.Context, s podnet.Sandbox) (sidecars.Choice, error) {
	chosen, err := c.sidecarCluster.Choice(ctx, s)
	if err != nil || chosen.Name == "" || c.moves == nil {
		return chosen, err
	}
	from, known := c.moves.leads.of(s)
	to, _ := c.profiles.last(ctx, chosen.Name)
	if !to.shared() {
		chosen.Held = c.held(ctx, from.Now, to, chosen)
		return chosen, nil
	}
	out := sidecars.Choice{Ending: chosen.Ending, Finished: chosen.Finished}
	switch {
	case !known: // what runs stays, until the rules are known to lead elsewhere
	case (from.Now.Shared || from.Now.Profile == "") && c.leavesOwn(s):
		out.Leaves, out.Drain = true, defaultDrain
		if from.Before.Profile != "" && !from.Before.Shared {
			out.Drain = from.Before.Drain
		}
	default:
		out.Leaves, out.Name = true, from.Now.Profile
		if aim := c.moves.aimOf(s.UID); from.Now.Shared || from.Now.Profile == "" {
			out.Name = aim
		}
		err = c.asBefore(ctx, s, &out)
	}
	return out, err
}

// leavesOwn withdraws the offer of a pod's own proxy, and reports whether the proxy may finish. It may not if the pod's rules are about to lead
// there: then the offer stands again.
func (c ownCluster) leavesOwn(s podnet.Sandbox) bool {
	c.reports.leavesOwn(s.UID, true)
	aim := c.moves.aimOf(s.UID)
	if of, known := c.profiles.remembered(aim); aim == "" || known && of.shared() {
		return true
	}
	c.reports.leavesOwn(s.UID, false)
	return false
}

// held returns the profile to which the rules lead, if it is another one of the pod's own with other ports.
func (c ownCluster) held(ctx context.Context, from lead, to profile, chosen sidecars.Choice) string {
	if chosen.Profile == nil || from.Profile == "" || from.Profile == chosen.Name || from.Shared {
		return ""
	}
	old, known := c.profiles.last(ctx, from.Profile)
	if _, same := samePort(old.spec, to.spec); !known || same {
		return ""
	}
	return from.Profile
}

// asBefore fills in the profile that a pod comes from, as if it had still chosen that.
func (c ownCluster) asBefore(ctx context.Context, s podnet.Sandbox, out *sidecars.Choice) error {
	pod, ns, err := c.read(ctx, s)
	if err != nil {
		return err
	}
	found, refusal, err := c.profiles.forPod(ctx, out.Name, pod, ns)
	if err != nil {
		return err
	}
	out.Generation, out.Refusal = found.generation, refusal
	if refusal == "" {
		out.Profile = found.usable
	}
	return nil
}

// read returns a pod and its namespace.
func (c sidecarCluster) read(ctx context.Context, s podnet.Sandbox) (*corev1.Pod, *corev1.Namespace, error) {
	pod, err := c.pods.Pod(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	ns, err := c.pods.Namespace(ctx, s.Namespace)
	return pod, ns, err
}
