package node

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/sidecars/rollout"
)

// proxyOf is a ManagedProxy of the profile edge that is ready and of version h2, unless change says otherwise.
func proxyOf(name, node string, change func(*v1alpha1.ManagedProxyStatus)) *v1alpha1.ManagedProxy {
	out := &v1alpha1.ManagedProxy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: v1alpha1.ManagedProxySpec{Profile: "edge", Pod: name, Node: node},
		Status: v1alpha1.ManagedProxyStatus{State: v1alpha1.Running, Ready: true, ProfileHash: "h2"},
	}
	if change != nil {
		change(&out.Status)
	}
	return out
}

func TestCount_proxies_byNode(t *testing.T) {
	old := func(s *v1alpha1.ManagedProxyStatus) { s.ProfileHash = "h1" }
	silent := func(s *v1alpha1.ManagedProxyStatus) { s.Ready = false }
	failed := func(s *v1alpha1.ManagedProxyStatus) { s.ProfileHash, s.FailedHash = "h1", "h2" }
	refused := func(s *v1alpha1.ManagedProxyStatus) { s.FailedHash = "h2" }
	before := func(s *v1alpha1.ManagedProxyStatus) { s.ProfileHash, s.FailedHash, s.Paused = "h0", "h1", true }
	paused := func(s *v1alpha1.ManagedProxyStatus) { failed(s); s.Paused = true }
	over := func(s *v1alpha1.ManagedProxyStatus) { s.State, s.Ready = v1alpha1.Ended, false }
	for name, c := range map[string]struct {
		all  []*v1alpha1.ManagedProxy
		want profileCount
	}{
		"none":                               {nil, profileCount{}},
		"all are of this version":            {[]*v1alpha1.ManagedProxy{proxyOf("a", "n1", nil), proxyOf("b", "n1", nil)}, profileCount{map[string]rollout.NodeCount{"n1": {Pods: 2, Upgraded: 2}}, ""}},
		"on two nodes":                       {[]*v1alpha1.ManagedProxy{proxyOf("a", "n1", nil), proxyOf("b", "n2", old)}, profileCount{map[string]rollout.NodeCount{"n1": {Pods: 1, Upgraded: 1}, "n2": {Pods: 1}}, ""}},
		"one does not answer":                {[]*v1alpha1.ManagedProxy{proxyOf("a", "n1", silent)}, profileCount{map[string]rollout.NodeCount{"n1": {Pods: 1}}, ""}},
		"failures of this version":           {[]*v1alpha1.ManagedProxy{proxyOf("b", "n1", failed), proxyOf("a", "n1", failed)}, profileCount{map[string]rollout.NodeCount{"n1": {Pods: 2, Failed: 2}}, "shop/a"}},
		"a pod that has one and may not":     {[]*v1alpha1.ManagedProxy{proxyOf("a", "n1", refused)}, profileCount{map[string]rollout.NodeCount{"n1": {Pods: 1, Failed: 1}}, "shop/a"}},
		"a failure of an older version":      {[]*v1alpha1.ManagedProxy{proxyOf("a", "n1", before)}, profileCount{map[string]rollout.NodeCount{"n1": {Pods: 1}}, ""}},
		"others wait for a failure":          {[]*v1alpha1.ManagedProxy{proxyOf("a", "n1", paused), proxyOf("b", "n1", old)}, profileCount{map[string]rollout.NodeCount{"n1": {Pods: 2, Failed: 1, Paused: true}}, "shop/a"}},
		"one whose pod has finished":         {[]*v1alpha1.ManagedProxy{proxyOf("a", "n1", over), proxyOf("b", "n1", nil)}, profileCount{map[string]rollout.NodeCount{"n1": {Pods: 1, Upgraded: 1}}, ""}},
		"one of a profile that there is not": {[]*v1alpha1.ManagedProxy{{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: v1alpha1.ManagedProxySpec{Profile: "gone"}}}, profileCount{}},
		"one of no profile, chosen no more":  {[]*v1alpha1.ManagedProxy{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}, profileCount{}},
		"one whose agent has not said how":   {[]*v1alpha1.ManagedProxy{proxyOf("a", "n1", func(s *v1alpha1.ManagedProxyStatus) { *s = v1alpha1.ManagedProxyStatus{} })}, profileCount{map[string]rollout.NodeCount{"n1": {Pods: 1}}, ""}},
	} {
		counts := &proxyCounts{known: map[types.NamespacedName]countedProxy{}}
		for _, p := range c.all {
			note(counts.known, p)
		}
		got, complete := counts.count(map[string]string{"edge": "h2"})
		if diff := cmp.Diff(c.want, got["edge"], cmp.AllowUnexported(profileCount{})); diff != "" || !complete || len(got) > 1 {
			t.Errorf("%s: complete %v, %d profiles (-want +got):\n%s", name, complete, len(got), diff)
		}
	}
}

