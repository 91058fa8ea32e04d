package controllers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
)

// keyMirror is an annotation of the mirror pods that the kubelet creates for static pods. Its value is the UID that the runtime uses.
const keyMirror = corev1.MirrorPodAnnotationKey

// find fills in the sandbox's path if the entrance did not pass one, and identifies its namespace. It does not hold the pod's turn.
func (v *visit) find(ctx context.Context) error {
	asked, err := v.locate(ctx)
	if err != nil {
		return fmt.Errorf("find sandbox: %w", reasonError{err, reasonRuntime})
	}
	v.recall()
	v.askHandler(ctx)
	if v.sandbox.Identity != (podnet.Identity{}) {
		return nil
	}
	if err := v.identify(ctx, asked); err != nil {
		return fmt.Errorf("identify network namespace: %w", err)
	}
	return nil
}

// locate asks the runtime where the sandbox is, and reports whether it did. It does not ask if the entrance has passed the path.
// While NRI or CNI reports every sandbox, it takes a known one from the ledger, and does not ask about a pod that the kubelet has
// not started.
func (v *visit) locate(ctx context.Context) (asked bool, err error) {
	if v.sandbox.NetNS != "" {
		return false, nil
	}
	if v.announced() && v.pod.Annotations[keyMirror] == "" { // NRI and CNI let static pods pass
		known, ok := v.Ledger.Of(v.sandbox.UID)
		switch {
		case ok && v.matches(known.Sandbox) && known.Sandbox.NetNS != "" && (v.intent.Spec.DNS != iptables.DNSResolvConf || known.Sandbox.Nameservers != ""):
			v.sandbox = known.Sandbox
			return false, nil
		case !ok && !started(v.pod):
			return false, fmt.Errorf("the runtime has announced none: %w", podnet.ErrNotReady)
		}
	}
	found, err := v.ask(ctx)
	if err != nil {
		return false, err
	}
	if !v.matches(found) {
		return false, fmt.Errorf("the runtime lists sandbox %q only: %w", found.ID, podnet.ErrNotReady)
	}
	v.sandbox = found
	return true, nil
}

// matches reports whether s may be the sandbox of this call. An early entrance names the sandbox that is being made: another
// sandbox of the same pod, and its rules, do not count.
func (v *visit) matches(s podnet.Sandbox) bool {
	return !v.by.early() || v.sandbox.ID == "" || v.sandbox.ID == s.ID
}

// ask returns the pod's newest sandbox as the runtime describes it.
func (v *visit) ask(ctx context.Context) (podnet.Sandbox, error) {
	wanted := podnet.Sandbox{Namespace: v.sandbox.Namespace, Name: v.sandbox.Name, UID: v.sandbox.UID}
	if mirrored := v.pod.Annotations[keyMirror]; mirrored != "" {
		wanted.UID = mirrored
	}
	found, err := v.Finder.Find(ctx, wanted)
	found.UID = v.sandbox.UID
	return found, err
}

// recall fills in, from the ledger, what this call did not learn of the same sandbox (same ID, same path).
func (v *visit) recall() {
	known, ok := v.Ledger.Of(v.sandbox.UID)
	if !ok || known.Sandbox.ID != v.sandbox.ID || known.Sandbox.NetNS != v.sandbox.NetNS {
		return
	}
	if v.sandbox.Identity == (podnet.Identity{}) {
		v.sandbox.Identity = known.Sandbox.Identity
	}
	if v.sandbox.Nameservers == "" {
		v.sandbox.Nameservers = known.Sandbox.Nameservers
	}
	if v.sandbox.RuntimeHandler == "" {
		v.sandbox.RuntimeHandler = known.Sandbox.RuntimeHandler
	}
	if v.sandbox.CreatedAt == 0 {
		v.sandbox.Attempt, v.sandbox.CreatedAt = known.Sandbox.Attempt, known.Sandbox.CreatedAt
	}
}

// askBriefly is ask for what the visit can do without: work in the kernel still has its time afterwards.
func (v *visit) askBriefly(ctx context.Context) (podnet.Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return v.ask(ctx)
}

// askHandler asks the runtime, once, for the handler of a pod with a runtime class: the CNI chain does not know it. An early entrance does not
// ask, because the runtime does not know the sandbox yet. If the runtime does not answer soon, the next look asks again.
func (v *visit) askHandler(ctx context.Context) {
	if v.pod.Spec.RuntimeClassName == nil || v.sandbox.RuntimeHandler != "" || v.sandbox.CreatedAt != 0 || v.by.early() {
		return
	}
	if found, err := v.askBriefly(ctx); err == nil && found.ID == v.sandbox.ID {
		v.sandbox.RuntimeHandler, v.sandbox.Attempt, v.sandbox.CreatedAt = found.RuntimeHandler, found.Attempt, found.CreatedAt
	}
}

// identify identifies the namespace that the sandbox's path leads to. A path through a process (/proc/PID/ns/net) leads elsewhere
// once the process has ended and its PID is used again. So the runtime is asked once more: if it still names that PID, the
// namespace was the sandbox's.
func (v *visit) identify(ctx context.Context, asked bool) (err error) {
	identity, errIdentify := v.Namespaces.Identify(v.sandbox.NetNS)
	if asked && v.sandbox.OfProcess() {
		again, err := v.ask(ctx)
		switch {
		case err != nil:
			return reasonError{err, reasonRuntime}
		case again.ID != v.sandbox.ID || again.NetNS != v.sandbox.NetNS:
			return fmt.Errorf("sandbox %s was replaced meanwhile: %w", v.sandbox.ID, podnet.ErrNotReady)
		case errors.Is(errIdentify, podnet.ErrGone), errors.Is(errIdentify, fs.ErrPermission):
			return fmt.Errorf("%s cannot be opened though sandbox %s runs, and the runtime names no other path: "+
				"install with processFallback=true", v.sandbox.NetNS, v.sandbox.ID)
		}
	}
	if errIdentify != nil {
		return errIdentify
	}
	v.sandbox.Identity = identity
	return nil
}

// started reports whether the pod's status shows a sandbox.
func started(pod *corev1.Pod) bool {
	return len(pod.Status.PodIPs) > 0 ||
		slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.ContainerID != "" }) ||
		slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionTrue
		})
}
