// Package podreport has the words of what the agent writes on pods and nodes, for the core that writes them and the commands that read them.
package podreport

import (
	"encoding/json"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// What the agent writes on a pod.
const (
	KeyStatus  = "pod-network-controller.istio.io/status"
	KeyDetails = "pod-network-controller.istio.io/details"
	// Condition is True when the pod's network namespace holds what the pod asks for. It can be used as a readiness gate.
	Condition corev1.PodConditionType = "pod-network-controller.istio.io/initialized"
)

// ConditionOf returns a pod's condition of a kind, or nil.
func ConditionOf(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// Status is the value of the annotation KeyStatus.
type Status string

// The values.
const (
	StatusInitialized Status = "initialized"
	StatusFailed      Status = "failed"
	StatusRemoved     Status = "removed"
)

// Details is the value of the annotation KeyDetails.
type Details struct {
	Sandbox    string    `json:"sandbox,omitempty"`
	NetNS      string    `json:"netns,omitempty"`
	Hook       string    `json:"hook"`
	Backend    string    `json:"backend"`
	SpecHash   string    `json:"specHash,omitempty"`
	Time       time.Time `json:"time"`
	Message    string    `json:"message"`
	Notes      string    `json:"notes,omitempty"`
	LastRepair Repair    `json:"lastRepair,omitzero"`
	Listening  string    `json:"listening,omitempty"`
	// Held is HeldWaits or HeldRefused while the proxy does not listen, as far as the agent knows; else "".
	Held string `json:"held,omitempty"`
	// Late is how long the pod's first container had been running when its first rules came into force, such as 1.204s; "" if it started later.
	Late string `json:"late,omitempty"`
}

// What becomes of new connections while the proxy does not listen.
const (
	HeldWaits   = "waits"
	HeldRefused = "refused"
)

// DetailsOn returns what a pod's annotation says.
func DetailsOn(pod *corev1.Pod) (said Details, ok bool) {
	ok = json.Unmarshal([]byte(pod.Annotations[KeyDetails]), &said) == nil
	return said, ok
}

// Repair says when rules that another process had changed were repaired, and what kinds of iptables.Drift there were. The zero value means
// that there was no repair.
type Repair struct {
	Time  string `json:"time"` // RFC 3339
	Kinds string `json:"kinds"`
}

// Reasons of the condition. Reasons that the pod's owner can act upon are reasons of events, too.
const (
	ReasonInitialized       = "Initialized"
	ReasonRemoved           = "Removed"
	ReasonNotRequired       = "NotRequired"
	ReasonSandboxNotReady   = "SandboxNotReady"
	ReasonInvalidAnnotation = "InvalidAnnotation"
	// ReasonProxyUnknown means that no user or group tells the pod's proxy from its other containers.
	ReasonProxyUnknown   = "ProxyUnknown"
	ReasonRedirectFailed = "RedirectFailed"
	// ReasonContended means that somebody keeps changing the rules; the event's reason is ReasonRulesContended.
	ReasonContended      = "Contended"
	ReasonRulesContended = "RulesContended"
	// ReasonPreempted means that rules of others decide about packets before ours; the event's reason is ReasonRulesPreempted.
	ReasonPreempted      = "Preempted"
	ReasonRulesPreempted = "RulesPreempted"
	// ReasonRulesRepaired is the reason of the event for each repair of rules that somebody else had changed.
	ReasonRulesRepaired = "RulesRepaired"
	// ReasonProxyLate is the reason of the event for connections that have waited for a proxy that has not come in time.
	ReasonProxyLate = "ProxyLate"
	// ReasonNoListener means that the rules are in force, and nobody listens on the proxy's ports.
	ReasonNoListener = "NoListener"
	// ReasonStartedFirst is the reason of the event for a pod whose first container was started before its rules were in force.
	ReasonStartedFirst = "StartedBeforeRules"
	// ReasonListening is the reason of the event for a change of the ports that are captured because somebody listens.
	ReasonListening = "ListeningPorts"
	// ReasonNote is the reason of the events for a Report's Notes.
	ReasonNote = "SettingWithoutEffect"
	// ReasonProxyNotReady means that the rules are in force, and the proxy that the agent runs does not answer.
	ReasonProxyNotReady = "ProxyNotReady"
	// ReasonProxyRefused means that the agent runs no proxy for the pod although the pod has chosen a profile.
	ReasonProxyRefused = "ProxyRefused"
	// ReasonProgrammedByOthers means that another project already redirects the pod's traffic.
	ReasonProgrammedByOthers = "ProgrammedByOthers"
)

// HasRules reports whether a reason of the condition means that the rules are in force, and are all that the agent answers for.
func HasRules(reason string) bool { return reason == ReasonInitialized || reason == ReasonNoListener }

// Unheard returns the part of a message about a proxy that does not listen, or "".
func Unheard(message string) string {
	if at := strings.Index(message, NobodyListens); at >= 0 {
		return message[at:]
	}
	return ""
}

// NobodyListens begins the words about a proxy that does not listen. The ports follow.
const NobodyListens = "nobody listens on "

// KeyStartupTaint is the default key of the taint that nodes may register with. Its effect may be any; pods that do not tolerate it stay away.
const KeyStartupTaint = "pod-network-controller.istio.io/not-ready"
