package check

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/printable"
	"istio-pod-network-controller/internal/sidecar"
)

// runsProxies reports whether the agents run proxies.
func (f *Facts) runsProxies() bool { return f.flag("sidecars") == "true" }

// proxiesUnattended names the proxies that run on and that no agent starts again, upgrades or gives new certificates.
func proxiesUnattended(f *Facts) finding {
	var off, away []string
	for i := range f.Proxies {
		node := f.Proxies[i].Spec.Node
		name := fmt.Sprintf("%s (%s)", named(&f.Proxies[i]), node)
		switch a := f.agentOn(node); {
		case f.ours() != nil && !f.runsProxies():
			off = append(off, name)
		case a == nil || !a.Ready:
			away = append(away, name)
		}
	}
	const roll = "re-create the pods (kubectl rollout restart), which start without a proxy"
	switch {
	case len(off) > 0:
		return warning(fmt.Sprintf("nobody looks after %s, as the agents run no proxies (proxies.enabled=false): %s", printable.Count(len(off), "proxy"), some(off)),
			roll+"; or switch proxies.enabled on again: the agents take over what runs")
	case len(away) > 0 && f.ours() == nil:
		return warning(fmt.Sprintf("nobody looks after %s of a removed release: %s", printable.Count(len(away), "proxy"), some(away)),
			roll+"; docs/removal.md has the order, and what to remove from the nodes then")
	case len(away) > 0:
		return failing(fmt.Sprintf("nobody looks after %s on nodes without an agent that is ready: %s", printable.Count(len(away), "proxy"), some(away)),
			"see why the agent of the node is not ready; a proxy that ends meanwhile is not started again, and its pod's connections are refused")
	case len(f.Proxies) == 0:
		return finding{}
	}
	return fine("agents look after " + printable.Count(len(f.Proxies), "proxy"))
}

// proxiesReady names the pods that have chosen a profile and have no proxy that is ready. A proxy that no agent looks after is judged by the
// state that was last reported.
func proxiesReady(f *Facts) finding {
	var refused, failed, late, none []string
	reported, young := map[string]bool{}, f.young()
	for i := range f.Proxies {
		name, s := named(&f.Proxies[i]), f.Proxies[i].Status
		reported[name] = true
		if s.Ready || s.State == v1alpha1.Ended {
			continue
		}
		words := fmt.Sprintf("%s (%s)", name, strings.TrimSuffix(string(s.State)+": "+s.Message, ": "))
		switch {
		case s.State == v1alpha1.Refused:
			refused = append(refused, words)
		case s.State == v1alpha1.Failed:
			failed = append(failed, words)
		case !young[name]:
			late = append(late, words)
		}
	}
	for _, p := range f.Pods {
		if name := p.String(); p.Profile != "" && p.Running && !reported[name] && !young[name] {
			none = append(none, fmt.Sprintf("%s (%s)", p, p.Profile))
		}
	}
	switch missing := slices.Concat(failed, late); {
	case len(none) > 0 && !f.runsProxies():
		return failing(printable.Count(len(none), "pod")+" with a ProxyProfile, and no agent runs proxies: "+some(none),
			"set proxies.enabled=true, or take the annotation pod-network-controller.istio.io/sidecar from the pods and their namespaces")
	case len(missing)+len(refused) > 0:
		var says []string
		if len(refused) > 0 {
			says = append(says, printable.Count(len(refused), "pod")+" unprotected: their proxy is impossible, and connections pass without it unless there were rules before: "+some(refused))
		}
		if len(missing) > 0 {
			says = append(says, printable.Count(len(missing), "pod")+" without a proxy that is ready, so connections are refused: "+some(missing))
		}
		return failing(strings.Join(says, "; "), adviseProxies(refused, failed))
	case len(none) > 0:
		return failing(printable.Count(len(none), "pod")+" with a ProxyProfile, and no word of an agent about the proxy: "+some(none), "see the log of the agent on their node")
	case len(f.Proxies) == 0:
		return finding{}
	}
	return fine(printable.Count(len(f.Proxies), "proxy") + ", each of them ready or done")
}

func adviseProxies(refused, failed []string) string {
	switch {
	case len(refused) > 0:
		return "change the pod or its profile as the message says; annotation pod-network-controller.istio.io/sidecar: none runs a pod without a proxy"
	case len(failed) > 0:
		return "do what the message says; the log: kubectl pod-network logs NAMESPACE/POD; a shared proxy's is its own pod's"
	}
	return "see the message, and kubectl describe the pod; the proxy has had more than " + settled.String()
}

