package admissiontest

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const startupTaint = "pod-network-controller.istio.io/not-ready"

// restrictsToNode lets the agent's account do to nodes what it must not, each alone, and what it must.
func (s *server) restrictsToNode(t *testing.T, agent kubernetes.Interface) {
	s.node(t, "n1")
	s.node(t, "n2")
	untilDenied(t, func(ctx context.Context) error {
		_, err := change{node: "n2", patch: `{"metadata": {"labels": {"a": "b"}}}`}.by(ctx, agent)
		return err
	}, release+"-node", "denied")
	s.testNodeDenials(t, agent)
	t.Run("a token that is bound to no node", func(t *testing.T) {
		_, err := change{node: "n1", patch: removal(2, 1), json: true}.by(t.Context(), s.client(t, s.token(t, "")))
		expectDenied(t, err, "the agent's token is not bound to a node")
	})
	t.Run("a taint that is not where it was", func(t *testing.T) {
		before := s.taints(t)
		if _, err := (change{node: "n1", patch: removal(2, 0), json: true, wet: true}).by(t.Context(), agent); err == nil {
			t.Error("the patch was taken")
		}
		same(t, before, s.taints(t), "taints")
	})
	t.Run("others are free", func(t *testing.T) {
		if _, err := (change{node: "n1", patch: `{"metadata": {"labels": {"a": "b"}}, "spec": {"taints": null}}`}).by(t.Context(), s.admin); err != nil {
			t.Error(err)
		}
	})
	t.Run("what the agent is for", func(t *testing.T) {
		before := s.taints(t)
		node, err := change{node: "n1", patch: removal(2, 1), json: true, wet: true}.by(t.Context(), agent)
		must(t, err)
		same(t, append(before[:1:1], before[3:]...), node.Spec.Taints, "taints")
	})
}

func (s *server) testNodeDenials(t *testing.T, agent kubernetes.Interface) {
	const taints, spec = "the agent may take the startup taint away, and no other, and add none", "the agent may change nothing of a node's spec but its taints"
	const meta, part = "the agent may change no label, annotation, finalizer or owner of a node", "the agent may change a node's taints only"
	without := removal(2, 1)
	with := func(step string) string { return strings.TrimSuffix(without, "]") + ", " + step + "]" }
	for name, c := range map[string]struct {
		change
		want string
	}{
		"another node":                 {change{node: "n2", patch: without, json: true}, "the agent may change its own node only, which is n1"},
		"another taint taken away":     {change{patch: `[{"op": "remove", "path": "/spec/taints/0"}]`, json: true}, taints},
		"another taint in addition":    {change{patch: with(`{"op": "remove", "path": "/spec/taints/0"}`), json: true}, taints},
		"every taint":                  {change{patch: `{"spec": {"taints": null}}`}, taints},
		"one of two effects":           {change{patch: removal(2), json: true}, taints},
		"a taint more":                 {change{patch: `[{"op": "add", "path": "/spec/taints/-", "value": {"key": "a", "effect": "NoSchedule"}}]`, json: true}, taints},
		"a taint in exchange":          {change{patch: with(`{"op": "add", "path": "/spec/taints/-", "value": {"key": "a", "effect": "NoSchedule"}}`), json: true}, taints},
		"the startup taint put there":  {change{patch: with(`{"op": "add", "path": "/spec/taints/-", "value": {"key": "` + startupTaint + `", "effect": "NoExecute"}}`), json: true}, taints},
		"another taint's effect":       {change{patch: with(`{"op": "replace", "path": "/spec/taints/0/effect", "value": "NoExecute"}`), json: true}, taints},
		"another taint's value":        {change{patch: with(`{"op": "add", "path": "/spec/taints/0/value", "value": "b"}`), json: true}, taints},
		"others in another order":      {change{patch: with(`{"op": "move", "from": "/spec/taints/0", "path": "/spec/taints/1"}`), json: true}, taints},
		"closed to pods":               {change{patch: with(`{"op": "add", "path": "/spec/unschedulable", "value": true}`), json: true}, spec},
		"an identity":                  {change{patch: with(`{"op": "add", "path": "/spec/providerID", "value": "a://b"}`), json: true}, spec},
		"a label":                      {change{patch: with(`{"op": "add", "path": "/metadata/labels/a", "value": "b"}`), json: true}, meta},
		"a label changed":              {change{patch: with(`{"op": "replace", "path": "/metadata/labels/pool", "value": "b"}`), json: true}, meta},
		"a label taken away":           {change{patch: with(`{"op": "remove", "path": "/metadata/labels/pool"}`), json: true}, meta},
		"an annotation":                {change{patch: with(`{"op": "add", "path": "/metadata/annotations", "value": {"a": "b"}}`), json: true}, meta},
		"a finalizer":                  {change{patch: with(`{"op": "add", "path": "/metadata/finalizers", "value": ["a/b"]}`), json: true}, meta},
		"an owner":                     {change{patch: with(`{"op": "add", "path": "/metadata/ownerReferences", "value": [{"apiVersion": "v1", "kind": "Node", "name": "x", "uid": "x"}]}`), json: true}, meta},
		"the status":                   {change{patch: `{"status": {"conditions": [{"type": "Ready", "status": "True"}]}}`, part: "status"}, part},
		"a label by way of the status": {change{patch: `{"metadata": {"labels": {"a": "b"}}}`, part: "status"}, part},
	} {
		t.Run(name, func(t *testing.T) {
			if c.node == "" {
				c.node = "n1"
			}
			_, err := c.by(t.Context(), agent)
			expectDenied(t, err, c.want)
		})
	}
}

