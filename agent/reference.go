package agent

import (
	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/runtime/cni/install"
)

// chainReason starts the reasons of events about the node's CNI chain.
const chainReason = "CNIChain"

// EventReasons returns the reason of every event about nodes, in words for docs/reference/events.md.
func EventReasons() []controllers.Reason {
	out := []controllers.Reason{{
		Name: noEarlyHook, Means: "the container runtime offers no NRI, and pods start before their rules are there",
		Do: "switch NRI on in the runtime, or install with `cni: install`",
	}}
	for _, f := range chainFaults() {
		out = append(out, controllers.Reason{Name: chainReason + string(f.kind), Means: f.means, Do: f.do})
	}
	for i := range out {
		out[i].Type = corev1.EventTypeWarning
	}
	return out
}

// chainFault is a fault of the node's CNI chain that becomes an event, because the node's administrator has to correct it.
type chainFault struct {
	kind      install.EventKind
	means, do string
}

func chainFaults() []chainFault {
	return []chainFault{
		{install.Contended, "another project keeps removing the plugin's entry", "have one of the two leave the file alone"},
		{install.Failed, "the entry or the plugin's file could not be written; tried again", "read the event"},
		{install.Waiting, "there is no network configuration to add the entry to yet", "install the cluster's network, or correct the directories"},
		{install.OtherBinary, "the plugin's file is of another version and cannot be replaced; it is used", "replace the file that the event names"},
		{install.NotCalled, "a pod got its network although the plugin was not called", "see that the runtime reads the file that the event names"},
		{install.Leftover, "the entry is still there although no agent serves it: no pod starts on the node", "remove the entry from the file that the event names"},
	}
}

// WrittenKey describes something that the agent writes into objects, or that others write for it.
type WrittenKey struct{ Name, Kind, Meaning string }

// Written returns every key that the agent writes or removes, in words for docs/reference/annotations.md. A test finds missing keys.
func Written() []WrittenKey {
	return []WrittenKey{
		{controllers.KeyStatus, "annotation of pods", "`initialized`, `failed` or `removed`"},
		{controllers.KeyDetails, "annotation of pods", "JSON: sandbox, path of its network namespace, hook, backend, hash of the Spec, time, message, notes, last repair"},
		{string(controllers.Condition), "condition of pods", "see [conditions.md](conditions.md)"},
		{agentstatus.Annotation, "annotation of the agent's own pod", "JSON: version, backend, readiness, hooks, last error"},
		{sidecar.LabelShared, "label of the pods of shared proxies", "written by the chart: the ProxyProfile whose pods the proxy serves; in the agent's namespace alone"},
		{cniAnnotation, "annotation of the agent's DaemonSet", "written by the chart: the value of `cni` that its agents have"},
		{controllers.KeyStartupTaint, "taint of nodes", "written by the kubelet or the node's provider; with `startupTaint` the agent removes it when it is ready"},
	}
}
