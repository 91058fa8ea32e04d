package intent

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/iptables"
)

func both(changes ...func(*corev1.Pod)) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, change := range changes {
			change(p)
		}
	}
}

func withIstioInit(p *corev1.Pod) {
	p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: "istio-init"})
}

// A pod that expects redirection and does not get it gets a report, one that never asked does not.
func TestOf_ownerExpectsRedirection_isAsked(t *testing.T) {
	injected := annotate(keyInjected, "{}")
	own := annotate(KeyInitialize, "true")
	cases := map[string]struct {
		selection Selection
		change    func(*corev1.Pod)
		namespace string
		asked     bool
		reason    Reason
	}{
		"the pod asks, and istio-init is there":                   {change: both(own, withIstioInit), asked: true, reason: IstioInit},
		"the namespace asks, and istio-init is there":             {change: withIstioInit, namespace: "true", asked: true, reason: IstioInit},
		"the namespace asks a pod without proxy":                  {change: noProxy, namespace: "true", reason: NoProxy},
		"the namespace asks a pod without proxy, with istio-init": {change: both(noProxy, withIstioInit), namespace: "true", reason: IstioInit},
		"the pod asks without proxy, and is redirected":           {change: both(noProxy, own), asked: true},
		"the namespace asks, the pod opts out":                    {change: annotate(KeyInitialize, "false"), namespace: "true", reason: OptedOut},
		"the namespace asks, and the mode is NONE":                {change: annotate(keyMode, "NONE"), namespace: "true", asked: true, reason: ModeNone},
		"neither pod nor namespace asks":                          {reason: NotAsked},
		"injected, but annotations count":                         {change: injected, reason: NotAsked},
		"injected, and injection counts":                          {selection: SelectInjected, change: injected, asked: true},
		"injected, with istio-init":                               {selection: SelectInjected, change: both(injected, withIstioInit), asked: true, reason: IstioInit},
		"a namespace's word, and injection counts":                {selection: SelectInjected, namespace: "true", reason: NotInjected},
		"a pod's word, and injection counts":                      {selection: SelectInjected, change: own, asked: true, reason: NotInjected},
		"either, injected, on the host's network": {
			selection: SelectEither, change: both(injected, func(p *corev1.Pod) { p.Spec.HostNetwork = true }), asked: true, reason: HostNetwork,
		},
		"the pod names a profile, and there is no manager":  {change: annotate(KeySidecar, "haproxy"), asked: true, reason: SidecarsOff},
		"the pod wants no profile, and there is no manager": {change: annotate(KeySidecar, SidecarNone), reason: NotAsked},
		"the pod names a profile, and brings a proxy":       {change: annotate(KeySidecar, "haproxy", KeyInitialize, "true"), asked: true},
		"the pod names a profile, and opts out":             {change: annotate(KeySidecar, "haproxy", KeyInitialize, "false"), reason: OptedOut},
		"the pod names a profile, on the host's network":    {change: both(annotate(KeySidecar, "haproxy"), func(p *corev1.Pod) { p.Spec.HostNetwork = true }), asked: true, reason: HostNetwork},
		"either, by neither":                                {selection: SelectEither, reason: NotInjected},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			pod, ns := asking(c.change)
			ns.Annotations[KeyInitialize] = c.namespace
			cfg := config()
			if c.selection != "" {
				cfg.Select = c.selection
			}
			got, err := Of(pod, ns, cfg)
			if err != nil || got.Asked != c.asked || got.Reason != c.reason || got.Redirect != (c.reason == "") {
				t.Errorf("asked %v, redirect %v, reason %q, error %v; want asked %v, reason %q", got.Asked, got.Redirect, got.Reason, err, c.asked, c.reason)
			}
		})
	}
}

// Whatever the reason, it says what to do, and the agent can put it into a condition and an event.
func TestReasons_all_areSentences(t *testing.T) {
	for _, r := range []Reason{
		HostNetwork, Finished, Windows, AgentNamespace, ExcludedNamespace, IstioInit, OptedOut, ModeNone, NotAsked, NoProxy, DeployerPod, BuildPod,
		NoProxyInject, NotInjected, InjectFalse, Proxyless, NotSidecar, UnsupportedRuntime, SidecarsOff, NamespaceModeNone,
	} {
		if text := string(r); len(text) > 250 || len(strings.Fields(text)) < 6 || strings.HasSuffix(text, ".") {
			t.Errorf("%q", text)
		}
	}
}

