package controllers

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"istio-pod-network-controller/internal/podreport"
)

// taintBench is a StartupTaint on a fake API server that counts patches, and calls a function before each if there is one.
type taintBench struct {
	*StartupTaint
	client   client.Client
	patches  int
	before   func() error
	notReady error
}

func newTaintBench(t *testing.T, taints ...corev1.Taint) *taintBench {
	t.Helper()
	b := &taintBench{}
	b.client = fake.NewClientBuilder().WithObjects(taintedNode("here", taints), taintedNode("there", taints)).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, p client.Patch, o ...client.PatchOption) error {
			b.patches++
			if b.before != nil {
				if err := b.before(); err != nil {
					return err
				}
			}
			return c.Patch(ctx, obj, p, o...)
		},
	}).Build()
	b.StartupTaint = &StartupTaint{Nodes: b.client, Node: "here", Key: podreport.KeyStartupTaint, Ready: func(context.Context) error { return b.notReady }}
	return b
}

func taintedNode(name string, taints []corev1.Taint) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Taints: taints}}
}

func (b *taintBench) reconcile(t *testing.T) (ctrl.Result, error) {
	t.Helper()
	return b.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "here"}})
}

func (b *taintBench) node(t *testing.T, name string) *corev1.Node {
	t.Helper()
	node := &corev1.Node{}
	if err := b.client.Get(t.Context(), client.ObjectKey{Name: name}, node); err != nil {
		t.Fatal(err)
	}
	return node
}

func (b *taintBench) wantTaints(t *testing.T, node string, want ...corev1.Taint) {
	t.Helper()
	if d := cmp.Diff(want, b.node(t, node).Spec.Taints, cmpopts.EquateEmpty()); d != "" {
		t.Errorf("taints of node %s (-want +got):\n%s", node, d)
	}
}

func startup(effect corev1.TaintEffect) corev1.Taint {
	return corev1.Taint{Key: podreport.KeyStartupTaint, Effect: effect}
}

func foreign(key string) corev1.Taint {
	return corev1.Taint{Key: key, Value: "kept", Effect: corev1.TaintEffectNoSchedule}
}

func TestTheStartupTaintAloneGoes(t *testing.T) {
	since := metav1.Unix(1000, 0)
	late := corev1.Taint{Key: "example.com/late", Effect: corev1.TaintEffectNoExecute, TimeAdded: &since}
	valued := corev1.Taint{Key: podreport.KeyStartupTaint, Value: "true", Effect: corev1.TaintEffectNoExecute, TimeAdded: &since}
	for name, c := range map[string]struct {
		in, want []corev1.Taint
		patches  int
	}{
		"no taint at all":               {},
		"none of ours":                  {in: []corev1.Taint{foreign("a"), late}, want: []corev1.Taint{foreign("a"), late}},
		"ours alone":                    {in: []corev1.Taint{startup("NoSchedule")}, patches: 1},
		"ours among others":             {in: []corev1.Taint{foreign("a"), startup("NoSchedule"), late}, want: []corev1.Taint{foreign("a"), late}, patches: 1},
		"every effect, and a value":     {in: []corev1.Taint{startup("NoSchedule"), foreign("a"), valued, startup("PreferNoSchedule"), late}, want: []corev1.Taint{foreign("a"), late}, patches: 1},
		"a key that begins or ends so":  {in: []corev1.Taint{foreign(podreport.KeyStartupTaint + "-yet"), foreign("x" + podreport.KeyStartupTaint)}, want: []corev1.Taint{foreign(podreport.KeyStartupTaint + "-yet"), foreign("x" + podreport.KeyStartupTaint)}},
		"one that Kubernetes has there": {in: []corev1.Taint{foreign(corev1.TaintNodeNotReady), startup("NoExecute")}, want: []corev1.Taint{foreign(corev1.TaintNodeNotReady)}, patches: 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTaintBench(t, c.in...)
			for range 2 {
				if result, err := b.reconcile(t); err != nil || result != (ctrl.Result{}) {
					t.Fatalf("result %+v, error %v", result, err)
				}
			}
			b.wantTaints(t, "here", c.want...)
			b.wantTaints(t, "there", c.in...)
			if b.patches != c.patches {
				t.Errorf("%d patches, want %d", b.patches, c.patches)
			}
		})
	}
}

// An autoscaler knows startup taints by their key, so a cluster may want another one.
func TestTheTaintHasTheKeyThatIsAskedFor(t *testing.T) {
	ours := corev1.Taint{Key: "startup-taint.cluster-autoscaler.kubernetes.io/mesh", Effect: corev1.TaintEffectNoSchedule}
	b := newTaintBench(t, foreign("a"), ours, startup("NoSchedule"))
	b.Key = ours.Key
	if _, err := b.reconcile(t); err != nil {
		t.Fatal(err)
	}
	b.wantTaints(t, "here", foreign("a"), startup("NoSchedule"))
}

