// Package podnet holds the type that all packages share: a pod's sandbox.
package podnet

import "errors"

// Errors that callers tell apart. They mean that the pod is not where it was looked for, not that anything is wrong.
var (
	// ErrNotReady means that a pod has no running sandbox yet: try again soon.
	ErrNotReady = errors.New("no ready sandbox")
	// ErrNoPod means that a sandbox's pod is not known where pods come from, the API server or the kubelet: it was deleted, or another pod has its name now.
	ErrNoPod = errors.New("there is no such pod")
	// ErrPodsUnknown means that the agent has not read its pods since it started.
	ErrPodsUnknown = errors.New("the agent has not read its pods yet")
	// ErrGone means that a path leads to no namespace any more: its pod is gone, or its sandbox was made anew.
	ErrGone = errors.New("network namespace is gone")
)

// ProgrammedByOthersError means that a network namespace holds the redirection rules of another project. Nothing was written to it.
type ProgrammedByOthersError struct {
	// Owner is the project, for example "Istio" or "linkerd".
	Owner string
	// Found names what it was recognised by, for example "chain ISTIO_OUTPUT in the iptables table nat of IPv4".
	Found string
}

// Error names the project and what it was recognised by.
func (e *ProgrammedByOthersError) Error() string {
	return "the pod's network namespace is already programmed by " + e.Owner + " (" + e.Found + ")"
}

// Sandbox names a pod, one of its sandboxes, and the path of its network namespace. A pod whose sandbox is made anew keeps
// Namespace, Name and UID and gets a new ID and NetNS, so state belongs to an ID.
//
// Hooks in other processes send it over the wire.
type Sandbox struct {
	// Namespace and Name are the pod's.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// UID is the pod's metadata.uid.
	UID string `json:"uid"`
	// ID is the container runtime's sandbox ID. Empty: the hook does not know it.
	ID string `json:"id,omitempty"`
	// NetNS is a path to the network namespace. Empty: the hook does not know it.
	NetNS string `json:"netns,omitempty"`
	// Nameservers are the name servers of the sandbox's resolv.conf, separated by commas. Empty: the runtime does not say.
	Nameservers string `json:"nameservers,omitempty"`
	// RuntimeHandler is the runtime class's handler, empty for the runtime's default.
	RuntimeHandler string `json:"runtimeHandler,omitempty"`
	// Identity is the identity of NetNS when it was first seen. Zero: not seen yet.
	Identity Identity `json:"-"`
	// Attempt and CreatedAt (nanoseconds since 1970) order the sandboxes of one pod. CreatedAt 0: the runtime has not said.
	Attempt   uint32 `json:"-"`
	CreatedAt int64  `json:"-"`
}

// Identity identifies a network namespace, whatever path leads to it. Compare two with ==.
type Identity struct {
	Dev, Ino uint64
	// Cookie is never re-used by the kernel, unlike an inode; 0 if the kernel has none (before Linux 5.14).
	Cookie uint64
}

// Place is a path to a network namespace and the identity that it must have; a zero Identity is not known yet.
type Place struct {
	Path     string
	Identity Identity
}

// Place returns the path and identity of the sandbox's network namespace.
func (s Sandbox) Place() Place { return Place{Path: s.NetNS, Identity: s.Identity} }

// NewerThan reports whether the runtime made s after other, a sandbox of the same pod. The kubelet counts attempts, so they are
// compared before the time.
func (s Sandbox) NewerThan(other Sandbox) bool {
	if s.CreatedAt == 0 || other.CreatedAt == 0 {
		return false
	}
	if s.Attempt != other.Attempt {
		return s.Attempt > other.Attempt
	}
	return s.CreatedAt > other.CreatedAt
}

// Pod returns "namespace/name", the form in log lines and messages.
func (s Sandbox) Pod() string { return s.Namespace + "/" + s.Name }

// Key identifies a sandbox of a pod. A pod whose sandbox is made anew has a new Key.
type Key struct{ PodUID, Sandbox string }

// Key returns the sandbox's. Without an ID it is no sandbox's.
func (s Sandbox) Key() Key { return Key{PodUID: s.UID, Sandbox: s.ID} }
