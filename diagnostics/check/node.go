package check

import (
	"fmt"
	"slices"
	"strings"
)

// NodeFacts is what a look at one node, as root, shows.
type NodeFacts struct {
	Kernel    string
	Nftables  error // why the kernel does not take the agent's rules, or nil
	TProxy    error // the same for pods with interception mode TPROXY
	Sockets   []string
	NRISocket string
	NRI       error // why nobody can be asked at the socket, or nil
	CNIDir    string
	CNI       []Chain // in the order in which runtimes read them
	CNIFault  error
	Left      Left // of ours
}

// Chain is one file of the CNI configuration.
type Chain struct {
	File    string
	Plugins []string // types
	Fault   string
}

// nodeCheck is one question about a node.
type nodeCheck struct {
	name string
	ask  func(*NodeFacts) finding
}

func nodeChecks() []nodeCheck {
	return []nodeCheck{
		{"node-kernel", nodeKernel},
		{"node-tproxy", nodeTProxy},
		{"node-runtime-socket", nodeRuntime},
		{"node-nri", nodeNRI},
		{"node-cni", nodeCNI},
		{"node-leftovers", nodeLeftovers},
	}
}

// RunNode asks the checks for a node.
func RunNode(f *NodeFacts) []Result {
	var out []Result
	for _, c := range nodeChecks() {
		if found := c.ask(f); found.level != "" {
			out = append(out, newResult("this node", c.name, found))
		}
	}
	return out
}

func nodeKernel(f *NodeFacts) finding {
	switch {
	case f.Nftables != nil:
		return failing("Linux "+f.Kernel+": "+f.Nftables.Error(), "load the modules nf_tables, nft_chain_nat and nft_redir (modprobe), or set backend=iptables")
	case older(f.Kernel, cookieKernel):
		return fine("Linux " + f.Kernel + " takes the agent's rules by nftables; before " + cookieKernel + " the agent verifies each pod in full, which costs CPU")
	}
	return fine("Linux " + f.Kernel + " takes the agent's rules by nftables")
}

func nodeTProxy(f *NodeFacts) finding {
	switch {
	case f.Nftables != nil:
		return finding{}
	case f.TProxy != nil:
		return warning("the kernel does not take the rules of pods with interception mode TPROXY: "+f.TProxy.Error(), "load the modules nft_tproxy and nft_socket (modprobe), or use REDIRECT")
	}
	return fine("the kernel takes the rules of pods with interception mode TPROXY")
}

func nodeRuntime(f *NodeFacts) finding {
	if len(f.Sockets) == 0 {
		return failing("no socket of containerd, CRI-O or Docker at its usual path", "set platform for the paths of a distribution, or runtimeEndpoint")
	}
	if len(f.Sockets) > 1 {
		return warning("there are sockets of several runtimes: "+strings.Join(f.Sockets, ", "), "set containerRuntime to the kubelet's")
	}
	return fine("the container runtime's socket is " + f.Sockets[0])
}

func nodeNRI(f *NodeFacts) finding {
	if f.NRI != nil {
		return warning("NRI is not offered: "+f.NRI.Error(), "switch it on in the container runtime (docs/support-matrix.md), or set cni=install; without both, pods get their rules a moment after their start")
	}
	return fine("the runtime listens for NRI plugins at " + f.NRISocket)
}

// ourPlugin is the type of the agent's entry in a chain.
const ourPlugin = "istio-pod-network-cni"

func nodeCNI(f *NodeFacts) finding {
	if f.CNIFault != nil {
		return warning("the CNI configuration cannot be read: "+f.CNIFault.Error(), "set cniConfDir to the runtime's directory if you want cni=install")
	}
	var found, faults, ours []string
	for _, c := range f.CNI {
		if c.Fault != "" {
			faults = append(faults, c.File+": "+c.Fault)
			continue
		}
		found = append(found, c.File+" ("+strings.Join(c.Plugins, " > ")+")")
		if slices.Contains(c.Plugins, ourPlugin) {
			ours = append(ours, c.File)
		}
	}
	switch {
	case len(faults) > 0:
		return warning("files of the CNI configuration are not valid: "+some(faults), "mend or remove them")
	case len(found) == 0:
		return warning(f.CNIDir+" has no network configuration", "install a network first, or set cniConfDir to the runtime's directory")
	case len(ours) > 0:
		return warning("the agent's plugin is in the chain of "+some(ours)+": pods start only while an agent runs here", "if no agent is installed: istio-pod-network-controller cni uninstall")
	}
	return fine(fmt.Sprintf("the CNI configuration: %s", strings.Join(found, ", ")))
}

func nodeLeftovers(f *NodeFacts) finding {
	l := f.Left
	found := strings.Join(l.all(), "; ")
	switch {
	case len(l.Faults) > 0:
		return warning("what the node has of the agent's cannot be looked at: "+some(l.Faults), "run it as root on the node, or with --root in a privileged container")
	case found == "":
		return fine("the node has nothing of the agent's")
	case l.Agent:
		return fine("an agent runs here, and the node has of it: " + found)
	case len(l.Pods) > 0:
		return warning("no agent runs here, and the node has of one: "+found,
			"re-create the pods, whose rules and proxies nobody looks after; docs/removal.md says how the rest is removed")
	}
	return warning("no agent runs here, and the node has of one: "+found, "docs/removal.md says why, and how it is removed; directories in /run go with the node's next start")
}
