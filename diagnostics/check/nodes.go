package check

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/printable"
)

// Versions that matter.
const (
	oldest           = "1.28" // of Kubernetes, that the agent is meant for
	oldestKernel     = "5.4"  // nftables with NAT in the inet family, and all that we use of it
	cookieKernel     = "5.14" // namespaces have cookies
	oldestContainerd = "1.7"  // has NRI
	nriContainerd    = "2.0"  // has it on
	oldestCRIO       = "1.26"
	nriCRIO          = "1.30"
)

func linux(n *corev1.Node) bool {
	return n.Status.NodeInfo.OperatingSystem == "" || n.Status.NodeInfo.OperatingSystem == "linux"
}

func tainted(n *corev1.Node, key string) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}

// nodeNames returns the names of the nodes that meet a condition.
func nodeNames(f *Facts, which func(*corev1.Node) bool) (out []string) {
	for i := range f.Nodes {
		if which(&f.Nodes[i]) {
			out = append(out, f.Nodes[i].Name)
		}
	}
	return out
}

// older reports whether a version is below another one. What is no version is not older.
func older(have, than string) bool {
	v, err := version.ParseGeneric(have)
	return err == nil && v.LessThan(version.MustParseGeneric(than))
}

// runtimeAdvice says what a node's runtime lacks, and what to do, or "".
func runtimeAdvice(runtime string) (lacks, do string) {
	name, v, _ := strings.Cut(runtime, "://")
	switch name {
	case "containerd":
		return nriAdvice("containerd", v, oldestContainerd, nriContainerd,
			"switch NRI on ([plugins.\"io.containerd.nri.v1.nri\"] disable = false) or set hooks.cni.mode=install; containerd 2.0 has it on")
	case "cri-o":
		return nriAdvice("CRI-O", v, oldestCRIO, nriCRIO, "set enable_nri = true in [crio.nri] or set hooks.cni.mode=install; CRI-O 1.30 has it on")
	case "docker":
		return "Docker has no NRI", "set runtime.name=docker, and hooks.cni.mode=install with cri-dockerd for rules before a pod's first container"
	}
	return fmt.Sprintf("the container runtime %q is not known", runtime), "use containerd or CRI-O, or see docs/install.md for Docker"
}

func nriAdvice(name, v, oldest, on, switchOn string) (lacks, do string) {
	switch {
	case older(v, oldest):
		return name + " " + v + " has no NRI", "upgrade it, or set hooks.cni.mode=install"
	case older(v, on):
		return name + " " + v + " has NRI switched off unless configured", switchOn
	}
	return "", ""
}

// connected reports whether an agent, which may be nil, says that the runtime asks it through NRI.
func connected(a *Agent) bool {
	return a != nil && a.Status != nil && slices.ContainsFunc(a.Status.Hook, func(e agentstatus.Hook) bool { return e.Name == "nri" && e.Up })
}

func containerRuntime(f *Facts) finding {
	by, advice, all := map[string][]string{}, map[string]string{}, []string{}
	for i := range f.Nodes {
		n := &f.Nodes[i]
		if !linux(n) {
			continue
		}
		all = append(all, strings.Replace(n.Status.NodeInfo.ContainerRuntimeVersion, "://", " ", 1))
		if lacks, do := runtimeAdvice(n.Status.NodeInfo.ContainerRuntimeVersion); lacks != "" && !connected(f.agentOn(n.Name)) {
			by[lacks], advice[lacks] = append(by[lacks], n.Name), do
		}
	}
	if len(by) == 0 {
		return fine(some(all))
	}
	var messages, dos []string
	for lacks, nodes := range by {
		messages, dos = append(messages, lacks+" ("+some(nodes)+")"), append(dos, advice[lacks])
	}
	return warning(some(messages), some(dos))
}

