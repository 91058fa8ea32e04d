package e2e

import (
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// third is the node that joins.
const third = "node3"

// A node joins with the startup taint. A pod that waits for it is let on it once its agent is ready, and is redirected from its first packet on.
//
// It is the last of the round: a node does not leave again.
//
//e2e:rounds nodes
func TestNodes_nodeJoinsWithTheStartupTaint_podsWaitForItsAgent(t *testing.T) {
	if slices.ContainsFunc(nodesNow(t), func(n node) bool { return n.NodeName == third }) {
		t.Skip("the node has joined in an earlier run on this cluster")
	}
	s := newSpace(t, nil)
	s.awaitPolicy(t)
	caught := catchAll(t)
	// The kubelet takes over what it finds, as that of a cloud whose node group has the taint.
	_, err := s.api.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: third, Labels: map[string]string{corev1.LabelHostname: third}},
		Spec: corev1.NodeSpec{
			Taints:  []corev1.Taint{{Key: keyStartupTaint, Effect: corev1.TaintEffectNoSchedule}},
			PodCIDR: "10.244.2.0/24", PodCIDRs: []string{"10.244.2.0/24", "fd00:10:244:2::/64"}, // as the kit has planned
		},
	}, metav1.CreateOptions{})
	must(t, err)
	s.create(t, placed(dialer("waits", asked(), 0, caught.port), third))
	s.await(t, "waits", isUnschedulable)
	image, err := filepath.Abs("../../build/image.tar")
	must(t, err)
	// It returns once the node has no taint.
	must(t, kc(t.Context(), "add-node", image))
	s.await(t, "waits", hasDialled)
	pod := s.await(t, "waits", hasStatus(statusInitialized))
	if by := readDetails(t, pod).Hook; by != "nri" || pod.Spec.NodeName != third {
		t.Errorf("programmed by %s on %s", by, pod.Spec.NodeName)
	}
	caught.wantNone(t)
	client, server := s.startMesh(t, placed(meshPod("first", asked()), s.node.NodeName)), s.startMesh(t, placed(meshPod("joined", asked()), third))
	for _, f := range families() {
		s.wantBothProxies(t, client, server, f)
		s.wantBothProxies(t, server, client, f)
	}
}
