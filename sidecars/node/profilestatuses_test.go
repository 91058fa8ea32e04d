package node

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/sidecars/profile"
	"istio-pod-network-controller/sidecars/rollout"
)

// firstVersion is the profile's version before anybody changes it.
var firstVersion = profile.HashOf(firstSpec())

func firstSpec() v1alpha1.ProxyProfileSpec {
	return v1alpha1.ProxyProfileSpec{Network: v1alpha1.Network{OutboundPort: 1, InboundPort: 2}, Container: &v1alpha1.Container{}}
}

// countedCluster is an API server with the profile edge and the agent that counts.
type countedCluster struct {
	client.WithWatch
	statuses *profileStatuses
	writes   atomic.Int32
	fails    atomic.Pointer[error] // what the next writes end with
}

func newCountedCluster(t *testing.T, objects ...client.Object) *countedCluster {
	t.Helper()
	c, profile := &countedCluster{}, &v1alpha1.ProxyProfile{ObjectMeta: metav1.ObjectMeta{Name: "edge", Generation: 5}, Spec: firstSpec()}
	api, _ := pagingAPI(t, 500, append(objects, profile)...)
	c.WithWatch = interceptor.NewClient(api, interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, api client.Client, sub string, o client.Object, p client.Patch, options ...client.SubResourcePatchOption) error {
			c.writes.Add(1)
			if text, err := p.Data(o); err != nil || !strings.Contains(string(text), `"failed":0,`) {
				t.Errorf("written is %s, error %v: a column of kubectl would be empty", text, err)
			}
			if err := c.fails.Load(); err != nil {
				return *err
			}
			return api.SubResource(sub).Patch(ctx, o, p, options...)
		},
	})
	c.statuses = &profileStatuses{cache: c, client: c, api: c}
	return c
}

func (c *countedCluster) status(t *testing.T) v1alpha1.ProxyProfileStatus {
	t.Helper()
	var got v1alpha1.ProxyProfile
	if err := c.Get(t.Context(), client.ObjectKey{Name: "edge"}, &got); err != nil {
		t.Fatal(err)
	}
	return got.Status
}

// manyProxies are ManagedProxies on nodes with ten pods each, of a version.
func manyProxies(n int, version string) (out []client.Object) {
	for i := range n {
		out = append(out, proxyOf(fmt.Sprintf("p%05d", i), "node-"+strconv.Itoa(i/10), func(s *v1alpha1.ManagedProxyStatus) { s.ProfileHash = version }))
	}
	return out
}

// However many proxies change, a profile is written once in countPause, and not at all if nothing changes.
func TestStatuses_proxiesChange_rareWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pods = 300
		all := manyProxies(pods, "h0")
		c := newCountedCluster(t, all...)
		ctx, stop := context.WithCancel(t.Context())
		go c.statuses.work(ctx)
		<-time.After(2*countPause + time.Second)
		synctest.Wait()
		got := c.status(t)
		if got.Pods != pods || got.NodeCount != pods/10 || got.Upgraded != 0 || got.ObservedGeneration != 5 || !meta.IsStatusConditionFalse(got.Conditions, v1alpha1.ConditionUpgraded) || c.writes.Load() != 1 {
			t.Errorf("%d writes; %+v", c.writes.Load(), got)
		}
		for i, o := range all { // half a minute
			p := o.(*v1alpha1.ManagedProxy)
			p.Status.ProfileHash = firstVersion
			if err := c.Status().Update(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			if i%10 == 9 {
				<-time.After(time.Second)
			}
		}
		<-time.After(countPause)
		synctest.Wait()
		got = c.status(t)
		if got.Upgraded != pods || !meta.IsStatusConditionTrue(got.Conditions, v1alpha1.ConditionUpgraded) {
			t.Errorf("%+v", got)
		}
		if n := c.writes.Load(); n < 4 || n > 9 {
			t.Errorf("%d writes in 35 s", n)
		}
		before := c.writes.Load()
		<-time.After(10 * time.Minute)
		if n := c.writes.Load(); n != before {
			t.Errorf("%d writes while nothing has changed", n-before)
		}
		stop()
		synctest.Wait()
	})
}

