package node

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	goruntime "k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars"
	"istio-pod-network-controller/sidecars/profile"
)

// choosing is a cluster with a pod that has chosen the profile edge, each as changed.
type choosing struct {
	pod     *corev1.Pod
	ns      *corev1.Namespace
	profile *v1alpha1.ProxyProfile
	more    []*v1alpha1.ProxyProfile
}

func newChoosing() choosing {
	return choosing{
		pod: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "u1", Annotations: map[string]string{intent.KeySidecar: "edge"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}}},
		},
		ns: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"team": "a"}}},
		profile: &v1alpha1.ProxyProfile{ObjectMeta: metav1.ObjectMeta{Name: "edge", Generation: 3}, Spec: v1alpha1.ProxyProfileSpec{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}},
			Network:           v1alpha1.Network{OutboundPort: 15001, InboundPort: 15006},
			Container:         &v1alpha1.Container{Process: v1alpha1.Process{RunAsUser: 1337, RunAsGroup: 1337}},
		}},
	}
}

// read is how the proxy manager reads the cluster: the pod without what the agent's cache leaves out.
func (c choosing) read(t *testing.T) sidecarCluster {
	t.Helper()
	scheme := goruntime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	build := func(pod client.Object) client.Client {
		out := fake.NewClientBuilder().WithScheme(scheme).WithObjects(pod, c.ns, c.profile)
		for _, p := range c.more {
			out = out.WithObjects(p)
		}
		return out.Build()
	}
	for kind, by := range controllers.CacheOptions("node-1", true, nil).ByObject {
		if _, ok := kind.(*corev1.Pod); !ok {
			continue
		}
		kept, err := by.Transform(c.pod.DeepCopy())
		pod, ok := kept.(*corev1.Pod)
		if err != nil || !ok {
			t.Fatal(err)
		}
		pod.Finalizers = c.pod.Finalizers // the stand-in keeps no pod that is being deleted without one
		cached := build(pod)
		return sidecarCluster{controllers.Reader{Cache: cached, Live: build(c.pod)}, newProfiles(cached, "n1"), newRoutesIn(t, t.TempDir())}
	}
	t.Fatal("the cache has no pods")
	return sidecarCluster{}
}

func newRoutesIn(t *testing.T, dir string) *routes {
	t.Helper()
	l, err := newRoutes(dir)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A pod that cannot have what it has chosen is told why, by its condition and event (the rules) and by its ManagedProxy.
func TestChoice_podCannotHaveProfile_saysWhy(t *testing.T) {
	no, proxy := false, int64(1337)
	app := func(c *choosing) *corev1.Container { return &c.pod.Spec.Containers[0] }
	for name, c := range map[string]struct {
		change func(*choosing)
		want   string // of the refusal
	}{
		"a profile that it can have": {func(*choosing) {}, ""},
		"a profile that there is not": {
			func(c *choosing) { c.pod.Annotations[intent.KeySidecar] = "egde" }, `there is no ProxyProfile "egde": create it, or choose another one`,
		},
		"a profile with a bad template": {
			func(c *choosing) {
				c.profile.Spec.Container.Files = []v1alpha1.File{{Name: "x.cfg", Template: "{{ .Pod.Name "}}
			}, `the ProxyProfile "edge" cannot be used: `,
		},
		"a profile with a bad selector": {
			func(c *choosing) { c.profile.Spec.NamespaceSelector.MatchLabels["a b"] = "c" }, "cannot be used: namespaceSelector",
		},
		"a profile for other namespaces": {func(c *choosing) { c.ns.Labels = nil }, "does not allow pods of the namespace shop"},
		"a proxy, on the host's network": {func(c *choosing) { c.pod.Spec.HostNetwork = true }, "take hostNetwork out"},
		"a proxy, with hostPID":          {func(c *choosing) { c.pod.Spec.HostPID = true }, "take hostPID out"},
		"a proxy, in a user namespace":   {func(c *choosing) { c.pod.Spec.HostUsers = &no }, ""},
		"a proxy, and has its port":      {func(c *choosing) { app(c).Ports = []corev1.ContainerPort{{ContainerPort: 15006}} }, `"app" listens on port 15006`},
		"a proxy, known by a group that the pod gives": {
			func(c *choosing) {
				c.profile.Spec.Container.Transparent = true
				c.pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &proxy}
			}, "the pod's fsGroup gives group 1337, which is the proxy's, to container \"app\"",
		},
		"a proxy, known by its user": {func(c *choosing) { c.pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &proxy} }, ""},
		"a proxy, and is its user":   {func(c *choosing) { app(c).SecurityContext = &corev1.SecurityContext{RunAsUser: &proxy} }, `"app" runs as user 1337`},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newChoosing()
			c.change(&cluster)
			read := cluster.read(t)
			got, err := read.Choice(t.Context(), theSandbox())
			if err != nil || (got.Refusal == "") != (c.want == "") || !strings.Contains(got.Refusal, c.want) {
				t.Errorf("refused: %q, error %v", got.Refusal, err)
			}
			if known := cluster.pod.Annotations[intent.KeySidecar] == "edge"; (got.Profile != nil) != (c.want == "") || known != (got.Hash != "") {
				t.Errorf("%+v", got)
			}
			p := &Proxies{cluster: read}
			for range 2 { // from memory, too
				if rules := p.Managed(t.Context(), theSandbox(), got.Name, cluster.pod, cluster.ns); rules.Refused != got.Refusal || (rules.OutboundPort == 15001) != (c.want == "") {
					t.Errorf("the rules are told %+v", rules)
				}
			}
		})
	}
}

