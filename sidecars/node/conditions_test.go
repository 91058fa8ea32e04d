package node

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	goruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"istio-pod-network-controller/api/v1alpha1"
)

// cluster is an API server with a profile and the agents of some nodes.
type cluster struct {
	client.Client
	patches, refused atomic.Int32
	applied          atomic.Pointer[string] // the owner
}

// newCluster has a profile of generation 5 with an entry of each of the nodes n00, n01 and so on.
func newCluster(t *testing.T, entries int, objects ...client.Object) *cluster {
	t.Helper()
	scheme := goruntime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	p := &v1alpha1.ProxyProfile{ObjectMeta: metav1.ObjectMeta{Name: "edge", Generation: 5}}
	for i := range entries {
		p.Status.Nodes = append(p.Status.Nodes, v1alpha1.NodeStatus{Name: nodeName(i), ObservedGeneration: 5, Pods: 1, Upgraded: 1})
	}
	c := &cluster{}
	patch := func(ctx context.Context, api client.Client, sub string, o client.Object, p client.Patch, options ...client.SubResourcePatchOption) error {
		c.patches.Add(1)
		err := api.SubResource(sub).Patch(ctx, o, p, options...)
		if apierrors.IsConflict(err) {
			c.refused.Add(1)
		}
		return err
	}
	apply := func(_ context.Context, _ client.Client, _ string, _ goruntime.ApplyConfiguration, options ...client.SubResourceApplyOption) error {
		for _, one := range options {
			if owner, ok := one.(client.FieldOwner); ok {
				c.applied.Store(new(string(owner)))
			}
		}
		return nil // the stand-in does not know that entries have owners
	}
	c.Client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(append(objects, p)...).WithStatusSubresource(p).
		WithInterceptorFuncs(interceptor.Funcs{SubResourcePatch: patch, SubResourceApply: apply}).Build()
	return c
}

func nodeName(i int) string { return fmt.Sprintf("n%02d", i) }

// profile reads the profile.
func (c *cluster) profile(t *testing.T) *v1alpha1.ProxyProfile {
	t.Helper()
	out := &v1alpha1.ProxyProfile{}
	if err := c.Get(t.Context(), client.ObjectKey{Name: "edge"}, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// run starts the agent of a node, which sees the profile twice a second, and whenever it wants to.
func (c *cluster) run(ctx context.Context, t *testing.T, node string) {
	t.Helper()
	agent := newSidecarConditions(c, c, c, node)
	go func() {
		for ctx.Err() == nil {
			out, err := agent.Reconcile(ctx, reconcile.Request{NamespacedName: client.ObjectKey{Name: "edge"}})
			if err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			next := 500 * time.Millisecond
			if out.RequeueAfter > 0 {
				next = min(next, out.RequeueAfter)
			}
			select {
			case <-ctx.Done():
			case <-time.After(next):
			}
		}
	}()
}

// One node of many writes, and if it does not, another one stands in.
func TestConditions_manyNodes_oneWrites(t *testing.T) {
	for name, c := range map[string]struct {
		entries int
		agents  []int
		within  time.Duration
	}{
		"all agents run":              {12, nodes(0), 3 * time.Second},
		"the first two do not":        {12, nodes(2), 9 * time.Second},
		"none of those with an entry": {3, nodes(3), 75 * time.Second},
		"no pod has chosen it":        {0, nodes(0), 65 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				api := newCluster(t, c.entries)
				ctx, stop := context.WithCancel(t.Context())
				for _, i := range c.agents {
					api.run(ctx, t, nodeName(i))
				}
				<-time.After(c.within)
				synctest.Wait()
				if got := api.profile(t); !meta.IsStatusConditionTrue(got.Status.Conditions, v1alpha1.ConditionUpgraded) || len(got.Status.Nodes) != c.entries {
					t.Errorf("after %s: %+v", c.within, got.Status)
				}
				<-time.After(time.Minute)
				synctest.Wait()
				if patches := api.patches.Load(); patches > 3 || c.entries > 0 && patches != 1 {
					t.Errorf("it was written %d times", patches)
				}
				stop()
				synctest.Wait()
			})
		})
	}
}

// nodes are those of a cluster of 16, from one on.
func nodes(first int) (out []int) {
	for i := first; i < 16; i++ {
		out = append(out, i)
	}
	return out
}

// While entries keep changing, one node writes every two seconds. None stands in for it.
func TestConditions_upgrade_areFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCluster(t, 20)
		ctx, stop := context.WithCancel(t.Context())
		for i := range 20 {
			api.run(ctx, t, nodeName(i))
		}
		<-time.After(5 * time.Second)
		for round := range 30 { // half a minute, in which nodes are written
			err := retry.RetryOnConflict(retry.DefaultRetry, func() error { // a node may write the conditions meanwhile
				p := api.profile(t)
				p.Status.Nodes[round%20].Upgraded = int32(round % 2)
				return api.Status().Update(t.Context(), p)
			})
			if err != nil {
				t.Error(err)
			}
			<-time.After(time.Second)
		}
		<-time.After(3 * time.Second)
		synctest.Wait()
		if n := api.patches.Load(); n < 5 || n > 16 {
			t.Errorf("it was written %d times", n)
		}
		got := api.profile(t)
		if c := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionUpgraded); c == nil || c.Status != metav1.ConditionFalse {
			t.Errorf("Upgraded is %+v", c)
		}
		stop()
		synctest.Wait()
	})
}

// What was computed from an object that has changed since is not written, and is no error.
func TestConditions_objectChanged_areNotWritten(t *testing.T) {
	api := newCluster(t, 1)
	old := api.profile(t)
	changed := old.DeepCopy()
	changed.Status.Nodes[0].Upgraded = 0
	if err := api.Status().Update(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	c := newSidecarConditions(api, api, api, nodeName(0))
	if err := c.write(t.Context(), old, []metav1.Condition{{Type: v1alpha1.ConditionUpgraded, Status: metav1.ConditionTrue}}); err != nil {
		t.Error(err)
	}
	if got := api.profile(t); api.refused.Load() != 1 || len(got.Status.Conditions) != 0 {
		t.Errorf("refused %d times; %+v", api.refused.Load(), got.Status)
	}
}

// A node that has left the cluster would keep the profile from ever being upgraded.
func TestConditions_nodeIsGone_entryGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCluster(t, 3, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(0)}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(1)}})
		p := api.profile(t)
		p.Status.Nodes[0].ObservedGeneration, p.Status.Nodes[2].ObservedGeneration = 4, 4
		if err := api.Status().Update(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		api.run(ctx, t, nodeName(1)) // of node 0 there is no agent
		<-time.After(3 * time.Minute)
		synctest.Wait()
		if got := api.applied.Load(); got == nil || *got != string(ownerOf(nodeName(2))) {
			t.Errorf("taken away was what %v has written", got)
		}
		stop()
		synctest.Wait()
	})
}
