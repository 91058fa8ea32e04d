package e2e

import (
	"context"
	"fmt"
	"strings"
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
		update := updateOf(spec)
		update["pauseOnFailure"], update["maxParallel"] = false, int64(3) // each pod tries each version
		update["drainSeconds"] = int64(600)                               // on busy cores the upgrades of all pods take their time
	})
	f := families()[0]
	world := f.at(1, worldPort).String()
	held := plainPod("held") // its proxy passes on to the application that repeats
	held.Annotations = map[string]string{"nginx.example.com/port": fmt.Sprint(appTCPPort)}
	pods := []*corev1.Pod{dialingPod("new-0", world), dialingPod("new-1", world), held}
	for _, pod := range pods {
		m.create(t, pod)
	}
	var in []*inboundLoad
	for i, pod := range pods {
		pods[i] = m.await(t, pod.Name, isReadyNow)
		if pod != held {
			in = append(in, loadInboundEvery(t, sharingEvery, at(pods[i], f, appPort), f.passthrough))
		}
	}
	eventually(t, "the pods' connections", func(ctx context.Context) error {
		return m.eachDials(ctx, pods[:2], func(s summary) error { return atLeast(s.OK, 1) })
	})
	setting, err := m.run(t.Context(), command{
		namespace: m.name, pod: "new-0", container: "dials", argv: []string{"cat", "/proc/sys/net/ipv4/tcp_migrate_req"},
	})
	must(t, err)
	if setting != "1\n" {
		t.Errorf("the kernel's setting in the pod is %q", setting)
	}
	for i, broken := range []struct{ arg, why string }{
		{"-t", "it has ended with exit code 0"}, // it listens, and ends
		{"-x", "it has ended with exit code 1"},
	} {
		before, err := m.sidecar(t.Context(), "held")
		must(t, err)
		open := dialEcho(t, at(pods[2], f, appTCPPort))
		if !open.proxied {
			t.Error("the open connection goes past the proxy")
		}
		m.patchProfile(t, map[string]any{"args": []any{broken.arg}})
		for _, pod := range pods {
			m.awaitSidecar(t, pod.Name, says(true, broken.why))
		}
		m.patchProfile(t, map[string]any{"args": nil, "env": []any{map[string]any{"name": "VERSION", "value": fmt.Sprint(i)}}})
		for _, pod := range pods {
			m.awaitSidecar(t, pod.Name, isUpgraded(before))
		}
		open.say(t, fmt.Sprint("after upgrade ", i))
		must(t, open.conn.Close()) // the next proxy waits for the end of the first one
	}
	for i, l := range in {
		l.stop(t)
		t.Logf("%s: %d inbound connections", pods[i].Name, l.asked)
		if l.failed != nil || l.bypassed > 0 {
			t.Errorf("%s: of %d inbound connections %d were lost and %d bypassed the proxy, error %v", pods[i].Name, l.asked, l.lost, l.bypassed, l.failed)
		}
	}
	must(t, m.eachDials(t.Context(), pods[:2], func(s summary) error {
		t.Logf("%d outbound connections", s.OK)
		if s.Failed > 0 {
			return fmt.Errorf("of %d outbound connections %d failed: %v", s.OK+s.Failed, s.Failed, s.Errors)
		}
		return nil
	}))
}

// dialingPod is an application beside a container that makes connections to the world, from when the proxy takes the first.
func dialingPod(name, world string) *corev1.Pod {
	pod := loadedPod(name, sharingEvery, world, "")
	pod.Spec.Containers = pod.Spec.Containers[:2] // it holds no connection
	script := &pod.Spec.Containers[1].Command[2]
	*script = strings.Replace(*script, "http://127.0.0.1:15021/healthz/ready", "http://"+world+"/", 1)
	return pod
}
