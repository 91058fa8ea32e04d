package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// withPorts gives a profile with a proxy for each pod ports of its own.
func withPorts(t testing.TB, outbound, inbound, ready int64) func(map[string]any) {
	t.Helper()
	return func(spec map[string]any) {
		changeTemplate(t, spec, "15021", fmt.Sprint(ready))
		network := spec["network"].(map[string]any)
		network["outboundPort"], network["inboundPort"], network["excludeInboundPorts"] = outbound, inbound, []any{ready}
		spec["readiness"].(map[string]any)["httpGet"].(map[string]any)["port"] = ready
	}
}

// moving is a namespace whose pods may choose among profiles of both modes.
type moving struct{ own, other, shared managed }

func newMoving(t *testing.T) moving {
	t.Helper()
	own := newManaged(t, withOneThread(t))
	named := func(name, sample string, change ...func(map[string]any)) managed {
		m := managed{own.space, name, own.objects}
		m.createProfileFrom(t, sample, change...)
		t.Cleanup(func() { m.deleteProfile(t) })
		return m
	}
	return moving{
		own:    own,
		other:  named(own.name+"-other", "proxy-profile.yaml", withOneThread(t), withPorts(t, 15201, 15206, 15221)),
		shared: named(sharedMoves, "proxy-profile-shared.yaml", withOneThread(t)),
	}
}

// A pod that chooses another profile while it runs, of another mode or with other ports, keeps its proxy and says so: no connection fails, none
// goes past the proxy, and one that is open stays so. Through none it has the proxy that it has chosen.
//
//e2e:rounds nri
func TestSidecarSharedMoves(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	b := m.own.startBusy(t, "moving")
	for _, to := range []managed{m.shared, m.other} {
		m.wantStays(t, b, to)
		b.held.say(t, "after "+to.profile+" was chosen")
	}
	b.awaitEnough(t)
	sent := b.stop(t)
	b.wantKept(t, sent)
	if n := strings.Count(b.proxyLog(t, b.pod), fmt.Sprintf("original-dst=%s state=--", b.world)); n != sent.OK+1 {
		t.Errorf("outbound: the proxy made %d connections for %d of the application", n, sent.OK+1)
	}
	t.Logf("%d inbound and %d outbound connections", b.in.asked, sent.OK)

	pod := m.own.startManaged(t, plainPod("through-none"))
	m.own.wantProxied(t, pod)
	m.throughNone(t, pod, m.shared)
	m.shared.wantShared(t, pod)
	m.throughNone(t, pod, m.other)
	m.other.wantProxied(t, pod)
}

// throughNone has the pod choose none, and then a profile, and waits until that one's proxy serves it.
func (m moving) throughNone(t *testing.T, pod *corev1.Pod, to managed) {
	t.Helper()
	m.own.annotate(t, pod.Name, map[string]any{keySidecar: "none"})
	m.own.await(t, pod.Name, hasStatus(statusRemoved))
	m.own.annotate(t, pod.Name, map[string]any{keySidecar: to.profile})
	m.awaitServedBy(t, pod, to, func(map[string]any) error { return nil })
	m.own.await(t, pod.Name, hasStatus(statusInitialized))
	m.own.await(t, pod.Name, isReadyNow)
}

// awaitServedBy waits until a pod's ManagedProxy shows a profile's proxy that serves, and is as check wants it.
func (m moving) awaitServedBy(t *testing.T, pod *corev1.Pod, by managed, check func(status map[string]any) error) {
	t.Helper()
	eventually(t, "the proxy of "+by.profile, func(ctx context.Context) error {
		object, err := by.objects.Resource(sidecarKind("managedproxies")).Namespace(by.name).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		profile, _, _ := unstructured.NestedString(object.Object, "spec", "profile")
		status, _, err := unstructured.NestedMap(object.Object, "status")
		if profile != by.profile || status["state"] != "Running" || status["ready"] != true {
			return errors.Join(err, fmt.Errorf("profile %q, %v", profile, status))
		}
		return check(status)
	})
}

// wantStays wants the pod to keep its proxy when it chooses another profile, and to be told why.
func (m moving) wantStays(t *testing.T, b *busy, to managed) {
	t.Helper()
	rules := b.listRules(t, b.pod)
	b.annotate(t, b.pod.Name, map[string]any{keySidecar: to.profile})
	m.awaitServedBy(t, b.pod, m.own, says(true, "takes effect for new pods", to.profile))
	if now := b.listRules(t, b.pod); now != rules {
		t.Errorf("the rules have changed from\n%s\nto\n%s", rules, now)
	}
	b.await(t, b.pod.Name, isReadyNow)
	b.wantNoneFailed(t, "after "+to.profile+" was chosen")
}

// What the page about shared proxies says of moves can be typed.
//
//e2e:rounds nri
func TestSidecarSharedPage(t *testing.T) {
	t.Parallel()
	t.Cleanup(func() {
		cleanUp(t, "namespace", "moving")
		cleanUp(t, "proxyprofiles.pod-network-controller.istio.io", "haproxy", "haproxy-shared")
	})
	text := typed(t, pageCommands(t, "managed-proxies-shared.md", "Moving between the modes", "Leave it"))
	// Of five. The ManagedProxy of the proxy before may be gone before it is waited for.
	if n := strings.Count(text, "condition met"); n < 4 {
		t.Errorf("%d waits ended well, want 4 or 5:\n%s", n, text)
	}
	rows := strings.Split(strings.TrimSpace(text), "\n")
	found := false
	for _, row := range rows {
		found = found || strings.HasPrefix(row, "web-") && strings.Contains(row, " haproxy-shared ")
	}
	if !found {
		t.Errorf("no pod has the shared proxy at the end:\n%s", text)
	}
}