func TestOf_modeNone_asksForNoRules(t *testing.T) {
	flag := config()
	flag.Defaults[settingMode] = "NONE"
	cases := map[string]struct {
		config Config
		change func(*corev1.Pod)
		want   Reason
	}{
		"by the annotation":                  {config(), annotate(keyMode, "NONE"), ModeNone},
		"by the flag":                        {flag, nil, ModeNone},
		"the annotation wins over the flag":  {flag, annotate(keyMode, "TPROXY"), ""},
		"nothing else is looked at":          {config(), annotate(keyMode, "NONE", keyExcludeInbound, "x"), ModeNone},
		"whoever has the proxy's ids":        {config(), both(annotate(keyMode, "NONE"), sharedIDs), ModeNone},
		"the pod's opting out is said first": {config(), annotate(keyMode, "NONE", KeyInitialize, "false"), OptedOut},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			pod, ns := asking(c.change)
			got, err := Of(pod, ns, c.config)
			if err != nil || got.Reason != c.want || got.Redirect != (c.want == "") || got.Removes() != (c.want != "") {
				t.Errorf("%+v, error %v", got, err)
			}
		})
	}
	if err := flag.Defaults.Validate(); err != nil {
		t.Error(err)
	}
	for _, r := range []Reason{NotAsked, IstioInit, NoProxy, Finished, UnsupportedRuntime, NamespaceModeNone} {
		if (Intent{Reason: r}).Removes() {
			t.Errorf("rules are removed: %s", r)
		}
	}
}

func sharedIDs(p *corev1.Pod) {
	for i := range p.Spec.Containers {
		p.Spec.Containers[i].SecurityContext = as(1337, 1337)
	}
}

// What comes in proxyMetadata reaches Istio's init container only: its CNI plugin reads none of it.
func TestOf_injectedPod_isAsByIstiosPlugin(t *testing.T) {
	injected := annotate(keyInjected, "{}")
	cases := map[string]struct {
		change func(*corev1.Pod)
		note   string // "" is none
		fault  string // what the same says to a pod that asks by our annotation; "" is none
	}{
		"a loopback range":            {change: env(envLoopback, "127.0.0.0/8"), note: envLoopback},
		"the customary range":         {change: env(envLoopback, "127.0.0.1/32")},
		"a loopback range of nothing": {change: env(envLoopback, "x"), note: envLoopback, fault: envLoopback},
		"groups by name":              {change: env(envGroups, "istio,java"), note: envGroups, fault: "no group id"},
		"all groups":                  {change: env(envGroups, "*")},
		"groups by number":            {change: env(envGroups, "2000"), note: envGroups},
		"excepted groups":             {change: env(envGroupsExcept, "888"), note: envGroupsExcept},
		"a mapped CIDR":               {change: annotate(keyExcludeCIDRs, "::ffff:10.0.0.0/104"), note: "IPv6 form", fault: "write it as IPv4"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			pod, ns := asking(both(injected, c.change))
			cfg := config()
			cfg.Select = SelectInjected
			got, err := Of(pod, ns, cfg)
			want := iptables.DefaultSpec()
			want.ExcludeInboundPorts = []uint16{15020, 15020, 15021, 15090}
			if err != nil || got.Spec.Hash() != want.Hash() {
				t.Errorf("by injection: %+v, error %v", got.Spec, err)
			}
			if notes := strings.Join(got.Notes, "\n"); !strings.Contains(notes, c.note) || (c.note == "") != (notes == "") {
				t.Errorf("notes %q, want %q", notes, c.note)
			}
			cfg.Select = SelectEither // and the namespace asks by our annotation
			got, err = Of(pod, ns, cfg)
			if c.fault == "" && (err != nil || len(got.Notes) != 0) || c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault)) {
				t.Errorf("by annotation: %v, error %v; want %q", got.Notes, err, c.fault)
			}
		})
	}
}

