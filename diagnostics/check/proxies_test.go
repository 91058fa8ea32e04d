package check

import (
	"context"
	"encoding/json"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/sidecar"
)

// withProxy has the agents run proxies, and shop/cart have one.
func withProxy(f *Facts) *v1alpha1.ManagedProxy {
	withFlags(f, "--sidecars=true")
	f.Pods[0].Profile = "edge"
	f.Proxies = []v1alpha1.ManagedProxy{managedProxy("cart")}
	return &f.Proxies[0]
}

func sharedEdge() map[string]v1alpha1.ProxyProfileSpec {
	return map[string]v1alpha1.ProxyProfileSpec{"edge": {Shared: &v1alpha1.Shared{}}}
}

func limitedEdge(memory string) map[string]v1alpha1.ProxyProfileSpec {
	limit := resource.MustParse(memory)
	return map[string]v1alpha1.ProxyProfileSpec{"edge": {Istio: &v1alpha1.Istio{Process: v1alpha1.Process{Resources: v1alpha1.Resources{MemoryLimit: &limit}}}}}
}

func managedProxy(pod string) v1alpha1.ManagedProxy {
	return v1alpha1.ManagedProxy{
		ObjectMeta: object("shop", pod), Spec: v1alpha1.ManagedProxySpec{Node: "n1", Profile: "edge"},
		Status: v1alpha1.ManagedProxyStatus{State: v1alpha1.Running, Ready: true},
	}
}