func kernel(f *Facts) finding {
	var tooOld, withoutCookie, all []string
	for i := range f.Nodes {
		have := f.Nodes[i].Status.NodeInfo.KernelVersion
		if !linux(&f.Nodes[i]) {
			continue
		}
		all = append(all, have)
		switch has := f.Nodes[i].Name + " has " + have; {
		case older(have, oldestKernel):
			tooOld = append(tooOld, has)
		case older(have, cookieKernel):
			withoutCookie = append(withoutCookie, has)
		}
	}
	switch {
	case len(tooOld) > 0 && f.flag("backend") != "iptables":
		return failing("kernels before "+oldestKernel+" do not take the rules of the nftables backend: "+some(tooOld), "set redirection.backend=iptables, or upgrade these nodes")
	case len(withoutCookie) > 0:
		return fine("Linux " + some(all) + "; before " + cookieKernel + " the agent verifies each pod in full, which costs CPU: " + some(withoutCookie))
	}
	return fine("Linux " + some(all))
}

// special is a system on which something differs, and the chart's kubernetesDistribution for it.
type special struct{ mark, platform, why string }

// platformOf returns which system a node has, by a part of its osImage or of its kubelet's version; the zero value for an ordinary one.
func platformOf(n *corev1.Node) special {
	for _, s := range []special{
		{"Bottlerocket", "bottlerocket", "; whether NRI is on follows the variant"},
		{"Talos", "talos", "; before 1.14 NRI is off: switch it on in the machine configuration, or set hooks.cni.mode=install"},
		{"CoreOS", "openshift", ", or agent.seLinuxOptions.type=spc_t: SELinux enforces"},
		{"Container-Optimized OS", "gke", ": CNI plugins are in /home/kubernetes/bin"},
		{"+k3s", "k3s", ": it has a runtime and directories of its own"},
		{"+rke2", "rke2", ": it has a runtime of its own"},
	} {
		if strings.Contains(n.Status.NodeInfo.OSImage+" "+n.Status.NodeInfo.KubeletVersion, s.mark) {
			return s
		}
	}
	return special{}
}

func operatingSystem(f *Facts) finding {
	windows := nodeNames(f, func(n *corev1.Node) bool { return !linux(n) })
	var found []string
	for i := range f.Nodes {
		if s := platformOf(&f.Nodes[i]); s.platform != "" {
			found = append(found, strings.Trim(s.mark, "+")+": kubernetesDistribution="+s.platform+s.why)
		}
	}
	switch {
	case len(found) > 0 && f.ours() == nil:
		return warning("nodes run systems that need a look at the chart's values: "+some(found), "set the chart's values for them (docs/support-matrix.md)")
	case len(found) > 0:
		return fine("nodes run systems that have values of their own: " + some(found))
	case len(windows) > 0:
		return fine("no agent, and no rules for pods, on " + printable.Count(len(windows), "Windows node") + ": " + some(windows))
	}
	return fine("no node with a system that needs values of its own")
}

func kubernetesVersion(f *Facts) finding {
	have, err := version.ParseGeneric(f.Version)
	if err != nil {
		return warning(fmt.Sprintf("the API server says version %q, which is none", f.Version), "see that it is Kubernetes "+oldest+" or newer")
	}
	if have.LessThan(version.MustParseGeneric(oldest)) {
		return failing("Kubernetes "+f.Version+" is older than "+oldest, "upgrade the cluster")
	}
	return fine("Kubernetes " + f.Version)
}

func validatingPolicies(f *Facts) finding {
	if f.APIs.Validating {
		return fine("ValidatingAdmissionPolicy v1 is served: the agent's rights can be narrowed to its own node")
	}
	return warning("ValidatingAdmissionPolicy v1 is not served (Kubernetes 1.30): a stolen token of the agent can write to the status of every pod",
		"upgrade the cluster, and leave hooks.startupTaint.enabled and proxies.tokenAudiences off until then")
}

func mutatingPolicies(f *Facts) finding {
	if f.APIs.Mutating {
		return fine("MutatingAdmissionPolicy v1 is served: pods that ask get the readiness gate as they are created")
	}
	if d := f.ours(); d != nil {
		return warning("MutatingAdmissionPolicy v1 is not served (Kubernetes 1.36): no pod gets the readiness gate or the wait container by itself",
			"add them to the pods' templates, or rely on an early hook")
	}
	return warning("MutatingAdmissionPolicy v1 is not served (Kubernetes 1.36): the values below admission have no effect",
		"add the readiness gate to the pods' templates, or rely on an early hook")
}
