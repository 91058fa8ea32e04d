package connectivity

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/internal/printable"
)

// Line is one proof on one node, for people. A proof failed if Why is not empty; Do says what to do then.
type Line struct {
	Node   string `json:"node"`
	Kind   Kind   `json:"proof"`
	Family string `json:"family,omitempty"`
	OK     bool   `json:"ok"`
	What   string `json:"what"`
	Why    string `json:"why,omitempty"`
	Do     string `json:"do,omitempty"`
}

const (
	// doFirst is the advice for a proof that was not tried.
	doFirst = "mend what goes before it"
	// deletedPod begins why there is no proof where a pod of the test has gone, and doAgain is what to do.
	deletedPod = "deleted during the test, by an eviction, a drain of the node or somebody: pod "
	doAgain    = "test again; if it stays so, see who deletes pods: kubectl get events -A --field-selector involvedObject.kind=Pod"
)

// words returns what a kind shows, and what to do if it does not hold.
func (k Kind) words() (what, do string) {
	const rules = "see whether the node has a ready agent and what it says of the pods: kubectl pod-network check, or run again with --keep and look at the annotations of the pods (docs/check.md#connectivity-test)"
	switch k {
	case KindOutbound:
		return "the application's connections go to its proxy, which sees their destination", rules
	case KindProxy:
		return "the proxy's own connections leave the pod", "another project's rules may be in the pods as well: run again with --keep and look at them by kubectl pod-network inspect"
	case KindInbound:
		return "connections from outside go to the pod's proxy, which sees their destination", rules
	case KindExcluded:
		return "excluded ports are reached directly", "the connection was refused or lost on its way: a NetworkPolicy of the whole cluster, or rules of another project in the pods"
	case KindPods:
		return "the pods run", "see the pod's events: run again with --keep, and kubectl describe"
	case KindReport:
		return "the agent reports both pods as programmed", "the node has no agent, or the agent does not select the pods: kubectl pod-network check says which nodes lack an agent; compare --select with the agents' flag"
	}
	return "", ""
}

// line is a Line about a node; why is empty if the proof holds.
func line(node string, kind Kind, family, why string) Line {
	what, do := kind.words()
	l := Line{Node: cmp.Or(node, "(any node)"), Kind: kind, Family: family, OK: why == "", What: what, Why: why}
	switch {
	case l.OK:
	case strings.HasPrefix(why, notTried):
		l.Do = doFirst
	case strings.HasPrefix(why, deletedPod):
		l.Do = doAgain
	default:
		l.Do = do
	}
	return l
}

// lines are the proofs that a client's termination message has.
func lines(node, message string) []Line {
	var proofs []Proof
	if err := json.Unmarshal([]byte(message), &proofs); err != nil || len(proofs) == 0 {
		return []Line{line(node, KindPods, "", fmt.Sprintf("the client ended without proofs; it says %q", short(message)))}
	}
	out := make([]Line, 0, len(proofs))
	for _, p := range proofs {
		out = append(out, line(node, p.Kind, p.Family, p.Why))
	}
	return out
}

// reported says why a pod's report does not say that it is programmed, or "".
func reported(pod *corev1.Pod) string {
	status, ok := pod.Annotations[podreport.KeyStatus]
	if !ok {
		return "no agent has written a status on pod " + pod.Name
	}
	if status == string(podreport.StatusInitialized) {
		return ""
	}
	if c := podreport.ConditionOf(pod, podreport.Condition); c != nil {
		return fmt.Sprintf("pod %s: %s: %s", pod.Name, status, c.Message)
	}
	return fmt.Sprintf("pod %s: %s", pod.Name, status)
}

// Proven reports whether there are proofs and all of them hold.
func Proven(lines []Line) bool {
	return len(lines) > 0 && !slices.ContainsFunc(lines, func(l Line) bool { return !l.OK })
}

// Text is the lines for people: what is proven, why not, what to do.
func Text(lines []Line) string {
	var b strings.Builder
	width, failed := 0, 0
	for _, l := range lines {
		width = max(width, len(l.Node))
	}
	for _, l := range lines {
		state, family := "ok  ", ""
		if !l.OK {
			state = "FAIL"
			failed++
		}
		if l.Family != "" {
			family = l.Family + ": "
		}
		fmt.Fprintf(&b, "%s  %-*s  %s%s\n", state, width, l.Node, family, l.What)
		if !l.OK {
			fmt.Fprintf(&b, "        why: %s\n        do:  %s\n", printable.Line(l.Why), l.Do)
		}
	}
	fmt.Fprintf(&b, "%d proofs, %d failed\n", len(lines), failed)
	return b.String()
}
