package node

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
)

// The profile may be made anew under its name: rules are for the proxy that serves, until the manager says that another one does.
func TestManaged_profileMadeAnew_isTheProxyThatServes(t *testing.T) {
	for name, restarts := range map[string]bool{"one agent": false, "another agent": true} {
		m := newChanging(t)
		m.must("it starts", "edge", false)
		m.profile.UID, m.profile.Spec.Container.RunAsUser, m.profile.Spec.Network.OutboundPort = "anew", 1999, 15555
		m.reread()
		if restarts {
			m.restart()
		}
		got := m.Managed(t.Context(), m.sandbox, "edge", m.pod, m.ns)
		if got.UID == 1999 || got.OutboundPort != 15001 {
			t.Errorf("%s: the rules know %+v", name, got)
		}
		revisited := false
		m.revisit = func(podnet.Sandbox) { revisited = true }
		if m.Lead(m.sandbox, intent.ManagedProxy{Profile: "edge", Owner: intent.Owner{UID: 1999}, OutboundPort: 15555}, true) || !revisited {
			t.Errorf("%s: the rules lead there at once, or are not changed", name)
		}
		if got = m.Managed(t.Context(), m.sandbox, "edge", m.pod, m.ns); got.UID != 1999 || got.OutboundPort != 15555 {
			t.Errorf("%s: the rules know %+v", name, got)
		}
		m.sandbox.ID = "s2"
		if got = m.Managed(t.Context(), m.sandbox, "edge", m.pod, m.ns); got.UID != 1999 {
			t.Errorf("%s: a new sandbox's rules know %+v", name, got)
		}
	}
}

// running has the pod's application run since a while.
func (m *changing) running(since time.Duration) {
	m.pod.Status.Phase = corev1.PodRunning
	at := metav1.NewTime(time.Now().Add(-since))
	m.pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at}}}}
	m.reread()
}

// A pod that runs when it chooses its first proxy gets rules once that is ready, a pod that starts at once.
func TestManaged_podRunsAlready_rulesComeLater(t *testing.T) {
	for name, c := range map[string]struct {
		since   time.Duration
		profile string
		later   bool
	}{
		"it has just started":   {time.Second, "edge", false},
		"it runs":               {time.Hour, "edge", true},
		"it runs, shared proxy": {time.Hour, "shared", false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newChanging(t)
			m.choose(c.profile)
			m.running(c.since)
			got := m.Managed(t.Context(), m.sandbox, c.profile, m.pod, m.ns)
			chosen, err := m.cluster.Choice(t.Context(), m.sandbox)
			if err != nil || got == nil || got.Later != c.later || chosen.Later != c.later {
				t.Fatalf("the rules know %+v, chosen is %+v, error %v", got, chosen, err)
			}
			if !c.later {
				return
			}
			m.Lead(m.sandbox, chosen.Profile.ManagedProxy(), true)
			got = m.Managed(t.Context(), m.sandbox, c.profile, m.pod, m.ns)
			if chosen, err = m.cluster.Choice(t.Context(), m.sandbox); err != nil || got.Later || chosen.Later {
				t.Errorf("its proxy is ready: the rules know %+v, chosen is %+v, error %v", got, chosen, err)
			}
			m.optOut()
			m.choose(c.profile)
			if got = m.Managed(t.Context(), m.sandbox, c.profile, m.pod, m.ns); !got.Later {
				t.Errorf("it chooses again after none: the rules know %+v", got)
			}
		})
	}
}

// A pod that takes its choice back before its first proxy is ready has none: the proxy ends. While nobody knows whether rules lead to it, it stays.
func TestLed_choiceTakenBackBeforeTheFirstProxyIsReady_proxyEnds(t *testing.T) {
	m := newChanging(t)
	m.running(time.Hour)
	delete(m.pod.Annotations, intent.KeySidecar)
	m.reread()
	for _, rules := range []string{"not looked for", "looked for"} {
		c, err := (ownCluster{m.cluster}).Choice(t.Context(), m.sandbox)
		if err != nil || c.Name != "" || c.OptedOut != (rules == "looked for") {
			t.Errorf("rules are %s: %+v, error %v", rules, c, err)
		}
		m.Led(m.sandbox, nil)
	}
}
