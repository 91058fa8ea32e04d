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

// withPorts gives a profile of mode perPod ports of its own.
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
type moving struct {
	own, other, shared, same, foreign managed
	// taken is how many connections to the world each of the pod's own proxies has made, by its log. Of proxies that have ended the last two
	// logs stay, so they are read after each move.
	taken map[string]int
}

func newMoving(t *testing.T) moving {
	t.Helper()
	keep := func(spec map[string]any) { spec["drainSeconds"] = int64(600) }
	own := newManaged(t, withOneThread(t), keep)
	named := func(name, sample string, change ...func(map[string]any)) managed {
		m := managed{own.space, name, own.objects}
		m.createProfileFrom(t, sample, change...)
		t.Cleanup(func() { m.deleteProfile(t) })
		return m
	}
	return moving{
		taken:   map[string]int{},
		own:     own,
		other:   named(own.name+"-other", "sidecar-profile.yaml", withOneThread(t), keep, withPorts(t, 15201, 15206, 15221)),
		shared:  named(sharedMoves, "sidecar-profile-shared.yaml", withOneThread(t)),
		same:    named(own.name+"-same", "sidecar-profile.yaml", withPorts(t, 15101, 15306, 15321)),
		foreign: named(own.name+"-foreign", "sidecar-profile.yaml", withPorts(t, 15301, 15306, 15321), func(spec map[string]any) { spec["runAsGroup"] = int64(1338) }),
	}
}

// A pod changes from one profile to another, of either mode, while it runs: no connection fails, none goes past both proxies, and one that is
// open stays so. Where it cannot, it keeps the proxy that it has.
//
//e2e:rounds nri
func TestSidecarSharedMoves(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	b := m.own.startBusy(t, "moving")
	for i, to := range []managed{m.shared, m.own, m.other, m.shared, m.other} {
		m.move(t, b, to)
		b.held.say(t, fmt.Sprintf("after move %d", i))
	}
	m.move(t, b, m.shared)
	m.wantStays(t, b, m.foreign, "has runAsGroup 1338")
	m.wantStays(t, b, m.same, "has port 15101")
	m.move(t, b, m.own)

	sent := b.stop(t)
	b.wantKept(t, sent)
	shared := m.shared.passed(t, b.pod.Name, "outbound", b.world)
	m.count(t, b)
	own := 0
	for _, n := range m.taken {
		own += n
	}
	if shared == 0 || own == 0 || shared+own != sent.OK+1 {
		t.Errorf("outbound: the shared proxy made %d connections and the pod's own %d, for %d of the application", shared, own, sent.OK+1)
	}
	t.Logf("%d inbound and %d outbound connections, of these %d by the shared proxy", b.in.asked, sent.OK, shared)
}

// move has the pod choose a profile, and waits until its proxy takes the pod's connections.
func (m moving) move(t *testing.T, b *busy, to managed) {
	t.Helper()
	b.annotate(t, b.pod.Name, map[string]any{keySidecar: to.profile})
	eventually(t, "the move to "+to.profile, func(ctx context.Context) error {
		object, err := to.objects.Resource(sidecarKind("sidecars")).Namespace(to.name).Get(ctx, b.pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		profile, _, _ := unstructured.NestedString(object.Object, "spec", "profile")
		status, _, err := unstructured.NestedMap(object.Object, "status")
		if profile != to.profile || status["state"] != "Running" || status["ready"] != true {
			return errors.Join(err, fmt.Errorf("profile %q, %v", profile, status))
		}
		return err
	})
	before := m.passed(t, b, to)
	eventually(t, "connections through "+to.profile, func(context.Context) error {
		if now := m.passed(t, b, to); now <= before {
			return fmt.Errorf("%d were made, as before", now)
		}
		return nil
	})
	if pod := b.await(t, b.pod.Name, isReadyNow); conditionOf(pod).Reason != "Initialized" {
		t.Errorf("the condition is %+v", conditionOf(pod))
	}
	b.wantNoneFailed(t, "after the move to "+to.profile)
	m.count(t, b)
}

// count reads the logs of the pod's own proxies.
func (m moving) count(t *testing.T, b *busy) {
	t.Helper()
	for file, text := range m.own.proxyLogs(t, b.pod) {
		m.taken[file] = max(m.taken[file], strings.Count(text, fmt.Sprintf("original-dst=%s state=--", b.world)))
	}
}

// passed counts the pod's connections to the world through a profile's proxy.
func (m moving) passed(t *testing.T, b *busy, by managed) int {
	t.Helper()
	if by.profile == m.shared.profile {
		return by.passed(t, b.pod.Name, "outbound", b.world)
	}
	return strings.Count(by.proxyLog(t, b.pod), "outbound epoch=")
}

// wantStays wants the pod to keep its proxy when it chooses a profile to which it cannot move, and to be told why.
func (m moving) wantStays(t *testing.T, b *busy, to managed, words string) {
	t.Helper()
	rules := b.listRules(t, b.pod)
	before := b.await(t, b.pod.Name, isReadyNow).Annotations[keySidecar]
	b.annotate(t, b.pod.Name, map[string]any{keySidecar: to.profile})
	b.await(t, b.pod.Name, func(pod *corev1.Pod) error {
		c := conditionOf(pod)
		if c.Status != corev1.ConditionTrue || !strings.Contains(c.Message, words) || !strings.Contains(c.Message, to.profile) {
			return fmt.Errorf("want %q about %s, the condition is %+v", words, to.profile, c)
		}
		return nil
	})
	if now := b.listRules(t, b.pod); now != rules {
		t.Errorf("the rules have changed from\n%s\nto\n%s", rules, now)
	}
	b.annotate(t, b.pod.Name, map[string]any{keySidecar: before})
}

// What the page about shared proxies says of moves can be typed.
//
//e2e:rounds nri
func TestSidecarSharedPage(t *testing.T) {
	t.Parallel()
	t.Cleanup(func() {
		cleanUp(t, "namespace", "moving")
		cleanUp(t, "sidecarprofiles.pod-network-controller.istio.io", "haproxy", "haproxy-shared")
	})
	text := typed(t, pageCommands(t, "sidecar-shared.md", "Moving between the modes", "Leave it"))
	// Three choices in place, the last two with a question about the profile and one about the proxy.
	if n := strings.Count(text, "condition met"); n != 5 {
		t.Errorf("%d waits ended well, want 5:\n%s", n, text)
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
