package intent

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/iptables"
)

func TestProxyProfile_podAndNamespace_podWins(t *testing.T) {
	for name, c := range map[string]struct {
		pod, namespace *string
		want           string
		wrong          bool
	}{
		"neither":                      {},
		"the namespace":                {namespace: new("edge"), want: "edge"},
		"the pod":                      {pod: new("edge"), want: "edge"},
		"the pod wins":                 {pod: new("own"), namespace: new("edge"), want: "own"},
		"the pod wants none":           {pod: new("none"), namespace: new("edge")},
		"the namespace wants none":     {namespace: new("none")},
		"the namespace says nothing":   {namespace: new("")},
		"the pod says nothing":         {pod: new(""), wrong: true},
		"no name of an object":         {pod: new("Edge"), wrong: true},
		"a path":                       {pod: new("../edge"), wrong: true},
		"longer than an object's name": {pod: new(strings.Repeat("e", 254)), wrong: true},
		"two lines":                    {pod: new("edge\nuser root"), wrong: true},
		"a wrong name of no relevance": {pod: new("own"), namespace: new("Edge"), want: "own"},
	} {
		pod, ns := &corev1.Pod{}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}}}
		if c.pod != nil {
			pod.Annotations = map[string]string{KeySidecar: *c.pod}
		}
		if c.namespace != nil {
			ns.Annotations[KeySidecar] = *c.namespace
		}
		if got, err := ProxyProfile(pod, ns); got != c.want || c.wrong != (err != nil) {
			t.Errorf("%s: %q, error %v", name, got, err)
		}
	}
	if got, err := ProxyProfile(&corev1.Pod{}, nil); got != "" || err != nil {
		t.Errorf("without a namespace: %q, error %v", got, err)
	}
}

// managing is the settings of an agent that runs the proxy of the profile edge.
func managing(proxy ManagedProxy) Config {
	return Config{Select: SelectAnnotation, Defaults: StandardDefaults(), Managed: func(profile string, _ *corev1.Pod, _ *corev1.Namespace) *ManagedProxy {
		if profile != "edge" {
			return &ManagedProxy{Refused: "there is no profile " + profile}
		}
		return &proxy
	}}
}

func TestOf_managedProxy_isLedTo(t *testing.T) {
	proxy := ManagedProxy{Owner: Owner{UID: 7000}, OutboundPort: 7001, InboundPort: 7002, ExcludeInboundPorts: []uint16{7003}, Aliases: []iptables.PortAlias{{From: 7003, To: 7004}}}
	edge := func(p *corev1.Pod) { p.Annotations = map[string]string{KeySidecar: "edge"} }
	and := func(key, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { edge(p); p.Annotations[key] = value }
	}
	for name, c := range map[string]struct {
		change      func(*corev1.Pod)
		transparent bool
		off         bool
		reason      Reason
		refused     string
		removes     bool
	}{
		"no other annotation, no container of a proxy": {change: edge},
		"the mode is the profile's":                    {change: and(keyMode, "NONE")},
		"transparent":                                  {change: edge, transparent: true},
		"another profile":                              {change: func(p *corev1.Pod) { p.Annotations = map[string]string{KeySidecar: "other"} }, refused: "no profile other"},
		"the pod opts out of redirection":              {change: and(KeyInitialize, "false"), reason: OptedOut, removes: true},
		"the pod opts out of the proxy":                {change: func(p *corev1.Pod) { p.Annotations = map[string]string{KeySidecar: "none"} }, reason: NoSidecar, removes: true},
		"an agent that runs no proxies":                {change: edge, off: true, reason: SidecarsOff},
		"on the host's network":                        {change: func(p *corev1.Pod) { edge(p); p.Spec.HostNetwork = true }, reason: HostNetwork},
	} {
		t.Run(name, func(t *testing.T) {
			config := managing(proxy)
			if proxy := proxy; c.transparent {
				proxy.Transparent = true
				config = managing(proxy)
			}
			if c.off {
				config.Managed = nil
			}
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}}}}
			c.change(pod)
			got, err := Of(pod, nil, config)
			if err != nil || got.Reason != c.reason || !strings.Contains(got.Refused, c.refused) || (c.refused == "") != (got.Refused == "") || got.Removes() != c.removes {
				t.Fatalf("%+v, error %v", got, err)
			}
			if got.Redirect != (c.reason == "" && c.refused == "") || got.Redirect && !got.Managed {
				t.Errorf("%+v", got)
			}
			if got.Redirect {
				checkManaged(t, got.Spec, c.transparent)
			}
		})
	}
}

// Whoever names a profile on a pod is told that there can be none. A namespace's annotation is for those that can.
func TestOf_hostNetworkNamesProfile_isAsked(t *testing.T) {
	own := map[string]string{KeySidecar: "edge"}
	for name, c := range map[string]struct {
		pod, ns map[string]string
		config  Config
		asked   bool
	}{
		"the pod names it":             {own, nil, managing(ManagedProxy{}), true},
		"its namespace does":           {nil, own, managing(ManagedProxy{}), false},
		"the pod opts out":             {map[string]string{KeySidecar: "none"}, own, managing(ManagedProxy{}), false},
		"the pod wants no redirection": {map[string]string{KeySidecar: "edge", KeyInitialize: "false"}, nil, managing(ManagedProxy{}), false},
		"an agent that runs none":      {own, nil, Config{Select: SelectAnnotation, Defaults: StandardDefaults()}, true},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: c.pod}, Spec: corev1.PodSpec{HostNetwork: true}}
		got, err := Of(pod, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Annotations: c.ns}}, c.config)
		if err != nil || got.Reason != HostNetwork || got.Asked != c.asked {
			t.Errorf("%s: %+v, error %v", name, got, err)
		}
	}
}

