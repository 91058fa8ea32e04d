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

// idKind is one of the two ids by which the kernel knows a socket's owner. Supplemental groups and fsGroup do not matter: the
// kernel compares the primary group of the process that creates the socket, which comes from runAsGroup.
type idKind struct {
	name, field string
	own         func(*corev1.SecurityContext) *int64
	pod         func(*corev1.PodSecurityContext) *int64
}

func uidKind() idKind {
	return idKind{
		name: "uid", field: "runAsUser",
		own: func(s *corev1.SecurityContext) *int64 { return s.RunAsUser },
		pod: func(s *corev1.PodSecurityContext) *int64 { return s.RunAsUser },
	}
}

func gidKind() idKind {
	return idKind{
		name: "gid", field: "runAsGroup",
		own: func(s *corev1.SecurityContext) *int64 { return s.RunAsGroup },
		pod: func(s *corev1.PodSecurityContext) *int64 { return s.RunAsGroup },
	}
}

// member is a container with its ids.
type member struct {
	name string
	sc   *corev1.SecurityContext
}

// crew is the containers of a pod: the proxy, and all others, which must not be taken for it.
type crew struct {
	pod    *corev1.PodSecurityContext
	proxy  *member // nil if no container has the proxy's name
	others []member
}

func crewOf(pod *corev1.Pod) crew {
	c := crew{pod: pod.Spec.SecurityContext}
	if p := findContainer(pod, ProxyContainer); p != nil {
		c.proxy = &member{p.Name, p.SecurityContext}
	}
	other := func(name string, sc *corev1.SecurityContext) {
		if name != ProxyContainer {
			c.others = append(c.others, member{name, sc})
		}
	}
	for i := range pod.Spec.InitContainers {
		if s := &pod.Spec.InitContainers[i]; !isHelper(s) {
			other(s.Name, s.SecurityContext)
		}
	}
	for i := range pod.Spec.Containers {
		other(pod.Spec.Containers[i].Name, pod.Spec.Containers[i].SecurityContext)
	}
	for i := range pod.Spec.EphemeralContainers {
		other(pod.Spec.EphemeralContainers[i].Name, pod.Spec.EphemeralContainers[i].SecurityContext)
	}
	return c
}

func (c crew) ofPod(k idKind) *int64 {
	if c.pod == nil {
		return nil
	}
	return k.pod(c.pod)
}

func (k idKind) of(sc *corev1.SecurityContext) *int64 {
	if sc == nil {
		return nil
	}
	return k.own(sc)
}

// holder returns the name of a container other than the proxy that runs with an id, set for the container or else for the pod; "" if there
// is none. Ids that an image sets are not known here.
func (c crew) holder(k idKind, id int64) string {
	for _, m := range c.others {
		have := k.of(m.sc)
		if have == nil {
			have = c.ofPod(k)
		}
		if have != nil && *have == id {
			return m.name
		}
	}
	return ""
}

// claim says how well an id identifies the proxy.
type claim struct {
	id uint32
	// holder is another container with the same id. If there is one, the id does not identify the proxy.
	holder string
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
	case valid(pod) && c.holder(k, *pod) == "":
		out.id, out.from = uint32(*pod), fromPodContext
	case pod != nil:
		out.doubt = fmt.Sprintf("its %s is the pod's %d", k.field, *pod)
	}
	out.holder = c.holder(k, int64(out.id))
	return out
}

// unnamed decides about an id in a pod without a container of the proxy's name: the container with Istio's id is the proxy, unless all
// containers have that id.
func (c crew) unnamed(k idKind) claim {
	out := claim{id: proxyID, from: fromDefault}
	for i := range c.others {
		alone := crew{pod: c.pod, others: c.others[i : i+1]}
		if alone.holder(k, proxyID) == "" {
			return out
		}
	}
	if len(c.others) > 1 {
		out.holder = c.others[0].name
	}
	return out
}

func valid(id *int64) bool { return id != nil && *id > 0 && *id < math.MaxUint32 }

// proxyOwner returns the ids by which the rules recognise the proxy's sockets; 0 means that an id does not identify them. note says
// what may be wrong with them. If no id identifies the proxy, the error says which other containers have it.
func proxyOwner(pod *corev1.Pod) (uid, gid uint32, note string, err error) {
	c := crewOf(pod)
	u, g := c.claim(uidKind()), c.claim(gidKind())
	switch {
	case u.holder == "" && g.holder == "":
		if u.doubt != "" && g.doubt != "" {
			note = fmt.Sprintf("container %s may run with other ids than uid %d and gid %d, by which the rules know the proxy (%s; %s): set its runAsUser or runAsGroup",
				ProxyContainer, u.id, g.id, u.doubt, g.doubt)
		}
		return u.id, g.id, note, nil
	case u.holder == "" && u.doubt == "":
		return u.id, 0, "", nil
	case g.holder == "" && g.doubt == "":
		return 0, g.id, "", nil
	}
	return 0, 0, "", fmt.Errorf("the proxy cannot be distinguished from the application: %s, and %s; give container %s a runAsUser or a runAsGroup that no other container has",
		u.explain(uidKind()), g.explain(gidKind()), ProxyContainer)
}

func (c claim) explain(k idKind) string {
	if c.holder != "" {
		return fmt.Sprintf("%s %d is also that of container %s", k.name, c.id, shown(c.holder))
	}
	return fmt.Sprintf("%s %d may not be the proxy's (%s)", k.name, c.id, c.doubt)
}
