package check

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/intent"
)

func object(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{}, Annotations: map[string]string{}}
}

// installation is what the chart makes, and a pod that asks through its namespace.
func installation(args ...string) []runtime.Object {
	daemonSet := &appsv1.DaemonSet{ObjectMeta: object("agents", "agent")}
	daemonSet.Labels["app.kubernetes.io/name"] = "istio-pod-network-controller"
	daemonSet.Spec.Template.Spec.HostNetwork = true
	daemonSet.Spec.Template.Spec.Containers = []corev1.Container{{Name: "agent", Image: "registry/agent:1", Args: args}}
	daemonSet.Status = appsv1.DaemonSetStatus{DesiredNumberScheduled: 1, NumberReady: 1, UpdatedNumberScheduled: 1}

	agent := &corev1.Pod{ObjectMeta: object("agents", "agent-1")}
	agent.Labels["app.kubernetes.io/name"] = "istio-pod-network-controller"
	agent.Annotations[agentstatus.Annotation] = agentstatus.Status{Version: "0.1.0", Ready: true}.String()
	agent.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet"}}
	agent.Spec = corev1.PodSpec{NodeName: "n1", HostNetwork: true, Containers: []corev1.Container{{Name: "agent"}}}
	agent.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}

	ns := &corev1.Namespace{ObjectMeta: object("", "shop")}
	ns.Annotations[intent.KeyInitialize] = "true"
	pod := &corev1.Pod{ObjectMeta: object("shop", "cart")}
	pod.Annotations["pod-network-controller.istio.io/status"] = "initialized"
	pod.Annotations["sidecar.istio.io/status"] = "{}"
	pod.Spec = corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{
		{Name: "app"}, {Name: "istio-proxy", Env: []corev1.EnvVar{{Name: "ISTIO_DUAL_STACK", Value: "true"}}},
	}}
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}}

	node := &corev1.Node{ObjectMeta: object("", "n1")}
	node.Spec.Taints = []corev1.Taint{{Key: "a"}}
	node.Status.NodeInfo = corev1.NodeSystemInfo{OperatingSystem: "linux", KernelVersion: "6.1.0", ContainerRuntimeVersion: "containerd://2.0.0"}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return []runtime.Object{daemonSet, agent, ns, pod, node}
}

func served(t *testing.T, c *fake.Clientset) *fake.Clientset {
	t.Helper()
	d, ok := c.Discovery().(*fakediscovery.FakeDiscovery)
	if !ok {
		t.Fatal("no fake discovery")
	}
	d.FakedServerVersion = &version.Info{GitVersion: "v1.36.3"}
	d.Resources = []*metav1.APIResourceList{{
		GroupVersion: "admissionregistration.k8s.io/v1", APIResources: []metav1.APIResource{{Kind: "ValidatingAdmissionPolicy"}},
	}}
	return c
}

func gather(t *testing.T, c *fake.Clientset, config intent.Config) *Facts {
	t.Helper()
	g := Gatherer{Client: c, Release: "0.1.0", Intent: func([]string) (intent.Config, error) { return config, nil }}
	return g.Gather(t.Context())
}

