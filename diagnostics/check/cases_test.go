package check

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/diagnostics/cluster"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podreport"
)

// ofTwoRevisions adds a revision whose proxies listen on 16001, and pods of it whose rules lead to the given ports.
func ofTwoRevisions(f *Facts, ports ...uint16) {
	f.Istio.Revisions = append(f.Istio.Revisions, Revision{Name: "1-30", OutboundPort: 16001, InboundPort: 15006})
	for i, port := range ports {
		p := f.Pods[0]
		p.Name, p.Revision, p.OutboundPort = fmt.Sprintf("new-%d", i), "1-30", port
		f.Pods = append(f.Pods, p)
	}
}

func taints(key string) []corev1.Taint { return []corev1.Taint{{Key: key}} }

func clusterCases() map[string]changed {
	return map[string]changed{
		"an old cluster":               {change: func(f *Facts) { f.Version = "v1.27.9-eks-1" }, check: "kubernetes-version", level: Fail, want: "older than 1.28"},
		"a version that is none":       {change: func(f *Facts) { f.Version = "main" }, check: "kubernetes-version", level: Warn, want: `"main"`},
		"no validating policies":       {change: func(f *Facts) { f.APIs.Validating = false }, check: "validating-policies", level: Warn, want: "stolen token"},
		"no mutating policies":         {change: func(f *Facts) { f.APIs.Mutating = false }, check: "mutating-policies", level: Warn, want: "readiness gate"},
		"no mutating policies, before": {change: func(f *Facts) { f.APIs.Mutating, f.DaemonSets = false, nil }, pre: true, check: "mutating-policies", level: Warn, want: "values below admission"},
		"no agent":                     {change: func(f *Facts) { f.DaemonSets = nil }, check: "installed", level: Fail, want: "no DaemonSet"},
		"an agent before installing":   {change: func(*Facts) {}, pre: true, check: "not-installed-yet", level: Warn, want: "agents/agent"},
		"two releases":                 {change: func(f *Facts) { f.DaemonSets = append(f.DaemonSets, f.DaemonSets[0]); f.DaemonSets[1].Name = "other" }, check: "installed", level: Fail, want: "agents/other"},
		"a nodeSelector without nodes": {change: func(f *Facts) {
			f.DaemonSets[0].Status.DesiredNumberScheduled, f.DaemonSets[0].Status.NumberReady = 0, 0
		}, check: "agents-ready", level: Fail, want: "wants no node"},
		"an agent that waits": {change: func(f *Facts) {
			f.DaemonSets[0].Status.NumberReady, f.Agents[0].Ready, f.Agents[0].Waiting = 1, false, "ImagePullBackOff"
		}, check: "agents-ready", level: Fail, want: "1 of 2 agents are ready: n1: ImagePullBackOff"},
		"a new agent that crashes beside the old one": {change: func(f *Facts) {
			f.DaemonSets[0].Status.UpdatedNumberScheduled = 1
			f.Agents = append(f.Agents, Agent{Node: "n1", Name: "new", Crashes: cluster.Crashes{Restarts: 5, Last: "exit code 1 (error: x)"}})
		}, check: "agents-ready", level: Fail, want: "n1: new crashed 5 times, the last time with exit code 1 (error: x)"},
		"a rollout":               {change: func(f *Facts) { f.DaemonSets[0].Status.UpdatedNumberScheduled = 1 }, check: "agents-ready", level: Warn, want: "1 of 2"},
		"an agent too many":       {change: func(f *Facts) { f.DaemonSets[0].Status.NumberMisscheduled = 1 }, check: "agents-ready", level: Warn, want: "wants none"},
		"a node without an agent": {change: func(f *Facts) { f.Agents = f.Agents[:1] }, check: "nodes-without-agent", level: Warn, want: "1 node without a running agent: n2"},
		"a pod on such a node":    {change: func(f *Facts) { f.Agents = f.Agents[1:] }, check: "nodes-without-agent", level: Fail, want: "shop/cart"},
		"agents of two versions":  {change: func(f *Facts) { f.Agents[0].Status.Version = "0.0.9" }, check: "agent-versions", level: Warn, want: "different"},
		"a program of no release": {change: func(f *Facts) { f.Client = "" }, check: "agent-versions", level: OK, want: "0.1.0 on 2 nodes"},
		"a newer program":         {change: func(f *Facts) { f.Client = "0.2.0" }, check: "agent-versions", level: Warn, want: "this program of 0.2.0"},
		"an agent that is not ready": {change: func(f *Facts) {
			f.Agents[0].Status.Ready, f.Agents[0].Status.NotReady, f.Agents[0].Status.Time = false, []string{"nri: not connected"}, now
		}, check: "agent-reports", level: Fail, want: "n1: nri: not connected"},
		"an agent's last error": {change: func(f *Facts) {
			f.Agents[0].Status.LastError = &agentstatus.Error{Pod: "a/b", Message: "refused", Time: now.Add(-time.Minute)}
		}, check: "agent-reports", level: Warn, want: "a/b refused"},
		"an agent that has become ready since it said that it was not": {change: func(f *Facts) {
			f.Agents[0].Status.Ready, f.Agents[0].Status.Time, f.Agents[0].Since = false, now.Add(-5*time.Second), now.Add(-3*time.Second)
		}, check: "agent-reports", level: OK},
		"and its hooks are those of before": {change: func(f *Facts) {
			f.Agents[0].Status.Ready, f.Agents[0].Status.Time, f.Agents[0].Since = false, now.Add(-5*time.Second), now.Add(-3*time.Second)
			f.Agents[0].Status.Hook = []agentstatus.Hook{{Name: "nri", Message: "not connected"}}
		}, check: "early-hook", level: OK},
		"an agent that has said so since": {change: func(f *Facts) {
			f.Agents[0].Status.Ready, f.Agents[0].Status.Time, f.Agents[0].Since = false, now, now.Add(-3*time.Second)
		}, check: "agent-reports", level: Fail, want: "n1"},
		"an agent's error of yesterday": {change: func(f *Facts) {
			f.Agents[0].Status.LastError = &agentstatus.Error{Message: "refused", Time: now.Add(-24 * time.Hour)}
		}, check: "agent-reports", level: OK},
		"an agent that takes over": {change: func(f *Facts) {
			f.Nodes[0].Status.NodeInfo.ContainerRuntimeVersion = "containerd://1.7.27"
			f.Agents = append([]Agent{{Node: "n1"}}, f.Agents...)
		}, check: "container-runtime", level: OK},
		"an agent that says nothing":   {change: func(f *Facts) { f.Agents[0].Status = nil }, check: "agent-reports", level: Warn, want: "n1"},
		"a status that cannot be read": {change: func(f *Facts) { f.Agents[0].Fault = "invalid character" }, check: "agent-reports", level: Fail, want: "invalid character"},
		"pods from both": {change: func(f *Facts) {
			f.Agents[0].Status.PodsFrom, f.Agents[1].Status.PodsFrom = "kubelet", "api"
		}, check: "pod-source", level: OK, want: "on 1 node, the API server on n2"},
		"pods from the kubelets": {change: func(f *Facts) {
			f.Agents[0].Status.PodsFrom, f.Agents[1].Status.PodsFrom = "kubelet", "kubelet"
		}, check: "pod-source", level: OK, want: "the kubelet gives 2 agents"},
		"pods from the API server": {change: func(f *Facts) { f.Agents[0].Status.PodsFrom = "api" }, check: "pod-source", level: OK, want: "the API server gives 1 agent "},
		"NRI lost":                 {change: func(f *Facts) { f.Agents[1].Status.Hook[1].Up = false }, check: "early-hook", level: Warn, want: "on n2"},
	}
}

