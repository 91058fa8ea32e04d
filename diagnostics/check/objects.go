package check

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/diagnostics/cluster"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/internal/printable"
)

func policies(f *Facts) finding {
	if f.ours() == nil {
		return finding{}
	}
	has := func(kind string) bool {
		return slices.ContainsFunc(f.Policies, func(p Policy) bool { return p.Kind == kind })
	}
	unbound := listed(f.Policies, func(p Policy) bool { return !p.Bound }, func(p Policy) string { return p.Kind + " " + p.Name })
	switch {
	case len(unbound) > 0:
		return failing("policies without a binding have no effect: "+some(unbound), "install the chart again: helm upgrade")
	case f.APIs.Validating && !has("ValidatingAdmissionPolicy"):
		return warning("no policy narrows what the agent may write, though the cluster has such policies", "set admission.restrictAgent=true, or install all of config/")
	case f.APIs.Mutating && !has("MutatingAdmissionPolicy"):
		return warning("no policy prepares pods that ask: they get no readiness gate", "set admission.enabled=true, or add the gate to the pods' templates")
	case len(f.Policies) == 0:
		return finding{}
	}
	return fine(printable.Count(len(f.Policies), "policy object") + ", all bound")
}

func leftoverEntry(f *Facts) finding {
	left := slices.DeleteFunc(slices.Clone(f.Leftovers), func(node string) bool { // a ready agent has no such fault; events live for an hour
		a := f.agentOn(node)
		return a != nil && a.Ready
	})
	if len(left) == 0 {
		return fine("no node reports an entry that was left in its CNI chain")
	}
	return failing("the plugin's entry is still in the CNI chain of "+some(left)+": without an agent no pod starts there",
		"install with hooks.cni.mode=uninstall, wait for the agents, then uninstall; or remove it on the node as docs/cni.md shows")
}

func leftoverObjects(f *Facts) finding {
	if f.ours() != nil {
		return finding{}
	}
	if running := listed(f.DaemonSets, func(d appsv1.DaemonSet) bool { return runs(&d, agentstatus.Name) }, func(d appsv1.DaemonSet) string { return named(&d) }); len(running) > 0 {
		return warning("no agent has the label app.kubernetes.io/name=istio-pod-network-controller, and this runs its image: "+some(running),
			"delete nothing before it is clear what that is: it may be the agent under another label")
	}
	left := listed(f.Policies, func(Policy) bool { return true }, func(p Policy) string { return strings.ToLower(p.Kind) + "/" + p.Name })
	if f.APIs.Ours {
		left = append(left, "the definitions of ProxyProfiles and ManagedProxies")
	}
	if len(left) > 0 {
		return warning("there is no agent, and of a removed release are left: "+some(left), "kubectl pod-network check --removal names all that is left, and how it is removed")
	}
	return fine("nothing of a removed release")
}

const startupTaintKey = podreport.KeyStartupTaint

func startupTaint(f *Facts) finding {
	waiting := nodeNames(f, func(n *corev1.Node) bool {
		ready := cluster.NodeReady(n)
		return tainted(n, startupTaintKey) && ready.Status == corev1.ConditionTrue && f.Now.Sub(ready.LastTransitionTime.Time) > settled
	})
	switch {
	case len(waiting) == 0:
		return fine("no node waits with the startup taint")
	case f.flag("startup-taint") != "true":
		return failing("nodes wear the startup taint and no agent takes it off (--startup-taint): "+some(waiting), "set hooks.startupTaint.enabled=true, or register nodes without the taint "+startupTaintKey)
	}
	return failing("nodes have worn the startup taint for more than "+settled.String()+": "+some(waiting), "see why their agents are not ready")
}

func autoscaler(f *Facts) finding {
	if f.Autoscaler == nil || f.flag("startup-taint") != "true" {
		return finding{}
	}
	if f.Autoscaler.KnowsTaint {
		return fine(f.Autoscaler.Name + " knows the startup taint")
	}
	return warning(f.Autoscaler.Name+" may take new nodes for unusable, as it does not know the startup taint",
		"Cluster Autoscaler: --startup-taint="+startupTaintKey+"; Karpenter: startupTaints of the NodePool")
}
