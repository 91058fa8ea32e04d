package sidecars

import (
	"testing"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/sidecar"
)

// starting counts the proxies that run and are not ready yet. n.mu is held.
func (n *fakeNode) starting() (out int) {
	for _, c := range n.containers {
		if c.State == sidecar.Running && time.Since(c.Created) < c.readyAfter {
			out++
		}
	}
	return out
}

// Pods that run get their first proxies in the turn of upgrades, and rules once these are ready.
func TestLater_manyPodsChoose_rulesComeWithReadyProxies(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.later = true
		most := 0
		n.behave = func(p *fakeProxy) {
			p.readyAfter, p.drains = 200*time.Millisecond, time.Second
			most = max(most, n.starting())
		}
		m, stop := agent()
		defer stop()
		uids := followMany(m, 20)
		n.after(500 * time.Millisecond)
		n.mu.Lock()
		for key, r := range n.rules {
			if !n.said[key.PodUID].Ready {
				t.Errorf("%s has rules before its proxy is ready: %+v", key.PodUID, r.now)
			}
		}
		if len(n.rules) == len(uids) {
			t.Error("all have rules already")
		}
		n.mu.Unlock()
		n.after(time.Minute)
		n.mustServe(t, uids, 1)
		if most > 2 || len(n.rules) != len(uids) {
			t.Errorf("%d proxies started at once, %d pods have rules", most, len(n.rules))
		}
	})
}

// A first version that does not work leaves all pods as they were, and is tried in few of them. What works is used at once.
func TestLater_firstVersionFails_podsStayAsTheyWere(t *testing.T) {
	for name, c := range map[string]struct {
		behave func(*fakeProxy)
		pull   error
	}{
		"it ends at once": {behave: endsAtOnce}, "it is never ready": {behave: neverReady}, "it cannot be pulled": {pull: sidecar.ErrNotEnded},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				if c.behave != nil {
					n.behave = only(c.behave, image(1))
				}
				n.failures["pull"] = c.pull
				n.mustStayAsTheyWere(t, agent)
			})
		})
	}
}

// mustStayAsTheyWere has eight pods choose the profile, whose first version fails, and then works.
func (n *fakeNode) mustStayAsTheyWere(t *testing.T, agent func() (*Manager, func())) {
	t.Helper()
	n.later = true
	m, stop := agent()
	uids := followMany(m, 8)
	n.after(2 * time.Minute)
	waiting := 0
	for _, uid := range uids {
		if n.said[uid].State == v1alpha1.Starting && n.said[uid].Failure == "" {
			waiting++
		}
	}
	if len(n.rules) > 0 || waiting < 4 {
		t.Errorf("%d pods have rules, %d wait", len(n.rules), waiting)
	}
	stop()
	m, stop = agent()
	defer stop()
	followMany(m, 8)
	n.change(func() { delete(n.failures, "pull") })
	n.changeTo(m, 2)
	n.after(stableTime + time.Minute) // until nothing is said of the failures before
	n.mustServe(t, uids, 2)
	if len(n.rules) != len(uids) {
		t.Errorf("%d pods have rules", len(n.rules))
	}
}
