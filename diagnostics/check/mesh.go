package check

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/printable"
)

func istioInit(f *Facts) finding {
	with := names(f.Pods, func(p Pod) bool { return p.IstioInit && p.Running })
	if len(with) == 0 {
		return fine("no pod programs its own rules by istio-init")
	}
	return warning(fmt.Sprintf("%s with rules of istio-init, which the agent leaves alone: %s", printable.Count(len(with), "pod"), some(with)),
		"install Istio with pilot.cni.enabled=true, then re-create these pods (kubectl rollout restart)")
}

func injector(f *Facts) finding {
	object := func(r Revision) string { return r.what("ConfigMap istio-sidecar-injector") }
	known := listed(f.Istio.Revisions, func(r Revision) bool { return r.CNI != nil }, object)
	adds := listed(f.Istio.Revisions, func(r Revision) bool { return r.CNI != nil && !*r.CNI }, object)
	switch {
	case len(f.Istio.Revisions) == 0 && f.has(sourceRevisions):
		return fine("no Istio in namespace istio-system")
	case len(known) == 0:
		return finding{}
	case len(adds) > 0:
		return warning("Istio's injector adds istio-init to every pod: pilot.cni.enabled is false in "+some(adds), "install istiod with pilot.cni.enabled=true before you move pods to the agent")
	}
	for i := range f.DaemonSets {
		d := &f.DaemonSets[i]
		if _, byHelm := d.Annotations["meta.helm.sh/release-name"]; runs(d, "install-cni") && !byHelm {
			return warning(fmt.Sprintf("istio-cni (%s) was not installed by Helm: istioctl sets pilot.cni.enabled to what components.cni.enabled is, and the injector adds istio-init again once istio-cni is gone", named(d)),
				"set unvalidatedValues.pilot.cni.enabled=true with components.cni.enabled=false, and look at ConfigMap istio-sidecar-injector (docs/migrate-istio-cni.md)")
		}
	}
	return fine("Istio's injector leaves the rules to others (pilot.cni.enabled)")
}

// what names an object of a revision.
func (r Revision) what(object string) string {
	if r.Name == "" {
		return object
	}
	return object + "-" + r.Name
}

// istioPods names the pods that Istio programs now and the agent would refuse.
func istioPods(f *Facts) finding {
	refused := listed(f.Pods, func(p Pod) bool { return p.Fails != "" }, func(p Pod) string { return p.String() + ": " + p.Fails })
	istios := len(names(f.Pods, func(p Pod) bool { return p.Istios }))
	switch {
	case len(refused) > 0:
		return warning(printable.Count(len(refused), "pod")+" that Istio programs would fail with the agent's rules: "+some(refused),
			"change them before you re-create them without istio-init or istio-cni; docs/redirection.md says who the proxy is")
	case istios == 0:
		return finding{}
	}
	return fine(printable.Count(istios, "pod") + " that Istio programs can have the agent's rules")
}

