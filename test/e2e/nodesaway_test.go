package e2e

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// electedLease is the Lease of the agent that counts the proxies of all nodes.
const electedLease = "istio-pod-network-controller-profiles"

// electedWithin is how long the count may stand still once the elected agent has died: the Lease runs out after a minute, and the others look at it
// every 15 to 33 seconds.
const electedWithin = 3 * time.Minute

func (c *cluster) elected(ctx context.Context) (pod string, err error) {
	lease, err := c.api.CoordinationV1().Leases(agentName).Get(ctx, electedLease, metav1.GetOptions{})
	if err == nil && (lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "") {
		err = errors.New("no agent is elected")
	}
	if err != nil {
		return "", err
	}
	return *lease.Spec.HolderIdentity, nil
}

// The elected agent dies for good: its kubelet is down, too. Proxies of its node serve on, and the other node's agent comes to count: a new version reaches
// its node, and the profile says so.
//
//e2e:rounds nodes
func TestNodes_electedAgentDies_anotherOneCounts(t *testing.T) {
	p := startOnNodes(t, nil)
	agents := map[string]string{}
	var dies, stays string
	for name := range p.pods {
		agents[name] = p.on(t, name).agent(t).Name
	}
	eventually(t, "an agent that is elected", func(ctx context.Context) error {
		pod, err := p.elected(ctx)
		if dies, stays = second, p.node.NodeName; pod == agents[stays] {
			dies, stays = stays, dies
		}
		if err == nil && pod != agents[dies] {
			err = fmt.Errorf("it is %s, which is on no node: %v", pod, agents)
		}
		return err
	})
	before, err := p.sidecar(t.Context(), stays+"-0")
	must(t, err)
	on := p.on(t, dies)
	pid := on.containerPID(t, on.agent(t), "agent")
	must(t, kc(t.Context(), "stop", "--node", dies, "kubelet"))
	back := sync.OnceFunc(func() { must(t, kc(context.WithoutCancel(t.Context()), "start", "--node", dies, "kubelet")) })
	t.Cleanup(back)
	must(t, signal(pid, syscall.SIGKILL))
	p.newVersion(t, "counted by another one")
	began := time.Now()
	within(t, electedWithin, "the count of the other agent", func(ctx context.Context) error {
		n, err := p.upgraded(ctx, before)
		if err == nil && (n[stays] != 2 || n[dies] != 0) {
			err = fmt.Errorf("upgraded are %v, want all of %s", n, stays)
		}
		if err != nil {
			return err
		}
		return p.counted(ctx, 2, 4)
	})
	t.Logf("%s after the death of the elected agent another one had counted", time.Since(began).Round(time.Second))
	if pod, err := p.elected(t.Context()); err != nil || pod != agents[stays] {
		t.Errorf("elected is %q (%v), want %s", pod, err, agents[stays])
	}
	for _, pod := range p.pods[dies] { // without its agent
		var a answer
		must(t, request(t.Context(), at(pod, families()[0], appPort), "/", &a))
		if a.peer() != families()[0].passthrough {
			t.Errorf("%s was asked by %s, want its proxy", pod.Name, a.peer())
		}
	}
	back()
	p.awaitCondition(t, "Upgraded", "Upgraded")
}

// counted wants the profile's status to be of its present version, and to count so many proxies.
func (p nodesProxies) counted(ctx context.Context, upgraded, pods int64) error {
	profile, err := p.objects.Resource(sidecarKind("proxyprofiles")).Get(ctx, p.profile, metav1.GetOptions{})
	if err != nil {
		return err
	}
	status, _ := profile.Object["status"].(map[string]any)
	if status["observedGeneration"] != profile.GetGeneration() || status["upgraded"] != upgraded || status["pods"] != pods {
		return fmt.Errorf("generation %d, want %d of %d upgraded: %v", profile.GetGeneration(), upgraded, pods, status)
	}
	return nil
}

