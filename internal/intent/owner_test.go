package intent

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/iptables"
)

// as gives the ids of a security context, uid/gid, of which -1 is not said.
func as(uid, gid int64) *corev1.SecurityContext {
	id := func(n int64) *int64 {
		if n < 0 {
			return nil
		}
		return &n
	}
	return &corev1.SecurityContext{RunAsUser: id(uid), RunAsGroup: id(gid)}
}

// crewPod is a pod whose own ids, and those of its containers, are given; init, native and ephemeral go by the prefix of a name.
func crewPod(pod *corev1.SecurityContext, containers map[string]*corev1.SecurityContext) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers = nil
		if pod != nil {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: pod.RunAsUser, RunAsGroup: pod.RunAsGroup}
		}
		for name, sc := range containers {
			kind, rest, _ := strings.Cut(name, ":")
			switch c := (corev1.Container{Name: rest, SecurityContext: sc}); kind {
			case "init":
				p.Spec.InitContainers = append(p.Spec.InitContainers, c)
			case "native": // a native sidecar
				always := corev1.ContainerRestartPolicyAlways
				c.RestartPolicy = &always
				p.Spec.InitContainers = append(p.Spec.InitContainers, c)
			case "ephemeral":
				common := corev1.EphemeralContainerCommon{Name: rest, SecurityContext: sc}
				p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, corev1.EphemeralContainer{EphemeralContainerCommon: common})
			default:
				p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: name, SecurityContext: sc})
			}
		}
	}
}

type ids = map[string]*corev1.SecurityContext

type ownerCase struct {
	pod        *corev1.SecurityContext
	containers ids
	uid, gid   uint32
	note       string
	fault      []string // what the error says
}

