package intent

import (
	"fmt"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// proxyID is the uid and gid of Istio's proxy by default.
const proxyID = 1337

// isHelper reports whether an init container is not an application: Istio's, some of which run as the proxy, and ours. A native sidecar, which
// runs beside the application, is none, whatever its name.
func isHelper(c *corev1.Container) bool {
	return endsFirst(c) && slices.Contains([]string{istioInit, "istio-validation", "enable-core-dump", "istio-pod-network-wait"}, c.Name)
}

// istioInit is the init container of Istio that programs its pod.
const istioInit = "istio-init"

func hasIstioInit(pod *corev1.Pod) bool {
	c := findContainer(pod, istioInit)
	return c != nil && endsFirst(c)
}

// endsFirst reports whether an init container ends before the application starts.
func endsFirst(c *corev1.Container) bool {
	return c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways
}

// claim says how well an id identifies the proxy.
type claim struct {
	id uint32
	// rival is another container with the same id. If there is one, the id does not identify the proxy.
	rival rival
	// doubt says why the proxy may run with another id; "" if there is no doubt.
	doubt string
	// from is where the id comes from.
	from string
}

// claim decides about one id: the container's, else the pod's if no other container has it, else Istio's. 0 counts as not set.
func (c crew) claim(k idKind) claim {
	if c.proxy == nil {
		return c.unnamed(k)
	}
	own, pod := k.of(c.proxy.sc), c.ofPod(k)
	out := claim{id: proxyID, from: fromDefault}
	switch {
	case valid(own):
		out.id, out.from = uint32(*own), fromContext+ProxyContainer
	case own != nil:
		out.doubt = fmt.Sprintf("its %s is %d", k.field, *own)
	case valid(pod) && c.rival(k, *pod) == rival{} && !slices.ContainsFunc(c.early, func(m member) bool { return c.runsWith(m, k, *pod) }):
		out.id, out.from = uint32(*pod), fromPodContext
	case pod != nil:
		out.doubt = fmt.Sprintf("its %s is the pod's %d", k.field, *pod)
	}
	out.rival = c.rival(k, int64(out.id))
	return out
}

// unnamed decides about an id in a pod without a container of the proxy's name: the containers with Istio's id are the proxy, unless all
// containers have that id.
func (c crew) unnamed(k idKind) claim {
	out := claim{id: proxyID, from: fromDefault}
	without := crew{pod: c.pod, early: c.early, others: slices.DeleteFunc(slices.Clone(c.others), func(m member) bool { return c.runsWith(m, k, proxyID) })}
	switch {
	case len(without.others) > 0:
		out.rival = without.taker(k, proxyID)
	case len(c.others) > 1:
		out.rival = rival{name: c.others[0].name}
	}
	if len(without.others) == len(c.others) {
		out.doubt = fmt.Sprintf("it is no container's %s", k.field)
	}
	return out
}

func valid(id *int64) bool { return id != nil && *id > 0 && *id < math.MaxUint32 }

// proxyOwner returns the ids by which the rules recognise the proxy's sockets; 0 means that an id does not identify them. note says
// what may be wrong with them. If no id identifies the proxy, the error says which other containers have it.
func proxyOwner(pod *corev1.Pod) (uid, gid uint32, note string, err error) {
	c := crewOf(pod)
	u, g := c.claim(uidKind()), c.claim(gidKind())
	alone := rival{}
	switch {
	case u.rival == alone && g.rival == alone:
		if c.proxy != nil && u.doubt != "" && g.doubt != "" {
			note = fmt.Sprintf("container %s may run with other ids than uid %d and gid %d, by which the rules know the proxy (%s; %s): set its runAsUser or runAsGroup",
				ProxyContainer, u.id, g.id, u.doubt, g.doubt)
		}
		return u.id, g.id, note, nil
	case u.rival == alone && u.doubt == "":
		return u.id, 0, "", nil
	case g.rival == alone && g.doubt == "":
		return 0, g.id, "", nil
	}
	advice := fmt.Sprintf("give container %s a runAsUser or a runAsGroup that no other container has", ProxyContainer)
	if field := g.rival.field; field != "" {
		advice = fmt.Sprintf("choose another group for %s, or set allowPrivilegeEscalation to false in all containers but the proxy's", field)
	}
	return 0, 0, "", fmt.Errorf("the proxy cannot be distinguished from the application: %s, and %s; %s", u.explain(uidKind()), g.explain(gidKind()), advice)
}

func (c claim) explain(k idKind) string {
	switch {
	case c.rival.field != "":
		return fmt.Sprintf("the pod's %s gives %s %d to container %s, too, which can act as it by a set-gid program", c.rival.field, k.name, c.id, shown(c.rival.name))
	case c.rival.name != "":
		return fmt.Sprintf("%s %d is also that of container %s", k.name, c.id, shown(c.rival.name))
	}
	return fmt.Sprintf("%s %d may not be the proxy's (%s)", k.name, c.id, c.doubt)
}
