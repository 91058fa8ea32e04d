package check

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/diagnostics/cluster"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/printable"
)

// recent is how long an agent's last error is worth a warning.
const recent = 15 * time.Minute

func installed(f *Facts) finding {
	found := listed(f.DaemonSets, func(d appsv1.DaemonSet) bool { return isOurs(&d) }, func(d appsv1.DaemonSet) string { return named(&d) })
	switch len(found) {
	case 0:
		return failing("there is no DaemonSet of the agent", "install the chart; kubectl pod-network check --pre checks a cluster before that, and --removal after an uninstall")
	case 1:
		return fine("DaemonSet " + found[0])
	}
	return failing(fmt.Sprintf("there are %d DaemonSets of the agent: %s; each pod would get the rules of both", len(found), some(found)), "uninstall all releases but one")
}

func notInstalledYet(f *Facts) finding {
	if d := f.ours(); d != nil {
		return warning("the agent is installed already: DaemonSet "+named(d), "kubectl pod-network check, without --pre")
	}
	return fine("no agent is installed")
}

func agentsReady(f *Facts) finding {
	d := f.ours()
	if d == nil {
		return finding{}
	}
	s := d.Status
	ready := fmt.Sprintf("%d of %d agents are ready", s.NumberReady, s.DesiredNumberScheduled)
	why, do := f.hindered()
	starting := listed(f.Agents, func(a Agent) bool { return !a.Ready }, func(a Agent) string { return strings.TrimSpace(a.Node + " " + a.Waiting) })
	switch {
	case len(crashing(f.Agents)) > 0:
		return failing("agents crash: "+some(crashing(f.Agents)), cluster.Rollback+"; kubectl -n "+d.Namespace+" logs AGENT-POD --previous has the whole error")
	case s.DesiredNumberScheduled == 0:
		return failing("the DaemonSet "+d.Name+" wants no node", "correct agent.nodeSelector, agent.affinity and agent.tolerations")
	case len(why) > 0:
		return failing(ready+": "+some(why), some(do))
	case s.NumberReady < s.DesiredNumberScheduled:
		return failing(strings.TrimSuffix(ready+": "+some(starting), ": "), "kubectl -n "+d.Namespace+" describe pods -l "+agentstatus.Label)
	case s.UpdatedNumberScheduled < s.DesiredNumberScheduled:
		return warning(fmt.Sprintf("%d of %d agents are of the DaemonSet's newest version", s.UpdatedNumberScheduled, s.DesiredNumberScheduled), "wait for the rollout to end: kubectl -n "+d.Namespace+" rollout status daemonset/"+d.Name)
	case s.NumberMisscheduled > 0:
		return warning(printable.Count(int(s.NumberMisscheduled), "agent")+" where the DaemonSet wants none", "delete them, or correct agent.nodeSelector and agent.tolerations")
	}
	return fine(ready)
}

// crashing names the agents that end again and again. Beside one of them, the node's old agent may go on working.
func crashing(agents []Agent) []string {
	return listed(agents, Agent.Crashing, func(a Agent) string { return a.Node + ": " + a.Name + " " + a.Crashes.String() })
}

func nodesWithoutAgent(f *Facts) finding {
	without := nodeNames(f, func(n *corev1.Node) bool {
		a := f.agentOn(n.Name)
		return linux(n) && (a == nil || a.Stuck(f.Now))
	})
	asking := names(f.Pods, func(p Pod) bool { return p.Redirect && slices.Contains(without, p.Node) })
	do := "have the DaemonSet cover these nodes (agent.nodeSelector, agent.affinity, agent.tolerations), or keep pods that ask off them; agents-ready says why an agent does not start"
	switch {
	case len(asking) > 0:
		return failing(fmt.Sprintf("%s without a running agent (%s): pods there ask for redirection and get none: %s", printable.Count(len(without), "node"), some(without), some(asking)), do)
	case len(without) > 0:
		return warning(fmt.Sprintf("%s without a running agent: %s", printable.Count(len(without), "node"), some(without)), do)
	}
	return fine("every Linux node has an agent")
}

