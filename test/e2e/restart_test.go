package e2e

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Rules live in the pods' namespaces, so an agent that comes and goes must be invisible to traffic: no rule set anew, no
// connection lost, none past the proxy.
//
// Not parallel: the new agent's metrics are to tell of pods that have their rules already, and of no others.
//
//e2e:rounds nftables
func TestAgentRestartTouchesNothing(t *testing.T) {
	s := newQuietSpace(t, asked())
	tools := newPod("loaded", nil, toolsContainer(), proxyContainer("istio-proxy"))
	pod := s.startMesh(t, tools)
	f := families()[0]
	established := dialEcho(t, at(pod, f, appTCPPort))
	text := s.settledRules(t, pod)
	before := s.rulesOf(t, pod)
	counted := counts(t, pod)[outbound]

	in := loadInbound(t, at(pod, f, appPort), f.passthrough)
	out := s.loadOutbound(t, pod, f.at(1, worldPort))
	old := s.agent(t)
	must(t, s.api.CoreV1().Pods(agentName).Delete(t.Context(), old.Name, metav1.DeleteOptions{}))
	s.awaitAgentAfter(t, old)
	in.stop(t)
	sent := out.stop(t)

	if in.asked < 20 || in.failed != nil || in.bypassed > 0 {
		t.Errorf("inbound: of %d connections %d bypassed the proxy; failed: %v", in.asked, in.bypassed, in.failed)
	}
	if sent.OK < 20 || sent.Failed > 0 {
		t.Errorf("outbound: %d connections were answered, %d failed: %v", sent.OK, sent.Failed, sent.Errors)
	}
	if got := counts(t, pod)[outbound]; got.OK-counted.OK != sent.OK || got.Failed != counted.Failed {
		t.Errorf("outbound: the proxy took %d connections of %d, and failed %d", got.OK-counted.OK, sent.OK, got.Failed-counted.Failed)
	}
	established.say(t, "after the agent's restart")
	t.Logf("%d inbound and %d outbound connections went on while the agent restarted", in.asked, sent.OK)

	if after := s.listRules(t, pod); after != text {
		t.Fatalf("the rules, or their handles, have changed\nfrom:\n%s\nto:\n%s", text, after)
	}
	wantCountersGrown(t, before, s.rulesOf(t, pod))
	if after := readDetails(t, s.await(t, pod.Name, hasStatus(statusInitialized))); after.first() != readDetails(t, pod).first() {
		t.Errorf("the report is %+v, was %+v", after, readDetails(t, pod))
	}
}

// awaitAgentAfter waits until another agent has looked at the pods, and wants it to have changed nothing.
func (s *space) awaitAgentAfter(t *testing.T, old *corev1.Pod) {
	t.Helper()
	eventually(t, "another agent", func(ctx context.Context) error {
		agent, err := s.findAgent(ctx)
		if err != nil {
			return err
		}
		if agent.UID == old.UID {
			return errors.New("it is still the old one")
		}
		m, err := s.readMetrics(ctx)
		if err == nil && m.ensured("unchanged") == 0 {
			err = errors.New("it has looked at no pod that has its rules")
		}
		return err
	})
	m := s.metrics(t)
	if m.ensured("changed") > 0 || m.writes("PATCH", "POST", "PUT") > 0 {
		t.Errorf("the new agent changed the rules of %v pods and wrote %v times to the API server, want neither",
			m.ensured("changed"), m.writes("PATCH", "POST", "PUT"))
	}
}

func (s *space) rulesOf(t *testing.T, pod *corev1.Pod) view {
	t.Helper()
	v, ok := s.rules(t, pod)
	if !ok {
		t.Fatalf("pod %s holds no rules", pod.Name)
	}
	return v
}

// listRules is all that the kernel holds for the pod, by nft itself: without counters, but with the handles that the kernel
// gives anew to whatever is made anew. What iptables has put there is seen as well.
func (s *space) listRules(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	out, err := rulesIn(t.Context(), s.sandboxOf(t, pod).here(s.cluster))
	must(t, err)
	return out
}

func rulesIn(ctx context.Context, netns string) (string, error) {
	out, err := exec.CommandContext(ctx, "nsenter", "--net="+netns, "nft", "-a", "-s", "list", "ruleset").Output()
	return string(out), err
}

// settledRules are listRules once nothing waits for the proxy any more: the agent takes away the rules for that when it has seen the proxy listen.
func (s *space) settledRules(t *testing.T, pod *corev1.Pod) (text string) {
	t.Helper()
	netns := s.sandboxOf(t, pod).here(s.cluster)
	eventually(t, "rules without any that wait for the proxy", func(ctx context.Context) (err error) {
		if text, err = rulesIn(ctx, netns); err == nil && strings.Contains(text, "waits for the proxy") {
			err = errors.New("connections wait for the proxy still")
		}
		return err
	})
	return text
}

// wantCountersGrown wants every rule to have counted on.
func wantCountersGrown(t *testing.T, before, after view) {
	t.Helper()
	grown := false
	for i, c := range before.Chains {
		for j, r := range c.Rules {
			now := after.Chains[i].Rules[j]
			if now.Rule != r.Rule || now.Packets < r.Packets {
				t.Errorf("chain %s: %q counted %d, now %q has %d", c.Name, r.Rule, r.Packets, now.Rule, now.Packets)
			}
			grown = grown || now.Packets > r.Packets
		}
	}
	if !grown {
		t.Error("no rule has counted anything meanwhile")
	}
}