func nodeCases() map[string]changed {
	return map[string]changed{
		"an old containerd": {change: func(f *Facts) {
			f.Nodes[0].Status.NodeInfo.ContainerRuntimeVersion, f.Agents[0].Status = "containerd://1.6.8", nil
		}, check: "container-runtime", level: Warn, want: "has no NRI (n1)"},
		"containerd with NRI off": {change: func(f *Facts) {
			f.Nodes[0].Status.NodeInfo.ContainerRuntimeVersion, f.Agents[0].Status.Hook = "containerd://1.7.27", nil
		}, check: "container-runtime", level: Warn, want: "switched off"},
		"CRI-O with NRI off": {change: func(f *Facts) { f.Nodes[0].Status.NodeInfo.ContainerRuntimeVersion, f.Agents = "cri-o://1.29.1", nil }, check: "container-runtime", level: Warn, want: "CRI-O 1.29.1"},
		"Docker": {change: func(f *Facts) {
			f.Nodes[0].Status.NodeInfo.ContainerRuntimeVersion, f.Agents = "docker://20.10.24", nil
		}, check: "container-runtime", level: Warn, want: "Docker"},
		"an old containerd whose NRI is on": {change: func(f *Facts) { f.Nodes[0].Status.NodeInfo.ContainerRuntimeVersion = "containerd://1.7.27" }, check: "container-runtime", level: OK},
		"Talos with agents":                 {change: func(f *Facts) { f.Nodes[1].Status.NodeInfo.OSImage = "Talos (v1.9.0)" }, check: "operating-system", level: OK},
		"an unknown runtime":                {change: func(f *Facts) { f.Nodes[0].Status.NodeInfo.ContainerRuntimeVersion, f.Agents = "", nil }, check: "container-runtime", level: Warn, want: "not known"},
		"an old kernel":                     {change: func(f *Facts) { f.Nodes[0].Status.NodeInfo.KernelVersion = "4.18.0-553.el8" }, check: "kernel", level: Fail, want: "n1 has 4.18.0"},
		"an old kernel with iptables": {change: func(f *Facts) {
			f.Nodes[0].Status.NodeInfo.KernelVersion = "4.18.0-553.el8"
			withFlags(f, "--backend=iptables")
		}, check: "kernel", level: OK, want: "4.18.0"},
		"a kernel without cookies": {change: func(f *Facts) { f.Nodes[1].Status.NodeInfo.KernelVersion = "5.10.0-28" }, check: "kernel", level: OK, want: "n2 has 5.10.0"},
		"Talos":                    {change: func(f *Facts) { f.Nodes[1].Status.NodeInfo.OSImage, f.DaemonSets = "Talos (v1.9.0)", nil }, pre: true, check: "operating-system", level: Warn, want: "kubernetesDistribution=talos; before 1.14 NRI is off"},
		"Bottlerocket":             {change: func(f *Facts) { f.Nodes[1].Status.NodeInfo.OSImage, f.DaemonSets = "Bottlerocket OS 1.40.0", nil }, pre: true, check: "operating-system", level: Warn, want: "kubernetesDistribution=bottlerocket"},
		"k3s, before installing": {change: func(f *Facts) {
			f.Nodes[1].Status.NodeInfo.KubeletVersion, f.DaemonSets = "v1.36.1+k3s1", nil
		}, pre: true, check: "operating-system", level: Warn, want: "kubernetesDistribution=k3s"},
		"Talos with agents names its value": {change: func(f *Facts) { f.Nodes[1].Status.NodeInfo.OSImage = "Talos (v1.9.0)" }, check: "operating-system", level: OK, want: "kubernetesDistribution=talos"},
		"a Windows node":                    {change: func(f *Facts) { f.Nodes[1].Status.NodeInfo.OperatingSystem, f.Agents = "windows", f.Agents[:1] }, check: "operating-system", level: OK, want: "1 Windows node"},
		"a Windows node has no agent":       {change: func(f *Facts) { f.Nodes[1].Status.NodeInfo.OperatingSystem, f.Agents = "windows", f.Agents[:1] }, check: "nodes-without-agent", level: OK},
	}
}

