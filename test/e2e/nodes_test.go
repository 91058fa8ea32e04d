package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Tests of the round nodes want a cluster of at least two nodes. None is parallel: each looks at what the others do to a node.

// second is the node that most trouble happens to. The first node's kit has daemons with plain names.
const second = "node2"

// nodesNow lists the cluster's nodes, as kc tells.
func nodesNow(t testing.TB) []node {
	t.Helper()
	out, _ := exec.CommandContext(t.Context(), "kc", "status", "-o", "json").Output() // fails while daemons do not run
	var status struct {
		Runtime, RuntimeSocket string
		Nodes                  []node
	}
	if err := json.Unmarshal(out, &status); err != nil {
		t.Fatalf("read kc's answer %q: %v", out, err)
	}
	for i := range status.Nodes {
		status.Nodes[i].Runtime, status.Nodes[i].RuntimeSocket = status.Runtime, status.RuntimeSocket
	}
	return status.Nodes
}

// on is the space as seen with another node: its agent, its runtime, its files. After a power cut of the node it has to be asked for again.
func (s *space) on(t testing.TB, name string) *space {
	t.Helper()
	for _, n := range nodesNow(t) {
		if n.NodeName == name {
			c := &cluster{rest: s.rest, api: s.api, node: n}
			must(t, c.dialRuntime())
			return &space{cluster: c, name: s.name}
		}
	}
	t.Fatalf("there is no node %q: make one with kc add-node", name)
	return nil
}

// placed has the scheduler put a pod on a node.
func placed(pod *corev1.Pod, node string) *corev1.Pod {
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	return pod
}

// What a pod sends to a pod of another node passes both proxies, in both families and both directions, and the network between the nodes changes no
// address: the server's proxy sees the client's pod.
//
//e2e:rounds nodes
func TestNodes_trafficBetweenPods_passesBothProxies(t *testing.T) {
	s := newSpace(t, asked())
	pods := []*corev1.Pod{
		s.startMesh(t, placed(meshPod("on-first", nil), s.node.NodeName)), s.startMesh(t, placed(meshPod("on-second", nil), second)),
	}
	for i, client := range pods {
		for _, f := range families() {
			t.Run(client.Name+" "+f.name, func(t *testing.T) { s.wantBothProxies(t, client, pods[1-i], f) })
		}
	}
}

// wantBothProxies has one pod ask another, and wants the client's proxy to have sent the connection, and the server's to have taken it.
func (s *space) wantBothProxies(t *testing.T, client, server *corev1.Pod, f family) {
	t.Helper()
	dst := at(server, f, appPort)
	takenFromClient := func() (n int) {
		for _, e := range journal(t, server) {
			if e.Direction == inbound && e.OriginalDst == dst.String() && e.peer() == at(client, f, 0).Addr() && e.Error == "" {
				n++
			}
		}
		return n
	}
	sent, taken := took(t, client, outbound, dst), takenFromClient()
	if a := s.askFrom(t, client, dst); a.Banner != server.Name || a.Local != dst.String() || a.peer() != f.passthrough {
		t.Errorf("%s at %s answered and saw %s, want %s to be asked by its proxy", a.Banner, a.Local, a.Peer, server.Name)
	}
	if sent, taken = took(t, client, outbound, dst)-sent, takenFromClient()-taken; sent != 1 || taken != 1 {
		t.Errorf("to %s: the client's proxy sent %d connections, and the server's took %d from the client's pod, want 1 and 1; its journal: %+v",
			dst, sent, taken, journal(t, server))
	}
}

// The commands show every node, and what is on it, wherever they are run.
//
//e2e:rounds nodes
func TestNodes_commands_showEveryNode(t *testing.T) {
	s := newSpace(t, asked())
	nodes := nodesNow(t)
	for _, n := range nodes {
		s.startMesh(t, placed(meshPod("on-"+n.NodeName, nil), n.NodeName))
	}
	s.wantStatusOfNodes(t, nodes)
	levels, got := checked(t)
	if got.code != 0 || levels["agents-ready"] != "ok" || levels["nodes-without-agent"] != "ok" {
		t.Errorf("check: exit code %d: %s", got.code, got.out)
	}
	for _, n := range nodes {
		doc := wantInspected(t, "", fmt.Sprintf("%s/on-%s", s.name, n.NodeName), "--via", "exec")
		if doc.Node != n.NodeName || doc.Agreement.Verdict != "agree" || len(doc.Programmed.Rules) == 0 {
			t.Errorf("inspect of the pod on %s: %+v", n.NodeName, doc)
		}
	}
	if proven := finish(t, program, "connectivity", "test", "--nodes", "all"); proven.code != 0 {
		t.Errorf("the connectivity test of all nodes: exit code %d: %s%s", proven.code, proven.out, proven.errOut)
	}
}

// wantStatusOfNodes wants status to have the agent of each node, ready, and each pod with its node.
func (s *space) wantStatusOfNodes(t *testing.T, nodes []node) {
	t.Helper()
	out, code := runStatus(t.Context(), t, os.Getenv("KUBECONFIG"), "-n", s.name, "-o", "json")
	got := decode[struct {
		Nodes []struct {
			Name, Agent string
			Status      struct{ Ready bool }
		}
		Pods []struct{ Name, Node, State string }
	}](t, out)
	ready, programmed := map[string]bool{}, map[string]string{}
	for _, n := range got.Nodes {
		ready[n.Name] = n.Agent != "" && n.Status.Ready
	}
	for _, p := range got.Pods {
		programmed[p.Name] = p.State + " on " + p.Node
	}
	for _, n := range nodes {
		if !ready[n.NodeName] || programmed["on-"+n.NodeName] != "programmed on "+n.NodeName {
			t.Errorf("status has no ready agent or no programmed pod on %s: exit code %d, %s", n.NodeName, code, out)
		}
	}
	if code != 0 {
		t.Errorf("status: exit code %d: %s", code, out)
	}
}
