package inspectserver

import (
	"slices"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/diagnostics/inspect"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/iptables"
)

// maxShownRules bounds a document: a pod's settings make far fewer.
const maxShownRules = 500

// shownRules returns rules for a document. Their text is bounded and printable where they are read.
func shownRules(lines []iptables.Line) []iptables.Line {
	out := slices.Concat([]iptables.Line{}, lines[:min(len(lines), maxShownRules)]) // no null for machines
	if len(lines) > maxShownRules {
		out = append(out, iptables.Line{Chain: lines[maxShownRules].Chain, Words: "more rules than are shown"})
	}
	return out
}

// askedBy says what a pod asks for, and where each value comes from.
func askedBy(looked controllers.Looked) inspect.Asked {
	in := looked.Intent
	out := inspect.Asked{
		Redirect: in.Redirect && looked.Invalid == nil, Reason: string(in.Reason), Expected: in.Asked, Settings: []intent.Setting{}, Notes: in.Notes,
	}
	if looked.Invalid != nil {
		out.Invalid = looked.Invalid.Error()
	}
	// Look has met the same error.
	found, _ := intent.Explain(looked.Pod, looked.Namespace, looked.Config)
	out.By = found.AskedBy
	if profile, err := intent.ProxyProfile(looked.Pod, looked.Namespace); err == nil && looked.Intent.Reason != intent.OptedOut {
		out.Profile = profile
	}
	if !out.Redirect {
		return out
	}
	out.Summary = in.Spec.Summary()
	for _, s := range found.Settings {
		if s.Name == "resolvers" && looked.Sandbox.Nameservers != "" {
			s.Value, s.Source = looked.Sandbox.Nameservers, "container runtime"
		}
		out.Settings = append(out.Settings, s)
	}
	return out
}