// cutOff takes away a node's way to the control plane: what it sends is not answered. Nodes and their pods reach each other. join gives the way back, at
// the end of the test at the latest.
func cutOff(t *testing.T, n node) (join func()) {
	t.Helper()
	rule := func(verb string) {
		for ip := range strings.SplitSeq(n.NodeIPs, ",") {
			family := "-4"
			if strings.Contains(ip, ":") {
				family = "-6"
			}
			out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "ip", family, "rule", verb, "to", ip, "unreachable").CombinedOutput()
			if err != nil {
				t.Errorf("ip rule %s to %s: %v: %s", verb, ip, err, out)
			}
		}
	}
	rule("add")
	join = sync.OnceFunc(func() { rule("del") })
	t.Cleanup(join)
	return join
}

// dialsTo is a pod that makes connections all the time, without anybody who looks on: the API server does not reach its node.
func dialsTo(name string, server *corev1.Pod) *corev1.Pod {
	pod := newPod(name, nil, toolsContainer(), proxyContainer("istio-proxy"))
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
		Name: "dials", Image: "localhost/tools:1", Command: []string{"sh", "-c", "until wget -q -O /dev/null http://127.0.0.1:15021/healthz/ready; do usleep 100000; done; " +
			"exec testapp dial -report 200ms -every 20ms http://" + at(server, families()[0], appPort).String() + "/"},
	})
	return pod
}

// A node that does not reach the API server goes on, although its agent dies, too: its pods keep their rules and their connections to the other node,
// where pods are changed and made. It catches up with what has changed meanwhile.
//
//e2e:rounds nodes
func TestNodes_cutOffFromTheAPIServer_keepsItsPodsAndCatchesUp(t *testing.T) {
	s := newSpace(t, asked())
	server := s.startMesh(t, placed(meshPod("server", nil), s.node.NodeName))
	away := s.startMesh(t, placed(dialsTo("away", server), second))
	there := s.on(t, second)
	m := managed{space: s}
	dialled := func(atLeastOK int) error {
		return m.eachDials(t.Context(), []*corev1.Pod{away}, func(sum summary) error {
			if sum.Failed > 0 {
				t.Errorf("%d connections failed: %v", sum.Failed, sum.Errors)
			}
			return atLeast(sum.OK, atLeastOK)
		})
	}
	eventually(t, "connections", func(context.Context) error { return dialled(enough) })
	namespace := there.sandboxOf(t, away).here(there.cluster)
	rules, err := programmed(t.Context(), namespace)
	must(t, err)
	taken := counts(t, server)[inbound]

	join := cutOff(t, there.node)
	s.awaitCutOff(t)
	agent := there.agent(t)
	pid := there.containerPID(t, agent, "agent")
	must(t, signal(pid, syscall.SIGKILL))
	eventually(t, "a new agent", func(ctx context.Context) error {
		now, err := there.findContainerPID(ctx, agent, "agent")
		if err == nil && now == pid {
			err = errors.New("it is the one that dies")
		}
		return err
	})
	s.annotate(t, away.Name, map[string]any{keyExcludeInbound: "9100"})
	s.annotate(t, server.Name, map[string]any{keyExcludeInbound: "9100"})
	s.awaitExcluded(t, server.Name)
	beside := s.startMesh(t, placed(meshPod("beside", nil), s.node.NodeName))
	s.wantBothProxies(t, beside, away, families()[0])
	s.wantBothProxies(t, beside, away, families()[1])
	if now, err := programmed(t.Context(), namespace); err != nil || now != rules {
		t.Errorf("the rules of the node that is cut off have changed (%v)\nfrom:\n%s\nto:\n%s", err, rules, now)
	}
	if now := counts(t, server)[inbound]; now.OK-taken.OK < enough || now.Failed != taken.Failed {
		t.Errorf("from the node that is cut off came %d connections, %d failed", now.OK-taken.OK, now.Failed-taken.Failed)
	}
	join()
	s.awaitExcluded(t, away.Name)
	eventually(t, "the logs of the node that was cut off", func(context.Context) error { return dialled(2 * enough) })
}

