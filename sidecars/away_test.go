package sidecars

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
)

// A proxy that ends while the API server is away is replaced by one for the pod as the last one had it, also by another agent. A pod that never had
// a proxy waits, and one that is gone gets none.
func TestStart_apiServerAway_podIsAsTheLastProxyHadIt(t *testing.T) {
	for name, away := range map[string]func(n *fakeNode){
		"it is out of reach": func(n *fakeNode) { n.failures["pod"] = errors.New("connection refused") },
		"it does not answer": func(n *fakeNode) { n.apiHangs = true },
	} {
		t.Run(name, func(t *testing.T) {
			proxyEndsWhile(t, away, func(n *fakeNode, m *Manager) {
				if said := n.mustSay(t, "u1", v1alpha1.Running, true); said.Epoch != 1 {
					t.Errorf("%+v", said)
				}
				text, err := os.ReadFile(filepath.Join(m.Homes.Of(sandboxOf("u1").Key()).Epoch(1).Files(), "haproxy.cfg"))
				if err != nil || string(text) != "'cart-1' 'cart'" {
					t.Errorf("its file is %q, error %v", text, err)
				}
				m.Follow(sandboxOf("u2"))
				n.after(awayLimit + time.Second)
				if said := n.said["u2"]; said.Ready || said.Failure == "" && !n.apiHangs {
					t.Errorf("a pod that never had a proxy: %+v", said)
				}
			})
		})
	}
	t.Run("it says that there is no such pod", func(t *testing.T) {
		proxyEndsWhile(t, func(n *fakeNode) { n.failures["pod"] = podnet.ErrNoPod }, func(n *fakeNode, _ *Manager) {
			n.mustSay(t, "u1", v1alpha1.Failed, false)
		})
	})
}

// proxyEndsWhile has a pod's proxy end when something of the node has changed. The agent that sees it has started the proxy, or came later.
func proxyEndsWhile(t *testing.T, changed func(*fakeNode), check func(*fakeNode, *Manager)) {
	for _, later := range []bool{false, true} {
		bubble(t, func(_ *testing.T, n *fakeNode, agent func() (*Manager, func())) {
			n.profile.Spec.Files[0].Template = "{{ .Pod.Name }} {{ .Pod.Labels.app }}"
			n.meshed.labels = map[string]string{"app": "cart"}
			m, stop := agent()
			m.Follow(sandboxOf("u1"))
			n.after(time.Second)
			if later {
				stop()
				m, stop = agent()
				m.Follow(sandboxOf("u1"))
				n.after(time.Second)
			}
			defer stop()
			n.change(func() { changed(n) })
			n.end("c001", 1)
			n.after(awayLimit + time.Second)
			check(n, m)
		})
	}
}
