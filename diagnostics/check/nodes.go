package check

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"

	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/printable"
)

// Versions that matter.
const (
	oldestKernel     = "5.4"  // nftables with NAT in the inet family, and all that we use of it
	cookieKernel     = "5.14" // namespaces have cookies
	oldestContainerd = "1.7"  // has NRI
	nriContainerd    = "2.0"  // has it on
	oldestCRIO       = "1.26"
	nriCRIO          = "1.30"
)

func (n Node) linux() bool { return n.OS == "" || n.OS == "linux" }

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
			"switch NRI on ([plugins.\"io.containerd.nri.v1.nri\"] disable = false) or set cni=install; containerd 2.0 has it on")
	case "cri-o":
		return nriAdvice("CRI-O", v, oldestCRIO, nriCRIO, "set enable_nri = true in [crio.nri] or set cni=install; CRI-O 1.30 has it on")
	case "docker":
		return "Docker has no NRI", "set containerRuntime=docker, and cni=install with cri-dockerd for rules before a pod's first container"
	}
	return fmt.Sprintf("the container runtime %q is not known", runtime), "use containerd or CRI-O, or see docs/install.md for Docker"
}

func nriAdvice(name, v, oldest, on, switchOn string) (lacks, do string) {
	switch {
	case older(v, oldest):
		return name + " " + v + " has no NRI", "upgrade it, or set cni=install"
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
	for _, n := range f.Nodes {
		if !n.linux() {
			continue
		}
		all = append(all, strings.Replace(n.Runtime, "://", " ", 1))
		if lacks, do := runtimeAdvice(n.Runtime); lacks != "" && !connected(f.agentOn(n.Name)) {
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
	has := func(n Node) string { return n.Name + " has " + n.Kernel }
	tooOld := listed(f.Nodes, func(n Node) bool { return n.linux() && older(n.Kernel, oldestKernel) }, has)
	withoutCookie := listed(f.Nodes, func(n Node) bool { return n.linux() && !older(n.Kernel, oldestKernel) && older(n.Kernel, cookieKernel) }, has)
	all := listed(f.Nodes, Node.linux, func(n Node) string { return n.Kernel })
	switch {
	case len(tooOld) > 0 && f.flag("backend") != "iptables":
		return failing("kernels before "+oldestKernel+" do not take the rules of the nftables backend: "+some(tooOld), "set backend=iptables, or upgrade these nodes")
	case len(withoutCookie) > 0:
		return fine("Linux " + some(all) + "; before " + cookieKernel + " the agent verifies each pod in full, which costs CPU: " + some(withoutCookie))
	}
	return fine("Linux " + some(all))
}

// special are systems on which something differs, by a part of Node.status.nodeInfo.osImage, and what to do there.
func special() map[string]string {
	return map[string]string{
		"Bottlerocket":           "platform=bottlerocket; whether NRI is on follows the variant",
		"Talos":                  "platform=talos; before 1.14 NRI is off: switch it on in the machine configuration, or set cni=install",
		"CoreOS":                 "platform=openshift, or seLinuxOptions.type=spc_t: SELinux enforces",
		"Container-Optimized OS": "platform=gke: CNI plugins are in /home/kubernetes/bin",
	}
}

func operatingSystem(f *Facts) finding {
	windows := names(f.Nodes, func(n Node) bool { return !n.linux() })
	var found []string
	for name, do := range special() {
		if slices.ContainsFunc(f.Nodes, func(n Node) bool { return strings.Contains(n.OSImage, name) }) {
			found = append(found, name+": "+do)
		}
	}
	switch {
	case len(found) > 0 && f.ours() == nil:
		return warning("nodes run systems that need a look at the chart's values: "+some(found), "set the chart's values for them (docs/support-matrix.md)")
	case len(windows) > 0:
		return fine(printable.Count(len(windows), "Windows node") + " get no agent, and their pods no rules: " + some(windows))
	}
	return fine("no node with a system that needs values of its own")
}
