package admissiontest

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const initialize = "istio-pod-network-controller/initialize"

// shape is a pod, and whether the policy must prepare it.
type shape struct {
	namespace string
	change    []func(*corev1.Pod)
	want      bool
	// differs says why the agent decides otherwise; if empty, policy and agent must agree.
	differs string
}

func (s shape) pod() *corev1.Pod {
	yes, no, user := true, false, int64(1000)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, GenerateName: "shape-"},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "app", Image: "example.com/app", SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			}}},
			SecurityContext: &corev1.PodSecurityContext{
				RunAsUser: &user, RunAsNonRoot: &yes, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
		},
	}
	for _, change := range s.change {
		change(pod)
	}
	return pod
}

func changes(list ...func(*corev1.Pod)) []func(*corev1.Pod) { return list }

// asking returns a pod that asks by its own annotation and has nothing else.
func asking() *corev1.Pod {
	return shape{namespace: "silent", change: changes(annotate(initialize, "true"))}.pod()
}

func annotate(kv ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		added := map[string]string{}
		for i := 0; i < len(kv); i += 2 {
			added[kv[i]] = kv[i+1]
		}
		maps.Copy(added, p.Annotations)
		p.Annotations = added
	}
}

func label(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = map[string]string{key: value} }
}

// like is another container of the pod. A proxy runs as Istio's user, by which the agent tells it from the application.
func like(p *corev1.Pod, name string) corev1.Container {
	c := *p.Spec.Containers[0].DeepCopy()
	if c.Name = name; name == "istio-proxy" && c.SecurityContext != nil {
		user := int64(1337)
		c.SecurityContext.RunAsUser = &user
	}
	return c
}

func container(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, like(p, name)) }
}

func initContainer(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.InitContainers = append(p.Spec.InitContainers, like(p, name)) }
}

func nativeSidecar(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		initContainer(name)(p)
		always := corev1.ContainerRestartPolicyAlways
		p.Spec.InitContainers[len(p.Spec.InitContainers)-1].RestartPolicy = &always
	}
}

func gate(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.ReadinessGates = append(p.Spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: corev1.PodConditionType(name)})
	}
}

// proxyWith is a proxy whose arguments are given, and an environment variable of it.
func proxyWith(env, value string, args ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		c := like(p, "istio-proxy")
		c.Args = args
		if env != "" {
			c.Env = []corev1.EnvVar{{Name: env, Value: value}}
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
}

func windows(p *corev1.Pod) {
	p.Spec.OS, p.Spec.SecurityContext = &corev1.PodOS{Name: corev1.Windows}, nil
	p.Spec.Containers[0].SecurityContext = nil
}

func onNode(name string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = name } }

func hostNetwork(p *corev1.Pod) { p.Spec.HostNetwork = true }

func runtimeClass(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.RuntimeClassName = &name }
}

// ownedByReplicaSet is a pod as a Deployment's controllers make it.
func ownedByReplicaSet(p *corev1.Pod) {
	yes := true
	p.GenerateName = "shop-7d4b9c6f5d-"
	p.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "shop-7d4b9c6f5d", UID: "2b1c", Controller: &yes, BlockOwnerDeletion: &yes,
	}}
	p.Labels = map[string]string{"app": "shop", "pod-template-hash": "7d4b9c6f5d"}
}

