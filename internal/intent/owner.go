package intent

import (
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// proxyID is the uid and gid of Istio's proxy by default.
const proxyID = 1337

// isHelper reports whether an init container is not an application: Istio's, some of which run as the proxy, and ours. A native sidecar, which
// runs beside the application, is none, whatever its name.
func isHelper(c *corev1.Container) bool {
	return endsFirst(c) && slices.Contains([]string{istioInit, "istio-validation", "enable-core-dump", "istio-pod-network-wait"}, c.Name)
}

// MayStartFirst reports whether a container may start before its pod's rules are in force: the proxy, whose connections go past them, helpers, and
// containers of the agent's, which the pod's spec does not have.
func MayStartFirst(pod *corev1.Pod, name string) bool {
	c := findContainer(pod, name)
	return name == ProxyContainer || c == nil || isHelper(c)
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

// claim decides about one id: the container's, else the pod's if no other container has it, else what the runtime says, else Istio's. 0 counts as
// not set.
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
	case c.proxy.startsAs(k) == 0 && !c.proxy.startsAsRoot():
		out.doubt = fmt.Sprintf("it runs with %s 0", k.name)
	case valid(new(c.proxy.startsAs(k))):
		out.id, out.from = uint32(c.proxy.startsAs(k)), fromRuntime
	default:
		out.doubt = c.groupOfUser(k)
	}
	out.rival = c.rival(k, int64(out.id))
	return out
}

// groupOfUser says why the proxy's group is not known although nothing names one: a user that a manifest sets runs with the group that the image
// has for that user, and without one with group 0, whatever the image's own user is.
func (c crew) groupOfUser(k idKind) string {
	if k.field != gidKind().field {
		return ""
	}
	user := uidKind().of(c.proxy.sc)
	if user == nil {
		user = c.ofPod(uidKind())
	}
	if user == nil {
		return ""
	}
	return fmt.Sprintf("it is the group of user %d in the proxy's image, or 0", *user)
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

// unseen reports whether a container may still turn out to run with an id that no manifest names, or may take it on: it starts as root.
func (c crew) unseen() bool {
	return len(c.others) == 0 || slices.ContainsFunc(c.others, func(m member) bool {
		return m.startsAsRoot() || m.seen == nil && (m.sc == nil || m.sc.RunAsUser == nil || m.sc.RunAsGroup == nil)
	})
}

// rootsNote says what has to happen in a proxy that its image starts as root. It may become another user, as proxies do.
func (c crew) rootsNote(uid, gid uint32) string {
	if c.proxy == nil || !c.proxy.startsAsRoot() || uidKind().of(c.proxy.sc) != nil || gidKind().of(c.proxy.sc) != nil {
		return ""
	}
	return fmt.Sprintf("container %s starts as root, and the rules know it once it has become user %d or group %d: until then its own connections are redirected to itself; set its runAsUser or runAsGroup",
		ProxyContainer, uid, gid)
}

func valid(id *int64) bool { return id != nil && *id > 0 && *id < math.MaxUint32 }

// proxyOwner returns the ids by which the rules recognise the proxy's sockets; 0 means that an id does not identify them. note says
// what may be wrong with them. If no id identifies the proxy, the error says which other containers have it, or why it may not be the proxy's.
//
// Where a manifest is silent, Istio's ids are taken for the proxy's until the runtime says otherwise.
func proxyOwner(pod *corev1.Pod) (uid, gid uint32, note string, err error) {
	c := crewOf(pod)
	u, g := c.claim(uidKind()), c.claim(gidKind())
	alone, known := rival{}, u.doubt == "" || g.doubt == ""
	switch {
	case u.rival == alone && g.rival == alone && known:
		return u.id, g.id, c.rootsNote(u.id, g.id), nil
	case u.rival == alone && g.rival == alone && c.proxy == nil && c.unseen():
		note = fmt.Sprintf("no container is known to run with uid %d or gid %d, by which the rules know the proxy: name the proxy's runAsUser, or call its container %s",
			u.id, g.id, ProxyContainer)
		return u.id, g.id, note, nil
	case u.rival == alone && u.doubt == "":
		return u.id, 0, "", nil
	case g.rival == alone && g.doubt == "":
		return 0, g.id, "", nil
	}
	advice := fmt.Sprintf("give container %s a runAsUser or a runAsGroup that no other container has", ProxyContainer)
	if g.rival.field != "" {
		advice = fmt.Sprintf("choose another group for %s, or set allowPrivilegeEscalation to false in all containers but the proxy's", strings.TrimPrefix(g.rival.by(), "the pod's "))
	}
	return 0, 0, "", &OwnerError{fmt.Sprintf("the proxy cannot be distinguished from the application: %s, and %s; %s", u.explain(uidKind()), g.explain(gidKind()), advice)}
}

// OwnerError says why no id identifies a pod's proxy. It is for the pod's owner to correct, and is about no annotation.
type OwnerError struct{ text string }

func (e *OwnerError) Error() string { return e.text }

func (c claim) explain(k idKind) string {
	switch {
	case c.rival.field != "":
		return fmt.Sprintf("%s gives %s %d to container %s, too, which can act as it by a set-gid program", c.rival.by(), k.name, c.id, shown(c.rival.name))
	case c.rival.name != "":
		return fmt.Sprintf("%s %d is also that of container %s", k.name, c.id, shown(c.rival.name))
	}
	return fmt.Sprintf("%s %d may not be the proxy's (%s)", k.name, c.id, c.doubt)
}
