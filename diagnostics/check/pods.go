package check

import (
	"fmt"
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
		name := p.Namespace + "/" + p.Name
		switch {
		case p.Status == string(podreport.StatusFailed):
			failed = append(failed, name+p.because())
		case !p.Redirect || !p.Running:
		case p.Status == string(podreport.StatusInitialized) || p.Condition != nil && p.Condition.Status == corev1.ConditionTrue:
			done++
		case f.Now.Sub(p.Since) > settled && !p.OwnRuntime && f.agentOn(p.Node) != nil:
			silent = append(silent, name)
		}
	}
	switch {
	case len(failed) > 0:
		return failing(printable.Count(len(failed), "pod")+" failed: "+some(failed), "kubectl describe the pod; docs/status.md has the reasons")
	case len(silent) > 0:
		return failing(printable.Count(len(silent), "pod")+" ask for redirection and no agent says anything about them: "+some(silent), "see the log of the agent on their node")
	case done == 0:
		return fine("no pod asks for redirection")
	}
	return fine(printable.Count(done, "pod") + " that ask are redirected")
}

// proxyListens names the pods whose own proxies do not listen, which their agents report. Proxies that agents run are in proxies-ready.
func proxyListens(f *Facts) finding {
	var unheard []string
	told := 0
	for _, p := range f.Pods {
		if p.Condition == nil || p.Condition.Status != corev1.ConditionTrue || !p.Running {
			continue
		}
		told++
		if _, ports, found := strings.Cut(p.Condition.Message, podreport.NobodyListens); found {
			unheard = append(unheard, p.Namespace+"/"+p.Name+" ("+podreport.NobodyListens+ports+")")
		}
	}
	switch {
	case len(unheard) > 0:
		return failing(printable.Count(len(unheard), "pod")+" redirected to a proxy that does not listen: "+some(unheard),
			"kubectl describe the pod: its proxy's container does not run, has not started its listeners, or listens on other ports than the pod's annotations name")
	case told == 0:
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
		name := p.Namespace + "/" + p.Name
		switch {
		case !p.Running:
		case p.Fault != "":
			wrong = append(wrong, name+": "+p.Fault)
		case p.Reason == intent.SidecarsOff: // whether its proxy runs is said by the check proxies-ready
		case p.Asked && !p.Redirect && !slices.Contains([]intent.Reason{intent.IstioInit, intent.OptedOut, intent.ModeNone, intent.NamespaceModeNone}, p.Reason):
			left = append(left, name+": "+string(p.Reason))
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
	var near []string
	for name, keys := range f.Misplaced {
		near = append(near, "namespace "+name+": "+strings.Join(keys, "; "))
	}
	for _, p := range f.Pods {
		if len(p.Misplaced) > 0 {
			near = append(near, p.Namespace+"/"+p.Name+": "+strings.Join(p.Misplaced, "; "))
		}
	}
	if len(near) > 0 {
		return warning("keys that nobody reads: "+some(near), "correct them; docs/reference/annotations.md has all of them")
	}
	return fine("no key nearly is one of the agent's")
}

func namespacesWithoutEffect(f *Facts) finding {
	with := map[string]bool{}
	for _, p := range f.Pods {
		if p.Redirect {
			with[p.Namespace] = true
		}
	}
	var without []string
	asks := 0
	for name, annotations := range f.Namespaces {
		if annotations[intent.KeyInitialize] != "true" {
			continue
		}
		if asks++; !with[name] {
			without = append(without, name)
		}
	}
	switch {
	case asks == 0:
		return finding{}
	case len(without) > 0:
		return warning("namespaces ask and have no pod that is redirected: "+some(without),
			"a namespace asks for pods with a container istio-proxy only: have Istio inject them, or annotate pods themselves; an agent with --select injected does not look at annotations")
	}
	return fine(printable.Count(asks, "namespace") + " ask, and have redirected pods")
}
