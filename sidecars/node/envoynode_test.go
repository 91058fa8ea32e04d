package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars"
	"istio-pod-network-controller/sidecars/probe"
	"istio-pod-network-controller/sidecars/profile"
)

// envoyNode is a node with one pod, whose proxies are stand-ins for Envoy.
type envoyNode struct{ *realNode }

func newEnvoyNode(t *testing.T) envoyNode {
	t.Helper()
	return envoyNode{newRealNode(t, 1, "envoy", profile.Spec{
		NamespaceSelector: &metav1.LabelSelector{}, Image: "envoy:1", Args: []string{"-c", "/etc/sidecar/envoy.json"},
		Handover: profile.HandoverEnvoy, RunAsUser: 1337, RunAsGroup: 1337,
		Readiness: profile.Probe{TCPPort: 15021, StartSeconds: 20, PeriodSeconds: 10}, Rollout: v1alpha1.Rollout{DrainSeconds: 1, MaxParallel: 1},
		Network: v1alpha1.Network{OutboundPort: 15001, InboundPort: 15006},
		Files: []v1alpha1.File{{
			Name: "envoy.json", Syntax: "json",
			Template: `{"admin": {{.AdminSocket}}, "listen": ["127.0.0.1:15001", "0.0.0.0:15006", "127.0.0.1:15021"]}`,
		}},
	})}
}

// pod is the pod's network namespace.
func (n envoyNode) pod() *netns.NS { return n.pods[n.sandboxes[0].ID] }

// agent starts an agent, which the node kills after answers, too.
func (n envoyNode) agent(t *testing.T) (m *sidecars.Manager, stop func()) {
	t.Helper()
	return n.realNode.agent(t, func(m *sidecars.Manager) { m.Asker = countedAsker{m.Asker.(asker), n} })
}

// countedAsker has the agent killed after answers, too: what it knows from them is lost.
type countedAsker struct {
	asker
	node envoyNode
}

func (a countedAsker) Serves(ctx context.Context, s podnet.Sandbox, epoch uint32) error {
	if err := a.asker.Serves(ctx, s, epoch); err != nil {
		return err
	}
	a.node.mu.Lock()
	defer a.node.mu.Unlock()
	return a.node.call()
}

func (a countedAsker) Ask(ctx context.Context, s podnet.Sandbox, p *profile.Version, epoch uint32, q probe.Question) error {
	if err := a.asker.Ask(ctx, s, p, epoch, q); err != nil {
		return err
	}
	a.node.mu.Lock()
	defer a.node.mu.Unlock()
	return a.node.call()
}

func (n envoyNode) says() sidecars.Status {
	n.profiles.Lock()
	defer n.profiles.Unlock()
	return n.said[n.sandboxes[0].UID]
}

// upgrade changes the profile.
func (n envoyNode) upgrade(m *sidecars.Manager, image string) {
	n.edit(m, func(s *profile.Spec) { s.Image = image })
}

// allow changes how long a proxy may take to start. By default a busy machine has time enough.
func (n envoyNode) allow(startSeconds int32) {
	n.profiles.Lock()
	defer n.profiles.Unlock()
	n.spec.Readiness.StartSeconds = startSeconds
}

// await waits until the ManagedProxy shows an image whose proxy is ready, and nothing else runs.
func (n envoyNode) await(t *testing.T, image string) {
	t.Helper()
	eventually(t, "a proxy of "+image+" is ready, alone", func() bool {
		s := n.says()
		return s.Ready && strings.Split(s.Image, ",")[0] == image && slices.Equal(n.images(), []string{image})
	}, func() string { return fmt.Sprintf("%+v, and %v run", n.says(), n.images()) })
}

// line returns the place of the newest proxy that runs.
func (n envoyNode) line() string {
	all, _ := n.List(context.Background(), "") //nolint:forbidigo // it asks nobody
	for _, c := range slices.Backward(all) {
		if c.State == sidecar.Running && c.HotRestart != nil {
			return c.HotRestart.String()
		}
	}
	return "none"
}
