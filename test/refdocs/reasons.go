package main

import (
	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/agent"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/runtime/cni/install"
	"istio-pod-network-controller/sidecars/node"
)

// reason describes a reason of the condition, or of events.
type reason struct {
	name string
	// status is the condition's, for reasons of the condition.
	status corev1.ConditionStatus
	// kind is the event's, Normal or Warning, for reasons of events.
	kind  string
	means string
	do    string // what the reader can do
}

// conditionReasons returns every reason that the condition of pods can have.
func conditionReasons() []reason {
	const yes, no = corev1.ConditionTrue, corev1.ConditionFalse
	return []reason{
		{name: podreport.ReasonInitialized, status: yes, means: "the rules are in the pod's network namespace", do: "nothing"},
		{name: podreport.ReasonNoListener, status: yes, means: "the rules are there, and nobody listens on the proxy's ports: connections are refused", do: "find out why the proxy does not listen"},
		{name: podreport.ReasonRemoved, status: yes, means: "the pod has opted out, or its mode is `NONE`, and its rules were removed", do: "nothing"},
		{name: podreport.ReasonNotRequired, status: yes, means: "the pod gets no rules; the message is one of the sentences below", do: "what the message says"},
		{name: podreport.ReasonProgrammedByOthers, status: yes, means: "foreign rules redirect the pod, and nothing was written", do: "nothing, or re-create the pod without the other project"},
		{name: podreport.ReasonProxyNotReady, status: no, means: "the rules are in force, and the managed or shared proxy does not serve the pod", do: "look at the pod's `ManagedProxy`"},
		{name: podreport.ReasonProxyRefused, status: no, means: "the pod has chosen a ProxyProfile and cannot have a proxy of it", do: "what the message says"},
		{name: podreport.ReasonSandboxNotReady, status: no, means: "the pod's sandbox is being made anew", do: "wait"},
		{name: podreport.ReasonInvalidAnnotation, status: no, means: "an annotation has an invalid value, and the pod has no rules", do: "correct the annotation that the message names"},
		{name: podreport.ReasonProxyUnknown, status: no, means: "no user or group tells the proxy from the pod's other containers; existing rules stay", do: "give the container `istio-proxy` a `runAsUser` or `runAsGroup` that no other container has"},
		{name: podreport.ReasonRedirectFailed, status: no, means: "the kernel refuses the rules, or a new pod's sandbox was not found; tried again at least every 15 s", do: "read the message, then the agent's log"},
		{name: podreport.ReasonContended, status: no, means: "somebody keeps changing the rules, which are repaired with growing pauses", do: "find and stop who writes; the events `" + podreport.ReasonRulesRepaired + "` say what differed"},
		{name: podreport.ReasonPreempted, status: no, means: "foreign rules may decide about the pod's packets before ours", do: "delete the rules that the message lists, re-create the pod without what writes them, or accept them: `foreign-rules: warn`"},
	}
}

// podEvents returns the reason of every event about a pod.
func podEvents() []reason {
	const warning, normal = corev1.EventTypeWarning, corev1.EventTypeNormal
	return []reason{
		{name: podreport.ReasonInvalidAnnotation, kind: warning, means: "an annotation has an invalid value; the event says what is allowed", do: "correct it"},
		{name: podreport.ReasonProxyUnknown, kind: warning, means: "no user or group tells the proxy from the pod's other containers", do: "give the container `istio-proxy` one of its own"},
		{name: podreport.ReasonRedirectFailed, kind: warning, means: "the rules could not be written", do: "read the event, then the agent's log"},
		{name: podreport.ReasonProxyRefused, kind: warning, means: "the pod cannot have a proxy of the ProxyProfile that it has chosen", do: "what the event says"},
		{name: podreport.ReasonRulesRepaired, kind: warning, means: "somebody had changed the rules, and they were repaired; `-` was missing, `+` was added", do: "find who writes into the pod's network namespace"},
		{name: podreport.ReasonRulesContended, kind: warning, means: "that happened three times in a row", do: "the same"},
		{name: podreport.ReasonRulesPreempted, kind: warning, means: "foreign rules may decide about the pod's packets before ours", do: "delete the rules that the event lists, or accept them: `foreign-rules: warn`"},
		{name: podreport.ReasonNote, kind: warning, means: "a setting does not do what its author may expect", do: "read the event"},
		{name: podreport.ReasonProxyLate, kind: warning, means: "connections have waited for the proxy as long as they may, and are refused", do: "find out why the proxy does not listen"},
		{name: podreport.ReasonNoListener, kind: warning, means: "nobody listens on the proxy's ports, and connections are refused", do: "find out why the proxy does not listen"},
		{name: podreport.ReasonStartedFirst, kind: warning, means: "the pod's first container was started before its rules were in force; the event says how long before", do: "re-create the pod if connections of that time matter; see that a hook asks before pods start"},
		{name: podreport.ReasonListening, kind: normal, means: "the captured inbound ports on which somebody listens have changed", do: "nothing"},
		{name: podreport.ReasonNotRequired, kind: normal, means: "the pod asked and gets no rules; the event says why", do: "what the event says"},
		{name: podreport.ReasonProgrammedByOthers, kind: normal, means: "foreign rules redirect the pod", do: "nothing, or re-create the pod without the other project"},
		{
			name: node.ReasonProxyFailed, kind: warning,
			means: "the managed proxy has ended, or could not be started; or the pod cannot join the shared proxy",
			do:    "read the event, then the proxy's log",
		},
	}
}

// nodeEvents returns the reason of every event about a node.
func nodeEvents() []reason {
	const warning = corev1.EventTypeWarning
	out := []reason{{
		name: agent.NoEarlyHook, kind: warning, means: "the container runtime offers no NRI, and pods start before their rules are there",
		do: "switch NRI on in the runtime, or install with `hooks.cni.mode=install`",
	}}
	for _, f := range []struct {
		kind      install.EventKind
		means, do string
	}{
		{install.Contended, "another project keeps removing the plugin's entry", "have one of the two leave the file alone"},
		{install.Failed, "the entry or the plugin's file could not be written; tried again", "read the event"},
		{install.Waiting, "there is no network configuration to add the entry to yet", "install the cluster's network, or correct the directories"},
		{install.OtherBinary, "the plugin's file is of another version and cannot be replaced; it is used", "replace the file that the event names"},
		{install.NotCalled, "a pod got its network although the plugin was not called", "see that the runtime reads the file that the event names"},
		{install.Leftover, "the entry is still there although no agent serves it: no pod starts on the node", "remove the entry from the file that the event names"},
	} {
		out = append(out, reason{name: agent.ChainReason + string(f.kind), kind: warning, means: f.means, do: f.do})
	}
	return out
}