func registryCases() map[string]changed {
	return map[string]changed{
		"probes that STRICT refuses": {change: func(f *Facts) {
			f.Profiles = map[string]v1alpha1.ProxyProfileSpec{"istio": {Istio: &v1alpha1.Istio{}}}
			f.Pods[0].Profile, f.Pods[0].Refused = "istio", []string{"readinessProbe of container app"}
		}, check: "istio-probes", level: Warn, want: "(readinessProbe of container app)"},
		"probes that pilot-agent makes": {change: func(f *Facts) {
			f.Profiles = map[string]v1alpha1.ProxyProfileSpec{"istio": {Istio: &v1alpha1.Istio{}}}
			f.Pods[0].Profile = "istio"
			f.Pods = append(f.Pods, Pod{Refused: []string{"readinessProbe of container app"}})
		}, check: "istio-probes", level: OK, want: "go to pilot-agent"},
		"images at a registry that ends": {change: func(f *Facts) {
			f.Pods[0].Ending = []string{"gcr.io/istio-release/proxyv2:1.29.0"}
			f.Pods = append(f.Pods, f.Pods[0])
		}, check: "istio-registries", level: Warn, want: "end on 1 January 2027: gcr.io/istio-release/proxyv2:1.29.0 (2 pods)"},
		"a hub at a registry that ends": {change: func(f *Facts) { f.Istio.Revisions[0].Hub = "registry.istio.io/release" }, check: "istio-registries", level: Warn, want: "global.hub registry.istio.io/release (ConfigMap istio-sidecar-injector)"},
		"a profile at a registry that ends": {change: func(f *Facts) {
			f.Profiles = map[string]v1alpha1.ProxyProfileSpec{"istio": {Istio: &v1alpha1.Istio{Process: v1alpha1.Process{Image: "registry.istio.io/release/proxyv2:1.30.0"}}}}
		}, check: "istio-registries", level: Warn, want: "registry.istio.io/release/proxyv2:1.30.0 (ProxyProfile istio)"},
		"no registry that ends": {change: func(f *Facts) { f.Istio.Revisions[0].Hub = "registry.istio.io.example.com/istio" }, check: "istio-registries", level: OK},
	}
}