func agentVersions(f *Facts) finding {
	by := map[string][]string{}
	for _, a := range f.Agents {
		if a.Status != nil {
			by[a.Status.Version] = append(by[a.Status.Version], a.Node)
		}
	}
	if len(by) == 0 {
		return finding{}
	}
	var parts []string
	for version, nodes := range by {
		parts = append(parts, fmt.Sprintf("%s on %s", version, printable.Count(len(nodes), "node")))
	}
	switch _, same := by[f.Client]; {
	case len(by) > 1 && len(crashing(f.Agents)) > 0:
		return failing("agents are of different versions, and new ones crash: "+some(parts), cluster.Rollback)
	case len(by) > 1:
		return warning("agents are of different versions: "+some(parts), "wait for the rollout to end, or see why it stopped: kubectl rollout status")
	case !same && f.Client != "":
		return warning(fmt.Sprintf("agents are of version %s, this program of %s", some(parts), f.Client), "use the program of the agents' release")
	}
	return fine("agents: " + some(parts))
}

func agentReports(f *Facts) finding {
	var silent, broken, failures []string
	for _, a := range f.Agents {
		switch s := a.Status; {
		case a.Fault != "":
			broken = append(broken, a.Node+": "+a.Fault)
		case s == nil:
			silent = append(silent, a.Node)
		case s.Outdated(a.Since, f.Now): // it is ready since a moment, and writes that soon
		case !s.Ready:
			broken = append(broken, a.Node+": "+strings.Join(s.NotReady, "; "))
		case s.LastError != nil && f.Now.Sub(s.LastError.Time) < recent:
			failures = append(failures, strings.TrimSpace(a.Node+": "+s.LastError.Pod+" "+s.LastError.Message))
		}
	}
	switch {
	case len(f.Agents) == 0:
		return finding{}
	case len(broken) > 0:
		return failing("agents say that they are not ready: "+some(broken), "see the agent's log and docs/choosing-a-hook.md")
	case len(failures) > 0:
		return warning("agents report errors of the last 15 minutes: "+some(failures), "look at these pods: kubectl describe pod, kubectl pod-network inspect")
	case len(silent) > 0:
		return warning("agents say nothing about themselves, or nothing new: "+some(silent), "wait a minute after their start; agents of older releases never do: upgrade them")
	}
	return fine(printable.Count(len(f.Agents), "agent") + " ready, as they report")
}

func podSource(f *Facts) finding {
	by := map[string][]string{}
	for _, a := range f.Agents {
		if a.Status != nil && a.Status.PodsFrom != "" {
			by[a.Status.PodsFrom] = append(by[a.Status.PodsFrom], a.Node)
		}
	}
	kubelet, api := by["kubelet"], by["api"]
	switch {
	case len(kubelet)+len(api) == 0:
		return finding{}
	case len(api) == 0:
		return fine("the kubelet gives " + printable.Count(len(kubelet), "agent") + " the pods of its node")
	case len(kubelet) == 0:
		return fine("the API server gives " + printable.Count(len(api), "agent") + " the pods of its node")
	}
	return fine(fmt.Sprintf("the kubelet gives agents the pods of its node on %s, the API server on %s", printable.Count(len(kubelet), "node"), some(api)))
}

func earlyHook(f *Facts) finding {
	node := func(a Agent) string { return a.Node }
	said := func(a Agent) bool { return a.Status != nil && !a.Status.Outdated(a.Since, f.Now) }
	known := listed(f.Agents, said, node)
	late := listed(f.Agents, func(a Agent) bool { return said(a) && !asksEarly(a) }, node)
	switch {
	case len(known) == 0:
		return finding{}
	case len(late) > 0:
		return warning("neither NRI nor the CNI chain asks the agent on "+some(late)+": pods start without their rules and get them a moment later",
			"switch NRI on in the container runtime, or set hooks.cni.mode=install; until then use the wait container (docs/choosing-a-hook.md)")
	}
	return fine("the runtime asks the agent before a pod's first container")
}

func asksEarly(a Agent) bool {
	return slices.ContainsFunc(a.Status.Hook, func(e agentstatus.Hook) bool { return e.Up && e.Name != "watch" })
}
