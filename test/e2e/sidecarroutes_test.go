package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// choosers are pods that choose a profile while they run, unless E2E_CHOOSERS says otherwise.
	choosers = 12
	// chooseAfter is how long a pod has to run before that, not to count as one that starts.
	chooseAfter = 32 * time.Second
)

// runsAs has the proxy run as another user.
func runsAs(id int64) func(map[string]any) {
	return func(spec map[string]any) { spec["runAsUser"], spec["runAsGroup"] = id, id }
}

// Another user or other ports, by an edit of the profile or by a new one under its name, are an upgrade like any other: no new connection fails, and none
// that is open breaks. If it does not work, the former proxies serve on.
//
//e2e:rounds nri
func TestSidecarProfileIsMadeAnew(t *testing.T) {
	t.Parallel()
	m := newManaged(t, withOneThread(t), drainsLong)
	b := m.startUnderLoad(t, 3, 12*time.Millisecond)
	for _, c := range []struct {
		what   string
		change []func(map[string]any)
	}{
		{"an edit of the user", nil},
		{"another user", []func(map[string]any){runsAs(2337)}},
		{"other ports", []func(map[string]any){runsAs(2337), withPorts(t, 15201, 15206, 15221)}},
		{"the first ones again", nil},
	} {
		before, err := m.sidecar(t.Context(), b.pods[0].Name)
		must(t, err)
		if strings.Contains(c.what, "edit") {
			m.patchProfile(t, map[string]any{"runAsUser": int64(2336)})
		} else {
			m.deleteProfile(t)
			m.createProfile(t, append(c.change, withOneThread(t), drainsLong)...)
		}
		for _, pod := range b.pods {
			m.awaitSidecar(t, pod.Name, isUpgraded(before))
		}
		b.say(t, "after "+c.what)
	}
	m.deleteProfile(t)
	m.createProfile(t, withOneThread(t), drainsLong, runsAs(2338), func(spec map[string]any) { spec["command"] = []any{"/usr/sbin/haproxy", "-db", "-f", "/none"} })
	for _, pod := range b.pods {
		m.awaitSidecar(t, pod.Name, says(true, "exit code"))
	}
	b.say(t, "after one that does not work")
	b.wantNoneLost(t)
	m.wantProxied(t, b.pods[0])
}

// Pods that run choose a profile, all at once: none of their connections fails, in either direction. If the proxy's image cannot be pulled they stay as
// they were, and can take the choice back.
//
//e2e:rounds nri
func TestSidecarRunningPodsChoose(t *testing.T) {
	t.Parallel()
	m := newManaged(t, withOneThread(t), func(spec map[string]any) { spec["image"] = missingImage })
	m.annotateSelf(t, map[string]any{keySidecar: nil})
	n := amount(t, "E2E_CHOOSERS", choosers)
	pods, loads := m.startDialling(t, n)
	held := dialEcho(t, at(pods[0], families()[0], appTCPPort))
	pause(t.Context(), chooseAfter)
	choose := func(profile any) {
		for _, pod := range pods {
			m.annotate(t, pod.Name, map[string]any{keySidecar: profile})
		}
	}

	choose(m.profile)
	eventually(t, "the failure of the first ones", func(ctx context.Context) error {
		list, err := m.objects.Resource(sidecarKind("managedproxies")).Namespace(m.name).List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) < n {
			err = fmt.Errorf("%d of %d pods have a ManagedProxy", len(list.Items), n)
		}
		return err
	})
	for _, pod := range pods {
		if rules := m.listRules(t, pod); rules != "" {
			t.Errorf("%s has rules and no proxy:\n%s", pod.Name, rules)
		}
	}
	choose(nil)
	eventually(t, "the end of their choice", func(ctx context.Context) error {
		list, err := m.objects.Resource(sidecarKind("managedproxies")).Namespace(m.name).List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d ManagedProxies are left", len(list.Items))
		}
		return err
	})
	held.say(t, "after a profile that does not work")

	m.patchProfile(t, map[string]any{"image": sidecarsImage})
	choose(m.profile)
	for _, pod := range pods {
		m.awaitSidecar(t, pod.Name, isServing(0))
		m.await(t, pod.Name, hasStatus(statusInitialized))
	}
	held.say(t, "after a profile that works")
	asked := 0
	for i, l := range loads {
		l.stop(t)
		if asked += l.asked; l.failed != nil {
			t.Errorf("inbound of %s: of %d connections %d failed: %v", pods[i].Name, l.asked, l.lost, l.failed)
		}
	}
	dialled := 0
	must(t, m.eachDials(t.Context(), pods, func(s summary) error {
		if dialled += s.OK; s.Failed > 0 {
			t.Errorf("outbound: of %d connections %d failed: %v", s.OK+s.Failed, s.Failed, s.Errors)
		}
		return nil
	}))
	for _, pod := range pods {
		m.wantProxied(t, pod)
	}
	t.Logf("%d pods, %d inbound and %d outbound connections", n, asked, dialled)
}

// startDialling starts pods without a proxy that make connections, and are connected to, all the time.
func (m managed) startDialling(t *testing.T, n int) (pods []*corev1.Pod, loads []*inboundLoad) {
	t.Helper()
	f, every := families()[0], time.Duration(n)*loadedEvery
	for i := range n {
		m.create(t, newPod(fmt.Sprintf("chooses-%d", i), nil, appContainer(), corev1.Container{
			Name: "dials", Image: "localhost/testapp:1", Args: []string{"dial", "-report", "200ms", "-every", every.String(), "http://" + f.at(1, worldPort).String() + "/"},
		}))
	}
	for i := range n {
		pod := m.await(t, fmt.Sprintf("chooses-%d", i), isReadyNow)
		m.awaitListening(t, pod)
		pods, loads = append(pods, pod), append(loads, loadInboundEvery(t, every, at(pod, f, appPort), f.passthrough))
	}
	return pods, loads
}
