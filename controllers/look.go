package controllers

import (
	"errors"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
)

// ErrBusy means that a call of Ensure works on the pod: what is read meanwhile may be half of a change.
var ErrBusy = errors.New("the agent is working on the pod right now")

// looking is the hook of Look. It is not early, and nothing counts it.
const looking Hook = "inspect"

// lookAttempts is how often Look reads again what has changed while it read.
const lookAttempts = 3

// Looked is what the agent knows of a pod, and what it wants in the pod's namespace.
type Looked struct {
	Pod       *corev1.Pod
	Namespace *corev1.Namespace
	Config    intent.Config
	Intent    intent.Intent
	// Invalid says which setting cannot be followed.
	Invalid error
	// Sandbox is the pod's; Absent says why there is none to look at.
	Sandbox podnet.Sandbox
	Absent  error
	// Entry is the ledger's; its zero value if the ledger does not know the pod.
	Entry Entry
	// Want are the rules that should be in force, or nil. Kept means that the pod asked for them earlier. Unknown means that
	// rules that the pod got earlier may be in force, and that this agent does not know which.
	Want          *iptables.Ruleset
	Kept, Unknown bool
}

// latest returns the sandbox that the ledger has of the pod, or s if it has none.
func latest(s, known podnet.Sandbox) podnet.Sandbox {
	if known.UID == s.UID && known.NetNS != "" {
		return known
	}
	return s
}
