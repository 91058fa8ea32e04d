package istio

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"testing"

	"istio.io/istio/pkg/kube/inject"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

const keyProbers = "ISTIO_KUBE_APP_PROBERS"

// What the chart's policy makes of a pod's probes, and what is computed of that, is what Istio's injector writes. The injector also rewrites what
// the policy leaves: the container "kept".
func TestProbes_afterThePolicy_areAsInjected(t *testing.T) {
	i := install(t, "")
	written, admitted := probed(t, "pod"), probed(t, "admitted")
	injected := i.inject(t, written)
	for _, list := range []struct{ got, want []corev1.Container }{
		{admitted.Spec.Containers, injected.Spec.Containers}, {admitted.Spec.InitContainers, injected.Spec.InitContainers},
	} {
		for _, c := range list.got {
			at := slices.IndexFunc(list.want, func(other corev1.Container) bool { return other.Name == c.Name })
			if got, want := calls(&c), calls(&list.want[at]); !reflect.DeepEqual(got, want) {
				t.Errorf("container %s: %+v, want %+v", c.Name, got, want)
			}
		}
	}
	admitted.Status = corev1.PodStatus{PodIP: "10.0.0.7", HostIP: "192.168.0.3"}
	container := proxyOf(t, injected)
	want := inject.KubeAppProbers{}
	decoded(t, environment(container, written)[keyProbers], &want)
	for _, p := range want { // the kubelet's request has the headers; what the API server defaults
		if p.HTTPGet != nil {
			p.HTTPGet.HTTPHeaders = nil
		}
	}
	got := inject.KubeAppProbers{}
	for _, v := range i.compute(t, admitted, container, 0).Env {
		if v.Name == keyProbers {
			decoded(t, v.Value, &got)
		}
	}
	if !reflect.DeepEqual(got, want) {
		g, _ := json.Marshal(got)
		w, _ := json.Marshal(want)
		t.Errorf("%s, want\n%s", g, w)
	}
}

// calls are what the kubelet asks pilot-agent of a container.
func calls(c *corev1.Container) (out []*corev1.HTTPGetAction) {
	for _, p := range []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe, c.StartupProbe} {
		if p != nil {
			out = append(out, p.HTTPGet)
		}
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		out = append(out, c.Lifecycle.PreStop.HTTPGet)
	}
	for _, get := range out {
		if get != nil && get.Scheme == "" {
			get.Scheme = corev1.URISchemeHTTP // as the API server does
		}
	}
	return out
}

func decoded(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v: %q", err, text)
	}
}

// probed is a pod of the tests of sidecars/istio with what the API server would default, but for the container that keeps its probes.
func probed(t *testing.T, state string) *corev1.Pod {
	t.Helper()
	text, err := os.ReadFile("../../sidecars/istio/testdata/probed-" + state + ".yaml")
	pod := application(nil)
	if err == nil {
		err = yaml.UnmarshalStrict(text, pod)
	}
	if err != nil {
		t.Fatal(err)
	}
	pod.Namespace, pod.Name = "shop", "cart"
	pod.Spec.Containers = slices.DeleteFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == "kept" })
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			for _, p := range []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe, c.StartupProbe} {
				defaulted(p)
			}
			if c.Lifecycle != nil && c.Lifecycle.PreStop != nil && c.Lifecycle.PreStop.HTTPGet.Scheme == "" {
				c.Lifecycle.PreStop.HTTPGet.Scheme = corev1.URISchemeHTTP
			}
		}
	}
	return pod
}

func defaulted(p *corev1.Probe) {
	switch {
	case p == nil:
		return
	case p.HTTPGet != nil && p.HTTPGet.Scheme == "":
		p.HTTPGet.Scheme = corev1.URISchemeHTTP
	case p.GRPC != nil && p.GRPC.Service == nil:
		p.GRPC.Service = new(string)
	}
	if p.TimeoutSeconds == 0 {
		p.TimeoutSeconds = 1
	}
}
