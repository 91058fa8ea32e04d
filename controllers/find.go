package controllers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
)

// keyMirror is an annotation of the mirror pods that the kubelet creates for static pods. Its value is the UID that the runtime uses.
const keyMirror = corev1.MirrorPodAnnotationKey

// isStatic reports whether a pod is a static one as the kubelet gives it, not the mirror pod that the API server has for it.
func isStatic(pod *corev1.Pod) bool {
	return intent.IsStatic(pod) && pod.Annotations[keyMirror] == ""
}

// locator finds the sandbox of a visit's pod, and identifies its namespace. It holds no turn.
type locator struct{ *Programmer }

// find returns the visit's sandbox with path and identity of its namespace. With an error it returns what it has learned until then.
func (l locator) find(ctx context.Context, v visit) (podnet.Sandbox, error) {
	known, isKnown := l.Ledger.Of(v.sandbox.UID)
	s, asked, err := l.locate(ctx, v, known, isKnown)
	if err != nil {
		return s, fmt.Errorf("find sandbox: %w", reasonError{err, reasonRuntime})
	}
	s = l.withHandler(ctx, v, recalled(s, known.Sandbox))
	if s.Identity != (podnet.Identity{}) {
		return s, nil
	}
	if s.Identity, err = l.identify(ctx, v, s, asked); err != nil {
		return s, fmt.Errorf("identify network namespace: %w", err)
	}
	return s, nil
}

// locate returns where the sandbox is, and reports whether the runtime was asked. It is not asked if the hook has passed the path.
// While NRI or CNI reports every sandbox, a known one comes from the ledger, and Watch and Verify do not ask about a pod that the kubelet has not
// started.
func (l locator) locate(ctx context.Context, v visit, known Entry, isKnown bool) (s podnet.Sandbox, asked bool, err error) {
	s = v.sandbox
	if s.NetNS != "" {
		return s, false, nil
	}
	if l.Announcers.announce() && v.pod.Annotations[keyMirror] == "" { // NRI and CNI let static pods pass
		hasServers := v.intent.Spec.DNS != iptables.DNSResolvConf || known.Sandbox.Nameservers != ""
		switch {
		case isKnown && v.matches(known.Sandbox) && known.Sandbox.NetNS != "" && hasServers:
			return known.Sandbox, false, nil
		case !isKnown && !v.by.early() && !started(v.pod):
			return s, false, fmt.Errorf("the runtime has announced none: %w", podnet.ErrNotReady)
		}
	}
	found, err := l.ask(ctx, v)
	if err != nil {
		return s, false, err
	}
	if !v.matches(found) {
		return s, false, fmt.Errorf("the runtime lists sandbox %q only: %w", found.ID, podnet.ErrNotReady)
	}
	return found, true, nil
}

// ask returns the pod's newest sandbox as the runtime describes it.
func (l locator) ask(ctx context.Context, v visit) (podnet.Sandbox, error) {
	wanted := podnet.Sandbox{Namespace: v.sandbox.Namespace, Name: v.sandbox.Name, UID: v.sandbox.UID}
	if mirrored := v.pod.Annotations[keyMirror]; mirrored != "" {
		wanted.UID = mirrored
	}
	found, err := l.Finder.Find(ctx, wanted)
	found.UID = v.sandbox.UID
	return found, err
}

// askBriefly is ask for what the visit can do without: work in the kernel still has its time afterwards.
func (l locator) askBriefly(ctx context.Context, v visit) (podnet.Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return l.ask(ctx, v)
}

// recalled returns s with what the ledger knows of the same sandbox (same ID, same path) and s lacks.
func recalled(s, known podnet.Sandbox) podnet.Sandbox {
	if known.ID != s.ID || known.NetNS != s.NetNS {
		return s
	}
	if s.Identity == (podnet.Identity{}) {
		s.Identity = known.Identity
	}
	if s.Nameservers == "" {
		s.Nameservers = known.Nameservers
	}
	if s.RuntimeHandler == "" {
		s.RuntimeHandler = known.RuntimeHandler
	}
	if s.CreatedAt == 0 {
		s.Attempt, s.CreatedAt = known.Attempt, known.CreatedAt
	}
	return s
}

// withHandler asks the runtime, once, for the handler of a pod with a runtime class: the CNI chain does not know it. An early hook does not
// ask, because the runtime does not know the sandbox yet. If the runtime does not answer soon, the next look asks again.
func (l locator) withHandler(ctx context.Context, v visit, s podnet.Sandbox) podnet.Sandbox {
	if v.pod.Spec.RuntimeClassName == nil || s.RuntimeHandler != "" || s.CreatedAt != 0 || v.by.early() {
		return s
	}
	if found, err := l.askBriefly(ctx, v); err == nil && found.ID == s.ID {
		s.RuntimeHandler, s.Attempt, s.CreatedAt = found.RuntimeHandler, found.Attempt, found.CreatedAt
	}
	return s
}

// identify identifies the namespace that the sandbox's path leads to. A path through a process (/proc/PID/ns/net) leads elsewhere
// once the process has ended and its PID is used again. So the runtime is asked once more: if it still names that PID, the
// namespace was the sandbox's.
func (l locator) identify(ctx context.Context, v visit, s podnet.Sandbox, asked bool) (podnet.Identity, error) {
	identity, errIdentify := l.Namespaces.Identify(s.NetNS)
	if asked && s.OfProcess() {
		again, err := l.ask(ctx, v)
		switch {
		case err != nil:
			return podnet.Identity{}, reasonError{err, reasonRuntime}
		case again.ID != s.ID || again.NetNS != s.NetNS:
			return podnet.Identity{}, fmt.Errorf("sandbox %s was replaced meanwhile: %w", s.ID, podnet.ErrNotReady)
		case errors.Is(errIdentify, podnet.ErrGone), errors.Is(errIdentify, fs.ErrPermission):
			return podnet.Identity{}, fmt.Errorf("%s cannot be opened though sandbox %s runs, and the runtime names no other path: "+
				"install with runtime.processFallback=true", s.NetNS, s.ID)
		}
	}
	if errIdentify != nil {
		return podnet.Identity{}, errIdentify
	}
	return identity, nil
}

// takenDown reports whether the runtime has ended the sandbox since it was found. The runtime unmounts the namespace before it removes
// the path, which leads to a plain file in between. Only Watch and Verify ask: NRI and CNI call while the runtime is still making the
// sandbox, and does not list it yet.
func (l locator) takenDown(ctx context.Context, v visit) bool {
	if v.sandbox.NetNS == "" || v.by != Watch && v.by != Verify {
		return false
	}
	now, err := l.askBriefly(ctx, v)
	return absent(err) || err == nil && now.ID != v.sandbox.ID
}

// started reports whether the pod's status shows a sandbox.
func started(pod *corev1.Pod) bool {
	return len(pod.Status.PodIPs) > 0 ||
		slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.ContainerID != "" }) ||
		slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionTrue
		})
}

// specOf returns the visit's Spec, with the name servers that the runtime knows of the sandbox if the rules name them.
func specOf(v visit) iptables.Spec {
	spec := v.intent.Spec
	if spec.DNS == iptables.DNSResolvConf && v.sandbox.Nameservers != "" {
		spec.Resolvers = intent.Addrs(strings.Split(v.sandbox.Nameservers, ","))
	}
	return spec
}