func TestGather_installation_isReduced(t *testing.T) {
	istio := &corev1.ConfigMap{ObjectMeta: object("istio-system", "istio"), Data: map[string]string{"mesh": "proxyListenPort: 16001\n"}}
	values := &corev1.ConfigMap{ObjectMeta: object("istio-system", "istio-sidecar-injector"), Data: map[string]string{"values": `{"pilot":{"cni":{"enabled":true}}}`}}
	istiod := &appsv1.Deployment{ObjectMeta: object("istio-system", "istiod")}
	istiod.Spec.Template.Spec.Containers = []corev1.Container{{Name: "discovery", Env: []corev1.EnvVar{{Name: envUntaint, Value: "true"}, {Name: envTaint, Value: "example.com/wait"}}}}
	scaler := &corev1.Pod{ObjectMeta: object("kube-system", "ca")}
	scaler.Spec.Containers = []corev1.Container{{Image: "registry.k8s.io/autoscaling/cluster-autoscaler:v1", Command: []string{"./cluster-autoscaler", "--startup-taint=" + startupTaintKey}}}
	event := &corev1.Event{ObjectMeta: object("default", "e"), Reason: "CNIChainLeftover", InvolvedObject: corev1.ObjectReference{Name: "n9"}}
	objects := append(installation("run", "--envoy-port=15001"), istio, values, istiod, scaler, event)
	f := gather(t, served(t, fake.NewClientset(objects...)), intent.Config{Select: intent.SelectAnnotation, Defaults: intent.StandardDefaults()})
	if len(f.failed) > 0 {
		t.Fatalf("%+v", f.failed)
	}
	pod := podNamed(t, f.Pods, "cart")
	if !pod.Asked || !pod.Redirect || !pod.DualStackProxy || !pod.Injected || pod.Families != 2 || pod.Status != "initialized" {
		t.Errorf("%+v", pod)
	}
	if !f.APIs.Validating || f.APIs.Mutating || f.Version != "v1.36.3" {
		t.Errorf("%+v, %s", f.APIs, f.Version)
	}
	if len(f.Agents) != 1 || f.Agents[0].Status == nil || !f.Agents[0].Ready || f.flag("envoy-port") != "15001" {
		t.Errorf("%+v, %+v", f.Agents, f.DaemonSets)
	}
	if r := f.Istio.Revisions; len(r) != 1 || r[0].OutboundPort != 16001 || r[0].CNI == nil || !*r[0].CNI || !f.Istio.Untaint || f.Istio.Taint != "example.com/wait" {
		t.Errorf("%+v", f.Istio)
	}
	if f.Autoscaler == nil || !f.Autoscaler.KnowsTaint || len(f.Leftovers) != 1 || len(f.Nodes[0].Spec.Taints) != 1 {
		t.Errorf("%+v, %v, %+v", f.Autoscaler, f.Leftovers, f.Nodes)
	}
}

// injectedPod is a running pod as Istio's injector leaves it: a regular proxy, and init containers by name.
func injectedPod(name, revision string, init ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: object("shop", name)}
	pod.Annotations["sidecar.istio.io/status"] = `{"revision":"` + revision + `"}`
	for _, name := range init {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, corev1.Container{Name: name})
	}
	ids := &corev1.SecurityContext{RunAsUser: new(int64(1337)), RunAsGroup: new(int64(1337))}
	pod.Spec.Containers = []corev1.Container{{Name: "app"}, {Name: "istio-proxy", SecurityContext: ids}}
	pod.Status.Phase = corev1.PodRunning
	return pod
}

func TestGather_podsOfIstio_areJudgedAsMoved(t *testing.T) {
	byInit, byPlugin := injectedPod("by-init", "default", "migrate", "istio-init"), injectedPod("by-plugin", "1-30", "istio-validation", "migrate")
	late := injectedPod("late", "default", "istio-init", "migrate")
	known := injectedPod("known", "default", "migrate", "istio-init")
	known.Spec.InitContainers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: new(int64(1337))}
	taken := injectedPod("taken", "1-30", "istio-validation")
	taken.Spec.Containers[0].SecurityContext = taken.Spec.Containers[1].SecurityContext
	moved := injectedPod("moved", "default", "istio-validation")
	moved.Annotations["pod-network-controller.istio.io/status"] = "failed"
	strange := injectedPod("strange", "../../secrets", "istio-validation")
	values := &corev1.ConfigMap{ObjectMeta: object("istio-system", "istio-sidecar-injector-1-30"), Data: map[string]string{"values": `{"pilot":{"cni":{"enabled":false}}}`}}
	f := gather(t, served(t, fake.NewClientset(byInit, byPlugin, late, known, taken, moved, strange, values)), intent.Config{})
	for name, want := range map[string]Pod{
		"by-init": {Istios: true, MeetNoProxy: []string{"migrate"}}, "by-plugin": {Istios: true}, "late": {Istios: true}, "known": {Istios: true}, "moved": {}, "strange": {Istios: true},
	} {
		if p := podNamed(t, f.Pods, name); p.Istios != want.Istios || p.Fails != "" || !slices.Equal(p.MeetNoProxy, want.MeetNoProxy) {
			t.Errorf("%+v, want %+v", p, want)
		}
	}
	if p := podNamed(t, f.Pods, "taken"); !strings.Contains(p.Fails, `uid 1337 is also that of container "app"`) {
		t.Errorf("%+v", p)
	}
	if r := f.Istio.Revisions; len(r) != 1 || r[0].Name != "1-30" || r[0].CNI == nil || *r[0].CNI {
		t.Errorf("%+v", r)
	}
}

