package controllers

import corev1 "k8s.io/api/core/v1"

// Reason describes a reason of the condition, or of events, in words for docs/reference.
type Reason struct {
	Name string
	// Status is the condition's, for reasons of the condition.
	Status corev1.ConditionStatus
	// Type is the event's, Normal or Warning, for reasons of events.
	Type  string
	Means string
	Do    string // what the reader can do
}

// ConditionReasons returns every reason that Condition can have. A test compares it with the constants of this package.
func ConditionReasons() []Reason {
	const yes, no = corev1.ConditionTrue, corev1.ConditionFalse
	return []Reason{
		{Name: ReasonInitialized, Status: yes, Means: "the rules are in the pod's network namespace", Do: "nothing"},
		{Name: ReasonRemoved, Status: yes, Means: "the pod has opted out, or its mode is `NONE`, and its rules were removed", Do: "nothing"},
		{Name: ReasonNotRequired, Status: yes, Means: "the pod gets no rules; the message says why, by one of the sentences below", Do: "what the message says"},
		{Name: ReasonProgrammedByOthers, Status: yes, Means: "another project's rules redirect the pod, and nothing was written", Do: "nothing, or create the pod anew without the other project"},
		{Name: ReasonProxyNotReady, Status: no, Means: "the rules are in force, and the proxy that the agent runs for the pod does not answer, or the shared one does not serve the pod yet", Do: "look at the pod's `ManagedProxy`"},
		{Name: ReasonProxyRefused, Status: no, Means: "the pod has chosen a ProxyProfile and cannot have a proxy of it", Do: "what the message says"},
		{Name: ReasonSandboxNotReady, Status: no, Means: "the pod's sandbox is being made anew", Do: "wait"},
		{Name: ReasonInvalidAnnotation, Status: no, Means: "an annotation has an invalid value; existing rules stay", Do: "correct the annotation that the message names"},
		{Name: ReasonRedirectFailed, Status: no, Means: "the kernel refuses the rules, or a new pod's sandbox was not found; tried again at least every 15 s", Do: "read the message, then the agent's log"},
		{Name: ReasonContended, Status: no, Means: "somebody keeps changing the rules, which are put back with growing pauses", Do: "find and stop who writes; the events `" + ReasonRulesRepaired + "` say what differed"},
		{Name: ReasonPreempted, Status: no, Means: "rules of others decide about the pod's packets before ours", Do: "delete the rules that the message lists, or create the pod anew without what writes them"},
	}
}

// EventReasons returns the reason of every event about a pod that this package makes. A test compares it with the constants of this package.
func EventReasons() []Reason {
	const warning, normal = corev1.EventTypeWarning, corev1.EventTypeNormal
	return []Reason{
		{Name: ReasonInvalidAnnotation, Type: warning, Means: "an annotation has an invalid value; the event names it, its value, and what is allowed", Do: "correct it"},
		{Name: ReasonRedirectFailed, Type: warning, Means: "the rules could not be written", Do: "read the event, then the agent's log"},
		{Name: ReasonProxyRefused, Type: warning, Means: "the pod cannot have a proxy of the ProxyProfile that it has chosen", Do: "what the event says"},
		{Name: ReasonRulesRepaired, Type: warning, Means: "somebody had changed the rules, and they were put back; `-` was missing, `+` was there", Do: "find who writes into the pod's network namespace"},
		{Name: ReasonRulesContended, Type: warning, Means: "that happened three times in a row", Do: "the same"},
		{Name: ReasonRulesPreempted, Type: warning, Means: "rules of others decide about the pod's packets before ours", Do: "delete the rules that the event lists"},
		{Name: ReasonNote, Type: warning, Means: "a setting does not do what its author may expect", Do: "read the event"},
		{Name: ReasonListening, Type: normal, Means: "the inbound ports that are captured while somebody listens have changed; the event lists them", Do: "nothing"},
		{Name: ReasonNotRequired, Type: normal, Means: "the pod asked and gets no rules; the event says why", Do: "what the event says"},
		{Name: ReasonProgrammedByOthers, Type: normal, Means: "another project's rules redirect the pod", Do: "nothing, or create the pod anew without the other project"},
	}
}
