package node

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"istio-pod-network-controller/api/v1alpha1"
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