func podNamed(t *testing.T, pods []Pod, name string) Pod {
	t.Helper()
	for _, p := range pods {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("no pod %s among %d", name, len(pods))
	return Pod{}
}

func TestGather_pods_areJudgedByTheAgentsFlags(t *testing.T) {
	excluded := intent.Config{Select: intent.SelectAnnotation, Defaults: intent.StandardDefaults(), ExcludedNamespaces: []string{"shop"}}
	neighbour := &corev1.Pod{ObjectMeta: object("agents", "neighbour")}
	neighbour.Annotations[intent.KeyInitialize] = "true"
	wrong := &corev1.Pod{ObjectMeta: object("other", "wrong")}
	wrong.Annotations[intent.KeyInitialize], wrong.Annotations[intent.KeyOutboundPort] = "true", "many"
	forged := &corev1.Pod{ObjectMeta: object("other", "forged")}
	forged.Labels["app.kubernetes.io/name"] = "istio-pod-network-controller"
	forged.Spec.Containers = []corev1.Container{{Name: "agent"}}
	ending := &corev1.Pod{ObjectMeta: object("shop", "ending")}
	ending.DeletionTimestamp, ending.Finalizers = new(metav1.Now()), []string{"a/b"}
	f := gather(t, served(t, fake.NewClientset(append(installation(), neighbour, wrong, forged, ending)...)), excluded)
	if slices.ContainsFunc(f.Pods, func(p Pod) bool { return p.Name == "ending" }) {
		t.Error("a pod that ends is judged")
	}
	if len(f.Agents) != 1 || f.Agents[0].Name != "agent-1" {
		t.Errorf("%+v", f.Agents)
	}
	if pod := podNamed(t, f.Pods, "neighbour"); pod.Reason != intent.AgentNamespace {
		t.Errorf("%+v", pod)
	}
	if pod := podNamed(t, f.Pods, "wrong"); pod.Redirect || !strings.Contains(pod.Fault, `"many"`) {
		t.Errorf("%+v", pod)
	}
	if pod := podNamed(t, f.Pods, "cart"); pod.Redirect || pod.Reason != intent.ExcludedNamespace {
		t.Errorf("%+v", pod)
	}
}

// A tenant's objects with the agents' label are none of the agents', whatever their namespace's place in the list.
func TestGather_tenantsDaemonSet_isIgnored(t *testing.T) {
	forged := &appsv1.DaemonSet{ObjectMeta: object("a-tenant", "agent")}
	forged.Labels["app.kubernetes.io/name"] = "istio-pod-network-controller"
	forged.Spec.Template.Spec.Containers = []corev1.Container{{Name: "agent", Args: []string{"run", "--envoy-port=1"}}}
	pod := &corev1.Pod{ObjectMeta: object("a-tenant", "agent-1")}
	pod.Labels["app.kubernetes.io/name"] = "istio-pod-network-controller"
	pod.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet"}}
	pod.Spec = corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "agent"}}}
	f := gather(t, served(t, fake.NewClientset(append(installation(), forged, pod)...)), intent.Config{})
	if found := installed(f); found.level != OK || f.ours().Namespace != "agents" {
		t.Errorf("%+v, %+v", found, f.ours())
	}
	if len(f.Agents) != 1 || f.Agents[0].Namespace != "agents" {
		t.Errorf("%+v", f.Agents)
	}
}

// Without any right each source is one warning, nothing panics, and that nothing was checked is a failure.
func TestRun_withoutRights_warnsOfEachSource(t *testing.T) {
	c := served(t, fake.NewClientset(installation()...))
	c.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetResource().Resource == "version" || action.GetVerb() == "get" && action.GetResource().Resource == "group" || action.GetResource().Resource == "resource" {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: action.GetResource().Resource}, "", nil)
	})
	results := Run(gather(t, c, intent.Config{}), false)
	warnings := 0
	for _, r := range results {
		if r.Check == "missing-rights" && r.Level == Warn {
			warnings++
			if !strings.Contains(r.Do, "have the right to ") {
				t.Errorf("%+v", r)
			}
		}
	}
	if want := 7; warnings != want || Worst(results) != Fail {
		t.Errorf("%d warnings, want %d: %s", warnings, want, Text(results))
	}
}