// change is a patch of a node: merged, unless it is a JSON patch, and tried only, unless it is wet.
type change struct {
	node, patch, part string
	json, wet         bool
}

func (c change) by(ctx context.Context, client kubernetes.Interface) (*corev1.Node, error) {
	options, kind, parts := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, types.MergePatchType, []string{}
	if c.wet {
		options.DryRun = nil
	}
	if c.json {
		kind = types.JSONPatchType
	}
	if c.part != "" {
		parts = append(parts, c.part)
	}
	return client.CoreV1().Nodes().Patch(ctx, c.node, kind, []byte(c.patch), options, parts...)
}

// removal is the agent's own patch for startup taints at these places, the last one first.
func removal(places ...int) string {
	var steps []string
	for _, i := range places {
		steps = append(steps, fmt.Sprintf(`{"op": "test", "path": "/spec/taints/%d/key", "value": %q}, {"op": "remove", "path": "/spec/taints/%d"}`, i, startupTaint, i))
	}
	return "[" + strings.Join(steps, ", ") + "]"
}

func (s *server) taints(t *testing.T) []corev1.Taint {
	t.Helper()
	node, err := s.admin.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	must(t, err)
	return node.Spec.Taints
}

// node is one that has just registered, and that a kubelet with many images has reported on.
func (s *server) node(t *testing.T, name string) {
	t.Helper()
	node, err := s.admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": "a", "kubernetes.io/hostname": name}},
		Spec: corev1.NodeSpec{PodCIDR: "10.1.0.0/24", PodCIDRs: []string{"10.1.0.0/24"}, Taints: []corev1.Taint{
			{Key: "example.com/first", Value: "a", Effect: corev1.TaintEffectNoSchedule},
			{Key: startupTaint, Effect: corev1.TaintEffectNoSchedule},
			{Key: startupTaint, Effect: corev1.TaintEffectNoExecute},
			{Key: "example.com/last", Effect: corev1.TaintEffectPreferNoSchedule},
		}},
	}, metav1.CreateOptions{})
	must(t, err)
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}
	for i := range 50 {
		var image corev1.ContainerImage
		for j := range 5 {
			image.Names = append(image.Names, fmt.Sprintf("registry.example.com/%s/image-%d@sha256:%064d", strings.Repeat("a", 100), i, j))
		}
		node.Status.Images = append(node.Status.Images, image)
	}
	text, err := json.Marshal(map[string]any{"status": node.Status})
	must(t, err)
	if _, err := (change{node: name, patch: string(text), part: "status", wet: true}).by(t.Context(), s.admin); err != nil {
		t.Fatal(err)
	}
}

// knowsTheKey installs the policy for nodes with the key of another taint: the agent may take that one away, and no other. Its node
// has the first and the last of taints by now.
func (s *server) knowsTheKey(t *testing.T, agent kubernetes.Interface) {
	s.install(t, "{hooks.startupTaint.enabled: true, hooks.startupTaint.key: example.com/last}")
	eventually(t, "the API server follows the policy with another key", func(ctx context.Context) error {
		_, err := change{node: "n1", patch: `[{"op": "remove", "path": "/spec/taints/1"}]`, json: true}.by(ctx, agent)
		return err
	})
	_, err := change{node: "n1", patch: `[{"op": "remove", "path": "/spec/taints/0"}]`, json: true}.by(t.Context(), agent)
	expectDenied(t, err, "the agent may take the startup taint away, and no other, and add none")
}
