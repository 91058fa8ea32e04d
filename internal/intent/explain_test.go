package intent

import (
	"fmt"
	"maps"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/iptables"
)

// sourceOf returns the value of a setting, and where it comes from.
func sourceOf(t *testing.T, e Explanation, name string) Setting {
	t.Helper()
	for _, s := range e.Settings {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("no setting %s in %+v", name, e)
	return Setting{}
}

// sourceCase is one setting of a pod that in has changed.
type sourceCase struct {
	in                 func(*corev1.Pod, *Config)
	name, value, where string
}

// trafficSources are cases of what traffic is redirected.
func trafficSources() map[string]sourceCase {
	return map[string]sourceCase{
		"nobody says anything": {func(*corev1.Pod, *Config) {}, "envoy-port", "15001", "default"},
		"a flag says so":       {func(_ *corev1.Pod, c *Config) { c.Defaults[settingOutboundPort] = "16001" }, "envoy-port", "16001", "flag of the agent: --envoy-port"},
		"an annotation wins over the flag": {
			func(p *corev1.Pod, c *Config) {
				c.Defaults[settingOutboundPort], p.Annotations[KeyOutboundPort] = "16001", "17001"
			},
			"envoy-port", "17001", "annotation of the pod: " + KeyOutboundPort,
		},
		"an annotation with the default's value": {
			func(p *corev1.Pod, _ *Config) { p.Annotations[keyExcludeInbound] = "15020" },
			"exclude-inbound-ports", "15020,15021,15090", "annotation of the pod: " + keyExcludeInbound,
		},
		"the older key of interfaces": {
			func(p *corev1.Pod, _ *Config) { p.Annotations[keyKubevirt] = "k6t" },
			"reroute-virtual-interfaces", "k6t", "annotation of the pod: " + keyKubevirt,
		},
		"the proxy's environment": {
			func(p *corev1.Pod, _ *Config) { setEnv(p, envDropInvalid, "true") },
			"drop-invalid", "true", "environment of container istio-proxy: INVALID_DROP",
		},
		"lookups by the environment": {
			func(p *corev1.Pod, _ *Config) { setEnv(p, envDNSCapture, "true") },
			"dns-capture", "all", "environment of container istio-proxy: ISTIO_META_DNS_CAPTURE",
		},
		"lookups by the annotation": {
			func(p *corev1.Pod, _ *Config) { setEnv(p, envDNSCapture, "true"); p.Annotations[KeyDNSCapture] = "off" },
			"dns-capture", "off", "annotation of the pod: " + KeyDNSCapture,
		},
		"dual stack": {
			func(p *corev1.Pod, c *Config) { c.Defaults[settingIPv6] = "direct"; setEnv(p, envDualStack, "true") },
			"ipv6", "capture", "environment of container istio-proxy: ISTIO_DUAL_STACK",
		},
		"groups": {
			func(p *corev1.Pod, _ *Config) { setEnv(p, envGroups, "7,5") },
			"owner-groups", "5,7", "environment of container istio-proxy: ISTIO_OUTBOUND_OWNER_GROUPS",
		},
	}
}

// ownerSources are cases of who the proxy and the resolvers are.
func ownerSources() map[string]sourceCase {
	return map[string]sourceCase{
		"an id of the proxy's container": {
			func(p *corev1.Pod, _ *Config) {
				p.Spec.Containers[1].SecurityContext = &corev1.SecurityContext{RunAsUser: new(int64(7))}
			},
			"proxy-uid", "7", "securityContext of container istio-proxy",
		},
		"an id of the pod": {
			func(p *corev1.Pod, _ *Config) {
				p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsGroup: new(int64(7))}
				p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsGroup: new(int64(8))}
			},
			"proxy-gid", "7", "securityContext of the pod",
		},
		"an id that the application has, too": {
			func(p *corev1.Pod, _ *Config) {
				p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: new(int64(1337))}
			},
			"proxy-uid", "", "default (but container app has uid 1337, too)",
		},
		"resolvers of the pod": {
			func(p *corev1.Pod, _ *Config) {
				p.Annotations[KeyDNSCapture] = "resolv.conf"
				p.Spec.DNSPolicy, p.Spec.DNSConfig = corev1.DNSNone, &corev1.PodDNSConfig{Nameservers: []string{"10.0.0.1"}}
			},
			"resolvers", "10.0.0.1", "dnsConfig of the pod",
		},
		"resolvers of both": {
			func(p *corev1.Pod, c *Config) {
				p.Annotations[KeyDNSCapture], c.ClusterDNS = "resolv.conf", []netip.Addr{netip.MustParseAddr("10.0.0.2")}
				p.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"10.0.0.1"}}
			},
			"resolvers", "10.0.0.2,10.0.0.1", "flag of the agent: --cluster-dns, dnsConfig of the pod",
		},
		"resolvers of which only the node knows all": {
			func(p *corev1.Pod, _ *Config) {
				p.Annotations[KeyDNSCapture] = "resolv.conf"
				p.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"10.0.0.1"}}
			}, "resolvers", "", "container runtime",
		},
		"resolvers that only the node knows": {
			func(p *corev1.Pod, _ *Config) { p.Annotations[KeyDNSCapture] = "resolv.conf" }, "resolvers", "", "container runtime",
		},
		"a proxy that the agent runs": {
			func(p *corev1.Pod, c *Config) {
				p.Annotations[KeySidecar] = "envoy"
				c.Managed = func(string, *corev1.Pod, *corev1.Namespace) *ManagedProxy {
					return &ManagedProxy{Owner: Owner{UID: 9}, OutboundPort: 1, InboundPort: 2}
				}
			},
			"proxy-uid", "9", "ProxyProfile envoy",
		},
	}
}