func TestGather_silentCluster_stopsAtTheVersion(t *testing.T) {
	c := fake.NewClientset(installation()...)
	c.PrependReactor("get", "version", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, fmt.Errorf("dial tcp 192.0.2.1:6443: i/o timeout")
	})
	f := gather(t, c, intent.Config{})
	if err := f.Unreachable(); err == nil || !strings.Contains(err.Error(), "192.0.2.1") || len(f.failed) != 1 {
		t.Errorf("%v, %+v", err, f.failed)
	}
}

func TestGather_longList_readsPages(t *testing.T) {
	c := fake.NewClientset()
	var asked []string
	c.PrependReactor("list", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		list, ok := action.(clienttesting.ListActionImpl)
		if !ok {
			return false, nil, nil
		}
		o := list.GetListOptions()
		asked = append(asked, fmt.Sprintf("%d %q", o.Limit, o.Continue))
		out := &corev1.NodeList{Items: []corev1.Node{{ObjectMeta: object("", fmt.Sprint("n", len(asked)))}}}
		if o.Continue == "" {
			out.Continue = "more"
		}
		return true, out, nil
	})
	f := gather(t, served(t, c), intent.Config{})
	if len(f.Nodes) != 2 || len(asked) != 2 || asked[1] != `500 "more"` {
		t.Errorf("%v, %d nodes", asked, len(f.Nodes))
	}
}

func TestCNIOf_injectorsValues_areRead(t *testing.T) {
	for text, want := range map[string]string{
		`{"pilot":{"cni":{"enabled":false}}}`: "false", `{"istio_cni":{"enabled":true}}`: "true", `{}`: "nil", `nonsense`: "nil",
	} {
		have := "nil"
		if v := cniOf(text); v != nil {
			have = fmt.Sprint(*v)
		}
		if have != want {
			t.Errorf("%s: %s, want %s", text, have, want)
		}
	}
}

// The rights that docs/check.md shows are enough, and all of them are used.
func TestGather_rights_equalTheDocs(t *testing.T) {
	raw, err := os.ReadFile("../../docs/check.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(raw), "```yaml\n")
	text, _, _ = strings.Cut(text, "```")
	var role rbacv1.ClusterRole
	if err := yaml.UnmarshalStrict([]byte(text), &role); err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, rule := range role.Rules {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				documented = append(documented, strings.Join([]string{verb, rule.APIGroups[0], resource, strings.Join(rule.ResourceNames, " ")}, "/"))
			}
		}
	}
	istio := &corev1.ConfigMap{ObjectMeta: object("istio-system", "istio")}
	c := served(t, fake.NewClientset(append(installation(), istio)...))
	c.Resources[0].APIResources = append(c.Resources[0].APIResources, metav1.APIResource{Kind: "MutatingAdmissionPolicy"})
	c.Resources = append(c.Resources, &metav1.APIResourceList{GroupVersion: v1alpha1.GroupVersion().String()})
	used := map[string][]string{}
	objects := func(_ context.Context, resource string, _ metav1.ListOptions) ([]byte, error) {
		used["list/pod-network-controller.istio.io/"+resource] = nil
		return []byte("{}"), nil
	}
	g := Gatherer{Client: c, Objects: objects, Intent: func([]string) (intent.Config, error) { return intent.Config{}, nil }}
	g.Gather(t.Context())
	g.Removal = true
	g.Gather(t.Context())
	for _, action := range c.Actions() {
		key := strings.Join([]string{action.GetVerb(), action.GetResource().Group, action.GetResource().Resource}, "/")
		get, isGet := action.(clienttesting.GetAction)
		switch {
		case action.GetResource().Version == "": // discovery, which everybody may ask
		case isGet:
			used[key] = append(used[key], get.GetName())
		default:
			used[key] = nil
		}
	}
	var have []string
	for key, names := range used {
		have = append(have, key+"/"+strings.Join(names, " "))
	}
	slices.Sort(documented)
	slices.Sort(have)
	if diff := cmp.Diff(documented, have); diff != "" {
		t.Errorf("-documented +used:\n%s", diff)
	}
}
