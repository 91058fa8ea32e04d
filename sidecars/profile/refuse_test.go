package profile

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/sidecars/istio"
)

// edgeProfile is a profile that the namespaces of a team may use.
func edgeProfile(t *testing.T) *Version {
	t.Helper()
	return compiled(t, func(s *Spec) {
		s.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}
		s.RunAsUser, s.RunAsGroup = 7000, 7001
	})
}

// A pod that cannot have a proxy is told why, and what to do.
func TestRefusal_pods_saysWhy(t *testing.T) {
	yes, no, always := true, false, corev1.ContainerRestartPolicyAlways
	listens := func(port int32, protocol corev1.Protocol) corev1.Container {
		return corev1.Container{Name: "server", Ports: []corev1.ContainerPort{{ContainerPort: port, Protocol: protocol}}}
	}
	for name, c := range map[string]struct {
		labels map[string]string // of the namespace; those that the profile wants unless it says otherwise
		change func(*corev1.PodSpec)
		want   []string
	}{
		"nothing is in the way":                  {},
		"a shared process namespace":             {change: func(s *corev1.PodSpec) { s.ShareProcessNamespace = &yes }}, // the proxy has its own
		"its own user namespace is not asked":    {change: func(s *corev1.PodSpec) { s.HostUsers = &yes }},
		"Linux":                                  {change: func(s *corev1.PodSpec) { s.OS = &corev1.PodOS{Name: corev1.Linux} }},
		"another port":                           {change: func(s *corev1.PodSpec) { s.Containers = append(s.Containers, listens(8080, "")) }},
		"the proxy's port, by UDP":               {change: func(s *corev1.PodSpec) { s.Containers = append(s.Containers, listens(15001, corev1.ProtocolUDP)) }},
		"a namespace of others":                  {labels: map[string]string{"team": "b"}, want: []string{"edge does not allow", "namespace shop", "choose another one"}},
		"a namespace without labels":             {labels: map[string]string{}, want: []string{"does not allow"}},
		"the host's network":                     {change: func(s *corev1.PodSpec) { s.HostNetwork = true }, want: []string{"host's network", "take hostNetwork out"}},
		"the host's processes":                   {change: func(s *corev1.PodSpec) { s.HostPID = true }, want: []string{"take hostPID out"}},
		"a user namespace":                       {change: func(s *corev1.PodSpec) { s.HostUsers = &no }},
		"Windows":                                {change: func(s *corev1.PodSpec) { s.OS = &corev1.PodOS{Name: corev1.Windows} }, want: []string{"Windows", "choose the profile none"}},
		"a proxy of its own":                     {change: func(s *corev1.PodSpec) { s.Containers = append(s.Containers, corev1.Container{Name: "istio-proxy"}) }, want: []string{"container istio-proxy", "take it out"}},
		"the proxy's port for what goes out":     {change: func(s *corev1.PodSpec) { s.Containers = append(s.Containers, listens(15001, "")) }, want: []string{`"server" listens on port 15001`, "another one"}},
		"the proxy's port for what comes in":     {change: func(s *corev1.PodSpec) { s.Containers = append(s.Containers, listens(15006, corev1.ProtocolTCP)) }, want: []string{`"server" listens on port 15006`}},
		"the proxy's port, of an init container": {change: func(s *corev1.PodSpec) { s.InitContainers = []corev1.Container{listens(15006, "")} }, want: []string{"listens on port 15006"}},
		"a container with the proxy's name":      {change: func(s *corev1.PodSpec) { s.Containers[0].Name = "managed-proxy" }, want: []string{"name managed-proxy", "another name"}},
		"an init container with the proxy's name": {
			change: func(s *corev1.PodSpec) { s.InitContainers = []corev1.Container{{Name: "managed-proxy"}} }, want: []string{"name managed-proxy"},
		},
		"a proxy of its own, among the init containers": {
			change: func(s *corev1.PodSpec) {
				s.InitContainers = []corev1.Container{{Name: "istio-proxy", RestartPolicy: &always}}
			}, want: []string{"container istio-proxy"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := thePod()
			pod.Spec.Containers = []corev1.Container{{Name: "app"}}
			if c.change != nil {
				c.change(&pod.Spec)
			}
			if c.labels == nil {
				c.labels = map[string]string{"team": "a", "more": "x"}
			}
			got := edgeProfile(t).Refusal(pod, c.labels)
			if (got == "") != (len(c.want) == 0) {
				t.Fatalf("refused: %q", got)
			}
			for _, want := range c.want {
				if !strings.Contains(got, want) {
					t.Errorf("refused: %q, want %q", got, want)
				}
			}
		})
	}
}

