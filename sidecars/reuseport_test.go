package sidecars

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/profile"
)

// Move counts.
func (n *fakeNode) Move(context.Context, podnet.Sandbox) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.call("move")
}

// sharePorts gives the fake node a profile whose proxies listen side by side.
func (n *fakeNode) sharePorts() {
	spec := &n.profile.Spec
	spec.Handover, spec.StopSignal, spec.Args = profile.HandoverReusePort, "QUIT", []string{"-c", "/etc/sidecar/nginx.conf"}
	spec.Readiness.TCPPort, spec.Readiness.HTTPGet = 0, &profile.HTTPGet{Socket: "admin-{epoch}.sock", Path: "/ready"}
	spec.Files = []v1alpha1.File{{Name: "nginx.conf", Template: "listen unix:{{.AdminSocket}}; listen 127.0.0.1:909{{.Slot}};"}}
	before := n.behave
	n.behave = func(p *fakeProxy) { before(p); p.from = "whichever listens" }
}

func TestShareListeners_kernelCannotMove_isSaid(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.sharePorts()
		n.failures["move"] = errors.New("the kernel is too old")
		m, stop := agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(time.Minute)
		if said := n.mustSay(t, "u1", v1alpha1.Running, true); !strings.Contains(said.Message, "the kernel is too old") || said.Failure != "" {
			t.Errorf("the ManagedProxy says %+v", said)
		}
		n.change(func() { delete(n.failures, "move") })
		n.upgrade(m)
		n.after(time.Minute)
		if said := n.mustSay(t, "u1", v1alpha1.Running, true); said.Message != "" || said.Image != "localhost/haproxy:2" {
			t.Errorf("a kernel that can: %+v", said)
		}
	})
}

// A proxy of another handover takes part if a signal has it close its listeners.
func TestShareListeners_otherHandoverBefore_decides(t *testing.T) {
	for name, c := range map[string]struct {
		from *sidecar.Labels
		want string
	}{
		"none is there":                   {nil, ""},
		"one that takes a signal":         {&sidecar.Labels{StopSignal: "USR1"}, ""},
		"one that is stopped anyway":      {&sidecar.Labels{}, errReplace.Error()},
		"an Envoy, which takes no signal": {&sidecar.Labels{HotRestart: &sidecar.HotRestart{}}, "the running proxy stays"},
	} {
		t.Run(name, func(t *testing.T) {
			var from *sidecar.Container
			if c.from != nil {
				from = &sidecar.Container{Labels: *c.from}
			}
			_, err := shareListeners(t.Context(), newNode(), sandboxOf("u1"), from)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}
