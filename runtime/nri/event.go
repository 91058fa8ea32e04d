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

// askLimit bounds the question whether a pod is on the host's network: such pods pass also without an API server.
const askLimit = 200 * time.Millisecond

// whose says who an event's sandbox belongs to.
type whose int

const (
	theirs whose = iota // none of our business, whatever state we are in
	hosts               // on the host's network, as the event says
	ours
)

// sandbox reads an event. Pods of namespaces that we never touch and static ones are theirs.
//
// The network namespace comes in these shapes:
//
//   - a path: the sandbox's own, or, with CRI-O, the host's for a pod on the host's network;
//   - other namespaces and none of the network: a pod on the host's network, with containerd;
//   - a network namespace without a path, a path that is not absolute or climbs, or no namespace at all: the event does not tell.
//     The sandbox is looked into without it.
func (p *plugin) sandbox(pod *api.PodSandbox) (podnet.Sandbox, whose) {
	s := podnet.Sandbox{
		Namespace: pod.GetNamespace(), Name: pod.GetName(), UID: pod.GetUid(), ID: pod.GetId(), RuntimeHandler: pod.GetRuntimeHandler(),
	}
	source := pod.GetAnnotations()[sourceAnnotation]
	pass := slices.Contains(p.PassNamespaces, s.Namespace) || source != "" && source != sourceAPI
	if pass || s.Namespace == "" || s.Name == "" || s.UID == "" || s.ID == "" {
		return s, theirs
	}
	path, own := network(pod.GetLinux().GetNamespaces())
	if !own || p.IsHost != nil && path != "" && p.IsHost(path) {
		return s, hosts
	}
	s.NetNS = path
	return s, ours
}

// network gives the path of the network namespace, if the event tells it, and whether the sandbox may have one of its own.
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

// onHost reports whether a pod is on the host's network, of which the event says so. The API server's word counts more, where
// it is known: a pod that is said to be on the host's network by mistake is looked into like any other.
func (p *plugin) onHost(ctx context.Context, s podnet.Sandbox) bool {
	if p.HostNetwork == nil {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	hostNetwork, known := p.HostNetwork(ctx, s)
	return hostNetwork || !known
}
