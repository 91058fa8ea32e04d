package node

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/sidecars/istio"
	"istio-pod-network-controller/sidecars/profile"
)

// fixed is a cache that has one object.
type fixed struct {
	client.Reader
	object v1alpha1.ProxyProfile
}

func (f *fixed) Get(_ context.Context, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	f.object.DeepCopyInto(into.(*v1alpha1.ProxyProfile))
	return nil
}

// Two workers read a profile, and the slower one has the older version: the newer one stays, or upgrades would begin anew with each step.
func TestGet_olderRead_newerVersionStays(t *testing.T) {
	at := func(uid types.UID, minute int, generation int64, image string) v1alpha1.ProxyProfile {
		return v1alpha1.ProxyProfile{
			ObjectMeta: metav1.ObjectMeta{Name: "edge", UID: uid, Generation: generation, CreationTimestamp: metav1.NewTime(time.Unix(int64(60*minute), 0))},
			Spec: v1alpha1.ProxyProfileSpec{
				Network: v1alpha1.Network{OutboundPort: 1, InboundPort: 2}, Istio: &v1alpha1.Istio{Process: v1alpha1.Process{Image: image}},
			},
		}
	}
	made := at("1", 1, 7, "old")
	anew := at("2", 2, 1, "anew")
	cache := &fixed{}
	p := newProfiles(cache, "n1")
	for i, c := range []struct {
		read   v1alpha1.ProxyProfile
		want   string
		number uint64
	}{
		{made, "old", 1},
		{at("1", 1, 9, "new"), "new", 2},
		{made, "new", 2},
		{at("1", 1, 9, "new"), "new", 2},
		{anew, "anew", 3},
		{at("1", 1, 9, "new"), "anew", 3},
		{anew, "anew", 3},
	} {
		cache.object = c.read
		got, refusal, err := p.get(t.Context(), "edge")
		if err != nil || refusal != "" || got.spec.Image != c.want || got.usable.Number != c.number {
			t.Errorf("read %d: image %q, number %d; refused %q, error %v", i, got.spec.Image, got.number, refusal, err)
		}
	}
}

// A version that cannot be used leaves pods with the last one that could, also if another agent has read that, but for who may choose it.
func TestGet_presentUnusable_lastOneIsUsed(t *testing.T) {
	of := func(generation int64, image string, inbound int32, team string) v1alpha1.ProxyProfile {
		return v1alpha1.ProxyProfile{ObjectMeta: metav1.ObjectMeta{Name: "edge", UID: "1", Generation: generation}, Spec: v1alpha1.ProxyProfileSpec{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": team}},
			Network:           v1alpha1.Network{OutboundPort: 1, InboundPort: inbound}, Istio: &v1alpha1.Istio{Process: v1alpha1.Process{Image: image}},
		}}
	}
	works := profile.Spec{Image: "works", Istio: &istio.ControlPlane{}}
	for name, c := range map[string]struct {
		read       []v1alpha1.ProxyProfile
		good       *profile.Spec
		want, says string
	}{
		"it was read before":            {read: []v1alpha1.ProxyProfile{of(1, "first", 2, "a"), of(2, "second", 1, "b")}, want: "first"},
		"twice":                         {read: []v1alpha1.ProxyProfile{of(1, "first", 2, "a"), of(2, "second", 1, "b"), of(3, "third", 1, "b")}, want: "first"},
		"another agent has read it":     {read: []v1alpha1.ProxyProfile{of(2, "second", 1, "b")}, good: &works, want: "works"},
		"there is none":                 {read: []v1alpha1.ProxyProfile{of(2, "second", 1, "b")}, says: "outboundPort and inboundPort are both 1"},
		"nobody knows who may have it":  {read: []v1alpha1.ProxyProfile{of(1, "first", 2, "a"), of(2, "second", 1, "-")}, says: "namespaceSelector"},
		"what works was another kind's": {read: []v1alpha1.ProxyProfile{of(2, "second", 1, "b")}, good: &profile.Spec{Shared: &profile.Reload{}}, says: "are both 1"},
		"it can be used again":          {read: []v1alpha1.ProxyProfile{of(1, "first", 2, "a"), of(2, "second", 1, "b"), of(3, "third", 2, "b")}, want: "third"},
	} {
		t.Run(name, func(t *testing.T) {
			cache := &fixed{}
			p := newProfiles(cache, "n1")
			p.good = func(string) *profile.Spec { return c.good }
			var got readProfile
			var refusal string
			for _, cache.object = range c.read {
				var err error
				if got, refusal, err = p.forPod(t.Context(), "edge", &corev1.Pod{}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"team": "b"}}}); err != nil {
					t.Fatal(err)
				}
			}
			if !strings.Contains(refusal, c.says) || c.want != "" && (refusal != "" || got.usable.Spec.Image != c.want || got.usable.Number != got.number) || c.want == "" && refusal == "" {
				t.Errorf("%+v, refused %q", got, refusal)
			}
		})
	}
}
