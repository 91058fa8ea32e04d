package check

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/diagnostics/cluster"
)

// agentEvent is a warning about an agent's pod, or about the agents' DaemonSet.
type agentEvent struct {
	kind, name, reason, message string
	last                        time.Time
}

// readAgentEvents reads the warnings about agents, the newest first.
func readAgentEvents(ctx context.Context, g Gatherer, f *Facts) (err error) {
	d := f.ours()
	if d == nil {
		return nil
	}
	o := metav1.ListOptions{FieldSelector: "type=" + corev1.EventTypeWarning}
	f.events, err = cluster.All(ctx, g.Client.CoreV1().Events(d.Namespace).List, o, func(e *corev1.Event) (agentEvent, bool) {
		about := e.InvolvedObject
		ours := about.Kind == "DaemonSet" && about.Name == d.Name || about.Kind == "Pod" && strings.HasPrefix(about.Name, d.Name+"-")
		return agentEvent{about.Kind, about.Name, e.Reason, e.Message, cluster.LastSeen(e)}, ours
	})
	slices.SortStableFunc(f.events, func(a, b agentEvent) int { return b.last.Compare(a.last) })
	return err
}

// retried is longer than controllers wait before they try again.
const retried = 20 * time.Minute

// hindered returns why agents do not start, and what to do about it. An agent that merely starts is not hindered.
func (f *Facts) hindered() (why, do []string) {
	say := func(about, reason, message, node string) {
		why, do = append(why, strings.TrimSpace(about+": "+reason+" "+message)), append(do, f.remedy(reason, message, node))
	}
	known := map[string]bool{}
	for _, a := range f.Agents {
		known[a.Name] = true
		if reason, message := f.hindrance(a); reason != "" {
			say(a.Node, reason, message, a.Node)
		}
	}
	if s := f.ours().Status; min(s.NumberReady, s.UpdatedNumberScheduled) >= s.DesiredNumberScheduled { // events outlive their cause
		return why, do
	}
	for _, e := range f.events {
		if f.Now.Sub(e.last) > retried {
			break
		}
		if e.reason == "FailedCreate" && e.kind == "DaemonSet" || e.reason == "FailedScheduling" && !known[e.name] {
			say(e.name, e.reason, e.message, "")
			break // each retry has an event
		}
	}
	return why, do
}

// hindrance returns why an agent does not start: the reason of its waiting container, or the newest warning about its pod. "" if it merely starts.
func (f *Facts) hindrance(a Agent) (reason, message string) {
	reason, message, _ = strings.Cut(a.Waiting, " ")
	switch {
	case a.Ready:
		return "", ""
	case reason == "CrashLoopBackOff":
		return reason, cmp.Or(a.Crashes.Last, message)
	case !a.Creating():
		return reason, message
	}
	for _, e := range f.events {
		if e.name == a.Name && slices.Contains([]string{"FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox"}, e.reason) {
			return e.reason, e.message
		}
	}
	return "", ""
}

// volumeNamed finds the volume in what kubelets say about mounts.
var volumeNamed = regexp.MustCompile(`volume "([^"]+)"|unmounted volumes=\[([^],\s]+)`)

// remedy says which of the chart's values decides about what hinders an agent. node is "" for an agent without one.
func (f *Facts) remedy(reason, message, node string) string {
	d := f.ours()
	if found := volumeNamed.FindStringSubmatch(message); found != nil && reason != "FailedCreate" {
		return f.remedyMount(cmp.Or(found[1], found[2]), node)
	}
	if reason == "FailedCreate" {
		return remedyRefusal(message, d.Namespace)
	}
	image := "correct the chart's image.repository or image.tag: they make " + cluster.Container(&d.Spec.Template.Spec).Image + "; or image.pullSecrets"
	refused := "see the chart's kubernetesDistribution, agent.seLinuxOptions and agent.appArmorProfile: they are what the runtime is asked for"
	return cmp.Or(map[string]string{
		"FailedCreatePodSandBox": "see the log of the node's container runtime: it makes no pod",
		"ImagePullBackOff":       image, "ErrImagePull": image, "InvalidImageName": image, "ErrImageNeverPull": image, "ImageInspectError": image,
		"CreateContainerConfigError": "create what the message names, or take it out of the chart's values",
		"CreateContainerError":       refused, "RunContainerError": refused,
		"CrashLoopBackOff": cluster.Rollback + "; kubectl -n " + d.Namespace + " logs AGENT-POD --previous has the whole error",
		"FailedScheduling": "correct the chart's agent.nodeSelector, agent.affinity, agent.tolerations, agent.resources or agent.priorityClassName",
	}[reason], "kubectl -n "+d.Namespace+" describe daemonsets,pods")
}

// remedyMount names the values that make a volume of the agents.
func (f *Facts) remedyMount(volume, node string) string {
	const runtime = "kubernetesDistribution, runtime.name or runtime.endpoint"
	values := cmp.Or(map[string]string{
		"runtime": runtime, "containerd": runtime, "crio": runtime, "docker": runtime, "docker-netns": runtime,
		"kubelet": "kubernetesDistribution or pods.kubeletDir", "nri": "hooks.nri.socket", "cni-bin": "kubernetesDistribution or hooks.cni.binDir",
		"cni-conf": "kubernetesDistribution or hooks.cni.confDir", "pod-logs": "proxies.enabled", "metrics-tls": "monitoring.tlsSecret",
	}[volume], "values, which make volume "+volume)
	var path, looks string
	for _, v := range f.ours().Spec.Template.Spec.Volumes {
		if v.Name == volume && v.HostPath != nil {
			path = ": they have the node's " + v.HostPath.Path
		}
	}
	for i := range f.Nodes {
		if s := platformOf(&f.Nodes[i]); f.Nodes[i].Name == node && s.platform != "" {
			looks = "; node " + node + " looks like kubernetesDistribution=" + s.platform
		}
	}
	return "correct the chart's " + values + path + looks
}

// remedyRefusal says what to do if the API server refuses the agents' pods. Who refuses is known by words alone.
func remedyRefusal(message, namespace string) string {
	for _, refusal := range [][2]string{
		{"quota", "set agent.priorityQuota to a number of pods, or raise the namespace's quota"},
		{"security context constraint", "set kubernetesDistribution=openshift, whose chart has what the agents need"},
		{"PodSecurity", "kubectl label namespace " + namespace + " pod-security.kubernetes.io/enforce=privileged"},
		{"PriorityClass", "set agent.priorityClassName to a class that the namespace may use"},
		{"service account", "see serviceAccount.name: the account is missing"},
	} {
		if strings.Contains(message, refusal[0]) {
			return refusal[1]
		}
	}
	return "have the policy or webhook that the message names admit the agents' pods"
}
