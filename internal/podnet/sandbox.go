// Package podnet holds the one noun that every floor shares: a pod's sandbox.
package podnet

import "errors"

// What callers tell apart: nothing is wrong, the pod is only not where it was looked for.
var (
	// ErrNotReady says that a pod has no running sandbox yet: ask again soon.
	ErrNotReady = errors.New("no ready sandbox")
	// ErrNoPod says that the API server does not know a sandbox's pod: it is no more, or another pod has its name now.
	ErrNoPod = errors.New("the API server does not know the pod")
	// ErrGone says that a path leads to no namespace any more: its pod is gone, or its sandbox has been made anew.
	ErrGone = errors.New("network namespace is gone")
)

// ProgrammedByOthersError says that a network namespace holds the redirection rules of another project. Nothing was written to it.
type ProgrammedByOthersError struct {
	// Owner is the project, for example "Istio" or "linkerd".
	Owner string
	// Found names what was recognised, for example "chain ISTIO_OUTPUT in the iptables table nat of IPv4".
	Found string
}

// Error names the project and what it was recognised by.
func (e *ProgrammedByOthersError) Error() string {
	return "the pod's network namespace is already programmed by " + e.Owner + " (" + e.Found + ")"
}

// Sandbox says which pod, which of its sandboxes, and where its network namespace is. A pod whose sandbox is made anew
// keeps Namespace, Name and UID and gets a new ID and NetNS; state is therefore keyed by ID.
//
// It is also what entrances outside the agent's process send over the wire.
type Sandbox struct {
	// Namespace and Name are the pod's.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// UID is the pod's metadata.uid.
	UID string `json:"uid"`
	// ID is the container runtime's sandbox ID. Empty: the entrance does not know it.
	ID string `json:"id,omitempty"`
	// NetNS is a path to the network namespace. Empty: the entrance does not know it.
	NetNS string `json:"netns,omitempty"`
	// Nameservers are those of the sandbox's resolv.conf, separated by commas. Empty: the runtime does not tell.
	Nameservers string `json:"nameservers,omitempty"`
	// RuntimeHandler is the runtime class's handler, empty for the runtime's default.
	RuntimeHandler string `json:"runtimeHandler,omitempty"`
	// Identity is that of the namespace that NetNS led to when it was first seen. Zero: it was not seen yet.
	Identity Identity `json:"-"`
	// Attempt and CreatedAt (nanoseconds since 1970) order the sandboxes of one pod. CreatedAt 0: the runtime has not said.
	Attempt   uint32 `json:"-"`
	CreatedAt int64  `json:"-"`
}

// Identity tells network namespaces apart whatever path leads to them. Compare two with ==.
type Identity struct {
	Dev, Ino uint64
	// Cookie is never used again by the kernel, as an inode is; 0 where the kernel has none (before Linux 5.14).
	Cookie uint64
}

// Place is a path to a network namespace and the identity that it must have there; a zero Identity is not known yet.
type Place struct {
	Path     string
	Identity Identity
}

// Place is where the sandbox's network namespace is.
func (s Sandbox) Place() Place { return Place{Path: s.NetNS, Identity: s.Identity} }

// NewerThan reports whether the runtime says that s was made after other, of the same pod. The kubelet counts attempts up, so
// they come before the clock.
func (s Sandbox) NewerThan(other Sandbox) bool {
	if s.CreatedAt == 0 || other.CreatedAt == 0 {
		return false
	}
	if s.Attempt != other.Attempt {
		return s.Attempt > other.Attempt
	}
	return s.CreatedAt > other.CreatedAt
}

// Pod is "namespace/name", the form of log lines and messages.
func (s Sandbox) Pod() string { return s.Namespace + "/" + s.Name }
