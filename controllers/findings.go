package controllers

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/iptables"
)

// Findings are the foreign changes of a sandbox's rules that calls of Apply have found.
type Findings struct {
	LastRepair podreport.Repair
	// Preempted are foreign rules that decide about packets before ours, one a line; "" if there are none.
	Preempted string
	// accepted reports whether Preempted is a warning only, by the setting of the pod's namespace.
	accepted bool
	// Listening are the inbound ports that are captured because somebody listens, separated by commas; "" if the pod does not ask for that.
	Listening   string
	listeningAt time.Time // of the last change
	// Unheard are words about the proxy's ports on which nobody listens, or "". unheardAt is when they were looked for last.
	Unheard   string
	unheardAt time.Time
	missing   bool // the last look found nobody, and another one decides
	// late is how long the first container had been running when the sandbox's first rules came into force. While that is still to be asked,
	// rulesAt is when they did.
	late    time.Duration
	rulesAt time.Time

	contention contention
	handovers  int // changes that were taken for another agent's
}

// lateText returns podreport.Details.Late.
func (f Findings) lateText() string {
	if f.late == 0 {
		return ""
	}
	return f.late.String()
}

// repairError means that somebody else has changed the rules, and that they could not be repaired.
type repairError struct {
	drift iptables.Drift
	err   error
}

// Error says what differs and why it still does.
func (e repairError) Error() string {
	return "somebody has changed the rules (- is missing, + is there): " + strings.ReplaceAll(e.drift.String(), "\n", "; ") + "; they could not be repaired: " + e.err.Error()
}

// Unwrap returns why the rules could not be repaired.
func (e repairError) Unwrap() error { return e.err }

// repairedNow returns the findings after a repair of drift.
func (f Findings) repairedNow(drift iptables.Drift) Findings {
	now := time.Now()
	f.contention = f.contention.withRepair(now)
	f.LastRepair = podreport.Repair{Time: now.UTC().Format(time.RFC3339), Kinds: joined(drift.Kinds())}
	return f
}

// repairText says in words what was repaired.
func repairText(drift iptables.Drift) string {
	var did, back []string
	for _, kind := range drift.Kinds() {
		if kind != iptables.KindBackend {
			back = append(back, noun(kind))
		}
	}
	if len(back) > 0 {
		did = append(did, "repaired "+strings.Join(back, ", ")+" that were missing or changed")
	}
	if slices.Contains(drift.Kinds(), iptables.KindBackend) {
		did = append(did, "removed rules of another backend")
	}
	return strings.Join(did, ", and ") + " (- was missing, + was there): " + strings.ReplaceAll(drift.String(), "\n", "; ")
}

func noun(kind iptables.Kind) string {
	nouns := map[iptables.Kind]string{
		iptables.KindAbsent: "all rules", iptables.KindTable: "chains", iptables.KindAddress: "addresses on lo", iptables.KindRoute: "routes",
	}
	return cmp.Or(nouns[kind], string(kind))
}

func joined(kinds []iptables.Kind) string {
	words := make([]string, len(kinds))
	for i, kind := range kinds {
		words[i] = string(kind)
	}
	return strings.Join(words, ", ")
}
