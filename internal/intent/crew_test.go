package intent

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// givenCase is a pod that gives groups to all of its containers.
type givenCase struct {
	fsGroup    int64 // 0 is none
	groups     []int64
	pod        *corev1.SecurityContext
	containers ids
	uid, gid   uint32
	fault      []string // what the error says
}

// bound is as with allowPrivilegeEscalation: false.
func bound(sc *corev1.SecurityContext) *corev1.SecurityContext {
	sc.AllowPrivilegeEscalation = new(bool)
	return sc
}

// A container that belongs to the proxy's group can act as it by a set-gid program, unless it has no_new_privs.
func TestOf_groupOfAllContainers_isNotTheProxys(t *testing.T) {
	istio, root := as(1337, 1337), as(0, 1337)
	unbound := as(1000, 1000)
	unbound.AllowPrivilegeEscalation = new(true)
	cases := map[string]givenCase{
		"an old injector's fsGroup":              {fsGroup: 1337, containers: ids{"app": nil, "init:istio-validation": istio, "istio-proxy": istio}, uid: 1337},
		"a native sidecar and an fsGroup":        {fsGroup: 1337, containers: ids{"app": nil, "native:istio-proxy": istio}, uid: 1337},
		"supplementalGroups":                     {groups: []int64{10, 1337}, containers: ids{"app": nil, "istio-proxy": istio}, uid: 1337},
		"privileges are allowed by name":         {fsGroup: 1337, containers: ids{"app": unbound, "istio-proxy": istio}, uid: 1337},
		"another fsGroup":                        {fsGroup: 2000, containers: ids{"app": nil, "istio-proxy": istio}, uid: 1337, gid: 1337},
		"OpenShift's fsGroup":                    {fsGroup: 1000650000, containers: ids{"app": as(1000650000, -1), "istio-proxy": as(1000650001, 1000650001)}, uid: 1000650001, gid: 1000650001},
		"a group of the proxy's own choice":      {groups: []int64{3000}, containers: ids{"app": nil, "istio-proxy": as(2000, 3000)}, uid: 2000},
		"an application without new privileges":  {fsGroup: 1337, containers: ids{"app": bound(as(1000, 1000)), "istio-proxy": istio}, uid: 1337, gid: 1337},
		"all without new privileges":             {fsGroup: 1337, groups: []int64{1337}, containers: ids{"app": bound(as(1000, -1)), "init:setup": bound(as(-1, -1)), "istio-proxy": istio}, uid: 1337, gid: 1337},
		"an init container may gain some":        {fsGroup: 1337, containers: ids{"app": bound(as(1000, -1)), "init:setup": as(1000, -1), "istio-proxy": istio}, uid: 1337},
		"a native sidecar may gain some":         {fsGroup: 1337, containers: ids{"app": bound(as(1000, -1)), "native:logger": nil, "istio-proxy": istio}, uid: 1337},
		"a debugger that may gain some is added": {fsGroup: 1337, containers: ids{"app": bound(as(1000, -1)), "ephemeral:debug": nil, "istio-proxy": istio}, uid: 1337, gid: 1337},
		"a group that the application runs with": {fsGroup: 1337, containers: ids{"app": bound(as(1000, 1337)), "istio-proxy": istio}, uid: 1337},
		"the proxy has the pod's group":          {fsGroup: 3000, pod: as(-1, 3000), containers: ids{"app": as(1000, 1000), "istio-proxy": as(1337, -1)}, uid: 1337, gid: 1337},
		"TPROXY":                                 {containers: ids{"app": nil, "istio-proxy": root}, uid: 1337, gid: 1337},
		"TPROXY without new privileges":          {fsGroup: 1337, containers: ids{"app": bound(as(1000, -1)), "istio-proxy": root}, uid: 1337, gid: 1337},
		"a proxy of another name":                {fsGroup: 1337, containers: ids{"app": nil, "haproxy": istio}, uid: 1337},
		"a proxy of another name, as root":       {containers: ids{"app": nil, "haproxy": root}, uid: 1337, gid: 1337},
		"a proxy of another name, bound":         {fsGroup: 1337, containers: ids{"app": bound(as(1000, -1)), "haproxy": istio}, uid: 1337, gid: 1337},
		"a proxy of another name, as root, and an fsGroup": {
			fsGroup: 1337, containers: ids{"app": nil, "haproxy": root},
			fault: []string{"uid 1337 may not be the proxy's (it is no container's runAsUser)", `the pod's fsGroup gives gid 1337 to container "app"`},
		},
		"TPROXY and an fsGroup": {
			fsGroup: 1337, containers: ids{"app": nil, "istio-proxy": root},
			fault: []string{
				"uid 1337 may not be the proxy's (its runAsUser is 0)", `the pod's fsGroup gives gid 1337 to container "app", too, which can act as it by a set-gid program`,
				"choose another group for fsGroup, or set allowPrivilegeEscalation to false in all containers but the proxy's",
			},
		},
		"TPROXY and supplementalGroups": {
			groups: []int64{1337}, containers: ids{"app": nil, "istio-proxy": root}, fault: []string{`the pod's supplementalGroups gives gid 1337 to container "app"`, "choose another group for supplementalGroups"},
		},
		"the application's user and an fsGroup": {
			fsGroup: 1337, containers: ids{"app": as(1337, -1), "istio-proxy": istio}, fault: []string{`uid 1337 is also that of container "app"`, "the pod's fsGroup"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			ownerCase{pod: c.pod, containers: c.containers, uid: c.uid, gid: c.gid, fault: c.fault}.check(t, func(p *corev1.Pod) {
				if p.Spec.SecurityContext == nil {
					p.Spec.SecurityContext = &corev1.PodSecurityContext{}
				}
				p.Spec.SecurityContext.SupplementalGroups = c.groups
				if c.fsGroup != 0 {
					p.Spec.SecurityContext.FSGroup = &c.fsGroup
				}
			})
		})
	}
}

func TestTakesID_podGivesIt_namesContainerAndField(t *testing.T) {
	pod, _ := asking(crewPod(nil, ids{"app": nil}))
	if container, field := TakesID(pod, 7001, true); container != "" || field != "" {
		t.Errorf("a pod that gives nothing: %q, %q", container, field)
	}
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{SupplementalGroups: []int64{7001}}
	if container, field := TakesID(pod, 7001, true); container != "app" || field != "supplementalGroups" {
		t.Errorf("%q, %q", container, field)
	}
	pod.Spec.Containers[0].SecurityContext = bound(as(-1, -1))
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debugger"}}}
	if container, _ := TakesID(pod, 7001, true); container != "" {
		t.Errorf("without new privileges: %q", container)
	}
}

func TestExplain_groupOfAllContainers_isNamed(t *testing.T) {
	pod := plainPod()
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(1337))}
	got, err := Explain(pod, nil, config())
	if err != nil {
		t.Fatal(err)
	}
	want := "default (but container app can act as gid 1337 by the pod's fsGroup)"
	if s := sourceOf(t, got, settingGID); s.Value != "" || s.Source != want {
		t.Errorf("%+v, want source %q", s, want)
	}
	if text := strings.Join(got.Spec.Summary(), "\n"); !strings.Contains(text, "known by user 1337:") {
		t.Error(text)
	}
}