func TestTheTaintStaysUntilTheAgentIsReady(t *testing.T) {
	b := newTaintBench(t, startup("NoSchedule"), foreign("a"))
	b.notReady = errors.New("nri: the runtime does not call us")
	for range 3 {
		if result, err := b.reconcile(t); err != nil || result.RequeueAfter != readyPause {
			t.Fatalf("result %+v, error %v, want another look in %s", result, err, readyPause)
		}
	}
	if b.patches != 0 {
		t.Errorf("%d patches by an agent that is not ready", b.patches)
	}
	b.notReady = nil
	if _, err := b.reconcile(t); err != nil {
		t.Fatal(err)
	}
	b.wantTaints(t, "here", foreign("a"))
}

// A request that names another node, which no watch makes, is about our own all the same.
func TestOtherNodesAreNotTouched(t *testing.T) {
	b := newTaintBench(t, startup("NoSchedule"))
	if _, err := b.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "there"}}); err != nil {
		t.Fatal(err)
	}
	b.wantTaints(t, "there", startup("NoSchedule"))
	b.wantTaints(t, "here")
}

// Somebody else writes taints between our look and our patch: theirs count, and ours goes at the next try.
func TestOthersMayChangeTaintsMeanwhile(t *testing.T) {
	for name, c := range map[string]struct{ in, others, want []corev1.Taint }{
		"one more in front": {
			in:     []corev1.Taint{startup("NoSchedule"), foreign("a")},
			others: []corev1.Taint{foreign("new"), startup("NoSchedule"), foreign("a")},
			want:   []corev1.Taint{foreign("new"), foreign("a")},
		},
		"the ones around it gone": {
			in:     []corev1.Taint{foreign("a"), startup("NoSchedule"), foreign("b")},
			others: []corev1.Taint{startup("NoSchedule")},
		},
		"one of two effects gone": {
			in:     []corev1.Taint{startup("NoExecute"), foreign("a"), startup("NoSchedule")},
			others: []corev1.Taint{startup("NoExecute"), foreign("a")},
			want:   []corev1.Taint{foreign("a")},
		},
		"ours gone": {in: []corev1.Taint{startup("NoSchedule")}, others: []corev1.Taint{foreign("a")}, want: []corev1.Taint{foreign("a")}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTaintBench(t, c.in...)
			b.before = func() error {
				b.before = nil
				node := b.node(t, "here")
				node.Spec.Taints = c.others
				return b.client.Update(t.Context(), node)
			}
			if _, err := b.reconcile(t); err == nil || !strings.Contains(err.Error(), podreport.KeyStartupTaint) {
				t.Errorf("error %v, want one that has the patch made anew", err)
			}
			b.wantTaints(t, "here", c.others...)
			if _, err := b.reconcile(t); err != nil {
				t.Fatal(err)
			}
			b.wantTaints(t, "here", c.want...)
		})
	}
}

func TestAFailedPatchIsMadeAnew(t *testing.T) {
	nodes := schema.GroupResource{Resource: "nodes"}
	for name, refusal := range map[string]error{
		"a conflict":           apierrors.NewConflict(nodes, "here", errors.New("changed")),
		"a right that we lack": apierrors.NewForbidden(nodes, "here", errors.New("no")),
		"no API server":        errors.New("connection refused"),
	} {
		t.Run(name, func(t *testing.T) {
			b := newTaintBench(t, startup("NoSchedule"))
			b.before = func() error { return refusal }
			if _, err := b.reconcile(t); !errors.Is(err, refusal) {
				t.Errorf("error %v, want %v", err, refusal)
			}
			b.before = nil
			if _, err := b.reconcile(t); err != nil {
				t.Fatal(err)
			}
			b.wantTaints(t, "here")
		})
	}
}

func TestANodeThatIsGoneIsNoError(t *testing.T) {
	b := newTaintBench(t, startup("NoSchedule"))
	b.before = func() error { return b.client.Delete(t.Context(), taintedNode("here", nil)) }
	for _, when := range []string{"between look and patch", "before the look"} {
		if result, err := b.reconcile(t); err != nil || result != (ctrl.Result{}) {
			t.Errorf("%s: result %+v, error %v", when, result, err)
		}
	}
	if b.patches != 1 {
		t.Errorf("%d patches, want the one that came too late", b.patches)
	}
	if err := b.client.Create(t.Context(), taintedNode("here", []corev1.Taint{startup("NoSchedule"), foreign("a")})); err != nil {
		t.Fatal(err)
	}
	b.before = nil
	if _, err := b.reconcile(t); err != nil {
		t.Fatal(err)
	}
	b.wantTaints(t, "here", foreign("a"))
}

// Patches name taints by their place, so the cache may leave none out; and it holds no node but one.
func TestTheCacheKeepsAllTaintsOfOneNode(t *testing.T) {
	node := taintedNode("here", []corev1.Taint{foreign("a"), startup("NoSchedule"), foreign("b")})
	node.Status.Images = []corev1.ContainerImage{{Names: []string{"large"}}}
	small, err := stripNode(node.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(taintedNode("here", node.Spec.Taints), small); d != "" {
		t.Errorf("kept (-want +got):\n%s", d)
	}
	for object, selection := range CacheOptions("here", false, nil).ByObject {
		if _, ok := object.(*corev1.Node); ok && selection.Field.String() != "metadata.name=here" {
			t.Errorf("nodes are selected by %q", selection.Field)
		}
	}
}