// No other container may count as the proxy; the proxy must.
func TestOf_proxysIDs_areRecognised(t *testing.T) {
	istio := as(1337, 1337)
	cases := map[string]ownerCase{
		"nothing is set":                            {containers: ids{"app": nil, "istio-proxy": nil}, uid: 1337, gid: 1337},
		"the proxy's own":                           {containers: ids{"app": nil, "istio-proxy": as(2000, 3000)}, uid: 2000, gid: 3000},
		"one is not said":                           {containers: ids{"app": nil, "istio-proxy": as(2000, -1)}, uid: 2000, gid: 1337},
		"a native sidecar's":                        {containers: ids{"app": nil, "native:istio-proxy": as(2000, 3000)}, uid: 2000, gid: 3000},
		"TPROXY's root in a pod with a user":        {pod: as(1000, -1), containers: ids{"app": nil, "istio-proxy": as(0, 1337)}, uid: 1337, gid: 1337},
		"root in a pod with both":                   {pod: as(1000, 3000), containers: ids{"app": nil, "istio-proxy": as(0, 1337)}, uid: 1337, gid: 1337},
		"root where the application has its own":    {pod: as(1000, -1), containers: ids{"app": as(2000, -1), "istio-proxy": as(0, 1337)}, uid: 1337, gid: 1337},
		"a user of its own, the group is everyones": {pod: as(-1, 3000), containers: ids{"app": nil, "istio-proxy": as(1337, -1)}, uid: 1337, gid: 1337},
		"silent where the application inherits":     {pod: as(1000, 3000), containers: ids{"app": nil, "istio-proxy": nil}, fault: []string{"its runAsUser is the pod's 1000", "its runAsGroup is the pod's 3000"}},
		"silent where it inherits a user alone":     {pod: as(1000, -1), containers: ids{"app": nil, "istio-proxy": nil}, fault: []string{"its runAsUser is the pod's 1000", "the group of user 1000"}},
		"one user for both, and no group":           {containers: ids{"app": as(1000, -1), "istio-proxy": as(1000, -1)}, fault: []string{`uid 1000 is also that of container "app"`, "the group of user 1000"}},
		"root and nothing else":                     {containers: ids{"app": nil, "istio-proxy": as(0, 0)}, fault: []string{"its runAsUser is 0", "its runAsGroup is 0"}},
		"root without a group":                      {containers: ids{"app": nil, "istio-proxy": as(0, -1)}, fault: []string{"its runAsUser is 0", "the group of user 0"}},
		"absurd ids":                                {containers: ids{"app": nil, "istio-proxy": as(1<<40, 1<<40)}, fault: []string{"its runAsUser is 1099511627776", "its runAsGroup is 1099511627776"}},
		"the pod's, if no other container has them": {pod: as(1000, 3000), containers: ids{"app": as(1, 2), "istio-proxy": nil}, uid: 1000, gid: 3000},
		"the pod's user, not its group":             {pod: as(1000, 3000), containers: ids{"app": as(1, -1), "istio-proxy": nil}, uid: 1000, gid: 1337},
		"not the pod's: an init container's":        {pod: as(1000, 3000), containers: ids{"app": as(1, 2), "init:setup": nil, "istio-proxy": as(1337, -1)}, uid: 1337, gid: 1337},
		"the pod's, whatever is added":              {pod: as(1000, 3000), containers: ids{"app": as(1, 2), "ephemeral:debug": as(7, 7), "istio-proxy": nil}, uid: 1000, gid: 3000},
		"the pod's, with Istio's and our own init":  {pod: as(1000, 3000), containers: ids{"app": as(1, 2), "init:istio-validation": nil, "init:istio-pod-network-wait": nil, "istio-proxy": nil}, uid: 1000, gid: 3000},
		"an injected pod":                           {containers: ids{"app": nil, "init:istio-validation": istio, "init:enable-core-dump": as(0, -1), "istio-proxy": istio}, uid: 1337, gid: 1337},
		"OpenShift: a project's range": {
			containers: ids{"app": as(1000650000, 1000650000), "init:istio-validation": as(1000650001, 1000650001), "istio-proxy": as(1000650001, 1000650001)},
			uid:        1000650001, gid: 1000650001,
		},
		"the group is shared":                         {containers: ids{"app": as(1000, 1337), "istio-proxy": istio}, uid: 1337},
		"the user is shared":                          {containers: ids{"app": as(1337, 1000), "istio-proxy": istio}, gid: 1337},
		"another native sidecar's":                    {containers: ids{"app": nil, "native:logger": as(1337, -1), "native:istio-proxy": istio}, gid: 1337},
		"the customary one is taken":                  {containers: ids{"app": as(1337, -1), "istio-proxy": nil}, gid: 1337},
		"inherited by the application":                {pod: as(1337, -1), containers: ids{"app": nil, "istio-proxy": istio}, gid: 1337},
		"istio-validation, as a native sidecar":       {containers: ids{"app": nil, "native:istio-validation": as(1337, -1), "istio-proxy": istio}, gid: 1337},
		"enable-core-dump, as a native sidecar":       {containers: ids{"app": nil, "native:enable-core-dump": as(-1, 1337), "istio-proxy": istio}, uid: 1337},
		"istio-init, as a native sidecar":             {containers: ids{"app": nil, "native:istio-init": as(1337, -1), "istio-proxy": istio}, gid: 1337},
		"istio-pod-network-wait, as a native sidecar": {containers: ids{"app": nil, "native:istio-pod-network-wait": istio, "istio-proxy": as(1337, 2000)}, gid: 2000},
		"istio-validation, as a regular container":    {containers: ids{"istio-validation": istio, "istio-proxy": as(1337, 2000)}, gid: 2000},
		"both are shared": {
			containers: ids{"app": istio, "istio-proxy": istio}, fault: []string{`uid 1337 is also that of container "app"`, `gid 1337 is also that of container "app"`},
		},
		"both are shared, by two": {
			containers: ids{"a": as(1337, -1), "native:b": as(-1, 1337), "istio-proxy": istio}, fault: []string{`uid 1337 is also that of container "a"`, `gid 1337 is also that of container "b"`},
		},
		"both are inherited": {pod: istio, containers: ids{"app": nil, "istio-proxy": nil}, fault: []string{`uid 1337 is also that of container "app"`}},
		"TPROXY's root and a shared group": {
			containers: ids{"app": as(1000, 1337), "istio-proxy": as(0, 1337)}, fault: []string{"uid 1337 may not be the proxy's (its runAsUser is 0)", `container "app"`},
		},
		"a proxy of another name":                   {containers: ids{"app": as(1000, 1000), "haproxy": istio}, uid: 1337, gid: 1337},
		"a proxy of another name, the pod's ids":    {pod: as(1000, 1000), containers: ids{"app": nil, "haproxy": istio}, uid: 1337, gid: 1337},
		"a proxy alone, the pod's ids":              {pod: istio, containers: ids{"haproxy": nil}, uid: 1337, gid: 1337},
		"a proxy of another name, known by nobody":  {containers: ids{"app": nil, "haproxy": nil}, uid: 1337, gid: 1337, note: "no container is known to run with uid 1337"},
		"a proxy of another name, as everyone else": {pod: istio, containers: ids{"app": nil, "haproxy": nil}, fault: []string{"uid 1337", "gid 1337"}},
		"a proxy of another name, a group of all":   {pod: as(-1, 1337), containers: ids{"app": as(1000, -1), "haproxy": as(1337, -1)}, uid: 1337},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			c.check(t)
		})
	}
}

