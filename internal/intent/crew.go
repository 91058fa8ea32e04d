package intent

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/iptables"
)

// idKind is one of the two ids by which the kernel knows a socket's owner: the user and the primary group of the process that creates it.
type idKind struct {
	name, field string
	own         func(*corev1.SecurityContext) *int64
	pod         func(*corev1.PodSecurityContext) *int64
	// also returns the field by which a pod gives an id to all containers in addition to their own, or "".
	also func(sc *corev1.PodSecurityContext, id int64) string
	seen func(*corev1.LinuxContainerUser) int64
}

func uidKind() idKind {
	return idKind{
		name: "uid", field: "runAsUser",
		own: func(s *corev1.SecurityContext) *int64 { return s.RunAsUser },
		pod: func(s *corev1.PodSecurityContext) *int64 { return s.RunAsUser },
		// Nothing gives a container a second user: only that user or root can make a program that runs as it.
		also: func(*corev1.PodSecurityContext, int64) string { return "" },
		seen: func(u *corev1.LinuxContainerUser) int64 { return u.UID },
	}
}

func gidKind() idKind {
	return idKind{
		name: "gid", field: "runAsGroup",
		own: func(s *corev1.SecurityContext) *int64 { return s.RunAsGroup },
		pod: func(s *corev1.PodSecurityContext) *int64 { return s.RunAsGroup },
		also: func(s *corev1.PodSecurityContext, id int64) string {
			switch {
			case s.FSGroup != nil && *s.FSGroup == id:
				return "fsGroup"
			case slices.Contains(s.SupplementalGroups, id):
				return "supplementalGroups"
			}
			return ""
		},
		seen: func(u *corev1.LinuxContainerUser) int64 { return u.GID },
	}
}

// member is a container with its ids.
type member struct {
	name string
	sc   *corev1.SecurityContext
	// seen has the ids that its first process was given, as the runtime says and the kubelet shows; nil where nobody says so (yet).
	seen *corev1.LinuxContainerUser
}

// seenAs returns what the runtime says of a container's ids, or nil. Statuses are the kubelet's: a pod's owner cannot write them.
func seenAs(name string, statuses []corev1.ContainerStatus) *corev1.LinuxContainerUser {
	for i := range statuses {
		if s := &statuses[i]; s.Name == name && s.User != nil {
			return s.User.Linux
		}
	}
	return nil
}

// gainsGroups reports whether processes of a container can make a group that they belong to their primary one: a member of a group may make a
// program set-gid to it, and executing that program changes the group, unless the container has no_new_privs.
func (m member) gainsGroups() bool {
	return m.sc == nil || m.sc.AllowPrivilegeEscalation == nil || *m.sc.AllowPrivilegeEscalation
}

// startsAs returns the id of a container's first process, or -1 where nobody says it (yet).
func (m member) startsAs(k idKind) int64 {
	if m.seen == nil {
		return -1
	}
	return k.seen(m.seen)
}

// startsAsRoot reports whether a container's first process is root: it can become any user.
func (m member) startsAsRoot() bool { return m.seen != nil && m.seen.UID == 0 }

// crew is the containers of a pod: the proxy, and all others, which must not be taken for it. Ephemeral containers are not among them: who may
// add one to a running pod must not take it out of its Services, and nobody can remove it again.
type crew struct {
	pod    *corev1.PodSecurityContext
	proxy  *member // nil if no container has the proxy's name
	others []member
	// early are init containers of the application. They end before it starts, so they may have the proxy's ids: Istio documents that way for
	// init containers that need the network before the proxy listens.
	early []member
}

func crewOf(pod *corev1.Pod) crew {
	c := crew{pod: pod.Spec.SecurityContext}
	if p := findContainer(pod, ProxyContainer); p != nil {
		c.proxy = new(memberOf(pod, p))
	}
	other := func(container *corev1.Container) {
		if container.Name != ProxyContainer {
			c.others = append(c.others, memberOf(pod, container))
		}
	}
	for i := range pod.Spec.InitContainers {
		switch s := &pod.Spec.InitContainers[i]; {
		case !endsFirst(s):
			other(s)
		case !isHelper(s) && s.Name != ProxyContainer:
			c.early = append(c.early, memberOf(pod, s))
		}
	}
	for i := range pod.Spec.Containers {
		other(&pod.Spec.Containers[i])
	}
	return c
}

