package sidecars

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/profile"
)

// The API server has no addresses of a new pod: the fake's never has.
func TestManager_newPod_firstProxyHasItsAddresses(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.profile.Spec.Files[0].Template = "{{ .Pod.IP }}{{ range .Pod.IPs }} {{ . }}{{ end }}"
		n.profile.Spec.Env = []v1alpha1.EnvVar{{Name: "IP", FieldPath: "status.podIP"}, {Name: "IPS", FieldPath: "status.podIPs"}}
		m, stop := agent()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		text, err := os.ReadFile(filepath.Join(m.Homes.Of(sandboxOf("u1").Key()).Epoch(0).Files(), "haproxy.cfg"))
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

// Without a handover nothing is ended before all is there that its successor is made from.
func TestUpgrade_withoutHandoverNothingToStart_oldOneStays(t *testing.T) {
	for name, misses := range map[string]func(*fakeNode){
		"the image is pulled":    func(n *fakeNode) { n.pulling = true },
		"the image is not there": func(n *fakeNode) { n.failures["pull"] = errors.New("no such image") },
		"a file is not rendered": func(n *fakeNode) { n.profile.Spec.Files[0].Template = `{{ slice .Pod.Name 99 }}` },
		"a Secret is missing": func(n *fakeNode) {
			n.profile.Spec.Secrets = []v1alpha1.SecretSource{{Name: "tls", Secret: &v1alpha1.SecretKeys{SecretReference: v1alpha1.SecretReference{Name: "none"}}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				n.profile.Spec.Handover = profile.HandoverNone
				m, stop := agent()
				defer stop()
				m.Follow(sandboxOf("u1"))
				n.after(time.Second)
				n.change(func() { misses(n) })
				n.changeTo(m, 2)
				n.after(time.Minute)
				if said := n.said["u1"]; !said.Ready || said.Epoch != 0 || len(n.running()) != 1 || n.next != 1 {
					t.Errorf("%d proxies were made, and the ManagedProxy says %+v", n.next, said)
				}
			})
		})
	}
}

// beside is a runtime that remembers how many proxies ran when one was made.
type beside struct {
	*fakeNode
	ran []int
}

func (r *beside) Create(ctx context.Context, s sidecar.Spec) (string, error) {
	r.ran = append(r.ran, len(r.running()))
	return r.fakeNode.Create(ctx, s)
}

// A proxy that could not take over from one of another kind hands over to its own successor.
func TestUpgrade_predecessorCouldNotHandOver_successorCan(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.profile.Spec.Handover = profile.HandoverNone
		m, stop := agent()
		defer stop()
		recorded := &beside{fakeNode: n}
		m.Runtime = recorded
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.change(n.sharePorts)
		n.changeTo(m, 2)
		n.after(10 * time.Second)
		n.mustServe(t, []string{"u1"}, 2)
		n.change(func() { n.wish = Wish("a") })
		m.Notify("edge")
		n.after(10 * time.Second)
		if got := fmt.Sprint(recorded.ran); got != "[0 0 1]" {
			t.Errorf("so many ran when a proxy was made: %s", got)
		}
	})
}
