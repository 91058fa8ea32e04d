// Package inspect is the answer to "what did this pod ask for, what is programmed, and do they agree": its fields, its words for people, and
// the client that gets it from the agent of the pod's node.
package inspect

import (
	"time"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/iptables"
)

// Document is everything about one pod at one time. The names of its fields are stable.
type Document struct {
	Pod   string    `json:"pod"` // NAMESPACE/NAME
	UID   string    `json:"uid"`
	Node  string    `json:"node"`
	Time  time.Time `json:"time"`
	Agent Agent     `json:"agent"`

	Asked      Asked      `json:"asked"`
	Reported   Reported   `json:"reported"`
	Programmed Programmed `json:"programmed"`
	Agreement  Agreement  `json:"agreement"`
	Others     Others     `json:"others"`
	// Events are added by the command, with the rights of whoever runs it: the agent may not read them.
	Events Events `json:"events"`
	// Next says what to do, the most urgent first.
	Next []string `json:"next"`
}

// Agent is the agent that answered.
type Agent struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Backend  string `json:"backend"`
	// PodsFrom is the source of its node's pods: kubelet or api. KubeletHeard is the time of the kubelet's newest word about them.
	PodsFrom     string    `json:"podsFrom,omitempty"`
	KubeletHeard time.Time `json:"kubeletHeard,omitzero"`
	// VerifyInterval is how often it compares the rules of each pod; 0s for never.
	VerifyInterval string `json:"verifyInterval,omitempty"`
	// RunsProxies reports whether it runs proxies for pods that choose a ProxyProfile.
	RunsProxies bool `json:"runsProxies,omitempty"`
}

// Asked is what the pod asks for.
type Asked struct {
	Redirect bool `json:"redirect"`
	// By says what asks for redirection, or refuses it; empty if nothing does.
	By string `json:"by,omitempty"`
	// Reason says why not.
	Reason string `json:"reason,omitempty"`
	// Expected reports whether the pod's owner expects redirection, also where it is refused for a Reason.
	Expected bool `json:"expected"`
	// Profile is the ProxyProfile that the pod has chosen; empty for none.
	Profile string `json:"profile,omitempty"`
	// Invalid says which setting cannot be followed.
	Invalid string `json:"invalid,omitempty"`
	// Summary says what that does to ordinary traffic.
	Summary  []string         `json:"summary,omitempty"`
	Settings []intent.Setting `json:"settings"`
	// Notes are settings that may not have the effect that their author expects.
	Notes []string `json:"notes,omitempty"`
	// Mistyped are sentences about keys of the pod and its namespace that nobody reads, and that nearly are the agent's. Notes has them, too.
	Mistyped []string `json:"mistyped,omitempty"`
}

// Reported is what the agent has written on the pod: the status annotation and the condition.
type Reported struct {
	Status    string `json:"status,omitempty"`
	Condition string `json:"condition,omitempty"` // True or False
	Reason    string `json:"reason,omitempty"`
	Message   string `json:"message,omitempty"`
}

// Programmed is what the pod's network namespace holds of ours.
type Programmed struct {
	// Sandbox is the container runtime's ID; empty if the pod has none.
	Sandbox string `json:"sandbox,omitempty"`
	// Absent says why there is no sandbox to look at.
	Absent string `json:"absent,omitempty"`
	// Rules are in the order in which packets meet them. Backend says what wrote them; empty if there are none.
	Backend    string           `json:"backend,omitempty"`
	Rules      []iptables.Line  `json:"rules"`
	LastRepair podreport.Repair `json:"lastRepair,omitzero"`
	// Held is how many packets that open connections were dropped so that they wait for the proxy; nil if the rules refuse such connections.
	Held *uint64 `json:"held,omitempty"`
	// Unheard are the proxy's ports to which the rules lead and on which nobody listens.
	Unheard []uint16 `json:"unheard,omitempty"`
}

// Verdict says whether what is programmed is what was asked for.
type Verdict string

// The verdicts.
const (
	Agree   Verdict = "agree"
	Differ  Verdict = "differ"
	Unknown Verdict = "unknown" // Agreement.Error says why
)

// Agreement compares what was asked for with what is programmed.
type Agreement struct {
	Verdict Verdict `json:"verdict"`
	// Differences are of one line each: "- " is missing, "+ " is too much.
	Differences []string `json:"differences,omitempty"`
	// Kept means that the pod asked for these rules earlier: its annotations have gone or are wrong since.
	Kept  bool   `json:"kept,omitempty"`
	Error string `json:"error,omitempty"`
}

// Others are rules of other projects in the pod's namespace.
type Others struct {
	// Owner is a project that redirects the pod's traffic, and Found what it was recognised by.
	Owner string `json:"owner,omitempty"`
	Found string `json:"found,omitempty"`
	// Preempting are rules that decide about packets before ours.
	Preempting []string `json:"preempting,omitempty"`
}

// Events are the pod's last ones, the newest first.
type Events struct {
	Items []Event `json:"items"`
	// Error says why they could not be read.
	Error string `json:"error,omitempty"`
}

// Event is one event of the pod.
type Event struct {
	Time    time.Time `json:"time"`
	Type    string    `json:"type"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Count   int       `json:"count,omitempty"`
}
