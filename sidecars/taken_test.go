package sidecars

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars/probe"
	"istio-pod-network-controller/sidecars/profile"
)

// A proxy that ends because the application has its port says so: its own last words name the port, but not who has it.
func TestTaken_portTaken_saysByWhom(t *testing.T) {
	for name, c := range map[string]struct {
		ready bool
		ask   error
		lost  bool // the kubelet removes the container at once
		want  bool
	}{
		"another process has its port, and nobody knows how it ended": {lost: true, ask: fmt.Errorf("%w: user 0 listens on port 15006", ErrPortTaken), want: true},
		"another process has its port":                                {ask: fmt.Errorf("%w: user 0 listens on port 15006", ErrPortTaken), want: true},
		"it ends for another reason":                                  {ask: errors.New("connection refused")},
		"it was ready: it ended by something":                         {ready: true, ask: fmt.Errorf("%w: user 0 listens on port 15006", ErrPortTaken)},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				n.behave = func(p *fakeProxy) { p.readyAfter = 0 }
				if !c.ready {
					n.failures["ask"] = c.ask
				}
				m, stop := agent()
				m.Follow(sandboxOf("u1"))
				n.after(time.Second)
				n.change(func() { n.failures["ask"] = c.ask })
				if n.end("c001", 1); c.lost {
					n.change(func() { delete(n.containers, "c001") })
				}
				n.after(50 * time.Millisecond)
				n.change(func() {
					said := n.said["u1"].Message
					if strings.Contains(said, "exit code 1") == c.lost || strings.Contains(said, "user 0 listens on port 15006") != c.want {
						t.Errorf("the ManagedProxy says %q", said)
					}
				})
				stop()
			})
		})
	}
}

// A proxy that runs and no longer answers says why, until it answers again.
func TestStatus_proxySilent_saysWhy(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		m.Follow(sandboxOf("u1"))
		for _, c := range []struct {
			ask  error
			want string
		}{{nil, ""}, {errors.New("connection refused"), "it does not answer: connection refused"}, {nil, ""}} {
			n.change(func() { n.failures["ask"] = c.ask })
			n.after(15 * time.Second)
			n.change(func() {
				if said := n.said["u1"]; said.Message != c.want || said.Ready != (c.ask == nil) || said.Failure != "" {
					t.Errorf("the ManagedProxy says %+v, want %q", said, c.want)
				}
			})
		}
		stop()
	})
}

// askedProfile is an Asker that notes by which version of the profile it asks.
type askedProfile struct {
	Asker
	hash string
}

func (a *askedProfile) Ask(_ context.Context, _ podnet.Sandbox, p *profile.Version, _ uint32, _ probe.Question) error {
	a.hash = p.Hash
	return ErrPortTaken
}

// Each version of a profile may have other ports: whose port was taken is asked by the version that the proxy was made from.
func TestTaken_olderVersion_asksForItsOwnPorts(t *testing.T) {
	for name, c := range map[string]struct{ hash, want string }{
		"the present version":          {"new", "new"},
		"the last version that worked": {"old", "old"},
		"a version before that":        {"older", "older"},
		"a version that is not known":  {"oldest", "new"},
	} {
		asked := &askedProfile{}
		o := observed{
			choice:   Choice{Profile: &profile.Version{Hash: "new"}},
			versions: versions{lastGood: &profile.Version{Hash: "old"}, earlier: []*profile.Version{{Hash: "older"}}},
		}
		if got := takenBy(t.Context(), asked, o, proxy{hash: c.hash}); got == "" || asked.hash != c.want {
			t.Errorf("%s: says %q, asked by the version %q, want %q", name, got, asked.hash, c.want)
		}
	}
}
