package istio

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	"istio.io/api/networking/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"
	"istio.io/istio/pilot/pkg/config/memory"
	"istio.io/istio/pilot/pkg/model"
	"istio.io/istio/pkg/config"
	"istio.io/istio/pkg/config/mesh"
	"istio.io/istio/pkg/config/schema/collections"
	"istio.io/istio/pkg/config/schema/gvk"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	sidecaristio "istio-pod-network-controller/sidecars/istio"
)

// object is a ProxyConfig, as istiod and as the proxy manager read it.
type object struct {
	namespace   string
	labels      map[string]string
	concurrency int32
	age         time.Duration
}

// What istiod makes of the mesh's ProxyConfig, the objects and a pod's annotation is what pilot-agent gets, and what it makes of its environment.
func TestProxyConfigs_everyCombination_isAsIstiodHasIt(t *testing.T) {
	all := []object{
		{namespace: "istio-system", concurrency: 2}, {namespace: "shop", concurrency: 3}, {namespace: "shop", labels: map[string]string{"app": "cart"}, concurrency: 4},
		{namespace: "shop", concurrency: 5, age: time.Hour}, {namespace: "till", concurrency: 6}, {namespace: "shop", labels: map[string]string{"app": "till"}, concurrency: 7, age: time.Hour},
	}
	for chosen := range 1 << len(all) {
		for _, own := range []string{"", "concurrency: 9"} {
			var objects []object
			for i, o := range all {
				if chosen>>i&1 == 1 {
					objects = append(objects, o)
				}
			}
			annotations := map[string]string{}
			if own != "" {
				annotations[keyConfig] = own
			}
			mc := mesh.DefaultMeshConfig()
			istiods := model.GetProxyConfigs(stored(t, objects), mc).EffectiveProxyConfig(&model.NodeMetadata{Namespace: "shop", Labels: map[string]string{"app": "cart"}, Annotations: annotations}, mc)
			want := istiods.GetConcurrency().GetValue()
			if own != "" {
				want = 9 // pilot-agent applies the annotation last
			}
			got := computedBy(t, objects, annotations)
			if got.GetConcurrency().GetValue() != want || (got.Concurrency == nil) != (istiods.Concurrency == nil && own == "") {
				t.Errorf("objects %+v, annotation %q: %v workers, want %d", objects, own, got.GetConcurrency(), want)
			}
		}
	}
}

// stored are the objects in a store of istiod's.
func stored(t *testing.T, objects []object) model.ConfigStore {
	t.Helper()
	store := memory.Make(collections.Pilot)
	for i, o := range objects {
		spec := &v1beta1.ProxyConfig{Concurrency: wrapperspb.Int32(o.concurrency)}
		if o.labels != nil {
			spec.Selector = &typev1beta1.WorkloadSelector{MatchLabels: o.labels}
		}
		meta := config.Meta{GroupVersionKind: gvk.ProxyConfig, Namespace: o.namespace, Name: fmt.Sprint("c", i), CreationTimestamp: created(o)}
		if _, err := store.Create(config.Config{Meta: meta, Spec: spec}); err != nil {
			t.Fatal(err)
		}
	}
	return store
}

func created(o object) time.Time { return time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC).Add(-o.age) }

// computedBy is pilot-agent's configuration, as the proxy manager gives it.
func computedBy(t *testing.T, objects []object, annotations map[string]string) *meshconfig.ProxyConfig {
	t.Helper()
	sources := sidecaristio.Sources{Mesh: "{}", Values: `{"global": {"pilotCertProvider": "istiod"}}`}
	for i, o := range objects {
		var c sidecaristio.ProxyConfig
		c.Metadata.Namespace, c.Metadata.Name, c.Metadata.CreationTimestamp = o.namespace, fmt.Sprint("c", i), metav1.NewTime(created(o))
		c.Spec.Selector.MatchLabels, c.Spec.Concurrency = o.labels, &o.concurrency
		sources.ProxyConfigs = append(sources.ProxyConfigs, c)
	}
	m, err := sources.Parse()
	if err != nil {
		t.Fatal(err)
	}
	pod := application(nil)
	pod.Labels, pod.Annotations = map[string]string{"app": "cart"}, annotations
	got, err := m.Proxy(sidecaristio.Pod{Pod: pod})
	if err != nil {
		t.Fatal(err)
	}
	c := comparison{got: got}
	return c.effective(t)
}
