package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/internal/printable"
)

// settled is how long something new may take: a pod's report, an agent on a new node.
const settled = 2 * time.Minute

func podsProgrammed(f *Facts) finding {
	if f.ours() == nil {
		return finding{}
	}
	var failed, silent []string
	done := 0
	for _, p := range f.Pods {
		switch {
		case p.Status == string(podreport.StatusFailed):
			failed = append(failed, p.String()+p.because())
		case !p.Redirect || !p.Running:
		case p.Status == string(podreport.StatusInitialized) || p.Condition != nil && p.Condition.Status == corev1.ConditionTrue:
			done++
		case f.Now.Sub(p.Since) > settled && !p.OwnRuntime && f.agentOn(p.Node) != nil:
			silent = append(silent, p.String())
		}
	}
	switch {
	case len(failed) > 0:
		return failing(printable.Count(len(failed), "pod")+" failed: "+some(failed), "kubectl describe the pod; docs/status.md has the reasons")
	case len(silent) > 0:
		return failing(printable.Count(len(silent), "pod")+" without a word of an agent, although redirection is asked for: "+some(silent), "see the log of the agent on their node")
	case done == 0:
		return fine("no pod asks for redirection")
	}
	return fine(printable.Count(done, "pod") + " redirected, as asked")
}

// proxyListens names the pods whose own proxies do not listen, which their agents report. Proxies that agents run are in proxies-ready.
func proxyListens(f *Facts) finding {
	told := func(p Pod) bool { return p.Condition != nil && p.Condition.Status == corev1.ConditionTrue && p.Running }
	unheard := listed(f.Pods, func(p Pod) bool { return told(p) && p.Condition.Reason == podreport.ReasonNoListener }, func(p Pod) string {
		return p.String() + " (" + podreport.Unheard(p.Condition.Message) + ")"
	})
	switch {
	case len(unheard) > 0:
		return failing(printable.Count(len(unheard), "pod")+" redirected to a proxy that does not listen: "+some(unheard),
			"kubectl describe the pod: its proxy's container does not run, has not started its listeners, or listens on other ports than the pod's annotations name")
	case !slices.ContainsFunc(f.Pods, told):
		return finding{}
	}
	return fine("no redirected pod lacks a proxy that listens")
}

// because is the message of a pod's condition as a part of a sentence.
func (p Pod) because() string {
	if p.Condition == nil || p.Condition.Message == "" {
		return ""
	}
	return fmt.Sprintf(" (%s)", p.Condition.Message)
}

func podSettings(f *Facts) finding {
	var wrong, left []string
	for _, p := range f.Pods {
		switch {
		case !p.Running:
		case p.Fault != "":
			wrong = append(wrong, p.String()+": "+p.Fault)
		case p.Reason == intent.SidecarsOff: // whether its proxy runs is said by the check proxies-ready
		case p.Asked && !p.Redirect && !p.Reason.Chosen():
			left = append(left, p.String()+": "+string(p.Reason))
		}
	}
	switch {
	case len(wrong) > 0:
		return warning("annotations with wrong values: "+some(wrong), "correct them; docs/reference/annotations.md has all of them")
	case len(left) > 0:
		return warning("pods ask for redirection and cannot have it: "+some(left), "do what the reason says, or set "+intent.KeyInitialize+": \"false\"")
	}
	return fine("no pod has a wrong annotation")
}

// mistypedKeys names keys that the agent does not read and that nearly are its own.
func mistypedKeys(f *Facts) finding {
	near := listed(f.Pods, func(p Pod) bool { return len(p.Misplaced) > 0 }, func(p Pod) string { return p.String() + ": " + strings.Join(p.Misplaced, "; ") })
	for name, keys := range f.Misplaced {
		near = append(near, "namespace "+name+": "+strings.Join(keys, "; "))
	}
	if len(near) > 0 {
		return warning("keys that nobody reads: "+some(near), "correct them; docs/reference/annotations.md has all of them")
	}
	return fine("no key nearly is one of the agent's")
}

func namespacesWithoutEffect(f *Facts) finding {
	with := map[string]bool{}
	for _, p := range f.Pods {
		with[p.Namespace] = with[p.Namespace] || p.Redirect
	}
	all := slices.Collect(maps.Keys(f.Namespaces))
	asks := slices.DeleteFunc(all, func(name string) bool { return f.Namespaces[name][intent.KeyInitialize] != "true" })
	without := slices.DeleteFunc(slices.Clone(asks), func(name string) bool { return with[name] })
	switch {
	case len(asks) == 0:
		return finding{}
	case len(without) > 0:
		return warning("namespaces ask and have no pod that is redirected: "+some(without),
			"a namespace asks for pods with a container istio-proxy only: have Istio inject them, or annotate pods themselves; an agent with --select injected does not look at annotations")
	}
	return fine(printable.Count(len(asks), "namespace") + " with the annotation, and with redirected pods")
}
