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
}

func uidKind() idKind {
	return idKind{
		name: "uid", field: "runAsUser",
		own: func(s *corev1.SecurityContext) *int64 { return s.RunAsUser },
		pod: func(s *corev1.PodSecurityContext) *int64 { return s.RunAsUser },
		// Nothing gives a container a second user: only that user or root can make a program that runs as it.
		also: func(*corev1.PodSecurityContext, int64) string { return "" },
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
	}
}

// member is a container with its ids.
type member struct {
	name string
	sc   *corev1.SecurityContext
}

// gainsGroups reports whether processes of a container can make a group that they belong to their primary one: a member of a group may make a
// program set-gid to it, and executing that program changes the group, unless the container has no_new_privs.
func (m member) gainsGroups() bool {
	return m.sc == nil || m.sc.AllowPrivilegeEscalation == nil || *m.sc.AllowPrivilegeEscalation
}

// crew is the containers of a pod: the proxy, and all others, which must not be taken for it.
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
		c.proxy = &member{p.Name, p.SecurityContext}
	}
	other := func(name string, sc *corev1.SecurityContext) {
		if name != ProxyContainer {
			c.others = append(c.others, member{name, sc})
		}
	}
	for i := range pod.Spec.InitContainers {
		switch s := &pod.Spec.InitContainers[i]; {
		case !endsFirst(s):
			other(s.Name, s.SecurityContext)
		case !isHelper(s) && s.Name != ProxyContainer:
			c.early = append(c.early, member{s.Name, s.SecurityContext})
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

// runsWith reports whether a container runs with an id, set for the container or else for the pod. Ids that an image sets are not known here.
func (c crew) runsWith(m member, k idKind, id int64) bool {
	have := k.of(m.sc)
	if have == nil {
		have = c.ofPod(k)
	}
	return have != nil && *have == id
}

// rival is a container other than the proxy whose sockets may have an id.
type rival struct {
	name string
	// field is the pod's field that gives the container the group; "" if the container runs with the id.
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

// BeforeProxy returns the application's init containers that run before the proxy listens and whose connections are redirected all the same: the
// proxy is no native sidecar, and they do not run with its ids.
func BeforeProxy(pod *corev1.Pod, s iptables.Spec) (names []string) {
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == ProxyContainer {
			return nil
		}
	}
	c := crewOf(pod)
	for _, m := range c.early {
		if c.proxysID(m, s.ProxyUID, s.ProxyGID) == "" {
			names = append(names, m.name)
		}
	}
	return names
}

// taker returns a container other than the proxy that can act with an id because the pod gives it to all containers.
func (c crew) taker(k idKind, id int64) rival {
	if c.pod == nil {
		return rival{}
	}
	field, all := k.also(c.pod, id), slices.Concat(c.others, c.early)
	if i := slices.IndexFunc(all, member.gainsGroups); field != "" && i >= 0 {
		return rival{all[i].name, field}
	}
	return rival{}
}

// TakesGroup returns a container that can act as a group which the pod gives to all of its containers, and the field that gives it; or "".
// Ephemeral containers do not count.
func TakesGroup(pod *corev1.Pod, gid int64) (container, field string) {
	own := *pod
	own.Spec.EphemeralContainers = nil
	found := crewOf(&own).taker(gidKind(), gid)
	return found.name, found.field
}