func TestOf_mappedCIDR_isIgnoredAsByIstio(t *testing.T) {
	pod, ns := asking(annotate(keyInjected, "{}", keyIncludeCIDRs, "::ffff:10.0.0.0/104,10.0.0.0/8,::ffff:10.0.0.0/0", keyExcludeCIDRs, "::ffff:10.1.0.0/112"))
	cfg := config()
	cfg.Select = SelectInjected
	got, err := Of(pod, ns, cfg)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, p := range append(got.Spec.IncludeCIDRs.List, got.Spec.ExcludeCIDRs...) {
		list = append(list, p.String())
	}
	if d := cmp.Diff([]string{"10.0.0.0/8", "::/0"}, list); d != "" {
		t.Error(d)
	}
}

func TestOf_openShiftsOwnPods_areLeftOut(t *testing.T) {
	for _, key := range []string{keyDeployer, keyBuild} {
		pod, ns := asking(annotate(key, "x", keyInjected, "{}"))
		for selection, redirect := range map[Selection]bool{SelectInjected: true, SelectEither: true, SelectAnnotation: false} {
			cfg := config()
			cfg.Select = selection
			if got, err := Of(pod, ns, cfg); err != nil || got.Redirect != redirect {
				t.Errorf("%s, %s: %+v, error %v", key, selection, got, err)
			}
		}
	}
}

// Rules under which istio-validation would look for rules for ever are not given.
func TestOf_validationPortExcluded_isRefused(t *testing.T) {
	cases := map[string]struct {
		change func(*corev1.Pod)
		fault  string
	}{
		"its port is excluded":        {annotate(keyExcludeOutbound, "15002"), keyExcludeOutbound},
		"lo is excluded":              {annotate(keyExcludeInterfaces, "net1,lo"), keyExcludeInterfaces},
		"its port is the tunnel's":    {annotate(KeyTunnelPort, "15002"), "15002"},
		"its port is the proxy's own": {annotate(KeyOutboundPort, "15002"), "15002"},
		"a wide loopback range":       {env(envLoopback, "127.0.0.0/8"), ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			pod, ns := asking(c.change)
			got, err := Of(pod, ns, config())
			if c.fault != "" {
				if err == nil || !strings.Contains(err.Error(), c.fault) || !strings.Contains(err.Error(), "istio-validation") {
					t.Errorf("error %v, want %q", err, c.fault)
				}
				return
			}
			rules, err2 := iptables.Rules(got.Spec)
			text := rules.NftText(iptables.TextOptions{})
			if n := strings.Count(text, "daddr 127.0.0.6 meta l4proto tcp th dport 15002"); err != nil || err2 != nil || n != 2 {
				t.Errorf("errors %v, %v, %d rules:\n%s", err, err2, n, text)
			}
		})
	}
}

// What a pod itself says comes first, then that its proxy listens for IPv6, then what holds for all.
func TestOf_ipv6_annotationThenProxyThenFlag(t *testing.T) {
	cases := map[string]struct {
		flag   string
		change func(*corev1.Pod)
		direct bool
	}{
		"nothing is set":                     {},
		"the flag":                           {flag: "direct", direct: true},
		"dual stack over the flag":           {flag: "direct", change: env(envDualStack, "true")},
		"no dual stack says nothing":         {change: env(envDualStack, "false")},
		"the annotation":                     {change: annotate(KeyIPv6, "direct"), direct: true},
		"the annotation over the flag":       {flag: "direct", change: annotate(KeyIPv6, "capture")},
		"the annotation over the dual stack": {change: both(annotate(KeyIPv6, "direct"), env(envDualStack, "true")), direct: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			pod, ns := asking(c.change)
			cfg := config()
			if c.flag != "" {
				cfg.Defaults[settingIPv6] = c.flag
			}
			if got, err := Of(pod, ns, cfg); err != nil || got.Spec.DirectIPv6 != c.direct {
				t.Errorf("direct %v, error %v; want %v", got.Spec.DirectIPv6, err, c.direct)
			}
		})
	}
}
