package intent

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/iptables"
)

// env puts variables into the proxy's environment.
func env(kv ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for i := 0; i < len(kv); i += 2 {
			p.Spec.Containers[1].Env = append(p.Spec.Containers[1].Env, corev1.EnvVar{Name: kv[i], Value: kv[i+1]})
		}
	}
}

func TestOf_proxysEnvironment_isRead(t *testing.T) {
	all := iptables.Groups{All: true}
	cases := map[string]struct {
		change func(*corev1.Pod)
		want   func(*iptables.Spec)
		fault  string
	}{
		"nothing":               {},
		"DNS capture":           {change: env(envDNSCapture, "true"), want: func(s *iptables.Spec) { s.DNS = iptables.DNSAll }},
		"DNS capture, a one":    {change: env(envDNSCapture, "1"), want: func(s *iptables.Spec) { s.DNS = iptables.DNSAll }},
		"DNS capture, no bool":  {change: env(envDNSCapture, "yes")},
		"the last value counts": {change: env(envDNSCapture, "true", envDNSCapture, "false")},
		"drop invalid":          {change: env(envDropInvalid, "true"), want: func(s *iptables.Spec) { s.DropInvalid = true }},
		"groups": {change: env(envGroups, "2001, 2000,2000", envGroupsExcept, "5"), want: func(s *iptables.Spec) {
			s.OwnerGroups = iptables.Groups{List: []uint32{2000, 2001}}
		}},
		"all groups but some": {change: env(envGroups, "*", envGroupsExcept, "888"), want: func(s *iptables.Spec) {
			s.OwnerGroups = iptables.Groups{All: true, Exclude: []uint32{888}}
		}},
		"no groups at all":  {change: env(envGroups, ""), want: func(s *iptables.Spec) { s.OwnerGroups = iptables.Groups{} }},
		"a group's name":    {change: env(envGroups, "istio"), fault: envGroups},
		"no process has it": {change: env(envGroupsExcept, "4294967295"), fault: "no group id"},
		"a wide loopback": {change: env(envLoopback, "127.0.0.0/8"), want: func(s *iptables.Spec) {
			s.LoopbackCIDR = netip.MustParsePrefix("127.0.0.0/8")
		}},
		"a loopback that is none": {change: env(envLoopback, "10.0.0.0/8"), fault: envLoopback},
		"a loopback too wide":     {change: env(envLoopback, "127.0.0.0/7"), fault: envLoopback},
		"a loopback too narrow":   {change: env(envLoopback, "127.0.0.4/30"), fault: envLoopback},
		"dual stack is moot":      {change: env("ISTIO_DUAL_STACK", "true")},
		"our annotation wins":     {change: func(p *corev1.Pod) { env(envDNSCapture, "true")(p); annotate(KeyDNSCapture, "off")(p) }},
		"65 groups":               {change: env(envGroups, repeat("N", 65)), fault: "at most 64"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			pod, ns := asking(c.change)
			got, err := Of(pod, ns, config())
			if c.fault != "" {
				if err == nil || !strings.Contains(err.Error(), c.fault) {
					t.Errorf("error %v, want %q", err, c.fault)
				}
				return
			}
			want := iptables.DefaultSpec()
			want.ExcludeInboundPorts = []uint16{15020, 15020, 15021, 15090}
			want.OwnerGroups = all
			if c.want != nil {
				c.want(&want)
			}
			if err != nil || got.Spec.Hash() != want.Hash() {
				t.Errorf("got  %+v, error %v\nwant %+v", got.Spec, err, want)
			}
		})
	}
}

func TestOf_manifestsResolvers_areTaken(t *testing.T) {
	cases := map[string]struct {
		policy  corev1.DNSPolicy
		unknown bool // to the agent, which are the cluster's
		more    []string
		want    []string
	}{
		"the cluster's":          {want: []string{"10.96.0.10"}},
		"the cluster's and more": {policy: corev1.DNSClusterFirst, more: []string{"fd00::53", "no address"}, want: []string{"10.96.0.10", "fd00::53"}},
		"only the pod's own":     {policy: corev1.DNSNone, more: []string{"1.1.1.1"}, want: []string{"1.1.1.1"}},
		"the node's: not known":  {policy: corev1.DNSDefault},
		"the node's and more":    {policy: corev1.DNSDefault, more: []string{"1.1.1.1"}},
		"the cluster's: unknown": {policy: corev1.DNSClusterFirst, unknown: true, more: []string{"1.1.1.1"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			pod, ns := asking(annotate(KeyDNSCapture, "resolv.conf"))
			pod.Spec.DNSPolicy = c.policy
			pod.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: c.more}
			cfg := config()
			if !c.unknown {
				cfg.ClusterDNS = Addrs([]string{"10.96.0.10"})
			}
			got, err := Of(pod, ns, cfg)
			var addrs []string
			for _, a := range got.Spec.Resolvers {
				addrs = append(addrs, a.String())
			}
			if d := cmp.Diff(c.want, addrs); d != "" || err != nil {
				t.Errorf("%s, error %v", d, err)
			}
		})
	}
}

func TestOf_bothRerouteKeys_newerWins(t *testing.T) {
	cases := map[string]struct {
		change func(*corev1.Pod)
		want   []string
	}{
		"the old key":             {annotate(keyKubevirt, "k6t-eth0"), []string{"k6t-eth0"}},
		"both":                    {annotate(keyKubevirt, "old", keyReroute, "new"), []string{"new"}},
		"the new one, even empty": {annotate(keyKubevirt, "old", keyReroute, ""), nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			pod, ns := asking(c.change)
			got, err := Of(pod, ns, config())
			if d := cmp.Diff(c.want, got.Spec.RerouteInterfaces); d != "" || err != nil {
				t.Errorf("%s, error %v", d, err)
			}
		})
	}
}