// A shared proxy is outside of the pod's user namespace: the rules there do not know its group.
func TestRefusal_hostUsersAndShared_saysWhy(t *testing.T) {
	no := false
	pod := thePod()
	pod.Spec.HostUsers = &no
	p := &Version{Name: "edge", Spec: Spec{Shared: &Reload{}}, namespaces: labels.Everything()}
	if got := p.Refusal(pod, nil); !strings.Contains(got, "hostUsers: false") || !strings.Contains(got, "by its group") {
		t.Errorf("refused: %q", got)
	}
}

// A static pod has no ServiceAccount, and without one there is no token.
func TestRefusal_staticPodAndToken_saysWhy(t *testing.T) {
	token := []v1alpha1.SecretSource{{Name: "mesh", ServiceAccountToken: &v1alpha1.ServiceAccountToken{Audience: "mesh"}}}
	static := map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
	for name, c := range map[string]struct {
		annotations map[string]string
		spec        Spec
		refused     bool
	}{
		"a static pod, Istio's proxy":          {static, Spec{Istio: &istio.ControlPlane{}}, true},
		"a static pod, a proxy with a token":   {static, Spec{Secrets: token}, true},
		"a static pod, a proxy without token":  {static, Spec{Secrets: []v1alpha1.SecretSource{{Name: "roots"}}}, false},
		"a static pod as the kubelet gives it": {map[string]string{intent.KeySource: "file"}, Spec{Istio: &istio.ControlPlane{}}, true},
		"another pod, Istio's proxy":           {nil, Spec{Istio: &istio.ControlPlane{}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			pod := thePod()
			pod.Annotations = c.annotations
			p := &Version{Name: "edge", Spec: c.spec, namespaces: labels.Everything()}
			if got := p.Refusal(pod, nil); strings.Contains(got, "static pod") != c.refused || (got != "") != c.refused {
				t.Errorf("refused: %q, want so %t", got, c.refused)
			}
		})
	}
}

// A profile that does not say which namespaces may use it is for none.
func TestRefusal_noSelector_refusesAll(t *testing.T) {
	p := compiled(t, func(s *Spec) { s.NamespaceSelector = nil })
	if got := p.Refusal(thePod(), map[string]string{"team": "a"}); !strings.Contains(got, "does not allow") {
		t.Errorf("refused: %q", got)
	}
}

func TestRefusal_applicationWithProxysID_isRefused(t *testing.T) {
	id := func(n int64) *int64 { return &n }
	for name, c := range map[string]struct {
		transparent               bool
		pod, container, ephemeral *corev1.SecurityContext
		want                      string
	}{
		"the proxy's user": {container: &corev1.SecurityContext{RunAsUser: id(7000)}, want: `"app" runs as user 7000`},
		"the proxy's user, of a debugger, which stays":  {ephemeral: &corev1.SecurityContext{RunAsUser: id(7000)}},
		"the proxy's user, for all containers":          {pod: &corev1.SecurityContext{RunAsUser: id(7000)}, want: `"app" runs as user 7000`},
		"another one than for all":                      {pod: &corev1.SecurityContext{RunAsUser: id(7000)}, container: &corev1.SecurityContext{RunAsUser: id(1)}},
		"the proxy's group":                             {container: &corev1.SecurityContext{RunAsGroup: id(7001)}},
		"no user":                                       {container: &corev1.SecurityContext{}},
		"a transparent proxy's user":                    {transparent: true, container: &corev1.SecurityContext{RunAsUser: id(7000)}},
		"root beside a transparent proxy":               {transparent: true, container: &corev1.SecurityContext{RunAsUser: id(0)}},
		"a transparent proxy's group":                   {transparent: true, container: &corev1.SecurityContext{RunAsGroup: id(7001)}, want: `"app" runs as group 7001`},
		"a transparent proxy's group, for all":          {transparent: true, pod: &corev1.SecurityContext{RunAsGroup: id(7001)}, want: `"app" runs as group 7001`},
		"another one than for all, beside such a proxy": {transparent: true, pod: &corev1.SecurityContext{RunAsGroup: id(7001)}, container: &corev1.SecurityContext{RunAsGroup: id(1)}},
	} {
		t.Run(name, func(t *testing.T) {
			p := compiled(t, envoy, func(s *Spec) {
				s.Transparent, s.RunAsUser, s.RunAsGroup = c.transparent, 7000, 7001
			})
			pod := thePod()
			pod.Spec.Containers = []corev1.Container{{Name: "app", SecurityContext: c.container}}
			if c.ephemeral != nil {
				debugger := corev1.EphemeralContainerCommon{Name: "debugger", SecurityContext: c.ephemeral}
				pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: debugger}}
			}
			if c.pod != nil {
				pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: c.pod.RunAsUser, RunAsGroup: c.pod.RunAsGroup}
			}
			got := p.Refusal(pod, nil)
			if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("refused: %q, want %q", got, c.want)
			}
		})
	}
}