func checkManaged(t *testing.T, s iptables.Spec, transparent bool) {
	t.Helper()
	if s.ProxyUID != 7000 || s.ProxyGID != 0 || s.OutboundPort != 7001 || s.InboundPort != 7002 || !slices.Contains(s.ExcludeInboundPorts, 7003) || !slices.Equal(s.Aliases, []iptables.PortAlias{{From: 7003, To: 7004}}) {
		t.Errorf("%+v", s)
	}
	if (s.Mode == iptables.ModeTProxy) != transparent {
		t.Errorf("mode %s", s.Mode)
	}
}

func TestOf_debuggerRunsAsManagedProxy_isNoted(t *testing.T) {
	id := func(n int64) *int64 { return &n }
	for name, c := range map[string]struct {
		proxy    ManagedProxy
		debugger *corev1.SecurityContext
		want     string
	}{
		"its user":               {ManagedProxy{Owner: Owner{UID: 7000}}, &corev1.SecurityContext{RunAsUser: id(7000)}, `"debugger" runs as the proxy (uid 7000)`},
		"its group":              {ManagedProxy{Owner: Owner{GID: 7001}}, &corev1.SecurityContext{RunAsGroup: id(7001)}, `"debugger" runs as the proxy (gid 7001)`},
		"root beside its group":  {ManagedProxy{Owner: Owner{GID: 7001}}, &corev1.SecurityContext{RunAsUser: id(0)}, ""},
		"another user":           {ManagedProxy{Owner: Owner{UID: 7000}}, &corev1.SecurityContext{RunAsUser: id(1)}, ""},
		"a user that none names": {ManagedProxy{Owner: Owner{UID: 7000}}, nil, ""},
	} {
		p := plainPod()
		p.Annotations[KeySidecar] = "edge"
		p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debugger", SecurityContext: c.debugger}}}
		c.proxy.Profile, c.proxy.OutboundPort, c.proxy.InboundPort = "edge", 15001, 15006
		managed := func(string, *corev1.Pod, *corev1.Namespace) *ManagedProxy { return &c.proxy }
		in, err := Of(p, nil, Config{Select: SelectAnnotation, Defaults: StandardDefaults(), Managed: managed})
		got := strings.Join(in.Notes, "; ")
		if err != nil || !in.Redirect || (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: redirected %t: %q, error %v; want %q", name, in.Redirect, got, err, c.want)
		}
	}
}

// A pod whose namespace no longer names a profile keeps the proxy to which its rules lead. Its own annotation takes it away.
func TestOf_namespaceChoosesNoMore_keptProxyIsLedTo(t *testing.T) {
	keeping := managing(ManagedProxy{})
	keeping.Managed = func(profile string, _ *corev1.Pod, _ *corev1.Namespace) *ManagedProxy {
		if profile != "" {
			return nil
		}
		return &ManagedProxy{Profile: "edge", Owner: Owner{UID: 7000}, OutboundPort: 7001, InboundPort: 7002}
	}
	for name, c := range map[string]struct {
		pod, ns map[string]string
		kept    bool
	}{
		"nothing":                {kept: true},
		"none, by the namespace": {ns: map[string]string{KeySidecar: SidecarNone}, kept: true},
		"none, by the pod":       {pod: map[string]string{KeySidecar: SidecarNone}},
		"no redirection":         {pod: map[string]string{KeyInitialize: "false"}},
	} {
		pod, ns := &corev1.Pod{}, &corev1.Namespace{}
		pod.Annotations, ns.Annotations = c.pod, c.ns
		got, err := Of(pod, ns, keeping)
		if err != nil || got.Managed != c.kept || got.Redirect != c.kept || (got.Profile == "edge" && got.Spec.ProxyUID == 7000) != c.kept {
			t.Errorf("%s: %+v, error %v", name, got, err)
		}
	}
}

// Connections of the pod's other proxies are left alone: of a former proxy that finishes them, and of the next one.
func TestOf_otherProxies_areLeftAlone(t *testing.T) {
	for name, c := range map[string]struct {
		beside Owner
		want   func(iptables.Spec) bool
	}{
		"a user": {Owner{UID: 7100}, func(s iptables.Spec) bool {
			return slices.Contains(s.ExcludeUsers, iptables.Users{First: 7100, Last: 7100})
		}},
		"a group": {Owner{GID: 7101}, func(s iptables.Spec) bool {
			return s.OwnerGroups.All && slices.Equal(s.OwnerGroups.Exclude, []uint32{7101})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := plainPod()
			pod.Annotations = map[string]string{KeySidecar: "edge"}
			got, err := Of(pod, nil, managing(ManagedProxy{Owner: Owner{UID: 7000}, OutboundPort: 7001, InboundPort: 7002, Beside: []Owner{c.beside}}))
			if err != nil || !c.want(got.Spec) || got.Spec.ProxyUID != 7000 {
				t.Errorf("%+v, error %v", got.Spec, err)
			}
		})
	}
}
