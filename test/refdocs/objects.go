package main

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/podreport"
)

func annotationsPage() string {
	p := newPage("Annotations", "test/refdocs/keys.go")
	p.text("All that pods and namespaces can say to the agent, and all that it writes. A namespace's annotation is the default of its pods. [redirection.md](../redirection.md)\n" +
		"has the syntax of lists and what each does to which packet; [support-policy.md](../support-policy.md) what may change.")
	p.block("kubectl annotate namespace bookinfo istio-pod-network-controller/initialize=true\n" +
		"istio-pod-network-controller rules apply --dry-run --pod pod.yaml     # what a pod's annotations come to")
	p.section("What the agent reads")
	p.table([]string{"Key", "On", "Value", "Without it", "Meaning"}, keyRows(keys(), true))
	p.section("Environment of the container istio-proxy")
	p.text("Read from the pod's specification. `ISTIO_OUTBOUND_*` are ignored, with a note, for pods that only Istio's injection selects.")
	p.table([]string{"Variable", "Value", "Without it", "Meaning"}, keyRows(environment(), false))
	p.section("What the agent writes")
	p.text("The agent never reads these to decide about rules: a pod that forges them changes nothing.")
	var rows [][]string
	for _, w := range written() {
		rows = append(rows, []string{code(w.name), w.kind, w.meaning})
	}
	p.table([]string{"Key", "What it is", "Meaning"}, rows)
	p.text("In the container runtime, containers of proxies that the agent runs have labels that begin with `pod-network-controller.istio.io/`. They are the agent's own.")
	return p.String()
}

func keyRows(all []key, withOn bool) [][]string {
	var rows [][]string
	for _, k := range all {
		cells := []string{code(k.name), k.values, k.without, k.meaning}
		if withOn {
			cells = []string{code(k.name), k.on, k.values, k.without, k.meaning}
		}
		rows = append(rows, cells)
	}
	return rows
}

func eventsPage() string {
	p := newPage("Events", "test/refdocs/reasons.go")
	p.text("What becomes an event, and what to do about it. [status.md](../status.md) says more about those of pods.")
	p.block("kubectl get events -A --field-selector reason=" + podreport.ReasonRulesRepaired)
	p.section("Of pods")
	p.table([]string{"Reason", "Type", "Means", "What to do"}, eventRows(podEvents()))
	p.section("Of nodes")
	p.table([]string{"Reason", "Type", "Means", "What to do"}, eventRows(nodeEvents()))
	return p.String()
}

func eventRows(reasons []reason) [][]string {
	var rows [][]string
	for _, r := range reasons {
		rows = append(rows, []string{code(r.name), r.kind, r.means, r.do})
	}
	return rows
}

// sayings are the sentences by which a pod that gets no rules is told why.
type sayings struct{ name, text string }

// reasonsOfIntent returns why a pod may get no rules, in the words that its owner reads.
func reasonsOfIntent(s *source) []sayings {
	var all []sayings
	p := s.pkg("internal/intent")
	if p == nil {
		return nil
	}
	for _, c := range p.constants {
		text, ok := s.text(p, c.value)
		if ok && strings.Contains(text, " ") && s.files.Position(c.pos).Filename != "" && strings.HasSuffix(s.files.Position(c.pos).Filename, "/reasons.go") {
			all = append(all, sayings{c.name, text})
		}
	}
	return all
}

// profileReason is a condition, or a reason of one, of a ProxyProfile.
type profileReason struct{ name, comment string }

type profileConditions struct{ types, reasons []profileReason }

// conditionsOfProfiles reads the constants of the API package, which have their descriptions beside them.
func conditionsOfProfiles(s *source) (profileConditions, error) {
	var out profileConditions
	p := s.pkg("api/v1alpha1")
	if p == nil {
		return out, errors.New("no package api/v1alpha1")
	}
	for _, c := range p.constants {
		text, ok := s.text(p, c.value)
		found := profileReason{text, c.comment}
		switch {
		case !ok:
		case strings.HasPrefix(c.name, "Condition"):
			out.types = append(out.types, found)
		case strings.HasPrefix(c.name, "Reason"):
			out.reasons = append(out.reasons, found)
		default:
			continue
		}
		if c.comment == "" {
			return out, fmt.Errorf("%s: %s: say in a comment what it means", s.at(c.pos), c.name)
		}
	}
	return out, nil
}

func conditionsPage(why []sayings, profiles profileConditions) string {
	p := newPage("Conditions", "test/refdocs/reasons.go, the reasons of internal/intent and the constants of api/v1alpha1")
	p.section("Of pods: " + code(string(podreport.Condition)))
	p.text("True when the pod's network is as the pod asks, which includes pods that get no rules. It can be a readiness gate. A pod that neither asked nor\n" +
		"has the gate has no such condition.")
	p.block(`kubectl get pod POD -o jsonpath='{.status.conditions[?(@.type=="` + string(podreport.Condition) + `")]}'`)
	var rows [][]string
	for _, status := range []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse} {
		for _, r := range conditionReasons() {
			if r.status == status {
				rows = append(rows, []string{string(r.status), code(r.name), r.means, r.do})
			}
		}
	}
	p.table([]string{"Status", "Reason", "Means", "What to do"}, rows)
	p.section("Why a pod gets no rules")
	p.text("The message of " + code(podreport.ReasonNotRequired) + " is one of these.")
	rows = nil
	for _, w := range why {
		rows = append(rows, []string{w.text})
	}
	p.table([]string{"Message"}, rows)
	p.section("Of ProxyProfiles")
	p.text("All have the same reason and message.")
	p.table([]string{"Condition", "Meaning"}, profileRows(profiles.types))
	p.table([]string{"Reason", "Of the profile's proxies"}, profileRows(profiles.reasons))
	return p.String()
}

func profileRows(all []profileReason) [][]string {
	var rows [][]string
	for _, r := range all {
		rows = append(rows, []string{code(r.name), r.comment})
	}
	return rows
}