// An init container that ends before the application starts may have the proxy's ids.
func TestOf_initContainerAsTheProxy_isNoted(t *testing.T) {
	istio := as(1337, 1337)
	cases := map[string]ownerCase{
		"an init container as the proxy's user": {
			containers: ids{"app": nil, "init:setup": as(1337, -1), "istio-proxy": istio}, uid: 1337, gid: 1337, note: `init container "setup" runs as the proxy (uid 1337)`,
		},
		"an init container as the proxy's group": {
			containers: ids{"app": nil, "init:setup": as(-1, 1337), "istio-proxy": istio}, uid: 1337, gid: 1337, note: `init container "setup" runs as the proxy (gid 1337)`,
		},
		"an init container as the proxy, by the pod's user": {
			pod: as(1337, -1), containers: ids{"app": as(1000, -1), "init:setup": nil, "istio-proxy": istio}, uid: 1337, gid: 1337, note: `init container "setup" runs as the proxy (uid 1337)`,
		},
		"an init container as the proxy of another uid": {
			containers: ids{"app": nil, "init:setup": as(2000, -1), "istio-proxy": as(2000, 3000)}, uid: 2000, gid: 3000, note: "its connections are not redirected",
		},
		"an init container as Istio's user beside a proxy of another": {containers: ids{"app": nil, "init:setup": as(1337, -1), "istio-proxy": as(2000, 3000)}, uid: 2000, gid: 3000},
		"an init container as TPROXY's root":                          {containers: ids{"app": nil, "init:setup": as(0, -1), "istio-proxy": as(0, 1337)}, uid: 1337, gid: 1337},
		"an init container as a user that does not count": {
			containers: ids{"app": as(1337, -1), "init:setup": as(1337, -1), "istio-proxy": istio}, gid: 1337,
		},
		"an init container as a proxy of another name": {
			containers: ids{"app": nil, "init:setup": as(1337, -1), "haproxy": istio}, uid: 1337, gid: 1337, note: `init container "setup"`,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			c.check(t)
		})
	}
}

// Each of them bypasses the proxy, and none is kept quiet.
func TestOf_initContainersAsTheProxy_areCounted(t *testing.T) {
	ownerCase{
		containers: ids{"app": nil, "init:a": as(1337, -1), "init:b": as(-1, 1337), "init:c": as(1337, 1337), "istio-proxy": as(1337, 1337)},
		uid:        1337, gid: 1337, note: "its connections are not redirected, nor those of 2 more",
	}.check(t)
}

