package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podreport"
)

// Advise returns what to do about a document, the most urgent first.
func Advise(d Document) []string {
	var next []string
	say := func(format string, args ...any) { next = append(next, fmt.Sprintf(format, args...)) }
	namespace, name, _ := strings.Cut(d.Pod, "/")
	switch {
	case d.Asked.Invalid != "":
		say("correct the setting that is named above; the agent follows within seconds, and rules that are in force stay until then")
	case d.Asked.Expected && !d.Asked.Redirect && d.Asked.Reason != "":
		say("the pod expects redirection and gets none: %s", d.Asked.Reason)
	case !d.Asked.Redirect && !d.Agreement.Kept && len(d.Programmed.Rules) == 0 && d.Others.Owner == "" && d.Asked.Profile == "":
		say("nothing, if the pod is to be left alone; else: %s", d.Asked.Reason)
	}
	if d.Programmed.Absent != "" {
		say("the pod has no sandbox to look at: see `kubectl -n %s describe pod %s` for why it does not start", namespace, name)
	}
	if d.Others.Owner != "" {
		say("%s redirects this pod's traffic and the agent leaves it alone: to have the agent do it, keep %s from programming the pod and re-create it", d.Others.Owner, d.Others.Owner)
	}
	switch {
	case d.preempted():
		say("rules of others decide before the agent's: find out which process writes the rules that are listed, and stop it; if they are to stay, the annotation %s: %q on the namespace makes them a warning", intent.KeyForeignRules, intent.ForeignRulesWarn)
	case len(d.Others.Preempting) > 0:
		say("foreign rules may decide before the agent's, which %s=%s accepts: make sure that the rules that are listed do no harm", intent.SettingForeignRules, intent.ForeignRulesWarn)
	}
	next = append(next, d.adviseProxy()...)
	if len(d.Programmed.Unheard) > 0 && !d.lacksProxy() {
		say("%s: see whether the proxy's container runs and is ready: `kubectl -n %s describe pod %s`", d.Programmed.nobodyListens(), namespace, name)
	}
	next = append(next, d.adviseDifference()...)
	if len(next) == 0 {
		next = append(next, nothing)
		if d.Asked.Redirect && d.unused() {
			say("no rule has seen a packet yet: send some traffic and look again; the counters show which rule takes it")
		}
	}
	return next
}

const nothing = "nothing: the pod has what it asks for"

// AddMistyped adds sentences about keys of the pod and its namespace that nobody reads. The agent's answer has none.
func (d *Document) AddMistyped(keys []string) {
	if len(keys) == 0 {
		return
	}
	d.Asked.Mistyped, d.Asked.Notes = keys, append(d.Asked.Notes, keys...)
	var correct []string
	for _, key := range keys {
		correct = append(correct, "correct the key, which nobody reads: "+key)
	}
	d.Next = slices.Concat(correct, slices.DeleteFunc(d.Next, func(step string) bool { return step == nothing }))
}

// preempted reports whether foreign rules may decide before ours, and the pod's namespace does not accept that.
func (d Document) preempted() bool {
	accepted := slices.ContainsFunc(d.Asked.Settings, func(s intent.Setting) bool {
		return s.Name == intent.SettingForeignRules && s.Value == intent.ForeignRulesWarn
	})
	return len(d.Others.Preempting) > 0 && !accepted
}

// adviseProxy is about a pod that has chosen a ProxyProfile. Without a ready proxy its connections wait, or are refused.
func (d Document) adviseProxy() []string {
	namespace, name, _ := strings.Cut(d.Pod, "/")
	switch {
	case d.Asked.Profile == "":
	case d.Reported.Reason == podreport.ReasonProxyRefused:
		return []string{"the pod has no proxy of the ProxyProfile " + d.Asked.Profile + ": change the pod or the profile as the report on the pod says"}
	case !d.Agent.RunsProxies && d.Programmed.Backend != "":
		return []string{"the agent runs no proxies (proxies.enabled is off) and nobody looks after this pod's: if it ends, the pod's connections are refused; re-create the pod, or switch it on again"}
	case !d.Agent.RunsProxies && !d.Asked.Expected: // otherwise the reason has been given
		return []string{"the pod's namespace chooses the ProxyProfile " + d.Asked.Profile + " and the agent runs no proxies: switch proxies.enabled on, or take the annotation away"}
	case d.Reported.Reason == podreport.ReasonProxyNotReady:
		return []string{"the rules lead to a proxy that is not ready, so the pod's connections " + d.Programmed.becomes() + ": `kubectl -n " + namespace + " get managedproxies " + name + " -o yaml` says why, and what to do"}
	}
	return nil
}

// lacksProxy reports whether the pod has no proxy that is ready, as far as its report says.
func (d Document) lacksProxy() bool {
	off := !d.Agent.RunsProxies && d.Programmed.Backend == "" && d.Programmed.Absent == ""
	return d.Asked.Profile != "" && (off || d.Reported.Reason == podreport.ReasonProxyNotReady || d.Reported.Reason == podreport.ReasonProxyRefused)
}

// becomes says what becomes of connections while nobody listens.
func (p Programmed) becomes() string {
	if p.Held != nil {
		return "wait"
	}
	return "are refused"
}

// nobodyListens says what becomes of connections, as the report on the pod does.
func (p Programmed) nobodyListens() string {
	ports := make([]string, len(p.Unheard))
	for i, port := range p.Unheard {
		ports[i] = strconv.Itoa(int(port))
	}
	return podreport.NobodyListens + strings.Join(ports, " and ") + ": connections " + p.becomes()
}

func (d Document) adviseDifference() []string {
	switch {
	case d.Agreement.Verdict == Unknown && d.Programmed.Absent == "":
		return []string{"the kernel could not be asked; look again in some seconds, and if it stays so, at the agent's log: " + d.agentLog()}
	case d.Agreement.Verdict != Differ || d.Others.Owner != "":
		return nil
	case d.Reported.Reason == podreport.ReasonContended:
		return []string{"somebody keeps changing the rules, and the agent puts them back with pauses: find the process of the pod or the node that does, and stop it"}
	}
	if d.Agent.VerifyInterval == "0s" {
		return []string{"the agent does not check rules by itself (--verify-interval=0s): a change of the pod, such as a new annotation, has it look and repair what differs"}
	}
	return []string{fmt.Sprintf("look again: the agent repairs what differs at its next check (--verify-interval=%s); if it still differs then, its log says why: %s",
		cmp.Or(d.Agent.VerifyInterval, "10s"), d.agentLog())}
}

// AgentNamespace and AgentPod stand for the agent in what an agent advises. The command that has found the agent knows their values.
const (
	AgentNamespace = "AGENT-NAMESPACE"
	AgentPod       = "AGENT-POD"
)

func (d Document) agentLog() string {
	return "kubectl -n " + AgentNamespace + " logs " + AgentPod + " | grep " + d.Pod
}

// unused reports whether there are counters, and all are 0.
func (d Document) unused() bool {
	counted := false
	for _, r := range d.Programmed.Rules {
		if r.Packets == nil {
			continue
		}
		if counted = true; *r.Packets > 0 {
			return false
		}
	}
	return counted
}
