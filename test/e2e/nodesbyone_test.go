package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// The agents are updated one node after the other, while pods of both nodes open connections to each other all the time: none fails, and none passes a
// proxy by, for both proxies have counted each.
//
//e2e:rounds nodes
func TestNodes_agentsAreUpdated_nodeAfterNodeUnderLoad(t *testing.T) {
	s := newSpace(t, asked())
	names := []string{s.node.NodeName, second}
	pods, loads, before := make([]*corev1.Pod, 2), make([]*outboundLoad, 2), make([]map[string]count, 2)
	for i, name := range names {
		pods[i] = s.startMesh(t, placed(newPod("loaded-"+name, nil, toolsContainer(), proxyContainer("istio-proxy")), name))
	}
	for i, pod := range pods {
		before[i] = counts(t, pod)
	}
	for i, pod := range pods {
		loads[i] = s.loadOutboundEvery(t, rolledEvery, pod, at(pods[1-i], families()[0], appPort))
	}
	s.rollAgents(t, names)
	sent := make([]summary, 2)
	for i, l := range loads {
		if sent[i] = l.stop(t); sent[i].OK < enough || sent[i].Failed > 0 {
			t.Errorf("from %s: %d connections were answered, %d failed: %v", names[i], sent[i].OK, sent[i].Failed, sent[i].Errors)
		}
	}
	for i, pod := range pods {
		now := counts(t, pod)
		out, in := now[outbound].OK-before[i][outbound].OK, now[inbound].OK-before[i][inbound].OK
		if out != sent[i].OK || in != sent[1-i].OK {
			t.Errorf("the proxy on %s sent %d connections of %d and took %d of %d", names[i], out, sent[i].OK, in, sent[1-i].OK)
		}
	}
	t.Logf("%d and %d connections between the nodes while their agents were updated", sent[0].OK, sent[1].OK)
}

// rollAgents updates the DaemonSet and waits until each node has another agent, none of which was begun before the one before it was ready.
func (s *space) rollAgents(t *testing.T, nodes []string) {
	t.Helper()
	old := map[string]*corev1.Pod{}
	for _, name := range nodes {
		old[name] = s.on(t, name).agent(t)
	}
	s.patchDaemonSet(t, map[string]any{"metadata": map[string]any{"annotations": map[string]any{"rolled": time.Now().String()}}})
	var first, last *corev1.Pod
	for _, name := range nodes {
		on := s.on(t, name)
		eventually(t, "another agent on "+name, func(ctx context.Context) error {
			now, err := on.findAgent(ctx)
			if err == nil && now.UID == old[name].UID {
				err = errors.New("it is still the old one")
			}
			if err != nil {
				return err
			}
			if last = now; first == nil || now.CreationTimestamp.Before(&first.CreationTimestamp) {
				first, last = now, first
			}
			return nil
		})
	}
	for _, c := range first.Status.Conditions {
		if c.Type == corev1.PodReady && last.CreationTimestamp.Before(&c.LastTransitionTime) {
			t.Errorf("the agent of %s was begun at %s, and that of %s was ready at %s", last.Spec.NodeName, last.CreationTimestamp, first.Spec.NodeName, c.LastTransitionTime)
		}
	}
}

// nodesProxies is a profile whose pods are on both nodes, by node.
type nodesProxies struct {
	managed
	pods map[string][]*corev1.Pod
}

// startOnNodes makes two pods on each node, whose proxies are upgraded as update says.
func startOnNodes(t *testing.T, update map[string]any) nodesProxies {
	t.Helper()
	m := newManaged(t, func(spec map[string]any) { maps.Copy(updateOf(spec), update) })
	p := nodesProxies{m, map[string][]*corev1.Pod{m.node.NodeName: nil, second: nil}}
	for name := range p.pods {
		for i := range 2 {
			pod := m.create(t, placed(plainPod(fmt.Sprintf("%s-%d", name, i)), name))
			p.pods[name] = append(p.pods[name], pod)
		}
	}
	for _, pods := range p.pods {
		for i := range pods {
			pods[i] = m.await(t, pods[i].Name, isReadyNow)
		}
	}
	m.awaitCondition(t, "Upgraded", "Upgraded")
	return p
}

// upgraded counts, by node, the proxies that are of another version than one and serve.
func (p nodesProxies) upgraded(ctx context.Context, before map[string]any) (map[string]int, error) {
	all, err := p.objects.Resource(sidecarKind("managedproxies")).Namespace(p.name).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	statuses := map[string]map[string]any{}
	for i := range all.Items {
		statuses[all.Items[i].GetName()], _, _ = unstructured.NestedMap(all.Items[i].Object, "status")
	}
	n := map[string]int{}
	for node, pods := range p.pods {
		for _, pod := range pods {
			if isUpgraded(before)(statuses[pod.Name]) == nil {
				n[node]++
			}
		}
	}
	return n, nil
}

// With partition 1 one of the two nodes keeps the version before until the profile lets it begin. With maxNodes 1 the second node begins once all proxies
// of the first one are upgraded. Connections go on in both cases.
//
//e2e:rounds nodes
func TestNodes_profileWithMaxNodesAndPartition_goesNodeAfterNode(t *testing.T) {
	p := startOnNodes(t, map[string]any{"maxNodes": int64(1), "partition": int64(1), "maxParallel": int64(1)})
	f := families()[0]
	var loads []*inboundLoad
	for _, pods := range p.pods {
		for _, pod := range pods {
			p.awaitAnswer(t, pod.Name)
			loads = append(loads, loadInboundEvery(t, 4*rolledEvery, at(pod, f, appPort), f.passthrough))
		}
	}
	before, err := p.sidecar(t.Context(), second+"-0")
	must(t, err)
	p.newVersion(t, "for one node")
	p.awaitReason(t, "Upgraded", metav1.ConditionFalse, "Paused")
	held, err := p.upgraded(t.Context(), before)
	must(t, err)
	if len(held) != 1 || held[p.node.NodeName]+held[second] != 2 {
		t.Errorf("with partition 1, upgraded by node are %v, want all proxies of one node", held)
	}
	p.patchProfile(t, map[string]any{"update": map[string]any{"partition": nil}})
	p.awaitCondition(t, "Upgraded", "Upgraded")
	before, err = p.sidecar(t.Context(), second+"-0")
	must(t, err)
	p.newVersion(t, "for all nodes")
	p.watchOneByOne(t, before)
	p.awaitCondition(t, "Upgraded", "Upgraded")
	if asked, failed := p.endLoads(t, nil, loads); failed > 0 {
		t.Errorf("%d of %d connections failed", failed, asked)
	}
}

// watchOneByOne looks at the roll-out until all are upgraded, and wants no look to find both nodes under way.
func (p nodesProxies) watchOneByOne(t *testing.T, before map[string]any) {
	t.Helper()
	looks := 0
	eventually(t, "the roll-out over both nodes", func(ctx context.Context) error {
		n, err := p.upgraded(ctx, before)
		if err != nil {
			return err
		}
		if looks++; len(n) == 2 && n[p.node.NodeName] < 2 && n[second] < 2 {
			t.Errorf("both nodes are under way: upgraded are %v", n)
		}
		if n[p.node.NodeName]+n[second] < 4 {
			return fmt.Errorf("upgraded are %v", n)
		}
		return nil
	})
	t.Logf("%d looks at the roll-out", looks)
}
