package e2e

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// sharingEvery is the time between two new connections of a pod in each direction.
const sharingEvery = 20 * time.Millisecond

// A real nginx listens beside the one that it replaces, which then finishes its connections: none is lost, also if a version between them cannot
// be started.
//
//e2e:rounds nri
func TestReusePortHandover(t *testing.T) {
	t.Parallel()
	m := newManagedFrom(t, "proxy-profile-nginx.yaml", func(spec map[string]any) {
		spec["rollout"] = map[string]any{"pauseOnFailure": false}
	})
	f := families()[0]
	held := plainPod("held") // its proxy passes on to the application that repeats
	held.Annotations = map[string]string{"nginx.example.com/port": fmt.Sprint(appTCPPort)}
	pods := []*corev1.Pod{plainPod("new-0"), plainPod("new-1"), held}
	for i, pod := range pods {
		if pod != held {
			pod.Spec.Containers[0] = toolsContainer()
		}
		m.create(t, pods[i])
	}
	var in []*inboundLoad
	var out []*outboundLoad
	for i, pod := range pods {
		pods[i] = m.await(t, pod.Name, isReadyNow)
		m.awaitSidecar(t, pod.Name, says(true, ""))
		if i < 2 {
			in = append(in, loadInboundEvery(t, sharingEvery, at(pods[i], f, appPort), f.passthrough))
			out = append(out, m.loadOutboundEvery(t, sharingEvery, pods[i], f.at(1, worldPort)))
		}
	}
	setting, err := m.run(t.Context(), command{
		namespace: m.name, pod: "new-0", container: "app", argv: []string{"cat", "/proc/sys/net/ipv4/tcp_migrate_req"},
	})
	must(t, err)
	if setting != "1\n" {
		t.Errorf("the kernel's setting in the pod is %q", setting)
	}
	for i := range 2 {
		before, err := m.sidecar(t.Context(), "held")
		must(t, err)
		open := dialEcho(t, at(pods[2], f, appTCPPort))
		if !open.proxied {
			t.Error("the open connection goes past the proxy")
		}
		m.patchProfile(t, map[string]any{"args": []any{"-t", "-q", "-p", fmt.Sprint("/none/", i)}}) // it listens, and ends at once
		for _, pod := range pods {
			m.awaitSidecar(t, pod.Name, says(true, "it has ended with exit code"))
		}
		m.patchProfile(t, map[string]any{"args": nil, "env": []any{map[string]any{"name": "VERSION", "value": fmt.Sprint(i)}}})
		for _, pod := range pods {
			m.awaitSidecar(t, pod.Name, isUpgraded(before))
		}
		open.say(t, fmt.Sprint("after upgrade ", i))
		must(t, open.conn.Close()) // the next proxy waits for the end of the first one
	}
	for i := range in {
		in[i].stop(t)
		s := out[i].stop(t)
		t.Logf("%s: %d inbound and %d outbound connections", pods[i].Name, in[i].asked, s.OK)
		if in[i].failed != nil || in[i].bypassed > 0 || s.Failed > 0 || s.OK == 0 {
			t.Errorf("%s: of %d inbound connections %d bypassed the proxy, error %v; outbound %+v", pods[i].Name, in[i].asked, in[i].bypassed, in[i].failed, s)
		}
	}
}
