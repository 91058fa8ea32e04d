package istio

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"istio-pod-network-controller/internal/intent"
)

// byOthers has the injector leave the rules to somebody else.
const byOthers = "unvalidatedValues.pilot.cni.enabled=true"

func decode(t *testing.T, text string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	if err := yaml.Unmarshal([]byte(strings.TrimSuffix(strings.TrimSpace(text), "---")), pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

// ids is a securityContext; -1 is nothing.
func ids(uid, gid int64) *corev1.SecurityContext {
	sc := &corev1.SecurityContext{}
	if uid >= 0 {
		sc.RunAsUser = &uid
	}
	if gid >= 0 {
		sc.RunAsGroup = &gid
	}
	return sc
}

// application is a pod as its owner writes it.
func application(change func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app:1"}}},
	}
	if change != nil {
		change(pod)
	}
	return pod
}

func withInit(sc *corev1.SecurityContext) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.InitContainers = []corev1.Container{{Name: "migrate", Image: "app:1", SecurityContext: sc}}
	}
}

// judged is a pod after injection, and what the agent makes of it.
type judged struct {
	change   func(*corev1.Pod)
	uid, gid uint32
	note     string
	fault    string
}

// Pods as their owners write them, through Istio's injector, as the agent with --select injected takes them.
func TestInjectedPods_theProxyIsKnown(t *testing.T) {
	cases := map[string]judged{
		"nothing special":              {uid: 1337, gid: 1337},
		"a regular proxy":              {change: regular(nil), uid: 1337, gid: 1337},
		"a native one":                 {change: nativeProxy(nil), uid: 1337, gid: 1337},
		"TPROXY":                       {change: annotated("sidecar.istio.io/interceptionMode", "TPROXY"), uid: 1337, gid: 1337},
		"an init container":            {change: regular(withInit(nil)), uid: 1337, gid: 1337, note: `init container "migrate" runs before the proxy listens`},
		"an init container as 1337":    {change: regular(withInit(ids(1337, -1))), uid: 1337, gid: 1337, note: `init container "migrate" runs as the proxy (uid 1337)`},
		"both as 1337":                 {change: withInit(ids(1337, 1337)), uid: 1337, gid: 1337, note: `init container "migrate" runs as the proxy (uid 1337)`},
		"a native sidecar as 1337":     {change: native(withInit(ids(1337, -1))), gid: 1337, note: `init container "migrate" runs before the proxy listens`},
		"the application as user 1337": {change: appAs(1337, -1), gid: 1337},
		"the application as 1337":      {change: appAs(1337, 1337), fault: `uid 1337 is also that of container "app", and gid 1337 is also that of container "app"`},
		"the pod as 1337": {
			change: podAs(1337, 1337), fault: `uid 1337 is also that of container "app"`,
		},
		"TPROXY and an application in the proxy's group": {
			change: func(pod *corev1.Pod) {
				annotated("sidecar.istio.io/interceptionMode", "TPROXY")(pod)
				appAs(1000, 1337)(pod)
			}, fault: "gid 1337",
		},
	}
	i := install(t, "", byOthers)
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pod := i.inject(t, application(tc.change))
			if findInit(pod, "istio-validation") == nil || findInit(pod, "istio-init") != nil {
				t.Fatalf("init containers %+v", pod.Spec.InitContainers)
			}
			got, err := intent.Of(pod, nil, intent.Config{Select: intent.SelectInjected, Defaults: intent.StandardDefaults()})
			if tc.fault != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fault) {
					t.Errorf("%v, want %q", err, tc.fault)
				}
				return
			}
			if err != nil || !got.Redirect || got.Spec.ProxyUID != tc.uid || got.Spec.ProxyGID != tc.gid {
				t.Errorf("%+v, %v", got, err)
			}
			if notes := strings.Join(got.Notes, "; "); !strings.Contains(notes, tc.note) || (tc.note == "") != (notes == "") {
				t.Errorf("notes %q, want %q", notes, tc.note)
			}
		})
	}
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Annotations[key] = value }
}

// regular has the proxy injected as a regular container, nativeProxy as a native sidecar.
func regular(change func(*corev1.Pod)) func(*corev1.Pod) { return proxyKind("false", change) }

func nativeProxy(change func(*corev1.Pod)) func(*corev1.Pod) { return proxyKind("true", change) }

func proxyKind(native string, change func(*corev1.Pod)) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		annotated("sidecar.istio.io/nativeSidecar", native)(pod)
		if change != nil {
			change(pod)
		}
	}
}

func native(change func(*corev1.Pod)) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		change(pod)
		always := corev1.ContainerRestartPolicyAlways
		pod.Spec.InitContainers[0].RestartPolicy = &always
	}
}

func appAs(uid, gid int64) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.Containers[0].SecurityContext = ids(uid, gid) }
}

func podAs(uid, gid int64) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &uid, RunAsGroup: &gid}
	}
}

func findInit(pod *corev1.Pod, name string) *corev1.Container {
	if i := slices.IndexFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == name }); i >= 0 {
		return &pod.Spec.InitContainers[i]
	}
	return nil
}
