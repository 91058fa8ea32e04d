package nri

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"

	"istio-pod-network-controller/internal/podnet"
)

// hostNetworkTimeout bounds the question whether a pod is on the host's network. Such pods pass also while the API server cannot be reached.
const hostNetworkTimeout = 200 * time.Millisecond

// treatment is what is to be done with the sandbox of an event.
type treatment int

const (
	pass        treatment = iota // passes whatever state the agent is in
	hostNetwork                  // on the host's network, according to the event
	handle
)

// readEvent returns the sandbox of an event and what is to be done with it. Pods of PassNamespaces pass, and static pods while they are not known.
//
// The network namespace comes in these shapes:
//
//   - A path: the sandbox's own namespace; with CRI-O also the host's, for a pod on the host's network.
//   - Namespaces of other kinds, but none of the network: with containerd, a pod on the host's network.
//   - A network namespace without a path, with a relative path or one with "..", or no namespaces at all: the path is unknown, and
//     the handler has to find it.
func (c Config) readEvent(pod *api.PodSandbox) (podnet.Sandbox, treatment) {
	s := podnet.Sandbox{
		Namespace: pod.GetNamespace(), Name: pod.GetName(), UID: pod.GetUid(), ID: pod.GetId(), RuntimeHandler: pod.GetRuntimeHandler(),
	}
	source := pod.GetAnnotations()[sourceAnnotation]
	isStatic := source != "" && source != sourceAPI
	passes := slices.Contains(c.PassNamespaces, s.Namespace) || isStatic && (c.StaticPods == nil || !c.StaticPods())
	if passes || s.Namespace == "" || s.Name == "" || s.UID == "" || s.ID == "" {
		return s, pass
	}
	path, own := network(pod.GetLinux().GetNamespaces())
	if !own || c.IsHost != nil && path != "" && c.IsHost(path) {
		return s, hostNetwork
	}
	s.NetNS = path
	return s, handle
}

// network returns the path of the network namespace, if the event has it, and whether the sandbox may have one of its own.
func network(namespaces []*api.LinuxNamespace) (path string, own bool) {
	i := slices.IndexFunc(namespaces, func(ns *api.LinuxNamespace) bool { return ns.GetType() == "network" })
	if i < 0 {
		return "", len(namespaces) == 0
	}
	path = namespaces[i].GetPath()
	if !filepath.IsAbs(path) || slices.Contains(strings.Split(path, "/"), "..") {
		path = ""
	}
	return path, true
}

// isOnHostNetwork reports whether a pod that the event shows on the host's network really is there. If the API server knows the pod and says
// otherwise, it is handled like any other pod.
func (c Config) isOnHostNetwork(ctx context.Context, s podnet.Sandbox) bool {
	if c.HostNetwork == nil {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, hostNetworkTimeout)
	defer cancel()
	hostNetwork, known := c.HostNetwork(ctx, s)
	return hostNetwork || !known
}