// pagingAPI is an API server with ManagedProxies, which it lists in pages as the real one does: the stand-in has neither pages nor versions of
// lists. It refuses the second page once.
func pagingAPI(t *testing.T, size int, objects ...client.Object) (api client.WithWatch, lists *int) {
	t.Helper()
	lists = new(int)
	return interceptor.NewClient(sidecarAPI(t, objects...).(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			asked := (&client.ListOptions{}).ApplyOptions(options)
			if err := c.List(ctx, list); err != nil {
				return err
			}
			all, isProxies := list.(*v1alpha1.ManagedProxyList)
			if !isProxies {
				return nil
			}
			from := 0
			if *lists++; asked.Continue != "" {
				from, _ = strconv.Atoi(asked.Continue)
			}
			if *lists == 2 && asked.Continue != "" {
				return context.DeadlineExceeded
			}
			to := min(from+size, len(all.Items))
			if all.ResourceVersion = "1"; to < len(all.Items) {
				all.Continue = strconv.Itoa(to)
			}
			all.Items = all.Items[from:to]
			return nil
		},
	}), lists
}

// All pages count, then changes do, and a failed list is begun anew.
func TestFollow_proxiesChange_areCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var objects []client.Object
		for i := range 7 {
			objects = append(objects, proxyOf("p"+strconv.Itoa(i), "n1", nil))
		}
		api, lists := pagingAPI(t, 3, objects...)
		changes := 0
		counts := &proxyCounts{api: api, changed: func() { changes++ }}
		if _, complete := counts.count(nil); complete {
			t.Error("nothing was read, and it is complete")
		}
		ctx, stop := context.WithCancel(t.Context())
		go counts.follow(ctx)
		must := func(step string, want rollout.NodeCount) {
			t.Helper()
			<-time.After(2 * time.Second)
			synctest.Wait()
			all, complete := counts.count(map[string]string{"edge": "h2"})
			if got := all["edge"].nodes["n1"]; !complete || got != want {
				t.Errorf("%s: complete %v, %+v, want %+v", step, complete, got, want)
			}
		}
		must("listed", rollout.NodeCount{Pods: 7, Upgraded: 7})
		if *lists != 5 {
			t.Errorf("%d pages were read, want two and then three", *lists)
		}
		added := proxyOf("new", "n1", nil)
		if err := api.Create(ctx, added); err != nil {
			t.Fatal(err)
		}
		must("one more", rollout.NodeCount{Pods: 8, Upgraded: 8})
		added.Status.FailedHash = "h2"
		if err := api.Status().Update(ctx, added); err != nil {
			t.Fatal(err)
		}
		must("it has failed", rollout.NodeCount{Pods: 8, Upgraded: 7, Failed: 1})
		if err := api.Delete(ctx, objects[0]); err != nil {
			t.Fatal(err)
		}
		must("one is gone", rollout.NodeCount{Pods: 7, Upgraded: 6, Failed: 1})
		if changes != 4 {
			t.Errorf("%d changes were said, want 4", changes)
		}
		stop()
		synctest.Wait()
	})
}