// memberOf returns an init container or a regular one with its ids. Their names differ.
func memberOf(pod *corev1.Pod, c *corev1.Container) member {
	seen := seenAs(c.Name, pod.Status.InitContainerStatuses)
	return member{c.Name, c.SecurityContext, cmp.Or(seen, seenAs(c.Name, pod.Status.ContainerStatuses))}
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

// runsWith reports whether a container runs with an id, set for the container or else for the pod. Ids that an image sets are known once the
// container has been created.
func (c crew) runsWith(m member, k idKind, id int64) bool {
	have := k.of(m.sc)
	if have == nil {
		have = c.ofPod(k)
	}
	if have == nil && m.seen != nil {
		return k.seen(m.seen) == id
	}
	return have != nil && *have == id
}

// rival is a container other than the proxy whose sockets may have an id.
type rival struct {
	name string
	// field is the pod's field that gives the container the group, or byImage; "" if the container runs with the id.
	field string
}

// rival returns a container beside the proxy that runs with an id, or else a taker of it. The zero rival means none.
func (c crew) rival(k idKind, id int64) rival {
	for _, m := range c.others {
		if c.runsWith(m, k, id) {
			return rival{name: m.name}
		}
	}
	return c.taker(k, id)
}

// asProxy returns a note about the init containers that run with one of the proxy's ids, or "".
func (c crew) asProxy(uid, gid uint32) string {
	var first string
	all := 0
	for _, m := range c.early {
		if id := c.proxysID(m, uid, gid); id != "" {
			first = cmp.Or(first, fmt.Sprintf("init container %s runs as the proxy (%s): its connections are not redirected", shown(m.name), id))
			all++
		}
	}
	if all > 1 {
		return fmt.Sprintf("%s, nor those of %d more", first, all-1)
	}
	return first
}

// proxysID returns which of the proxy's ids a container runs with, in words, or "". An id of 0 does not identify the proxy.
func (c crew) proxysID(m member, uid, gid uint32) string {
	switch {
	case uid != 0 && c.runsWith(m, uidKind(), int64(uid)):
		return fmt.Sprintf("uid %d", uid)
	case gid != 0 && c.runsWith(m, gidKind(), int64(gid)):
		return fmt.Sprintf("gid %d", gid)
	}
	return ""
}

// BeforeProxy returns the containers that run before the proxy listens and whose connections are redirected all the same: init containers, native
// sidecars among them, that stand before a proxy that is a native sidecar, or all of them before another one, and that do not run with its ids.
func BeforeProxy(pod *corev1.Pod, s iptables.Spec) (names []string) {
	c := crewOf(pod)
	for i := range pod.Spec.InitContainers {
		init := &pod.Spec.InitContainers[i]
		if init.Name == ProxyContainer {
			break
		}
		if !isHelper(init) && c.proxysID(memberOf(pod, init), s.ProxyUID, s.ProxyGID) == "" {
			names = append(names, init.Name)
		}
	}
	return names
}

// IsProxyCreated reports whether the runtime says that the proxy's container was made. If no container has its name, any regular one counts: all init
// containers have ended before it.
func IsProxyCreated(pod *corev1.Pod) bool {
	if findContainer(pod, ProxyContainer) != nil {
		return seenAs(ProxyContainer, pod.Status.InitContainerStatuses) != nil || seenAs(ProxyContainer, pod.Status.ContainerStatuses) != nil
	}
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.User != nil && s.User.Linux != nil })
}

// beforeProxy returns a note about what BeforeProxy returns, or "".
func beforeProxy(pod *corev1.Pod, s iptables.Spec) string {
	names := BeforeProxy(pod, s)
	if len(names) == 0 {
		return ""
	}
	id := fmt.Sprintf("runAsUser %d", s.ProxyUID)
	if s.ProxyUID == 0 {
		id = fmt.Sprintf("runAsGroup %d", s.ProxyGID)
	}
	more := ""
	if len(names) > 1 {
		more = fmt.Sprintf(" (and %d more)", len(names)-1)
	}
	behind := "make the proxy a native sidecar and list it first"
	if p := findContainer(pod, ProxyContainer); p != nil && !endsFirst(p) {
		behind = "list it behind " + ProxyContainer
	}
	return fmt.Sprintf("init container %s%s runs before the proxy listens: its redirected connections are refused; %s, give it %s, or exclude where it connects to",
		shown(names[0]), more, behind, id)
}

// debugger returns a note about a running ephemeral container that has one of the proxy's ids, or "".
func (c crew) debugger(pod *corev1.Pod, uid, gid uint32) string {
	for i := range pod.Spec.EphemeralContainers {
		e := &pod.Spec.EphemeralContainers[i]
		m := member{e.Name, e.SecurityContext, seenAs(e.Name, pod.Status.EphemeralContainerStatuses)}
		if id := c.proxysID(m, uid, gid); id != "" && !hasEnded(e.Name, pod.Status.EphemeralContainerStatuses) {
			return fmt.Sprintf("ephemeral container %s runs as the proxy (%s): its connections are not redirected", shown(e.Name), id)
		}
	}
	return ""
}

func hasEnded(name string, statuses []corev1.ContainerStatus) bool {
	return slices.ContainsFunc(statuses, func(s corev1.ContainerStatus) bool { return s.Name == name && s.State.Terminated != nil })
}

// byImage is the field of a rival whose group no manifest gives.
const byImage = "/etc/group"

// by says who gives a rival the group.
func (r rival) by() string {
	if r.field == byImage {
		return "the image's " + byImage
	}
	return "the pod's " + r.field
}

// taker returns a container other than the proxy that can act with an id because the pod gives it to all containers, or its image to its user.
func (c crew) taker(k idKind, id int64) rival {
	all := slices.Concat(c.others, c.early)
	if c.pod != nil {
		field := k.also(c.pod, id)
		if i := slices.IndexFunc(all, member.gainsGroups); field != "" && i >= 0 {
			return rival{all[i].name, field}
		}
	}
	if i := slices.IndexFunc(all, func(m member) bool { return k.field == gidKind().field && m.belongsTo(id) && m.gainsGroups() }); i >= 0 {
		return rival{all[i].name, byImage}
	}
	return rival{}
}

// belongsTo reports whether the runtime says that a container belongs to a group in addition to its own.
func (m member) belongsTo(group int64) bool {
	return m.seen != nil && slices.Contains(m.seen.SupplementalGroups, group)
}

// TakesID returns a container that runs with the user, or the group, of a proxy outside of the pod's spec. If there is none, it returns a container that
// can act as the group because the pod gives it to all of its containers, and the field that gives it; or "". Ephemeral containers do not count, nor
// what only the runtime knows: the answer stays while the pod runs.
func TakesID(pod *corev1.Pod, id int64, isGroup bool) (container, field string) {
	c, k := crew{pod: pod.Spec.SecurityContext}, uidKind()
	if isGroup {
		k = gidKind()
	}
	for _, one := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		c.others = append(c.others, member{name: one.Name, sc: one.SecurityContext})
	}
	found := c.rival(k, id)
	return found.name, found.field
}
