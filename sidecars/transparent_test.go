package sidecars

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/api/v1alpha1"
)

// A runtime gives a capability to root only. The proxy's group is then what the rules know it by.
func TestATransparentProxyIsRootWithOneCapability(t *testing.T) {
	transparent := envoyProfile(t, func(s *v1alpha1.SidecarProfileSpec) {
		s.Network.Transparent, s.RunAsUser, s.RunAsGroup = true, 7000, 7001
	})
	if got := (launch{profile: transparent, pod: thePod()}).spec(home{"/x"}); !got.NetAdmin || got.UID != 0 || got.GID != 7001 {
		t.Errorf("user %d, group %d, NET_ADMIN %t", got.UID, got.GID, got.NetAdmin)
	}
	usual := envoyProfile(t, func(s *v1alpha1.SidecarProfileSpec) { s.RunAsUser, s.RunAsGroup = 7000, 7001 })
	if got := (launch{profile: usual, pod: thePod()}).spec(home{"/x"}); got.NetAdmin || got.UID != 7000 || got.GID != 7001 {
		t.Errorf("user %d, group %d, NET_ADMIN %t", got.UID, got.GID, got.NetAdmin)
	}
}

func TestAnApplicationThatTheRulesWouldTakeForTheProxyIsRefused(t *testing.T) {
	id := func(n int64) *int64 { return &n }
	for name, c := range map[string]struct {
		transparent    bool
		pod, container *corev1.SecurityContext
		want           string
	}{
		"the proxy's user":                              {container: &corev1.SecurityContext{RunAsUser: id(7000)}, want: `"app" runs as user 7000`},
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
			p := envoyProfile(t, func(s *v1alpha1.SidecarProfileSpec) {
				s.Network.Transparent, s.RunAsUser, s.RunAsGroup = c.transparent, 7000, 7001
			})
			pod := thePod()
			pod.Spec.Containers = []corev1.Container{{Name: "app", SecurityContext: c.container}}
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