func TestExplain_eachSetting_namesItsSource(t *testing.T) {
	cases := trafficSources()
	maps.Copy(cases, ownerSources())
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			p, config := plainPod(), Config{Select: SelectAnnotation, Defaults: StandardDefaults()}
			c.in(p, &config)
			e, err := Explain(p, nil, config)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(Setting{c.name, c.value, c.where}, sourceOf(t, e, c.name)); d != "" {
				t.Error(d)
			}
		})
	}
}

// plainPod is a pod that asks, with an application and a proxy.
func plainPod() *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}, {Name: ProxyContainer}}}}
	p.Annotations = map[string]string{KeyInitialize: "true"}
	return p
}

func setEnv(p *corev1.Pod, name, value string) {
	p.Spec.Containers[1].Env = append(p.Spec.Containers[1].Env, corev1.EnvVar{Name: name, Value: value})
}

func TestExplain_redirectedPod_namesWhatAsks(t *testing.T) {
	ns := &corev1.Namespace{}
	ns.Annotations = map[string]string{KeyInitialize: "true", KeySidecar: "envoy"}
	managed := func(string, *corev1.Pod, *corev1.Namespace) *ManagedProxy {
		return &ManagedProxy{Owner: Owner{UID: 9}, OutboundPort: 1, InboundPort: 2}
	}
	quiet := plainPod()
	quiet.Annotations = map[string]string{keyInjected: "{}"}
	cases := map[string]struct {
		pod  *corev1.Pod
		ns   *corev1.Namespace
		in   Config
		want string
	}{
		"the pod":                           {plainPod(), ns, Config{Select: SelectAnnotation}, "annotation of the pod: " + KeyInitialize},
		"the namespace":                     {quiet, ns, Config{Select: SelectAnnotation}, "annotation of the namespace: " + KeyInitialize},
		"nobody":                            {quiet, nil, Config{Select: SelectAnnotation}, ""},
		"Istio":                             {quiet, nil, Config{Select: SelectInjected}, "injection by Istio (flag of the agent: --select=injected)"},
		"either, the namespace comes first": {quiet, ns, Config{Select: SelectEither}, "annotation of the namespace: " + KeyInitialize},
		"a profile of the namespace":        {quiet, ns, Config{Select: SelectAnnotation, Managed: managed}, "annotation of the namespace: " + KeySidecar},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			c.in.Defaults = StandardDefaults()
			if e, err := Explain(c.pod, c.ns, c.in); err != nil || e.AskedBy != c.want {
				t.Errorf("got %q, error %v, want %q", e.AskedBy, err, c.want)
			}
		})
	}
}

// Explain and Of give the same answer, and the settings are all that the Spec has: the rules of a Spec that is made of them are the same.
func TestExplain_settings_rebuildTheSpec(t *testing.T) {
	redirected := 0
	for seed := range uint64(2000) {
		d := newDice(seed)
		pod, c := d.pod(), d.config()
		ns := &corev1.Namespace{}
		ns.Annotations = map[string]string{KeyInitialize: d.one("true", "")}
		want, wantErr := Of(pod, ns, c)
		got, err := Explain(pod, ns, c)
		if d := cmp.Diff(want, got.Intent, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" || fmt.Sprint(err) != fmt.Sprint(wantErr) {
			t.Fatalf("seed %d: errors %v, %v: %s", seed, err, wantErr, d)
		}
		if !want.Redirect {
			continue
		}
		redirected++
		rebuilt := rebuild(t, got.Settings)
		if d := cmp.Diff(rulesText(want.Spec), rulesText(rebuilt)); d != "" {
			t.Fatalf("seed %d: %s", seed, d)
		}
	}
	if redirected < 50 {
		t.Errorf("only %d pods were redirected", redirected)
	}
}