// A new version, a status that somebody else has written, and a write that has failed lead to the right status.
func TestStatuses_profileChanges_areWrittenAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCountedCluster(t, manyProxies(10, firstVersion)...)
		ctx, stop := context.WithCancel(t.Context())
		go c.statuses.work(ctx)
		must := func(step string, within time.Duration, upgraded int32, generation int64) {
			t.Helper()
			<-time.After(within + time.Second)
			synctest.Wait()
			got := c.status(t)
			if got.Upgraded != upgraded || got.ObservedGeneration != generation || got.Pods != 10 {
				t.Errorf("%s: %+v", step, got)
			}
		}
		edit := func(f func(p *v1alpha1.ProxyProfile)) {
			t.Helper()
			var p v1alpha1.ProxyProfile
			if err := c.Get(t.Context(), client.ObjectKey{Name: "edge"}, &p); err != nil {
				t.Fatal(err)
			}
			f(&p)
			if err := c.Update(t.Context(), &p); err != nil {
				t.Fatal(err)
			}
		}
		must("all have the first version", countPause, 10, 5)
		edit(func(p *v1alpha1.ProxyProfile) { p.Generation, p.Spec.Container.Update.DrainSeconds = 6, 60 })
		c.statuses.changed()
		must("a change of which no proxy depends", countPause, 10, 6)
		edit(func(p *v1alpha1.ProxyProfile) { p.Generation, p.Spec.Container.Image = 7, "new" })
		c.statuses.changed()
		must("a new version", countPause, 0, 7)

		for _, err := range []error{errors.New("the API server is away"), apierrors.NewConflict(schema.GroupResource{}, "edge", nil)} {
			c.fails.Store(&err)
			edit(func(p *v1alpha1.ProxyProfile) { p.Generation++ })
			generation := c.status(t).ObservedGeneration
			c.statuses.changed()
			must("the write fails: "+err.Error(), 3*countPause, 0, generation)
			c.fails.Store(nil)
			must("it succeeds", countPause, 0, generation+1)
		}

		var p v1alpha1.ProxyProfile
		if err := c.Get(t.Context(), client.ObjectKey{Name: "edge"}, &p); err != nil {
			t.Fatal(err)
		}
		p.Status.Upgraded = 99
		if err := c.Status().Update(t.Context(), &p); err != nil {
			t.Fatal(err)
		}
		must("somebody else has written it", countAgain+countPause, 0, 9)
		stop()
		synctest.Wait()
	})
}

// With maxNodes the status says which nodes may use the version, and without it no longer does.
func TestStatuses_maxNodes_admitsNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCountedCluster(t, manyProxies(50, "h0")...)
		ctx, stop := context.WithCancel(t.Context())
		go c.statuses.work(ctx)
		set := func(maxNodes int32) v1alpha1.ProxyProfileStatus {
			t.Helper()
			var p v1alpha1.ProxyProfile
			if err := c.Get(t.Context(), client.ObjectKey{Name: "edge"}, &p); err != nil {
				t.Fatal(err)
			}
			p.Spec.Container.Update.MaxNodes = maxNodes
			if err := c.Update(t.Context(), &p); err != nil {
				t.Fatal(err)
			}
			c.statuses.changed()
			<-time.After(countPause + time.Second)
			synctest.Wait()
			return c.status(t)
		}
		got := set(2)
		may := 0
		spec := firstSpec()
		spec.Container.Update.MaxNodes = 2
		for i := range 5 {
			if !rollout.Held(&v1alpha1.ProxyProfile{Spec: spec, Status: got}, firstVersion, "node-"+strconv.Itoa(i)) {
				may++
			}
		}
		if may != 2 || got.Rollout == nil || got.Rollout.Hash != firstVersion {
			t.Errorf("%d nodes may: %+v", may, got.Rollout)
		}
		if got := set(0); got.Rollout != nil {
			t.Errorf("it stays: %+v", got.Rollout)
		}
		before := c.writes.Load()
		<-time.After(10 * time.Minute)
		if n := c.writes.Load(); n != before {
			t.Errorf("%d writes while nothing has changed", n-before)
		}
		stop()
		synctest.Wait()
	})
}