// proxyReports names the proxies that serve, and of which their agents say what has failed: the state alone shows nothing of that.
func proxyReports(f *Facts) finding {
	var troubled []string
	ready := 0
	for i := range f.Proxies {
		p := &f.Proxies[i]
		if !p.Status.Ready {
			continue
		}
		if ready++; p.Status.Message != "" {
			troubled = append(troubled, fmt.Sprintf("%s (%s: %s)", named(p), p.Spec.Profile, p.Status.Message))
		}
	}
	switch {
	case len(troubled) > 0:
		return warning(fmt.Sprintf("%s with trouble, of %d ready: a new version or a change has failed and the proxy goes on as before, it has ended and was started again, or a setting has no effect: %s",
			printable.Count(len(troubled), "proxy"), ready, some(troubled)),
			"do what the message says: correct the profile, or put its last version back; a pod's labels and annotations can be wrong for its profile, too. What serves goes on meanwhile")
	case ready == 0:
		return finding{}
	}
	return fine(printable.Count(ready, "proxy") + " ready, without trouble")
}

// young are the pods that may still be starting.
func (f *Facts) young() map[string]bool {
	out := map[string]bool{}
	for _, p := range f.Pods {
		out[p.String()] = f.Now.Sub(p.Since) <= settled
	}
	return out
}

// sharedProxies looks for the DaemonSet that each shared profile needs.
func sharedProxies(f *Facts) finding {
	ours := f.ours()
	shared := 0
	var without, behind []string
	for profile, spec := range f.Profiles {
		if spec.Shared == nil {
			continue
		}
		shared++
		i := slices.IndexFunc(f.DaemonSets, func(d appsv1.DaemonSet) bool { // anywhere but in the agents' namespace its pods are nobody's proxy
			return d.Spec.Template.Labels[sidecar.LabelShared] == profile && (ours == nil || d.Namespace == ours.Namespace)
		})
		if i < 0 {
			without = append(without, profile)
			continue
		}
		if s := f.DaemonSets[i].Status; s.NumberReady < s.DesiredNumberScheduled {
			behind = append(behind, fmt.Sprintf("%s (%d of %d)", profile, s.NumberReady, s.DesiredNumberScheduled))
		}
	}
	switch {
	case shared == 0:
		return finding{}
	case len(without) > 0:
		return failing("no DaemonSet runs the proxy of the shared profiles "+some(without)+": connections of their pods are refused",
			"name them in the chart's value proxies.shared; or have their pods choose another profile, and delete these")
	case len(behind) > 0:
		return failing("shared proxies are not ready on all nodes, and connections of pods there are refused: "+some(behind),
			"kubectl get pods -A -l "+sidecar.LabelShared+" -o wide, and describe those that are not ready")
	}
	return fine(printable.Count(shared, "shared profile") + ", with a proxy on each node")
}

// memoryRoom returns how much memory, in bytes, a pod's cgroup allows beyond what its containers may use themselves. limited is false if nothing
// limits the pod as a whole: then a proxy takes nothing away from them.
func memoryRoom(pod *corev1.Pod) (room int64, limited bool) {
	var sum int64
	for _, c := range slices.Concat(pod.Spec.Containers, slices.DeleteFunc(slices.Clone(pod.Spec.InitContainers), endsFirst)) {
		limit := c.Resources.Limits.Memory().Value()
		if limit == 0 {
			return 0, false // also with a limit of the pod, which it shares with the proxy as it comes
		}
		sum += limit
	}
	room = pod.Spec.Overhead.Memory().Value()
	if of := pod.Spec.Resources; of != nil && !of.Limits.Memory().IsZero() {
		room += of.Limits.Memory().Value() - sum
	}
	return room, true
}

// endsFirst reports whether an init container has ended before the others start.
func endsFirst(c corev1.Container) bool {
	return c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways
}

// proxyRoom names the pods whose memory limit leaves no room for the proxy that the agent runs in their cgroup.
func proxyRoom(f *Facts) finding {
	room := 0
	var tight []string
	for _, p := range f.Pods {
		spec := f.Profiles[p.Profile]
		process := spec.Process()
		if process == nil || !p.Running || !p.MemoryLimited {
			continue
		}
		room++
		switch limit := process.Resources.MemoryLimit; {
		case limit == nil && p.MemoryRoom < 1:
			tight = append(tight, fmt.Sprintf("%s (%s of memory without a limit)", p, bytes(p.MemoryRoom)))
		case limit != nil && p.MemoryRoom < max(limit.Value(), 1):
			tight = append(tight, fmt.Sprintf("%s (%s of %s)", p, bytes(p.MemoryRoom), bytes(limit.Value())))
		}
	}
	switch {
	case len(tight) > 0:
		return warning(fmt.Sprintf("the memory limit of %s leaves less room than the proxy may use, so the kernel may end a container: %s", printable.Count(len(tight), "pod"), some(tight)),
			"give the pods more: a limit of the whole pod (spec.resources) above the sum of its containers' limits, or a RuntimeClass with an overhead; twice the proxy's memoryLimit lets an upgrade run both")
	case room == 0:
		return finding{}
	}
	return fine("room for the proxy in the memory limit of " + printable.Count(room, "pod"))
}

func bytes(n int64) string { return resource.NewQuantity(n, resource.BinarySI).String() }