// rulesText is the rules of a Spec, which has resolvers even if only the node knows them.
func rulesText(s iptables.Spec) string {
	if s.DNS == iptables.DNSResolvConf && len(s.Resolvers) == 0 {
		s.Resolvers = []netip.Addr{netip.IPv6Unspecified()}
	}
	r, err := iptables.Rules(s)
	return r.NftText(iptables.TextOptions{}) + fmt.Sprint(err)
}

// portsAndRanges returns a parser of a setting that has both.
func portsAndRanges(ports *[]uint16, ranges *[]iptables.PortRange) func(v string) error {
	return func(v string) error {
		items, err := portRanges("", v)
		*ports, *ranges = added(nil, items)
		return err
	}
}

// rebuild makes a Spec of settings, with the parsers of annotations.
func rebuild(t *testing.T, settings []Setting) (s iptables.Spec) {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	port := func(to *uint16) func(v string) error {
		return func(v string) (err error) { *to, err = onePort("", v); return err }
	}
	id := func(to *uint32) func(v string) error {
		return func(v string) error {
			n, err := strconv.ParseUint("0"+v, 10, 32)
			*to = uint32(n)
			return err
		}
	}
	set := map[string]func(v string) error{
		settingMode:            func(v string) error { s.Mode = iptables.Mode(v); return nil },
		settingOutboundPort:    port(&s.OutboundPort),
		settingInboundPort:     port(&s.InboundPort),
		settingTunnelPort:      port(&s.TunnelPort),
		settingUID:             id(&s.ProxyUID),
		settingGID:             id(&s.ProxyGID),
		settingIncludeCIDRs:    func(v string) (err error) { s.IncludeCIDRs, err = cidrs("", v, nil); return err },
		settingExcludeCIDRs:    func(v string) (err error) { s.ExcludeCIDRs, err = ownCIDRs("", v); return err },
		settingIncludeOutbound: portsAndRanges(&s.IncludeOutboundPorts, &s.Ranges.IncludeOutbound),
		settingExcludeOutbound: portsAndRanges(&s.ExcludeOutboundPorts, &s.Ranges.ExcludeOutbound),
		settingIncludeInbound: func(v string) error {
			s.IncludeInboundPorts.All = v == "*"
			return portsAndRanges(&s.IncludeInboundPorts.List, &s.Ranges.IncludeInbound)(strings.TrimPrefix(v, "*"))
		},
		settingExcludeSources: func(v string) (err error) { s.ExcludeSources, err = ownCIDRs("", v); return err },
		settingExcludeUsers:   func(v string) (err error) { s.ExcludeUsers, err = users("", v); return err },
		settingRerouteDNS:     func(v string) (err error) { s.RerouteDNS, err = strconv.ParseBool(v); return err },
		settingInboundPorts: func(v string) (err error) {
			s.IncludeInboundPorts.Listening, err = oneOf(inboundAll, inboundListening)("", v)
			return err
		},
		settingExcludeInbound: portsAndRanges(&s.ExcludeInboundPorts, &s.Ranges.ExcludeInbound),
		settingIPv6:           func(v string) (err error) { s.DirectIPv6, err = oneOf(ipv6Capture, ipv6Direct)("", v); return err },
		settingDNS:            func(v string) error { s.DNS = iptables.DNSMode(strings.TrimSuffix(v, "off")); return nil },
		settingResolvers:      func(v string) error { s.Resolvers = Addrs(strings.Split(v, ",")); return nil },
		settingGroups: func(v string) (err error) {
			s.OwnerGroups.All = v == "*"
			if v != "*" {
				s.OwnerGroups.List, err = groupList("", v, "")
			}
			return err
		},
		settingGroupsExcept:      func(v string) (err error) { s.OwnerGroups.Exclude, err = groupList("", v, ""); return err },
		settingLoopback:          func(v string) (err error) { s.LoopbackCIDR, err = loopback("", v); return err },
		settingExcludeInterfaces: func(v string) (err error) { s.ExcludeInterfaces, err = interfaceList("", v); return err },
		settingReroute:           func(v string) (err error) { s.RerouteInterfaces, err = interfaceList("", v); return err },
		settingDropInvalid:       func(v string) (err error) { s.DropInvalid, err = strconv.ParseBool(v); return err },
		settingHoldSeconds:       func(string) error { return nil }, // no part of the Spec
		SettingForeignRules:      func(string) error { return nil }, // nor is this
	}
	for _, one := range settings {
		must(set[one.Name](one.Value))
		if one.Source == "" {
			t.Errorf("setting %s comes from nowhere", one.Name)
		}
		delete(set, one.Name)
	}
	if len(set) > 0 {
		t.Errorf("settings are missing: %d", len(set))
	}
	return s
}