// annotationShapes are selected by annotations.
func annotationShapes() map[string]shape {
	asks, optsOut, proxy := annotate(initialize, "true"), annotate(initialize, "false"), container("istio-proxy")
	const mistake = "an invalid value, which the agent reports, and the policy still prepares the pod"
	return map[string]shape{
		"asks itself":                                {namespace: "silent", change: changes(asks), want: true},
		"asks itself in an asking namespace":         {namespace: "asking", change: changes(asks), want: true},
		"asks by a value that means nothing":         {namespace: "silent", change: changes(annotate(initialize, "True")), want: true, differs: mistake},
		"asks by an empty value":                     {namespace: "asking", change: changes(annotate(initialize, "")), want: true, differs: mistake},
		"opts out":                                   {namespace: "asking", change: changes(optsOut, proxy)},
		"opts out, with everything":                  {namespace: "asking", change: changes(optsOut, proxy, gate("a/b"), initContainer("first"))},
		"its namespace asks":                         {namespace: "asking", change: changes(proxy), want: true},
		"its namespace asks, a native sidecar":       {namespace: "asking", change: changes(initContainer("istio-proxy")), want: true},
		"its namespace asks, without a proxy":        {namespace: "asking"},
		"nobody asks":                                {namespace: "silent", change: changes(proxy)},
		"its namespace has another value":            {namespace: "typo", change: changes(proxy)},
		"other annotations":                          {namespace: "silent", change: changes(annotate("a", "b"), proxy)},
		"host network":                               {namespace: "asking", change: changes(asks, hostNetwork)},
		"windows":                                    {namespace: "asking", change: changes(asks, windows)},
		"programs itself":                            {namespace: "asking", change: changes(asks, proxy, initContainer("istio-init"))},
		"programs itself, by a container":            {namespace: "asking", change: changes(asks, proxy, container("istio-init"))},
		"a native sidecar named istio-init":          {namespace: "asking", change: changes(asks, proxy, nativeSidecar("istio-init")), want: true},
		"a deployer":                                 {namespace: "asking", change: changes(asks, annotate("openshift.io/deployer-pod-for.name", "x"))},
		"a build":                                    {namespace: "asking", change: changes(asks, annotate("openshift.io/build.name", "x"))},
		"an excluded namespace":                      {namespace: "kube-system", change: changes(asks, proxy)},
		"the agent's namespace":                      {namespace: release, change: changes(asks, proxy)},
		"a sandboxed runtime":                        {namespace: "asking", change: changes(asks, runtimeClass("kata-qemu")), differs: "the manifest names the class, and the agent goes by its handler"},
		"another runtime":                            {namespace: "asking", change: changes(asks, runtimeClass("nvidia")), want: true},
		"a static pod's mirror":                      {namespace: "silent", change: changes(asks, annotate(corev1.MirrorPodAnnotationKey, "x"), onNode("n1")), differs: "what is added to a mirror does not reach the pod"},
		"a Deployment's, asks itself":                {namespace: "silent", change: changes(asks, ownedByReplicaSet), want: true},
		"a Deployment's, its namespace asks":         {namespace: "asking", change: changes(proxy, ownedByReplicaSet), want: true},
		"with gates":                                 {namespace: "silent", change: changes(asks, gate("example.com/a"), gate("example.com/b")), want: true},
		"with init containers":                       {namespace: "silent", change: changes(asks, initContainer("one"), initContainer("two")), want: true},
		"with all of it":                             {namespace: "asking", change: changes(proxy, gate("a/b"), initContainer("one"), annotate("a/b", "c~d/e")), want: true},
		"in a namespace that restricts its pods":     {namespace: "restricted", change: changes(proxy), want: true},
		"in such a namespace, with a native sidecar": {namespace: "restricted", change: changes(initContainer("istio-proxy"), initContainer("migrate")), want: true},
	}
}

// injectedShapes are selected by Istio's injection; none has an annotation that asks.
func injectedShapes() map[string]shape {
	status, proxy := annotate("sidecar.istio.io/status", "{}"), proxyWith("", "")
	const inject = "sidecar.istio.io/inject"
	of := func(want bool, list ...func(*corev1.Pod)) shape {
		return shape{namespace: "silent", change: list, want: want}
	}
	return map[string]shape{
		"injected":                   of(true, status, proxy),
		"a native sidecar":           of(true, status, initContainer("istio-proxy")),
		"OpenShift's deployer":       of(true, status, proxy, annotate("openshift.io/deployer-pod-for.name", "x")),
		"OpenShift's build":          of(true, status, proxy, annotate("openshift.io/build.name", "x")),
		"a build, not injected":      of(false, proxy, annotate("openshift.io/build.name", "x")),
		"not injected":               of(false, proxy),
		"no proxy":                   of(false, status),
		"proxyless":                  of(false, status, proxyWith("DISABLE_ENVOY", "T")),
		"no boolean":                 of(true, status, proxyWith("DISABLE_ENVOY", "yes")),
		"another variable":           of(true, status, proxyWith("ENABLE_ENVOY", "true")),
		"a router":                   of(false, status, proxyWith("", "", "proxy", "router")),
		"a sidecar":                  of(true, status, proxyWith("", "", "proxy", "sidecar", "--domain")),
		"one argument":               of(true, status, proxyWith("", "", "proxy")),
		"another program":            of(true, status, proxyWith("", "", "envoy", "router")),
		"refused by annotation":      of(false, status, proxy, annotate(inject, "false")),
		"refused by no boolean":      of(true, status, proxy, annotate(inject, "no")),
		"refused by label":           of(false, status, proxy, label(inject, "0")),
		"the label wins":             of(true, status, proxy, label(inject, "true"), annotate(inject, "false")),
		"our own refusal holds":      of(false, status, proxy, annotate(initialize, "false")),
		"our own wish needs no sign": {namespace: "silent", change: changes(status, proxy, annotate(initialize, "true")), want: true},
	}
}
