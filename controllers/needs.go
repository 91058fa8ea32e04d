package controllers

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
)

// Backend puts rules into the network namespace at a place. Apply replaces everything that we own there, and returns
// what differed before. Present reports whether anything of ours is there. Remove removes it, and reports whether there was
// anything. None of them ever writes to the host's namespace. If the path now leads to another namespace, the error is
// podnet.ErrGone. If another project's rules are there, Apply writes nothing and returns a *podnet.ProgrammedByOthersError.
type Backend interface {
	Apply(ctx context.Context, at podnet.Place, want iptables.Ruleset) (iptables.Outcome, error)
	Present(ctx context.Context, at podnet.Place) (bool, error)
	Remove(ctx context.Context, at podnet.Place) (removed bool, err error)
}

// Namespaces identifies the network namespace that a path leads to. If it leads nowhere, the error is podnet.ErrGone.
type Namespaces interface {
	Identify(path string) (podnet.Identity, error)
}

// Finder completes a Sandbox, whose UID must be set, with what the container runtime knows of the pod's running sandbox. If there
// is none, the error is podnet.ErrNotReady.
type Finder interface {
	Find(ctx context.Context, pod podnet.Sandbox) (podnet.Sandbox, error)
}

// Starts knows when containers were started.
type Starts interface {
	// FirstStart returns when the first container of a sandbox was started, of those with a name that counts; the zero time if none was.
	FirstStart(ctx context.Context, sandboxID string, counts func(container string) bool) (time.Time, error)
}

// Pods reads pods and namespaces, from a cache that may be behind; Current and CurrentNamespace ask the API server. If a pod does not
// exist or has another UID, the error is podnet.ErrNoPod. It has four methods because two kinds are read in two ways by the same reader.
type Pods interface {
	Pod(ctx context.Context, s podnet.Sandbox) (*corev1.Pod, error)
	Current(ctx context.Context, s podnet.Sandbox) (*corev1.Pod, error)
	Namespace(ctx context.Context, name string) (*corev1.Namespace, error)
	CurrentNamespace(ctx context.Context, name string) (*corev1.Namespace, error)
}

// Reporter queues reports to pods' owners. Event makes an event about a pod, and changes nothing else on it. Forget drops what it
// remembers of a pod that was deleted. None of them waits for the API server.
type Reporter interface {
	Report(r Report)
	Event(s podnet.Sandbox, reason, message string)
	Forget(podUID string)
}

// Proxies runs the proxies of pods that have chosen a ProxyProfile. It has five methods because it is all that the core knows of proxies, and
// sidecars/node fills it as a whole.
type Proxies interface {
	// Managed returns what the rules need to know of the pod's proxy. The sandbox may have no ID yet. With profile "", the pod has chosen none: it
	// returns the proxy to which the pod's rules lead already, nil if they lead to none.
	Managed(ctx context.Context, s podnet.Sandbox, profile string, pod *corev1.Pod, ns *corev1.Namespace) *intent.ManagedProxy
	// Follow has the proxy of a sandbox looked after, and does not wait. With profile "", the pod has chosen none: only a proxy that it has
	// nevertheless is looked after. A call by Verify makes no new look at a sandbox whose proxy is looked after already.
	Follow(s podnet.Sandbox, by Hook, profile string)
	// Led is called after rules were applied, which then lead to the proxy that Managed returned, or removed, with nil.
	Led(s podnet.Sandbox, to *intent.ManagedProxy)
	// Ready reports whether the proxy to which the rules lead answers; known is false until it was asked.
	Ready(s podnet.Sandbox) (ready, known bool)
	// Forget is for a pod that is gone.
	Forget(podUID string)
}

// Announcers are the hooks that can announce every new sandbox. Each function reports whether its hook does so at present.
type Announcers []func() bool

// announce reports whether some hook announces every new sandbox at present.
func (a Announcers) announce() bool {
	return slices.ContainsFunc(a, func(announces func() bool) bool { return announces() })
}

// Parking takes the connections of sandboxes whose proxy does not listen, and hands them over once it does. Each call works within the pod's turn. proxy
// is a name of all proxies that listen alike.
type Parking interface {
	// Learn looks at how the sandbox's proxy listens.
	Learn(ctx context.Context, s podnet.Sandbox, proxy string, spec iptables.Spec) error
	// Park takes connections until the proxy listens, and until a time at most.
	Park(ctx context.Context, s podnet.Sandbox, proxy string, spec iptables.Spec, until time.Time) error
	// Leave resets what waits in a sandbox.
	Leave(sandboxID string)
}

// Listeners reads the listening TCP sockets of a pod.
type Listeners interface {
	// Listening returns the ports that others can reach: at another address than the pod's loopback ones, and of another user than the proxy's, which
	// isProxy knows by the node's number. They are sorted, and bounded in number.
	Listening(ctx context.Context, at podnet.Place, isProxy func(uid uint32) bool) ([]uint16, error)
	// Unheard returns the given ports on which nobody listens.
	Unheard(ctx context.Context, at podnet.Place, ports []uint16) ([]uint16, error)
	// Families returns the families of all listeners on the ports.
	Families(ctx context.Context, at podnet.Place, ports []uint16) (iptables.Hold, error)
}