func proxyCases() map[string]changed {
	with := func(change func(*Facts, *v1alpha1.ManagedProxy)) func(*Facts) {
		return func(f *Facts) { change(f, withProxy(f)) }
	}
	shared := daemonSetOf("agents", "edge", "envoy")
	shared.Spec.Template.Labels = map[string]string{sidecar.LabelShared: "edge"}
	shared.Status = appsv1.DaemonSetStatus{DesiredNumberScheduled: 2, NumberReady: 2}
	return map[string]changed{
		"a proxy that is looked after": {change: with(func(*Facts, *v1alpha1.ManagedProxy) {}), check: "proxies-unattended", level: OK, want: "1 proxy"},
		"a proxy that is ready":        {change: with(func(*Facts, *v1alpha1.ManagedProxy) {}), check: "proxies-ready", level: OK},
		"proxies switched off":         {change: with(func(f *Facts, _ *v1alpha1.ManagedProxy) { withFlags(f) }), check: "proxies-unattended", level: Warn, want: "nobody looks after 1 proxy, as the agents run no proxies (proxies.enabled=false): shop/cart (n1)"},
		"the agent was removed": {change: with(func(f *Facts, _ *v1alpha1.ManagedProxy) {
			f.DaemonSets, f.Agents = nil, nil
		}), check: "proxies-unattended", level: Warn, want: "of a removed release"},
		"no agent on the proxy's node": {change: with(func(f *Facts, _ *v1alpha1.ManagedProxy) { f.Agents = f.Agents[1:] }), check: "proxies-unattended", level: Fail, want: "shop/cart (n1)"},
		"an agent that is not ready":   {change: with(func(f *Facts, _ *v1alpha1.ManagedProxy) { f.Agents[0].Ready = false }), check: "proxies-unattended", level: Fail, want: "shop/cart (n1)"},
		"a proxy that cannot start": {change: with(func(_ *Facts, p *v1alpha1.ManagedProxy) {
			p.Status.State, p.Status.Ready, p.Status.Message = v1alpha1.Failed, false, "exit code 1"
		}), check: "proxies-ready", level: Fail, want: "shop/cart (Failed: exit code 1)"},
		"an upgrade that has failed": {change: with(func(f *Facts, p *v1alpha1.ManagedProxy) {
			p.Status.Message = `"localhost/haproxy:3": the image cannot be pulled`
			f.Proxies = append(f.Proxies, managedProxy("web"))
		}), check: "proxy-reports", level: Warn, want: `1 proxy with trouble, of 2 ready: a new version or a change has failed and the proxy goes on as before, it has ended and was started again, or a setting has no effect: shop/cart (edge: "localhost/haproxy:3": the image cannot be pulled)`},
		"an upgrade under way that has failed before": {change: with(func(_ *Facts, p *v1alpha1.ManagedProxy) {
			p.Status.State, p.Status.Message = v1alpha1.Upgrading, "exit code 1"
		}), check: "proxy-reports", level: Warn, want: "exit code 1"},
		"trouble of a proxy that does not serve": {change: with(func(f *Facts, p *v1alpha1.ManagedProxy) {
			f.Proxies = append(f.Proxies, *p)
			f.Proxies[0].Status.Ready, f.Proxies[0].Status.Message = false, "exit code 1"
		}), check: "proxy-reports", level: OK, want: "1 proxy ready, without trouble"},
		"a proxy that is refused": {change: with(func(_ *Facts, p *v1alpha1.ManagedProxy) {
			p.Status.State, p.Status.Ready, p.Status.Message = v1alpha1.Refused, false, "port 15001 is taken"
		}), check: "proxies-ready", level: Fail, want: "1 pod unprotected: their proxy is impossible, and connections pass without it unless there were rules before: shop/cart (Refused: port 15001 is taken)"},
		"a proxy that has long been starting": {change: with(func(_ *Facts, p *v1alpha1.ManagedProxy) { p.Status.State, p.Status.Ready = v1alpha1.Starting, false }), check: "proxies-ready", level: Fail, want: "shop/cart (Starting)"},
		"a proxy that has just been started": {change: with(func(f *Facts, p *v1alpha1.ManagedProxy) {
			p.Status.State, p.Status.Ready, f.Pods[0].Since = v1alpha1.Starting, false, now
		}), check: "proxies-ready", level: OK},
		"a proxy that is done":    {change: with(func(_ *Facts, p *v1alpha1.ManagedProxy) { p.Status.State, p.Status.Ready = v1alpha1.Ended, false }), check: "proxies-ready", level: OK},
		"a pod without any proxy": {change: with(func(f *Facts, _ *v1alpha1.ManagedProxy) { f.Proxies = nil }), check: "proxies-ready", level: Fail, want: "no word of an agent about the proxy: shop/cart (edge)"},
		"a choice without proxies": {change: with(func(f *Facts, _ *v1alpha1.ManagedProxy) {
			f.Proxies = nil
			withFlags(f)
		}), check: "proxies-ready", level: Fail, want: "no agent runs proxies: shop/cart (edge)"},
		"a pod with no room for the proxy": {change: with(func(f *Facts, _ *v1alpha1.ManagedProxy) {
			f.Profiles, f.Pods[0].MemoryLimited, f.Pods[0].MemoryRoom = limitedEdge("64Mi"), true, 32<<20
		}), check: "proxy-room", level: Warn, want: "shop/cart (32Mi of 64Mi)"},
		"a pod with no room for a proxy without a limit": {change: with(func(f *Facts, _ *v1alpha1.ManagedProxy) {
			f.Profiles, f.Pods[0].MemoryLimited = map[string]v1alpha1.ProxyProfileSpec{"edge": {Container: &v1alpha1.Container{}}}, true
		}), check: "proxy-room", level: Warn, want: "shop/cart (0 of memory without a limit)"},
		"a pod with room for the proxy": {change: with(func(f *Facts, _ *v1alpha1.ManagedProxy) {
			f.Profiles, f.Pods[0].MemoryLimited, f.Pods[0].MemoryRoom = limitedEdge("64Mi"), true, 64<<20
		}), check: "proxy-room", level: OK, want: "1 pod"},
		"a shared proxy":             {change: func(f *Facts) { f.Profiles, f.DaemonSets = sharedEdge(), append(f.DaemonSets, shared) }, check: "shared-proxies", level: OK},
		"a shared proxy nobody runs": {change: func(f *Facts) { f.Profiles = sharedEdge() }, check: "shared-proxies", level: Fail, want: "no DaemonSet runs the proxy of the shared profiles edge"},
		"a tenant's shared proxy": {change: func(f *Facts) {
			forged := shared
			forged.Namespace = "shop"
			f.Profiles, f.DaemonSets = sharedEdge(), append(f.DaemonSets, forged)
		}, check: "shared-proxies", level: Fail, want: "edge"},
		"a shared proxy that is behind": {change: func(f *Facts) {
			behind := shared
			behind.Status.NumberReady = 1
			f.Profiles, f.DaemonSets = sharedEdge(), append(f.DaemonSets, behind)
		}, check: "shared-proxies", level: Fail, want: "edge (1 of 2)"},
	}
}

