package check

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/sidecars/istio"
)

// containersOf are all containers of a pod, init containers first.
func containersOf(pod *corev1.Pod) []corev1.Container {
	return slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
}

// autoscalerOf recognises Cluster Autoscaler, whose flag names the taint. Karpenter's setting is in its NodePools, which are not read.
func autoscalerOf(pod *corev1.Pod) *Autoscaler {
	all := containersOf(pod)
	for i := range all {
		c := &all[i]
		if !strings.Contains(c.Image, "cluster-autoscaler") && !strings.Contains(c.Image, "karpenter") {
			continue
		}
		knows := slices.ContainsFunc(append(slices.Clone(c.Command), c.Args...), func(arg string) bool { return strings.Contains(arg, startupTaintKey) })
		return &Autoscaler{Name: pod.Namespace + "/" + pod.Name, KnowsTaint: knows}
	}
	return nil
}

func podOf(pod *corev1.Pod, namespace map[string]string, config intent.Config) Pod {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: pod.Namespace, Annotations: namespace}}
	p := Pod{
		Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName, Status: pod.Annotations[podreport.KeyStatus],
		Families: len(pod.Status.PodIPs), Running: pod.Status.Phase == corev1.PodRunning, Since: pod.CreationTimestamp.Time,
		OwnRuntime: pod.Spec.RuntimeClassName != nil, Misplaced: intent.Misplaced(pod.Annotations, pod.Labels),
	}
	p.Gated = slices.Contains(pod.Spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: podreport.Condition})
	p.MemoryRoom, p.MemoryLimited = memoryRoom(pod)
	p.Ending = endingImages(pod)
	p.Revision, p.Injected = revisionOf(pod)
	all := containersOf(pod)
	for i := range all {
		p.IstioInit = p.IstioInit || all[i].Name == "istio-init"
		if all[i].Name == intent.ProxyContainer {
			p.DualStackProxy = p.DualStackProxy || isTrue(&all[i], "ISTIO_DUAL_STACK")
		}
	}
	asks, err := intent.Of(pod, ns, config)
	if p.Profile = chosenProfile(pod, ns, config); p.Profile != "" {
		p.Refused = istio.RefusedProbes(pod)
	}
	p.Asked, p.Redirect, p.Reason = asks.Asked, asks.Redirect && err == nil, asks.Reason
	if err != nil && asks.Asked {
		p.Fault = err.Error()
	}
	if p.Redirect {
		p.OutboundPort, p.InboundPort = asks.Spec.OutboundPort, asks.Spec.InboundPort
	}
	if p.Redirect && p.Profile == "" {
		p.MeetNoProxy = intent.BeforeProxy(pod, asks.Spec)
	}
	if c := podreport.ConditionOf(pod, podreport.Condition); c != nil {
		p.Condition = c.DeepCopy() // the pod is not kept
	}
	p.Istios = p.Injected && p.Status == "" && p.Running
	if p.Istios {
		p.inIstiosPlace(pod, ns, config)
	}
	return p
}

// inIstiosPlace finds why the agent's rules refuse a pod that Istio programs now, where they would lead, and init containers that ran before
// istio-init and would meet a proxy that does not listen yet. Beside istio-cni they meet it already.
func (p *Pod) inIstiosPlace(pod *corev1.Pod, ns *corev1.Namespace, config intent.Config) {
	config.Select = intent.SelectInjected
	moved := *pod
	at := slices.IndexFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == "istio-init" })
	if at >= 0 {
		moved.Spec.InitContainers = slices.Delete(slices.Clone(pod.Spec.InitContainers), at, at+1)
	}
	wants, err := intent.Of(&moved, ns, config)
	switch {
	case err != nil:
		p.Fails = err.Error()
		return
	case !wants.Redirect:
		return
	}
	p.OutboundPort, p.InboundPort = wants.Spec.OutboundPort, wants.Spec.InboundPort
	if at >= 0 {
		moved.Spec.InitContainers = moved.Spec.InitContainers[:at]
		p.MeetNoProxy = intent.BeforeProxy(&moved, wants.Spec)
	}
}

// revisionOf returns which of Istio's revisions has injected a pod, if one has: "" is the control plane without a revision.
func revisionOf(pod *corev1.Pod) (revision string, injected bool) {
	text, injected := pod.Annotations["sidecar.istio.io/status"]
	var status struct {
		Revision string `json:"revision"`
	}
	if json.Unmarshal([]byte(text), &status) != nil || status.Revision == "default" || len(validation.IsDNS1123Label(status.Revision)) > 0 {
		return "", injected // who makes pods may write anything there
	}
	return status.Revision, injected
}

// chosenProfile is the ProxyProfile that a pod has chosen and may have, or "".
func chosenProfile(pod *corev1.Pod, ns *corev1.Namespace, config intent.Config) string {
	profile, err := intent.ProxyProfile(pod, ns)
	if err != nil || pod.Annotations[intent.KeyInitialize] == "false" || pod.Spec.HostNetwork || pod.Namespace == config.AgentNamespace ||
		slices.Contains(config.ExcludedNamespaces, pod.Namespace) {
		return "" // the checks of pods' settings say what is wrong
	}
	return profile
}

// isTrue reports whether a container's environment sets a variable to a Go bool that is true.
func isTrue(c *corev1.Container, name string) bool {
	for _, e := range c.Env {
		if e.Name == name {
			on, err := strconv.ParseBool(e.Value)
			return on && err == nil
		}
	}
	return false
}
