package inspectserver

import (
	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/diagnostics/inspect"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/iptables"
)

// maxShownRules bounds a document: a pod's settings make far fewer.
const maxShownRules = 500

// shownRules returns rules for a document. Their text is bounded and printable where they are read.
func shownRules(lines []iptables.Line) []inspect.Rule {
	out := []inspect.Rule{}
	for _, l := range lines {
		if len(out) == maxShownRules {
			return append(out, inspect.Rule{Chain: l.Chain, Words: "more rules than are shown"})
		}
		r := inspect.Rule{Chain: l.Chain, Words: l.Words, Why: l.Why}
		if l.HasCounter {
			r.Packets, r.Bytes = &l.Packets, &l.Bytes
		}
		out = append(out, r)
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