// pagesOf answers with one object a page.
func pagesOf(t *testing.T) func(context.Context, string, metav1.ListOptions) ([]byte, error) {
	t.Helper()
	return func(_ context.Context, resource string, o metav1.ListOptions) ([]byte, error) {
		next := ""
		if o.Continue == "" {
			next = "more"
		}
		meta := metav1.ListMeta{Continue: next}
		if resource == "managedproxies" {
			one := v1alpha1.ManagedProxy{ObjectMeta: object("shop", "cart"+o.Continue), Spec: v1alpha1.ManagedProxySpec{Node: "n1", Profile: "edge"}}
			one.Status = v1alpha1.ManagedProxyStatus{State: v1alpha1.Failed, Message: "m"}
			return json.Marshal(v1alpha1.ManagedProxyList{ListMeta: meta, Items: []v1alpha1.ManagedProxy{one}})
		}
		one := v1alpha1.ProxyProfile{ObjectMeta: object("", "edge"+o.Continue)}
		if next == "" {
			one.Spec.Shared = &v1alpha1.Shared{}
		}
		return json.Marshal(v1alpha1.ProxyProfileList{ListMeta: meta, Items: []v1alpha1.ProxyProfile{one}})
	}
}

func TestGather_sidecars_areReduced(t *testing.T) {
	objects := installation("run", "--sidecars=true")
	daemonSet := &appsv1.DaemonSet{ObjectMeta: object("agents", "edge")}
	daemonSet.Spec.Template.Labels = map[string]string{sidecar.LabelShared: "edge"}
	c := served(t, fake.NewClientset(append(objects, daemonSet)...))
	c.Resources = append(c.Resources, &metav1.APIResourceList{GroupVersion: v1alpha1.GroupVersion().String()})
	g := Gatherer{Client: c, Objects: pagesOf(t), Intent: func([]string) (intent.Config, error) { return intent.Config{}, nil }}
	f := g.Gather(t.Context())
	if len(f.failed) > 0 || len(f.Proxies) != 2 || f.Proxies[0].Name != "cart" || f.Proxies[0].Status.Message != "m" || len(f.Profiles) != 2 || f.Profiles["edgemore"].Shared == nil || !f.runsProxies() {
		t.Errorf("%+v, %+v, %v", f.failed, f.Proxies, f.Profiles)
	}
}

// A pod that may not have a proxy has not chosen one.
func TestGather_profile_isChosenUnlessOptedOut(t *testing.T) {
	objects := installation()
	g := Gatherer{Client: served(t, fake.NewClientset(objects...))}
	f := g.Gather(t.Context())
	if p := podNamed(t, f.Pods, "cart"); p.Profile != "" {
		t.Errorf("%+v", p)
	}
	for _, o := range objects {
		if ns, ok := o.(metav1.Object); ok && ns.GetName() == "shop" {
			ns.GetAnnotations()[intent.KeySidecar] = "edge"
		}
		if pod, ok := o.(metav1.Object); ok && pod.GetName() == "cart" {
			pod.GetAnnotations()[intent.KeyInitialize] = "false"
		}
	}
	g.Client = served(t, fake.NewClientset(objects...))
	if p := podNamed(t, g.Gather(t.Context()).Pods, "cart"); p.Profile != "" {
		t.Errorf("a pod that opts out: %+v", p)
	}
	for _, o := range objects {
		if pod, ok := o.(metav1.Object); ok && pod.GetName() == "cart" {
			delete(pod.GetAnnotations(), intent.KeyInitialize)
		}
	}
	g.Client = served(t, fake.NewClientset(objects...))
	if p := podNamed(t, g.Gather(t.Context()).Pods, "cart"); p.Profile != "edge" {
		t.Errorf("%+v", p)
	}
}