func TestChoice_podOptsOutOrEnds_isSaid(t *testing.T) {
	type said struct{ name, optedOut, ending, finished bool }
	for name, c := range map[string]struct {
		change func(*choosing)
		want   said
	}{
		"nothing":             {func(*choosing) {}, said{name: true}},
		"none":                {func(c *choosing) { c.pod.Annotations[intent.KeySidecar] = "none" }, said{optedOut: true}},
		"no redirection":      {func(c *choosing) { c.pod.Annotations[intent.KeyInitialize] = "false" }, said{optedOut: true}},
		"no longer":           {func(c *choosing) { c.pod.Annotations = nil }, said{}},
		"its namespace does":  {func(c *choosing) { c.ns.Annotations, c.pod.Annotations = c.pod.Annotations, nil }, said{name: true}},
		"what nobody knows":   {func(c *choosing) { c.pod.Annotations[intent.KeySidecar] = "Not A Name" }, said{}},
		"it is being deleted": {func(c *choosing) { c.pod.DeletionTimestamp, c.pod.Finalizers = new(metav1.Now()), []string{"x/y"} }, said{name: true, ending: true}},
		"it has succeeded":    {func(c *choosing) { c.pod.Status.Phase = corev1.PodSucceeded }, said{name: true, ending: true, finished: true}},
		"it has failed":       {func(c *choosing) { c.pod.Status.Phase = corev1.PodFailed }, said{name: true, ending: true, finished: true}},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newChoosing()
			c.change(&cluster)
			got, err := cluster.read(t).Choice(t.Context(), theSandbox())
			if s := (said{got.Name == "edge", got.OptedOut, got.Ending, got.Finished}); err != nil || s != c.want {
				t.Errorf("%+v, error %v", s, err)
			}
		})
	}
	if _, err := newChoosing().read(t).Choice(t.Context(), podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "another"}); !errors.Is(err, podnet.ErrNoPod) {
		t.Errorf("of a pod that is gone: %v", err)
	}
}

// The pod's wish for a new proxy passes the agent's cache. A namespace's is not: it is no one pod's.
func TestChoice_podWishesNewProxy_isRead(t *testing.T) {
	cluster := newChoosing()
	cluster.ns.Annotations = map[string]string{intent.KeyRestartProxy: "2"}
	for value, want := range map[string]string{"": "", "1": sidecars.Wish("1")} {
		cluster.pod.Annotations[intent.KeyRestartProxy] = value
		if got, err := cluster.read(t).Choice(t.Context(), theSandbox()); err != nil || got.Restart != want {
			t.Errorf("%q: wish %q, want %q; error %v", value, got.Restart, want, err)
		}
	}
}

// What a namespace allows passes the agent's cache, and a change of it is a wish for a new proxy where the profile's files have it. What a pod says does
// not count.
func TestChoice_namespaceAllowsNames_isRead(t *testing.T) {
	wishes := map[string]string{}
	for _, names := range []string{"a.example", "b.example"} {
		for _, template := range []string{"{{ .Pod.Name }}", "{{ range .Namespace.EgressNames }}{{ .Name }}{{ end }}"} {
			cluster := newChoosing()
			cluster.ns.Annotations = map[string]string{intent.KeyEgressNames: names}
			cluster.pod.Annotations[intent.KeyEgressNames] = "evil.example"
			cluster.profile.Spec.Container.Files = []v1alpha1.File{{Name: "names", Template: template}}
			got, err := cluster.read(t).Choice(t.Context(), theSandbox())
			if err != nil || got.Namespace.Annotations[intent.KeyEgressNames] != names {
				t.Fatalf("%+v, error %v", got, err)
			}
			files, err := profile.Instance{Version: got.Profile, Pod: cluster.pod, Namespace: got.Namespace}.Files()
			if has := template != "{{ .Pod.Name }}"; err != nil || has != (files["names"] == names) || has != (got.Restart != "") || wishes[got.Restart] != "" && has {
				t.Errorf("%s: file %q, wish %q, error %v", names, files["names"], got.Restart, err)
			}
			wishes[got.Restart] = names
		}
	}
}

// Whether the node is held is in the profile's status, which changes without the profile.
func TestChoice_nodeIsNotAdmitted_isHeld(t *testing.T) {
	cluster := newChoosing()
	cluster.profile.Spec.Container.Update.MaxNodes = 1
	read := cluster.read(t)
	for _, admitted := range []int32{0, 65536} {
		if admitted > 0 {
			api, _ := read.profiles.cache.(client.Client)
			cluster.profile.Status.Rollout = &v1alpha1.RolloutStatus{Hash: profile.HashOf(cluster.profile.Spec), Admitted: admitted}
			if err := api.Patch(t.Context(), cluster.profile, client.Merge); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := read.Choice(t.Context(), theSandbox()); err != nil || got.Held != (admitted == 0) || got.Profile == nil {
			t.Errorf("admitted %d: %+v, error %v", admitted, got, err)
		}
	}
}

// While the present version cannot be used, a pod has the one that is known to work on the node, and is told so.
func TestChoice_presentUnusable_lastGoodIsChosen(t *testing.T) {
	c := newChoosing()
	c.profile.Spec.Container.Files = []v1alpha1.File{{Name: "x.cfg", Template: "{{ .Pod.Name "}}
	cluster := c.read(t)
	cluster.profiles.good = func(string) *profile.Spec { return &profile.Spec{Image: "works", RunAsUser: 1337} }
	got, err := cluster.Choice(t.Context(), theSandbox())
	if err != nil || got.Refusal != "" || got.Profile == nil || got.Profile.Spec.Image != "works" || got.Hash != got.Profile.Hash || !strings.Contains(got.Unusable, `file "x.cfg"`) {
		t.Errorf("%+v, error %v", got, err)
	}
}
