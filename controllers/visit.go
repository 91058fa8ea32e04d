package controllers

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
)

// visit holds the facts of one attempt of Ensure at one pod. It is a value: each step takes it, and returns it with its own findings.
type visit struct {
	by      Hook
	limit   time.Duration // of a piece of work in the kernel
	turn    *ticket
	creates string         // the container that the runtime is about to make, or ""
	sandbox podnet.Sandbox // as the hook knows it; with path and identity after locator.find
	pod     *corev1.Pod
	ns      *corev1.Namespace
	current bool // pod and ns come from the API server, not from the cache
	intent  intent.Intent
	wrong   error // the fault in the pod's annotations; then there is no intent
}

// outcome is how a visit ends. result and err are Ensure's. note changes the ledger, and report goes to the pod's owner; each may be nil.
// If another call has worked on the pod since it was read, its outcome is newer: then nothing is noted and reported.
type outcome struct {
	result Result
	err    error
	note   func(*Ledger)
	report *Report
}

// begin waits for the pod's turn. It returns a context with the limit of work in the kernel, and end, which may be called twice. Within the turn,
// only the kernel is worked on.
func (v visit) begin(ctx context.Context) (inTurn context.Context, end func(), err error) {
	pass, err := v.turn.take(ctx)
	if err != nil {
		return nil, nil, err
	}
	if !v.turn.use() {
		pass()
		return nil, nil, errOvertaken
	}
	inTurn, cancel := context.WithTimeout(ctx, v.limit)
	return inTurn, sync.OnceFunc(func() { cancel(); pass() }), nil
}

// matches reports whether s may be the sandbox of this call. An early hook names the sandbox that is being made: another
// sandbox of the same pod, and its rules, do not count.
func (v visit) matches(s podnet.Sandbox) bool {
	return !v.by.early() || v.sandbox.ID == "" || v.sandbox.ID == s.ID
}

// isProxy reports whether a user of the node is the pod's proxy.
func (v visit) isProxy(uid uint32) bool {
	if own := v.pod.Spec.HostUsers; own != nil && !*own {
		uid %= idsOfPod
	}
	return uid == v.intent.Spec.ProxyUID
}

// asPending returns the pod with the phase Pending, because the runtime is making a container for it right now. The API server's phase
// is the kubelet's last report: a pod that was interrupted while it started may be shown as failed, and start again.
func asPending(pod *corev1.Pod) *corev1.Pod {
	out := *pod
	out.Status.Phase = corev1.PodPending
	return &out
}

// idsOfPod is how many users a pod with hostUsers: false has. The kubelet gives it numbers of the node that begin at a multiple of it (KEP-127).
const idsOfPod = 65536