// An init container that runs as root is not the proxy where the rules know the proxy by its group only, which they say by user 0.
func TestBeforeProxy_initContainers_areNamed(t *testing.T) {
	for name, c := range map[string]struct {
		sc   *corev1.SecurityContext
		spec iptables.Spec
		want []string
	}{
		"nothing is said":                         {nil, iptables.Spec{ProxyUID: 1337, ProxyGID: 1337}, []string{"setup"}},
		"the proxy's user":                        {as(1337, -1), iptables.Spec{ProxyUID: 1337, ProxyGID: 1337}, nil},
		"the proxy's group":                       {as(-1, 1337), iptables.Spec{ProxyUID: 1337, ProxyGID: 1337}, nil},
		"root, and a proxy that a group tells":    {as(0, -1), iptables.Spec{ProxyGID: 1337}, []string{"setup"}},
		"root's group, and one that a user tells": {as(-1, 0), iptables.Spec{ProxyUID: 1337}, []string{"setup"}},
	} {
		t.Run(name, func(t *testing.T) {
			var pod corev1.Pod
			crewPod(nil, ids{"app": nil, "init:setup": c.sc, "istio-proxy": as(1337, 1337)})(&pod)
			if got := BeforeProxy(&pod, c.spec); !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// Containers start in the order of the manifest, and a native sidecar only lets those behind it wait.
func TestOf_containerBeforeTheProxy_isNamed(t *testing.T) {
	istio := as(1337, 1337)
	for name, c := range map[string]struct {
		init []string
		ids  ids
		note []string // what it says; none if empty
	}{
		"before a proxy that is no native sidecar":        {[]string{"init:setup"}, ids{"init:setup": as(1000, -1), "istio-proxy": istio}, []string{`init container "setup" runs before`, "native sidecar", "runAsUser 1337"}},
		"as the proxy's group, and a user that is shared": {[]string{"init:setup"}, ids{"init:setup": as(1337, 1000), "istio-proxy": istio, "app": as(1337, 1000)}, []string{`"setup"`, "runAsGroup 1337"}},
		"a native sidecar with the proxy's user":          {[]string{"native:db", "native:istio-proxy"}, ids{"native:db": as(1337, -1), "native:istio-proxy": istio}, []string{`"db"`, "list it behind istio-proxy", "runAsGroup 1337"}},
		"before a native sidecar":                         {[]string{"init:setup", "native:istio-proxy"}, ids{"init:setup": as(1000, -1), "native:istio-proxy": istio}, []string{`"setup"`}},
		"two of them":                                     {[]string{"init:a", "native:b", "native:istio-proxy"}, ids{"init:a": nil, "native:b": nil, "native:istio-proxy": istio}, []string{`"a" (and 1 more)`}},
		"behind a native sidecar":                         {[]string{"native:istio-proxy", "init:setup"}, ids{"init:setup": nil, "native:istio-proxy": istio}, nil},
		"Istio's own":                                     {[]string{"init:istio-validation"}, ids{"init:istio-validation": nil, "istio-proxy": istio}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			pod, ns := asking(crewPod(nil, c.ids))
			slices.SortFunc(pod.Spec.InitContainers, func(a, b corev1.Container) int {
				at := func(name string) int {
					return slices.IndexFunc(c.init, func(i string) bool { return strings.HasSuffix(i, ":"+name) })
				}
				return at(a.Name) - at(b.Name)
			})
			got, err := Of(pod, ns, config())
			notes := strings.Join(got.Notes, "\n")
			for _, want := range c.note {
				if err != nil || !strings.Contains(notes, want) {
					t.Errorf("error %v, notes %q, want %q", err, notes, want)
				}
			}
			if len(c.note) == 0 && notes != "" {
				t.Errorf("notes %q", notes)
			}
		})
	}
}

func (c ownerCase) check(t *testing.T, changes ...func(*corev1.Pod)) {
	t.Helper()
	pod, ns := asking(both(append([]func(*corev1.Pod){crewPod(c.pod, c.containers)}, changes...)...))
	pod.Annotations[KeyInitialize] = "true"
	got, err := Of(pod, ns, config())
	if len(c.fault) > 0 {
		for _, want := range c.fault {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("uid %d, gid %d, error %v; want %q", got.Spec.ProxyUID, got.Spec.ProxyGID, err, want)
			}
		}
		return
	}
	if err != nil || got.Spec.ProxyUID != c.uid || got.Spec.ProxyGID != c.gid {
		t.Errorf("uid %d, gid %d, error %v; want %d and %d", got.Spec.ProxyUID, got.Spec.ProxyGID, err, c.uid, c.gid)
	}
	others := slices.DeleteFunc(slices.Clone(got.Notes), func(note string) bool { return strings.Contains(note, "before the proxy listens") }) // it has a test of its own
	if notes := strings.Join(others, "\n"); !strings.Contains(notes, c.note) || (c.note == "") != (notes == "") {
		t.Errorf("notes %q, want %q", notes, c.note)
	}
}

// Whatever ids a pod's containers have, no other container than the proxy passes for it.
func TestOf_otherContainer_isNotTheProxy(t *testing.T) {
	values := []int64{-1, 0, 1000, 1337}
	for n := range len(values) * len(values) * len(values) * len(values) * len(values) * len(values) {
		pick := func() int64 {
			v := values[n%len(values)]
			n /= len(values)
			return v
		}
		podSC, app, proxy := as(pick(), pick()), as(pick(), pick()), as(pick(), pick())
		for _, given := range []int64{0, 1000, 1337} {
			pod, ns := asking(crewPod(podSC, ids{"app": app, "istio-proxy": proxy}))
			pod.Spec.SecurityContext.FSGroup = &given
			got, err := Of(pod, ns, config())
			if err != nil {
				continue
			}
			user, groups := either(app.RunAsUser, podSC.RunAsUser), []int64{either(app.RunAsGroup, podSC.RunAsGroup), given}
			if uid, gid := int64(got.Spec.ProxyUID), int64(got.Spec.ProxyGID); uid == 0 && gid == 0 || uid != 0 && uid == user || gid != 0 && slices.Contains(groups, gid) {
				t.Fatalf("pod %v, fsGroup %d, app %v, proxy %v: uid %d, gid %d", podSC, given, app, proxy, uid, gid)
			}
		}
	}
}

func either(own, pod *int64) int64 {
	switch {
	case own != nil:
		return *own
	case pod != nil:
		return *pod
	}
	return -1
}
