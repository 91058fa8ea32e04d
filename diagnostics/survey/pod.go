package survey

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/internal/printable"
)

// State is how a pod stands.
type State string

// The states. The pod's report says the first nine; the rest is for pods that ask and lack a report.
const (
	Programmed    State = "programmed"
	ProxyNotReady State = "proxy-not-ready" // programmed, and the proxy that the agent runs does not answer
	NoListener    State = "no-listener"     // programmed, and nobody listens on the proxy's ports
	Removed       State = "removed"
	Skipped       State = "skipped"
	Others        State = "others"
	Failed        State = "failed"
	Contended     State = "contended"
	Preempted     State = "preempted"
	Waiting       State = "waiting"    // the pod starts, or its sandbox is made anew
	NoAgent       State = "no-agent"   // the pod's node has no agent
	Unreported    State = "unreported" // the pod runs, and the agent of its node says nothing about it
)

// patience is how long a new pod may be without a report, or its proxy not be ready.
const patience = time.Minute

// Failing reports whether a pod in this state does not have what it asks for.
func (s State) Failing() bool {
	return slices.Contains([]State{ProxyNotReady, NoListener, Failed, Contended, Preempted, NoAgent, Unreported}, s)
}

// Problem reports whether the pod needs a look: its state fails, or its message has more than its state says.
func (p Pod) Problem() bool { return p.State.Failing() || p.remarkable }

// Pod is one pod that asks for redirection, or has a report.
type Pod struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Node      string    `json:"node,omitempty"`
	State     State     `json:"state"`
	Hook      string    `json:"hook,omitempty"`
	Created   time.Time `json:"created"`
	Message   string    `json:"message,omitempty"`
	// Backend, SpecHash, Reported and Notes come from the pod's report.
	Backend  string `json:"backend,omitempty"`
	SpecHash string `json:"specHash,omitempty"`
	// Held says whether new connections wait while the proxy does not listen, or are refused: waits, or refused.
	Held string `json:"held,omitempty"`
	// Late is how long the first container had been running when the rules came into force, such as 1.204s; "" if it was started after them.
	Late     string    `json:"late,omitempty"`
	Reported time.Time `json:"reported,omitzero"`
	Notes    string    `json:"notes,omitempty"`

	remarkable bool // a problem in a state that does not fail
}

// place is what a pod's state depends on beside the pod.
type place struct {
	now          time.Time
	namespace    *corev1.Namespace      // nil: not known
	withoutAgent func(node string) bool // reports whether a node has no agent; false if that is not known
	proxiesOn    func(node string) bool // reports whether a node's agent runs proxies; true if that is not known
}

// podOf returns how a pod stands. ok is false for a pod that has finished, or neither asks nor has a report.
func podOf(pod *corev1.Pod, at place) (out Pod, ok bool) {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return out, false
	}
	condition, status := podreport.ConditionOf(pod, podreport.Condition), podreport.Status(pod.Annotations[podreport.KeyStatus])
	reported := condition != nil || status != ""
	want, err := intent.Of(pod, at.namespace, config())
	profile, _ := intent.ProxyProfile(pod, at.namespace) // err is the same error
	near := intent.MisplacedOf(pod, at.namespace)
	if !reported && !want.Asked && err == nil && len(near) == 0 { // who has mistyped the annotation, or its value, has asked as well
		return out, false
	}
	out = Pod{Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName, Created: pod.CreationTimestamp.UTC()}
	if said, ok := podreport.DetailsOn(pod); ok {
		out.Hook, out.Backend, out.SpecHash, out.Reported, out.Notes = said.Hook, said.Backend, said.SpecHash, said.Time, said.Notes
		out.Held, out.Late = said.Held, said.Late
	}
	if reported {
		out.State, out.Message = reportedState(condition, status)
		if out.State == ProxyNotReady && at.young(pod) {
			out.State = Waiting
		}
	} else {
		out.State, out.Message = at.unreported(pod, want, profile)
	}
	out.Message = at.remarked(out, profile, near)
	out.remarkable = len(near) > 0 || out.State == Programmed && out.Message != "" || out.State == Skipped && want.Asked && !want.Reason.Chosen()
	return out, true
}

