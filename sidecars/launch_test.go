package sidecars

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
)

// The API server has no addresses of a new pod: the fake's never has.
func TestManager_newPod_firstProxyHasItsAddresses(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.profile.Spec.Files[0].Template = "{{ .Pod.IP }}{{ range .Pod.IPs }} {{ . }}{{ end }}"
		n.profile.Spec.Env = []v1alpha1.EnvVar{{Name: "IP", FieldPath: "status.podIP"}, {Name: "IPS", FieldPath: "status.podIPs"}}
		m, stop := agent()
		m.Follow(sandboxOf("u1"))
		after(time.Second)
		text, err := os.ReadFile(filepath.Join(m.Homes.of(keyOf(sandboxOf("u1"))).files(0), "haproxy.cfg"))
		if want := "'10.0.0.1' '10.0.0.1' 'fd00::1'"; err != nil || string(text) != want {
			t.Errorf("the file has %q, error %v; want %q", text, err, want)
		}
		stop()
		for _, want := range []string{"IP=10.0.0.1", "IPS=10.0.0.1,fd00::1"} {
			if env := n.containers["c001"].spec.Env; !slices.Contains(env, want) {
				t.Errorf("the environment %q has no %s", env, want)
			}
		}
	})
}
