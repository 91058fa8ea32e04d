package check

import "strings"

// NodeFacts is what a look at one node, as root, shows.
type NodeFacts struct {
	Kernel    string
	Nftables  error // why the kernel does not take the agent's rules, or nil
	TProxy    error // the same for pods with interception mode TPROXY
	NRISocket string
	NRI       error  // why nobody can be asked at the socket, or nil
	CNIDir    string // as this process sees it
	Left      Left   // of ours
}

// RunNode asks the checks for a node.
func RunNode(f *NodeFacts) (out []Result) {
	for _, c := range []struct {
		name  string
		found finding
	}{
		{"node-kernel", nodeKernel(f)}, {"node-tproxy", nodeTProxy(f)}, {"node-nri", nodeNRI(f)}, {"node-leftovers", nodeLeftovers(f)},
	} {
		if c.found.level != "" {
			out = append(out, newResult("this node", c.name, c.found))
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

func nodeNRI(f *NodeFacts) finding {
	if f.NRI != nil {
		return warning("NRI is not offered: "+f.NRI.Error(), "switch it on in the container runtime (docs/support-matrix.md), or set cni=install; without both, pods get their rules a moment after their start")
	}
	return fine("the runtime listens for NRI plugins at " + f.NRISocket)
}

func nodeLeftovers(f *NodeFacts) finding {
	l := f.Left
	found := strings.Join(l.all(), "; ")
	switch {
	case len(l.Entries) > 0 && !l.Agent:
		return failing("no agent runs here, so no pod starts, unless cniFailOpen was set: the node has of one: "+found,
			"istio-pod-network-controller cni uninstall --cni-conf-dir "+f.CNIDir+"; docs/removal.md says how the rest is removed")
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