func meshCases() map[string]changed {
	return map[string]changed{
		"a policy without binding":    {change: func(f *Facts) { f.Policies[0].Bound = false }, check: "policies", level: Fail, want: "ValidatingAdmissionPolicy agent"},
		"no validating policy":        {change: func(f *Facts) { f.Policies = f.Policies[1:] }, check: "policies", level: Warn, want: "narrows"},
		"no mutating policy":          {change: func(f *Facts) { f.Policies = f.Policies[:1] }, check: "policies", level: Warn, want: "prepares"},
		"a pod with istio-init":       {change: func(f *Facts) { f.Pods[0].IstioInit = true }, check: "istio-init", level: Warn, want: "shop/cart"},
		"an injector with istio-init": {change: func(f *Facts) { f.Istio.Revisions[0].CNI = new(false) }, check: "injector", level: Warn, want: "pilot.cni.enabled is false in ConfigMap istio-sidecar-injector"},
		"an injector of a revision": {change: func(f *Facts) {
			f.Istio.Revisions = append(f.Istio.Revisions, Revision{Name: "1-30", CNI: new(false)})
		}, check: "injector", level: Warn, want: "ConfigMap istio-sidecar-injector-1-30"},
		"istio-cni by istioctl": {change: func(f *Facts) {
			f.DaemonSets = append(f.DaemonSets, daemonSetOf("istio-system", "istio-cni-node", "docker.io/istio/install-cni:1.30"))
		}, pre: true, check: "injector", level: Warn, want: "istio-system/istio-cni-node) was not installed by Helm"},
		"istio-cni by Helm": {change: func(f *Facts) {
			f.DaemonSets = append(f.DaemonSets, daemonSetOf("istio-system", "istio-cni-node", "docker.io/istio/install-cni:1.30"))
			f.DaemonSets[1].Annotations = map[string]string{"meta.helm.sh/release-name": "istio-cni"}
		}, check: "injector", level: OK},
		"a pod that would be refused": {change: func(f *Facts) {
			f.Pods[0].Istios, f.Pods[0].Fails = true, "uid 1337 is also that of container app"
		}, pre: true, check: "istio-pods", level: Warn, want: "1 pod that Istio programs would fail with the agent's rules: shop/cart: uid 1337"},
		"pods that can be moved":            {change: func(f *Facts) { f.Pods[0].Istios = true }, pre: true, check: "istio-pods", level: OK, want: "1 pod"},
		"init containers before istio-init": {change: func(f *Facts) { f.Pods[0].MeetNoProxy = []string{"migrate"} }, pre: true, check: "init-containers", level: Warn, want: "shop/cart (migrate)"},
		"istio-cni beside us": {change: func(f *Facts) {
			f.DaemonSets = append(f.DaemonSets, daemonSetOf("istio-system", "istio-cni-node", "docker.io/istio/install-cni:1.30"))
		}, check: "other-projects", level: Warn, want: "Istio's CNI plugin (istio-system/istio-cni-node)"},
		"Multus beside another hook": {change: func(f *Facts) {
			f.DaemonSets = append(f.DaemonSets, daemonSetOf("", "m", "multus-cni:1"))
		}, check: "other-projects", level: OK},
		"Multus by digest": {change: func(f *Facts) {
			withFlags(f, "--cni=install")
			f.DaemonSets = append(f.DaemonSets, daemonSetOf("", "m", "ghcr.io/k8snetworkplumbingwg/multus-cni@sha256:0"))
		}, check: "other-projects", level: Warn, want: "Multus"},
		"another registry's port": {change: func(f *Facts) {
			withFlags(f, "--cni=install")
			f.DaemonSets = append(f.DaemonSets, daemonSetOf("", "m", "multus:5000/logs:1"), daemonSetOf("", "n", "docker.io/of/no-multus:1"))
		}, check: "other-projects", level: OK},
		"other ports of the mesh":              {change: func(f *Facts) { f.Istio.Revisions[0].OutboundPort = 16001 }, check: "mesh-ports", level: Fail, want: "meshConfig.proxyListenPort is 16001 (ConfigMap istio), the rules of shop/cart lead to 15001"},
		"other ports of the mesh, before pods": {change: func(f *Facts) { f.Istio.Revisions[0].OutboundPort, f.Pods = 16001, nil }, check: "mesh-ports", level: Warn, want: "meshConfig.proxyListenPort is 16001 (ConfigMap istio), the agents' --envoy-port 15001"},
		"other ports before the installation": {change: func(f *Facts) {
			f.Istio.Revisions[0].InboundPort, f.DaemonSets = 16006, nil
		}, pre: true, check: "mesh-ports", level: Warn, want: "meshConfig.proxyInboundListenPort is 16006"},
		"other ports of pods that Istio programs": {change: func(f *Facts) {
			f.Istio.Revisions[0].OutboundPort, f.Pods[0].Redirect, f.Pods[0].Istios = 16001, false, true
		}, check: "mesh-ports", level: Warn, want: "the rules of shop/cart lead to 15001"},
		"other ports of a revision, which its pods name": {change: func(f *Facts) { ofTwoRevisions(f, 16001) }, check: "mesh-ports", level: OK},
		"other ports of a revision, which a pod does not name": {
			change: func(f *Facts) { ofTwoRevisions(f, 16001, 15001) }, check: "mesh-ports", level: Fail,
			want: "elsewhere than the agents redirect to: meshConfig.proxyListenPort is 16001 (ConfigMap istio-1-30), the rules of shop/new-1 lead to 15001",
		},
		"other ports of a revision, and only the others' pods name them": {change: func(f *Facts) {
			ofTwoRevisions(f)
			f.Pods[0].OutboundPort = 16001
		}, check: "mesh-ports", level: Fail, want: "meshConfig.proxyListenPort is 15001 (ConfigMap istio), the rules of shop/cart lead to 16001"},
		"dual stack without listeners": {change: func(f *Facts) { f.Pods[0].Families = 2 }, check: "dual-stack", level: Warn, want: "refused: shop/cart"},
		"dual stack without listeners, by Istio's rules": {change: func(f *Facts) {
			f.Pods[0].Families, f.Pods[0].Redirect, f.Pods[0].Istios = 2, false, true
		}, check: "dual-stack", level: Warn, want: "refused: shop/cart"},
		"dual stack and direct IPv6":  {change: func(f *Facts) { f.Pods[0].Families = 2; withFlags(f, "--ipv6=direct") }, check: "dual-stack", level: Warn, want: "bypasses the mesh"},
		"dual stack with listeners":   {change: func(f *Facts) { f.Pods[0].Families, f.Pods[0].DualStackProxy = 2, true }, check: "dual-stack", level: OK},
		"istiod's untaint controller": {change: func(f *Facts) { f.Istio.Untaint = true }, check: "node-untaint", level: Warn, want: "controller of node taints"},
		"Istio's taint under another name": {change: func(f *Facts) {
			f.Istio.Taint, f.Nodes[1].Spec.Taints = "example.com/wait", taints("example.com/wait")
		}, check: "node-untaint", level: Warn, want: "taint example.com/wait, which only istio-cni's readiness ends: n2"},
		"Istio's taint": {change: func(f *Facts) { f.Nodes[0].Spec.Taints = taints("cni.istio.io/not-ready") }, check: "node-untaint", level: Warn, want: "n1"},
	}
}