// initContainers names the pods whose init containers are redirected before the proxy listens: istio-init, which runs last, leaves them in peace.
func initContainers(f *Facts) finding {
	meet := listed(f.Pods, func(p Pod) bool { return len(p.MeetNoProxy) > 0 }, func(p Pod) string { return fmt.Sprintf("%s (%s)", p, some(p.MeetNoProxy)) })
	if len(meet) == 0 {
		return fine("no init container is redirected before its proxy listens")
	}
	return warning("init containers that run before the proxy listens, and whose redirected connections are refused: "+some(meet),
		"have Istio inject native sidecars and list these containers behind, or give them the proxy's runAsUser (docs/redirection.md, who is the proxy)")
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
	for i := range f.DaemonSets {
		d := &f.DaemonSets[i]
		for _, p := range projects() {
			matters := !p.chain || f.flag("cni") == "install"
			if !isOurs(d) && matters && runs(d, p.image) {
				found = append(found, fmt.Sprintf("%s (%s)", p.name, named(d)))
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
func runs(d *appsv1.DaemonSet, image string) bool {
	spec := d.Spec.Template.Spec
	return slices.ContainsFunc(slices.Concat(spec.InitContainers, spec.Containers), func(c corev1.Container) bool {
		ref := c.Image[strings.LastIndex(c.Image, "/")+1:]
		name, _, _ := strings.Cut(ref, "@")
		name, _, _ = strings.Cut(name, ":")
		return name == image || strings.HasPrefix(name, image+"-")
	})
}

// meshPorts compares the ports of each of Istio's revisions with the ports to which the rules of its own pods lead: a pod may name others than
// the agents' flags. A revision without such pods is compared with the flags, for pods to come.
func meshPorts(f *Facts) finding {
	if len(f.Istio.Revisions) == 0 {
		return finding{}
	}
	var refused, later []string
	for _, r := range f.Istio.Revisions {
		for _, port := range []meshPort{
			{r.OutboundPort, "proxyListenPort", "envoy-port", defaultOutbound, func(p Pod) uint16 { return p.OutboundPort }},
			{r.InboundPort, "proxyInboundListenPort", "envoy-inbound-port", defaultInbound, func(p Pod) uint16 { return p.InboundPort }},
		} {
			now, then := port.wrong(f, r.Name)
			says := fmt.Sprintf("meshConfig.%s is %d (%s), ", port.says, port.mesh, r.what("ConfigMap istio"))
			if len(now) > 0 {
				refused = append(refused, says+some(now))
			}
			if len(then) > 0 {
				later = append(later, says+some(then))
			}
		}
	}
	const do = "set the chart's redirection.defaults.envoyPort and .envoyInboundPort to the mesh's ports; pods of another revision name theirs by annotation (docs/reference/annotations.md)"
	switch {
	case len(refused) > 0:
		return failing("proxies listen elsewhere than the agents redirect to: "+some(append(refused, later...)), do)
	case len(later) > 0:
		return warning("proxies listen elsewhere than agents would redirect to: "+some(later), do)
	}
	return fine("the mesh's ports are the agents'")
}

// meshPort is a port on which the proxies of a revision listen.
type meshPort struct {
	mesh       int // 0 if the revision does not say
	says, flag string
	usual      int // the flag's default
	of         func(Pod) uint16
}

// wrong says which rules lead elsewhere now, and which would: those for pods that Istio programs, or that do not exist yet.
func (m meshPort) wrong(f *Facts, revision string) (now, then []string) {
	if m.mesh == 0 {
		return nil, nil
	}
	known := false
	for _, p := range f.Pods {
		port := int(m.of(p))
		if !p.Injected || p.Revision != revision || port == 0 {
			continue
		}
		known = true
		rules := fmt.Sprintf("the rules of %s lead to %d", p, port)
		switch {
		case port == m.mesh:
		case p.Redirect && f.ours() != nil:
			now = append(now, rules)
		default:
			then = append(then, rules)
		}
	}
	if known {
		return now, then
	}
	have, err := strconv.Atoi(f.flag(m.flag))
	if err != nil {
		have = m.usual
	}
	if have != m.mesh {
		then = append(then, fmt.Sprintf("the agents' --%s %d", m.flag, have))
	}
	return nil, then
}

func dualStack(f *Facts) finding {
	without := names(f.Pods, func(p Pod) bool {
		return (p.Redirect || p.Istios) && p.Injected && p.Families > 1 && !p.DualStackProxy && p.Running
	})
	switch {
	case len(without) == 0:
		return fine("no redirected pod has IPv6 without a proxy that listens there")
	case f.flag("ipv6") == "direct":
		return warning("IPv6 of these pods bypasses the mesh (--ipv6 direct), as their proxies have no dual stack: "+some(without), "set ISTIO_DUAL_STACK on istiod, and redirection.defaults.ipv6=capture")
	}
	return warning("Istio gives these proxies no IPv6 listeners, so captured IPv6 connections are refused: "+some(without), "set ISTIO_DUAL_STACK on istiod, or redirection.defaults.ipv6=direct to leave IPv6 alone")
}

// istioProbes names the probes of pods with Istio's proxy outside of their specs that no policy has led to pilot-agent.
func istioProbes(f *Facts) finding {
	outside := func(p Pod) bool { return f.Profiles[p.Profile].Istio != nil }
	refused := listed(f.Pods, func(p Pod) bool { return outside(p) && len(p.Refused) > 0 }, func(p Pod) string { return fmt.Sprintf("%s (%s)", p, some(p.Refused)) })
	switch {
	case len(refused) > 0:
		return warning("mTLS mode STRICT refuses probes of pods whose Istio proxy is outside of their specs: "+some(refused),
			"make them anew where the chart's policy is (admission.rewriteProbes, Kubernetes 1.36), or use exec (docs/istio-outside-the-pod.md, Probes)")
	case len(names(f.Pods, outside)) == 0:
		return finding{}
	}
	return fine("probes of pods with Istio's proxy outside of their specs go to pilot-agent")
}

func nodeUntaint(f *Facts) finding {
	key := cmp.Or(f.Istio.Taint, "cni.istio.io/not-ready")
	wearing := nodeNames(f, func(n *corev1.Node) bool { return tainted(n, key) })
	do := "register nodes without " + key + "; hooks.startupTaint.enabled with " + startupTaintKey + " takes its place"
	switch {
	case len(wearing) > 0:
		return warning("nodes wear Istio's taint "+key+", which only istio-cni's readiness ends: "+some(wearing), do)
	case f.Istio.Untaint:
		return warning("istiod's controller of node taints is on: it waits for istio-cni's pods", do)
	}
	return finding{}
}