// remarked returns the message of a pod with what is to be said of it beside its report.
func (at place) remarked(p Pod, profile string, near []string) string {
	message := printable.Joined(p.Message, strings.Join(near, "; "))
	if p.Late != "" && p.State != Removed {
		message = printable.Joined(message, "its first container had been running for "+p.Late+" when its rules came into force")
	}
	if runs := p.State == Programmed || p.State == ProxyNotReady; runs && profile != "" && !at.proxiesOn(p.Node) {
		message = printable.Joined(message, "the agent of node "+p.Node+" runs no proxies now: nobody looks after the pod's, so re-create the pod, or switch proxies.enabled on")
	}
	if watched := !slices.Contains([]State{NoAgent, Skipped, Removed, Others}, p.State); watched && p.Node != "" && at.withoutAgent(p.Node) {
		message = printable.Joined(message, "node "+p.Node+" has no agent now: nobody repairs the rules")
	}
	return message
}

// config is an agent's that knows every profile: only the agents can say what becomes of a choice.
func config() intent.Config {
	return intent.Config{
		Select: intent.SelectAnnotation, Defaults: intent.StandardDefaults(),
		Managed: func(profile string, _ *corev1.Pod, _ *corev1.Namespace) *intent.ManagedProxy {
			if profile == "" {
				return nil
			}
			return &intent.ManagedProxy{Owner: intent.Owner{UID: 1}, OutboundPort: 1, InboundPort: 2}
		},
	}
}

// reportedState returns the state of a pod with a report. An agent of another release may use a reason that this program does not know.
func reportedState(c *corev1.PodCondition, status podreport.Status) (State, string) {
	if c == nil {
		states := map[podreport.Status]State{podreport.StatusInitialized: Programmed, podreport.StatusRemoved: Removed}
		if s, ok := states[status]; ok {
			return s, ""
		}
		return Failed, "the pod's report says " + string(status)
	}
	state, ok := map[string]State{
		podreport.ReasonInitialized: Programmed, podreport.ReasonRemoved: Removed, podreport.ReasonNotRequired: Skipped,
		podreport.ReasonProgrammedByOthers: Others, podreport.ReasonProxyNotReady: ProxyNotReady, podreport.ReasonNoListener: NoListener, podreport.ReasonContended: Contended,
		podreport.ReasonPreempted: Preempted, podreport.ReasonSandboxNotReady: Waiting,
	}[c.Reason]
	switch {
	case state == Programmed:
		return state, "" // it says what everybody wants to see
	case ok:
		return state, c.Message
	case c.Status == corev1.ConditionTrue:
		return Programmed, c.Reason + ": " + c.Message
	}
	return Failed, c.Message
}

// young reports whether a pod has just started.
func (at place) young(pod *corev1.Pod) bool {
	return pod.Status.StartTime != nil && at.now.Sub(pod.Status.StartTime.Time) < patience
}

// unreported returns the state of a pod that asks, and has no report.
func (at place) unreported(pod *corev1.Pod, want intent.Intent, profile string) (State, string) {
	node := pod.Spec.NodeName
	switch {
	case !want.Redirect && want.Reason != "":
		return Skipped, string(want.Reason)
	case node == "":
		return Waiting, "not scheduled yet"
	case at.withoutAgent(node):
		return NoAgent, "node " + node + " has no agent: nothing redirects this pod's traffic"
	case pod.Status.Phase != corev1.PodRunning:
		return Waiting, "its containers have not started; see kubectl describe pod"
	case at.young(pod):
		return Waiting, "just started"
	}
	if profile != "" && !at.proxiesOn(node) {
		return Unreported, "it has chosen the ProxyProfile " + profile + ", and the agent of node " + node +
			" runs no proxies: switch proxies.enabled on, or take the annotation " + intent.KeySidecar + " away"
	}
	return Unreported, "it runs, and the agent of node " + node + " says nothing about it; see the agent's log"
}