func podCases() map[string]changed {
	return map[string]changed{
		"a pod that failed": {change: func(f *Facts) {
			f.Pods[0].Status, f.Pods[0].Condition = "failed", &corev1.PodCondition{Message: "port 0"}
		}, check: "pods-programmed", level: Fail, want: "shop/cart (port 0)"},
		"a pod that nobody programmed":  {change: func(f *Facts) { f.Pods[0].Status = "" }, check: "pods-programmed", level: Fail, want: "without a word of an agent"},
		"a pod that nobody can program": {change: func(f *Facts) { f.Pods[0].Status, f.Agents = "", f.Agents[1:] }, check: "pods-programmed", level: OK},
		"a pod that has just started":   {change: func(f *Facts) { f.Pods[0].Status, f.Pods[0].Since = "", now }, check: "pods-programmed", level: OK},
		"a pod that others programmed": {change: func(f *Facts) {
			f.Pods[0].Status, f.Pods[0].Condition = "", &corev1.PodCondition{Status: corev1.ConditionTrue}
		}, check: "pods-programmed", level: OK},
		"a proxy that does not listen": {change: func(f *Facts) {
			f.Pods[0].Condition = &corev1.PodCondition{Status: corev1.ConditionTrue, Reason: podreport.ReasonNoListener, Message: "traffic is redirected; nobody listens on 15001: connections are refused"}
		}, check: "proxy-listens", level: Fail, want: "shop/cart (nobody listens on 15001: connections are refused)"},
		"a proxy that listens": {change: func(f *Facts) {
			f.Pods[0].Condition = &corev1.PodCondition{Status: corev1.ConditionTrue, Message: "traffic is redirected"}
		}, check: "proxy-listens", level: OK},
		"a mistyped annotation of a pod": {change: func(f *Facts) {
			f.Pods[0].Misplaced = []string{"annotation a is not known: did you mean b?"}
		}, check: "mistyped-keys", level: Warn, want: "shop/cart: annotation a is not known: did you mean b?"},
		"a mistyped annotation of a namespace": {change: func(f *Facts) {
			f.Misplaced = map[string][]string{"shop": {"x is a label: make it an annotation"}}
		}, check: "mistyped-keys", level: Warn, want: "namespace shop: x is a label"},
		"a wrong annotation":            {change: func(f *Facts) { f.Pods[0].Fault, f.Pods[0].Redirect = "value \"x\"", false }, check: "pod-settings", level: Warn, want: `shop/cart: value "x"`},
		"a pod that names a profile":    {change: func(f *Facts) { f.Pods[0].Redirect, f.Pods[0].Reason = false, intent.SidecarsOff }, check: "pod-settings", level: OK},
		"a pod that cannot have it":     {change: func(f *Facts) { f.Pods[0].Redirect, f.Pods[0].Reason = false, intent.HostNetwork }, check: "pod-settings", level: Warn, want: "hostNetwork"},
		"a namespace without proxies":   {change: func(f *Facts) { f.Namespaces["empty"] = map[string]string{intent.KeyInitialize: "true"} }, check: "namespaces-without-effect", level: Warn, want: "empty"},
		"a node that keeps its taint":   {change: func(f *Facts) { f.Nodes[0].Spec.Taints = taints(startupTaintKey) }, check: "startup-taint", level: Fail, want: "n1"},
		"a taint that nobody takes off": {change: func(f *Facts) { f.Nodes[0].Spec.Taints = taints(startupTaintKey); withFlags(f) }, check: "startup-taint", level: Fail, want: "--startup-taint"},
		"a node that has just joined": {change: func(f *Facts) {
			f.Nodes[0].Spec.Taints = taints(startupTaintKey)
			f.Nodes[0].Status.Conditions[0].LastTransitionTime = metav1.NewTime(now)
		}, check: "startup-taint", level: OK},
		"an autoscaler without the key": {change: func(f *Facts) { f.Autoscaler = &Autoscaler{Name: "kube-system/ca"} }, check: "autoscaler", level: Warn, want: "kube-system/ca"},
		"an autoscaler with the key":    {change: func(f *Facts) { f.Autoscaler = &Autoscaler{Name: "kube-system/ca", KnowsTaint: true} }, check: "autoscaler", level: OK},
		"a CNI entry without agent":     {change: func(f *Facts) { f.Leftovers, f.Agents = []string{"n2", "n2"}, f.Agents[:1] }, check: "leftover-cni-entry", level: Fail, want: "of n2:"},
		"an event of a mended entry":    {change: func(f *Facts) { f.Leftovers = []string{"n2"} }, check: "leftover-cni-entry", level: OK},
		"policies of a removed release": {change: func(f *Facts) { f.DaemonSets = nil }, check: "leftover-objects", level: Warn, want: "validatingadmissionpolicy/agent"},
		"an agent under another label": {change: func(f *Facts) {
			f.DaemonSets = []appsv1.DaemonSet{daemonSetOf("agents", "umbrella", "example.com/istio-pod-network-controller@sha256:0")}
			f.Policies, f.APIs.Ours = nil, true
		}, check: "leftover-objects", level: Warn, want: "agents/umbrella"},
		"definitions of a removed one":   {change: func(f *Facts) { f.DaemonSets, f.Policies, f.APIs.Ours = nil, nil, true }, check: "leftover-objects", level: Warn, want: "ProxyProfiles"},
		"no agent's pod at all":          {change: func(f *Facts) { f.Agents = nil }, check: "agents-ready", level: OK, want: "2 of 2"},
		"many names are not all printed": {change: func(f *Facts) { f.Leftovers, f.Agents = []string{"a", "b", "c", "d", "e", "f", "g"}, nil }, check: "leftover-cni-entry", level: Fail, want: "a, b, c, d, e and 2 more"},
	}
}
