package intent

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// What the runtime says of a container counts where its manifest is silent; it comes when the container runs.
func TestOf_runtimeSaysTheIDs_count(t *testing.T) {
	for name, c := range map[string]struct {
		ownerCase
		seen map[string][2]int64
	}{
		"the image's user":               {ownerCase{containers: ids{"app": nil, "istio-proxy": nil}, uid: 101, gid: 101}, map[string][2]int64{"istio-proxy": {101, 101}}},
		"Istio's":                        {ownerCase{containers: ids{"app": nil, "istio-proxy": nil}, uid: 1337, gid: 1337}, map[string][2]int64{"app": {0, 0}, "istio-proxy": {1337, 1337}}},
		"the group of a user":            {ownerCase{containers: ids{"app": as(1000, -1), "istio-proxy": as(1000, -1)}, gid: 7}, map[string][2]int64{"app": {1000, 0}, "istio-proxy": {1000, 7}}},
		"no group for a user":            {ownerCase{containers: ids{"app": as(1000, -1), "istio-proxy": as(1000, -1)}, fault: []string{"it runs with gid 0"}}, map[string][2]int64{"istio-proxy": {1000, 0}}},
		"root may become it":             {ownerCase{containers: ids{"app": nil, "istio-proxy": nil}, uid: 1337, gid: 1337, note: "starts as root"}, map[string][2]int64{"istio-proxy": {}}},
		"root with a group of its own":   {ownerCase{containers: ids{"app": nil, "istio-proxy": nil}, uid: 1337, gid: 1337, note: "starts as root"}, map[string][2]int64{"istio-proxy": {0, 1337}}},
		"a user without a group":         {ownerCase{containers: ids{"app": nil, "istio-proxy": nil}, uid: 101, gid: 1337}, map[string][2]int64{"istio-proxy": {101, 0}}},
		"the manifest counts first":      {ownerCase{containers: ids{"app": nil, "istio-proxy": as(2000, 3000)}, uid: 2000, gid: 3000}, map[string][2]int64{"istio-proxy": {1, 1}}},
		"the application's image has it": {ownerCase{containers: ids{"app": nil, "istio-proxy": as(1337, 2000)}, gid: 2000}, map[string][2]int64{"app": {1337, 1337}}},
		"a native sidecar":               {ownerCase{containers: ids{"app": nil, "native:istio-proxy": nil}, uid: 101, gid: 102}, map[string][2]int64{"istio-proxy": {101, 102}}},
		"a proxy of another name":        {ownerCase{containers: ids{"app": nil, "haproxy": nil}, uid: 1337, gid: 1337}, map[string][2]int64{"app": {0, 0}, "haproxy": {1337, 1337}}},
		"a proxy of another name, and not Istio's ids": {
			ownerCase{containers: ids{"app": nil, "haproxy": nil}, fault: []string{"it is no container's runAsUser"}}, map[string][2]int64{"app": {1000, 0}, "haproxy": {99, 99}},
		},
		"a proxy of another name may be root's": {
			ownerCase{containers: ids{"app": nil, "haproxy": nil}, uid: 1337, gid: 1337, note: "name the proxy's runAsUser"}, map[string][2]int64{"app": {0, 0}, "haproxy": {99, 99}},
		},
		"a proxy of another name, half of it known": {
			ownerCase{containers: ids{"app": nil, "haproxy": nil}, uid: 1337, gid: 1337, note: "name the proxy's runAsUser"}, map[string][2]int64{"app": {0, 0}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.check(t, func(p *corev1.Pod) {
				for container, ids := range c.seen {
					s := corev1.ContainerStatus{Name: container, User: &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: ids[0], GID: ids[1]}}}
					if len(p.Spec.InitContainers) > 0 {
						p.Status.InitContainerStatuses = append(p.Status.InitContainerStatuses, s)
					} else {
						p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, s)
					}
				}
			})
		})
	}
}

// An image may give its user the proxy's group.
func TestOf_groupOfAnImage_isNotTheProxys(t *testing.T) {
	istio, root := as(1337, 1337), as(0, 1337)
	for name, c := range map[string]ownerCase{
		"beside the proxy's user":      {containers: ids{"app": nil, "istio-proxy": istio}, uid: 1337},
		"where the group alone counts": {containers: ids{"app": nil, "istio-proxy": root}, fault: []string{`the image's /etc/group gives gid 1337 to container "app"`, "choose another group for the image's /etc/group"}},
		"without new privileges":       {containers: ids{"app": bound(as(1000, -1)), "istio-proxy": root}, uid: 1337, gid: 1337},
	} {
		t.Run(name, func(t *testing.T) {
			c.check(t, func(p *corev1.Pod) {
				user := &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: 1000, GID: 1000, SupplementalGroups: []int64{10, 1337}}}
				p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", User: user}}
			})
		})
	}
}

// Who debugs a running pod changes nothing in it, with whatever ids, and is named while that lasts.
func TestOf_ephemeralContainer_isNamedWhileItRuns(t *testing.T) {
	istio := as(1337, 1337)
	debugged := ownerCase{containers: ids{"app": nil, "istio-proxy": istio, "ephemeral:debug": istio}, uid: 1337, gid: 1337, note: `ephemeral container "debug" runs as the proxy (uid 1337)`}
	debugged.check(t)
	debugged.note = ""
	debugged.check(t, func(p *corev1.Pod) {
		ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
		p.Status.EphemeralContainerStatuses = []corev1.ContainerStatus{{Name: "debug", State: ended}}
	})
	debugged.containers["ephemeral:debug"] = as(0, 0)
	debugged.check(t)
}
