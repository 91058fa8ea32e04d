package check

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"istio-pod-network-controller/internal/printable"
)

func istioInit(f *Facts) finding {
	var with []string
	for _, p := range f.Pods {
		if p.IstioInit && p.Running {
			with = append(with, p.Namespace+"/"+p.Name)
		}
	}
	if len(with) == 0 {
		return fine("no pod programs its own rules by istio-init")
	}
	return warning(fmt.Sprintf("%s program their own rules by istio-init, and the agent leaves them alone: %s", printable.Count(len(with), "pod"), some(with)),
		"install Istio with pilot.cni.enabled=true, then re-create these pods (kubectl rollout restart)")
}

func injector(f *Facts) finding {
	switch {
	case !f.Istio.Found:
		return fine("no Istio in namespace istio-system")
	case f.Istio.CNI == nil:
		return finding{}
	case *f.Istio.CNI:
		return fine("Istio's injector leaves the rules to others (pilot.cni.enabled)")
	}
	return warning("Istio's injector adds istio-init to every pod: pilot.cni.enabled is false", "install istiod with pilot.cni.enabled=true before you move pods to the agent")
}

// project is another one whose node agent programs pods or chains a CNI plugin.
type project struct {
	image, name, do string
	chain           bool // it matters only if the agent's plugin is in the CNI chain
}

func projects() []project {
	const apart = "keep both meshes' pods apart: a pod with rules of both loses traffic"
	return []project{
		{image: "install-cni", name: "Istio's CNI plugin", do: "redirect with one of both: keep it for ambient mode only, or move over and remove it"},
		{image: "linkerd-cni", name: "linkerd's CNI plugin", do: apart},
		{image: "cni-plugin", name: "linkerd's CNI plugin", do: apart},
		{image: "kuma-cni", name: "Kuma's CNI plugin", do: apart},
		{image: "consul-k8s-control-plane", name: "Consul's CNI plugin", do: apart},
		{image: "multus", name: "Multus", do: "its own file comes first: read docs/cni.md", chain: true},
		{image: "cilium", name: "Cilium", do: "set cni.exclusive=false, or Cilium removes every other entry", chain: true},
	}
}

func otherProjects(f *Facts) finding {
	var found, dos []string
	ours := f.ours()
	for _, d := range f.DaemonSets {
		for _, p := range projects() {
			matters := !p.chain || ours != nil && ours.Args["cni"] == "install"
			if !d.Ours && matters && d.runs(p.image) {
				found = append(found, fmt.Sprintf("%s (%s/%s)", p.name, d.Namespace, d.Name))
				dos = append(dos, p.name+": "+p.do)
			}
		}
	}
	if len(found) == 0 {
		return fine("no other project that programs pods or chains a CNI plugin is known here")
	}
	return warning("beside the agent: "+some(found), some(dos))
}

// runs reports whether one of the DaemonSet's images has a name, whatever its registry and tag are.
func (d DaemonSet) runs(image string) bool {
	return slices.ContainsFunc(d.Images, func(ref string) bool {
		ref = ref[strings.LastIndex(ref, "/")+1:]
		name, _, _ := strings.Cut(ref, "@")
		name, _, _ = strings.Cut(name, ":")
		return name == image || strings.HasPrefix(name, image+"-")
	})
}

func meshPorts(f *Facts) finding {
	d := f.ours()
	if d == nil || !f.Istio.Found {
		return finding{}
	}
	var wrong []string
	for _, port := range []struct {
		mesh       int
		flag, says string
		usual      int
	}{
		{f.Istio.OutboundPort, "envoy-port", "proxyListenPort", 15001},
		{f.Istio.InboundPort, "envoy-inbound-port", "proxyInboundListenPort", 15006},
	} {
		have, err := strconv.Atoi(d.Args[port.flag])
		if err != nil {
			have = port.usual
		}
		if port.mesh != 0 && port.mesh != have {
			wrong = append(wrong, fmt.Sprintf("meshConfig.%s is %d, the agents' --%s %d", port.says, port.mesh, port.flag, have))
		}
	}
	if len(wrong) > 0 {
		return failing("proxies listen elsewhere than the agents redirect to: "+some(wrong), "set the chart's envoyPort and envoyInboundPort to the mesh's ports")
	}
	return fine("the mesh's ports are the agents'")
}

func dualStack(f *Facts) finding {
	var without []string
	for _, p := range f.Pods {
		if p.Redirect && p.Injected && p.Families > 1 && !p.DualStackProxy && p.Running {
			without = append(without, p.Namespace+"/"+p.Name)
		}
	}
	direct := false
	if d := f.ours(); d != nil {
		direct = d.Args["ipv6"] == "direct"
	}
	switch {
	case len(without) == 0:
		return fine("no redirected pod has IPv6 without a proxy that listens there")
	case direct:
		return warning("IPv6 of these pods bypasses the mesh (--ipv6 direct), as their proxies have no dual stack: "+some(without), "set ISTIO_DUAL_STACK on istiod, and ipv6=capture")
	}
	return warning("Istio gives these proxies no IPv6 listeners, so captured IPv6 connections are refused: "+some(without), "set ISTIO_DUAL_STACK on istiod, or ipv6=direct to leave IPv6 alone")
}

func nodeUntaint(f *Facts) finding {
	const key = "cni.istio.io/not-ready"
	var tainted []string
	for _, n := range f.Nodes {
		if n.tainted(key) {
			tainted = append(tainted, n.Name)
		}
	}
	do := "register nodes without " + key + "; startupTaint with " + startupTaintKey + " takes its place"
	switch {
	case len(tainted) > 0:
		return warning("nodes wear Istio's taint "+key+", which only istio-cni's readiness ends: "+some(tainted), do)
	case f.Istio.Untaint:
		return warning("istiod's controller of node taints is on: it waits for istio-cni's pods", do)
	}
	return finding{}
}