// awaitCutOff waits until the node has missed some of its heartbeats.
func (s *space) awaitCutOff(t *testing.T) {
	t.Helper()
	eventually(t, "a node that is not heard of", func(ctx context.Context) error {
		lease, err := s.api.CoordinationV1().Leases("kube-node-lease").Get(ctx, second, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if silent := time.Since(lease.Spec.RenewTime.Time); silent < 20*time.Second {
			return fmt.Errorf("it was heard of %s ago", silent)
		}
		return nil
	})
}

// awaitExcluded waits until a pod's rules are those of its edit.
func (s *space) awaitExcluded(t *testing.T, name string) {
	t.Helper()
	s.await(t, name, func(pod *corev1.Pod) error {
		on := s
		if pod.Spec.NodeName != s.node.NodeName {
			on = s.on(t, pod.Spec.NodeName)
		}
		rules, err := programmed(t.Context(), on.sandboxOf(t, pod).here(on.cluster))
		if err == nil && !strings.Contains(rules, "9100") {
			err = errors.New("its rules do not have the edit")
		}
		return err
	})
}

// One node loses its power. The other one's pods do not notice, and no first connection of those that start again with the node passes by.
//
//e2e:rounds nodes
func TestNodes_powerCutOfOneNode_theOtherGoesOn(t *testing.T) {
	s := newSpace(t, asked())
	s.awaitPolicy(t)
	server := s.startMesh(t, placed(meshPod("server", nil), s.node.NodeName))
	client := s.startMesh(t, placed(newPod("client", nil, toolsContainer(), proxyContainer("istio-proxy")), s.node.NodeName))
	beside := s.startMesh(t, placed(meshPod("beside", nil), s.node.NodeName))
	lost := s.startMesh(t, placed(meshPod("lost", nil), second))
	caught := catchAll(t)
	s.create(t, placed(endless(dialer("dials", asked(), 0, caught.port)), second))
	dials := s.await(t, "dials", isRunning)
	there := s.on(t, second)
	was := map[string]sandbox{lost.Name: there.sandboxOf(t, lost), dials.Name: there.sandboxOf(t, dials)}
	load := s.loadOutbound(t, client, at(server, families()[0], appPort))
	must(t, kc(t.Context(), "powercut", "--node", second))
	must(t, kc(t.Context(), "boot", "--node", second))
	there = s.on(t, second)
	for name, before := range was {
		there.awaitContainer(t, name, before.ID)
		s.await(t, name, func(pod *corev1.Pod) error {
			d, err := detailsOf(pod)
			if err == nil && d.Sandbox == before.ID {
				err = errors.New("its report is of the sandbox of before")
			}
			return errors.Join(err, hasStatus(statusInitialized)(pod))
		})
	}
	lost = s.awaitAnswer(t, lost.Name)
	for _, f := range families() {
		s.wantBothProxies(t, beside, lost, f)
		s.wantBothProxies(t, lost, beside, f)
	}
	caught.wantNone(t)
	if sent := load.stop(t); sent.OK < enough || sent.Failed > 0 {
		t.Errorf("on the other node %d connections were answered, %d failed: %v", sent.OK, sent.Failed, sent.Errors)
	}
}

// A node is drained and comes back: its pods are made anew on the other node with their rules, its own agent stays, and what comes to the node later
// is captured as before.
//
//e2e:rounds nodes
func TestNodes_drained_podsMoveWithTheirRules(t *testing.T) {
	s := newSpace(t, asked())
	moved := meshPod("moved", nil)
	s.startMesh(t, placed(moved, second))
	agent := s.on(t, second).agent(t)
	kubectl := func(args ...string) {
		out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "kubectl", args...).CombinedOutput()
		if err != nil {
			t.Errorf("kubectl %v: %v: %s", args, err, out)
		}
	}
	back := sync.OnceFunc(func() { kubectl("uncordon", second) })
	t.Cleanup(back)
	kubectl("drain", second, "--ignore-daemonsets", "--force", "--timeout=2m")
	again := s.startMesh(t, meshPod("moved", nil)) // only the other node takes it
	if again.Spec.NodeName == second {
		t.Error("the pod came to the node that is drained")
	}
	wantInbound(t, again, families()[0], appPort, true)
	there := s.on(t, second)
	if now := there.agent(t); now.UID != agent.UID {
		t.Error("the node's agent was drained, too")
	}
	there.awaitTidyNode(t, agent)
	back()
	returned := s.startMesh(t, placed(meshPod("returned", nil), second))
	for _, f := range families() {
		s.wantBothProxies(t, again, returned, f)
	}
}
