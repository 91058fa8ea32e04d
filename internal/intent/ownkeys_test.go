package intent

import (
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/iptables"
)

// ownKeyCases are values of our keys for ports, clients and users.
func ownKeyCases() map[string]valueCase {
	ports := []string{KeyIncludeInboundPorts, KeyExcludeInboundPorts, KeyIncludeOutboundPorts, KeyExcludeOutboundPorts}
	sources, users := []string{KeyExcludeSources}, []string{KeyExcludeUsers}
	return map[string]valueCase{
		"own ports: a port":               {keys: ports, value: "80"},
		"own ports: a range":              {keys: ports, value: " 8000-8999 ,\n80"},
		"own ports: overlapping ranges":   {keys: ports, value: "8000-8999,8500-9500,8000-8999"},
		"own ports: a range of one port":  {keys: ports, value: "80-80"},
		"own ports: nothing":              {keys: ports[1:], value: " \n"},
		"own ports: nothing is included":  {keys: ports[:1], value: " ", want: "it includes no port, which traffic.sidecar.istio.io/includeInboundPorts says by \"\""},
		"own ports: all":                  {keys: ports[:2], value: "0-65535"},
		"own ports: all but the checked":  {keys: ports[3:], value: "0-15001,15003-65535"},
		"own ports: upside down":          {keys: ports, value: "9000-8000", want: `item 1, "9000-8000", ends before it begins`},
		"own ports: beyond the last":      {keys: ports, value: "80,65000-65536", want: `item 2, "65000-65536", is neither a number of 16 bits nor a range of two`},
		"own ports: no end":               {keys: ports, value: "80-", want: "is neither"},
		"own ports: no beginning":         {keys: ports, value: "-80", want: "is neither"},
		"own ports: three numbers":        {keys: ports, value: "1-2-3", want: "is neither"},
		"own ports: blanks in a range":    {keys: ports, value: "80 - 90", want: "is neither"},
		"own ports: a colon":              {keys: ports, value: "80:90", want: "is neither"},
		"own ports: a sign":               {keys: ports, value: "+80", want: "is neither"},
		"own ports: a name":               {keys: ports, value: "http", want: "is neither"},
		"own ports: a star":               {keys: ports, value: "*", want: `"*" is not allowed here`},
		"own ports: an empty item":        {keys: ports, value: "80,,90-99", want: "item 2 is empty"},
		"own ports: the most":             {keys: ports, value: repeat("N-1000", 1000)},
		"own ports: 10,000 ranges":        {keys: ports, value: repeat("N-10000", 10000), want: "10000 items are more than the 1000"},
		"clients: nothing":                {keys: sources, value: ""},
		"clients: both families":          {keys: sources, value: "10.0.0.0/8, fd00::/8"},
		"clients: host bits":              {keys: sources, value: "10.1.2.3/8"},
		"clients: everybody":              {keys: sources, value: "0.0.0.0/0,::/0"},
		"clients: a star":                 {keys: sources, value: "*", want: `"*" is not allowed here`},
		"clients: no prefix length":       {keys: sources, value: "10.1.2.3", want: "no prefix length"},
		"clients: a mapped address":       {keys: sources, value: "::ffff:10.0.0.0/104", want: "write it as IPv4"},
		"clients: a name":                 {keys: sources, value: "node/32", want: "no CIDR"},
		"clients: 10,000":                 {keys: sources, value: repeat("10.A.B.0/24", 10000), want: "10000 items are more than the 1000"},
		"users: nothing":                  {keys: users, value: ""},
		"users: root":                     {keys: users, value: "0"},
		"users: a range and a port":       {keys: users, value: "1000-1999, 5:443,\n7-9:53"},
		"users: all":                      {keys: users, value: "0-4294967294"},
		"users: overlapping ranges":       {keys: users, value: "1000-1999,1500-2500"},
		"users: nobody":                   {keys: users, value: "4294967295", want: "is beyond the last user, 4294967294"},
		"users: beyond 32 bits":           {keys: users, value: "4294967296", want: "is neither a number of 32 bits nor a range of two"},
		"users: a range beyond 32 bits":   {keys: users, value: "1-99999999999999999999", want: "is neither"},
		"users: upside down":              {keys: users, value: "1999-1000", want: `item 1, "1999-1000", ends before it begins`},
		"users: a name":                   {keys: users, value: "1000,nginx", want: `item 2, "nginx", is neither`},
		"users: a negative one":           {keys: users, value: "-1", want: "is neither"},
		"users: port 0":                   {keys: users, value: "1000:0", want: "has no port from 1 to 65535"},
		"users: no port":                  {keys: users, value: "1000:", want: "has no port"},
		"users: a range of ports":         {keys: users, value: "1000:80-90", want: "has no port"},
		"users: two ports":                {keys: users, value: "1000:80:90", want: "has no port"},
		"users: an empty item":            {keys: users, value: "1000,", want: "item 2 is empty"},
		"users: the most":                 {keys: users, value: repeat("N", 64)},
		"users: 10,000":                   {keys: users, value: repeat("N", 10000), want: "10000 items are more than the 64"},
		"included ports that are Istio's": {keys: ports[2:3], value: "80,15020", want: "15020 is excluded, by " + KeyExcludeOutboundPorts + ", --exclude-outbound-ports"},
		"included ports of the proxy":     {keys: ports[:1], value: "80,15090", want: "15090 is excluded"},
	}
}

// Our keys add to Istio's, and a list takes the place of "*".
func TestOf_ownPorts_addToIstios(t *testing.T) {
	always := []uint16{15020, 15020, 15021, 15090}
	cases := map[string]struct {
		annotations []string
		want        func(s *iptables.Spec)
	}{
		"Istio's key alone": {[]string{keyIncludeInbound, "81,80"}, func(s *iptables.Spec) { s.IncludeInboundPorts = iptables.Ports{List: []uint16{81, 80}} }},
		"single ports": {[]string{KeyIncludeInboundPorts, "81,80"}, func(s *iptables.Spec) {
			s.IncludeInboundPorts = iptables.Ports{List: []uint16{81, 80}}
		}},
		"instead of all": {[]string{keyIncludeInbound, "*", KeyIncludeInboundPorts, "8000-8999,80"}, func(s *iptables.Spec) {
			s.IncludeInboundPorts, s.Ranges.IncludeInbound = iptables.Ports{List: []uint16{80}}, []iptables.PortRange{{First: 8000, Last: 8999}}
		}},
		"beside a list": {[]string{keyIncludeInbound, "22", KeyIncludeInboundPorts, "8000-8999"}, func(s *iptables.Spec) {
			s.IncludeInboundPorts, s.Ranges.IncludeInbound = iptables.Ports{List: []uint16{22}}, []iptables.PortRange{{First: 8000, Last: 8999}}
		}},
		"beside nothing": {[]string{keyIncludeInbound, "", KeyIncludeInboundPorts, "8000-8999"}, func(s *iptables.Spec) {
			s.IncludeInboundPorts, s.Ranges.IncludeInbound = iptables.Ports{}, []iptables.PortRange{{First: 8000, Last: 8999}}
		}},
		"without the proxy's own": {[]string{KeyIncludeInboundPorts, "15019-15022,1-3"}, func(s *iptables.Spec) {
			s.IncludeInboundPorts = iptables.Ports{List: []uint16{15019, 15022}}
			s.Ranges.IncludeInbound = []iptables.PortRange{{First: 1, Last: 3}}
		}},
		"excluded from a range": {[]string{KeyIncludeInboundPorts, "8000-8999", keyExcludeInbound, "8500", KeyExcludeInboundPorts, "8990-9100"}, func(s *iptables.Spec) {
			s.ExcludeInboundPorts, s.Ranges.ExcludeInbound = []uint16{8500, 15020, 15021, 15090}, []iptables.PortRange{{First: 8990, Last: 9100}}
			s.IncludeInboundPorts, s.Ranges.IncludeInbound = iptables.Ports{}, []iptables.PortRange{{First: 8000, Last: 8499}, {First: 8501, Last: 8989}}
		}},
		"excluded from Istio's list": {[]string{keyIncludeInbound, "80,8080", KeyExcludeInboundPorts, "8000-8999"}, func(s *iptables.Spec) {
			s.IncludeInboundPorts, s.Ranges.ExcludeInbound = iptables.Ports{List: []uint16{80}}, []iptables.PortRange{{First: 8000, Last: 8999}}
		}},
		"excluded from all": {[]string{keyExcludeInbound, "22", KeyExcludeInboundPorts, "8000-8999,8500-9000,7"}, func(s *iptables.Spec) {
			s.ExcludeInboundPorts, s.Ranges.ExcludeInbound = []uint16{22, 15020, 15021, 15090, 7}, []iptables.PortRange{{First: 8000, Last: 9000}}
		}},
		"outbound": {[]string{keyIncludeOutbound, "443", KeyIncludeOutboundPorts, "8000-8999", keyExcludeOutbound, "", KeyExcludeOutboundPorts, "8080,9000-9099"}, func(s *iptables.Spec) {
			s.IncludeOutboundPorts, s.Ranges.IncludeOutbound = []uint16{443}, []iptables.PortRange{{First: 8000, Last: 8999}}
			s.ExcludeOutboundPorts, s.Ranges.ExcludeOutbound = []uint16{8080}, []iptables.PortRange{{First: 9000, Last: 9099}}
		}},
		"clients and users": {[]string{KeyExcludeSources, "10.1.2.3/8", KeyExcludeUsers, "1500-2500,1000-1999,2501,7:53,2000:443"}, func(s *iptables.Spec) {
			s.ExcludeSources = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
			s.ExcludeUsers = []iptables.Users{{First: 1000, Last: 2501}, {First: 7, Last: 7, Port: 53}, {First: 2000, Last: 2000, Port: 443}}
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			pod, ns := asking(annotate(c.annotations...))
			want := iptables.DefaultSpec()
			want.ExcludeInboundPorts = always
			c.want(&want)
			got, err := Of(pod, ns, config())
			if d := cmp.Diff(want, got.Spec, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Prefix{})); err != nil || d != "" {
				t.Errorf("error %v: %s", err, d)
			}
			if warnings := Warnings(pod, ns, got); len(warnings) != 0 {
				t.Errorf("warnings: %q", warnings)
			}
		})
	}
}

func TestOf_ownPorts_contradictions_areRefused(t *testing.T) {
	cases := map[string]struct {
		annotations []string
		want        []string
	}{
		"included and excluded": {
			[]string{KeyIncludeOutboundPorts, "1,8080-8090", KeyExcludeOutboundPorts, "8000-8999"}, []string{KeyIncludeOutboundPorts, "8080-8090 is excluded", KeyExcludeOutboundPorts},
		},
		"excluded by Istio's key": {[]string{KeyIncludeInboundPorts, "22", keyExcludeInbound, "22"}, []string{KeyIncludeInboundPorts, "22 is excluded", keyExcludeInbound}},
		"nothing is left of Istio's list": {
			[]string{keyIncludeInbound, "8080", KeyExcludeInboundPorts, "0-65535"}, []string{KeyExcludeInboundPorts, keyIncludeInbound, "take one of them out"},
		},
		"the port of istio-validation": {[]string{KeyExcludeOutboundPorts, "15000-15100"}, []string{KeyExcludeOutboundPorts, "15002", "istio-validation"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			pod, ns := asking(annotate(c.annotations...))
			got, err := Of(pod, ns, config())
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want %q", err, want)
				}
			}
			if got.Redirect {
				t.Error("the pod is redirected")
			}
		})
	}
}

// What Istio's plugin ignores in its own keys is an error in ours.
func TestOf_mappedClient_isRefusedForInjectedPods(t *testing.T) {
	pod, ns := asking(annotate(keyInjected, "{}", KeyExcludeSources, "::ffff:10.0.0.0/104"))
	cfg := config()
	cfg.Select = SelectInjected
	if _, err := Of(pod, ns, cfg); err == nil || !strings.Contains(err.Error(), KeyExcludeSources) {
		t.Errorf("error %v", err)
	}
}

func TestOf_lookupsOfVirtualMachines_goToAResolverThatHearsThem(t *testing.T) {
	cases := map[string]struct {
		dns, interfaces, address string
		toProxy, note            bool
	}{
		"everywhere":           {dns: "all", interfaces: "k6t", address: "[::]:15053", toProxy: true},
		"everywhere, in short": {dns: "resolv.conf", interfaces: "k6t", address: ":15053", toProxy: true},
		"the default":          {dns: "all", interfaces: "k6t", note: true},
		"on loopback":          {dns: "all", interfaces: "k6t", address: "localhost:15053", note: true},
		"another port":         {dns: "all", interfaces: "k6t", address: "[::]:53", note: true},
		"IPv4 alone":           {dns: "all", interfaces: "k6t", address: "0.0.0.0:15053", note: true},
		"no virtual machines":  {dns: "all", address: "[::]:15053"},
		"no DNS capture":       {dns: "off", interfaces: "k6t", address: "[::]:15053"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			pod, ns := asking(annotate(KeyDNSCapture, c.dns, keyReroute, c.interfaces))
			if c.address != "" {
				env(envDNSAddr, c.address)(pod)
			}
			got, err := Explain(pod, ns, config())
			if noted := strings.Contains(strings.Join(got.Notes, " "), "lookups of virtual machines"); err != nil || got.Spec.RerouteDNS != c.toProxy || noted != c.note {
				t.Errorf("to the proxy %v, notes %q, error %v", got.Spec.RerouteDNS, got.Notes, err)
			}
			if source := sourceOf(t, got, settingRerouteDNS).Source; strings.HasSuffix(source, envDNSAddr) != c.toProxy {
				t.Errorf("source %q", source)
			}
		})
	}
}

func TestExplain_ownPorts_nameBothKeys(t *testing.T) {
	pod, ns := asking(annotate(keyExcludeInbound, "22", KeyExcludeInboundPorts, "8000-8999", KeyIncludeInboundPorts, "1-99", KeyExcludeOutboundPorts, "7"))
	got, err := Explain(pod, ns, config())
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][2]string{
		settingExcludeInbound:  {"22,15020,15021,15090,8000-8999", fromPod + keyExcludeInbound + ", " + fromPod + KeyExcludeInboundPorts},
		settingIncludeInbound:  {"1-21,23-99", fromPod + KeyIncludeInboundPorts},
		settingExcludeOutbound: {"15020,7", "default, " + fromPod + KeyExcludeOutboundPorts},
	} {
		if s := sourceOf(t, got, name); s.Value != want[0] || s.Source != want[1] {
			t.Errorf("%s is %q from %q, want %q", name, s.Value, s.Source, want)
		}
	}
}

// Our keys on a namespace are the defaults of its pods, key by key, and add to what the pods say in Istio's.
func TestOf_ownKeysOfTheNamespace_areDefaults(t *testing.T) {
	pod, ns := asking(annotate(keyIncludeInbound, "*", keyExcludeInbound, "22", KeyExcludeUsers, "7"))
	maps.Copy(ns.Annotations, map[string]string{
		KeyIncludeInboundPorts: "1-99", KeyExcludeInboundPorts: "80-89", KeyExcludeUsers: "8", KeyExcludeSources: "10.0.0.0/8",
	})
	got, err := Explain(pod, ns, config())
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][2]string{
		settingIncludeInbound: {"1-21,23-79,90-99", fromNamespace + KeyIncludeInboundPorts},
		settingExcludeInbound: {"22,15020,15021,15090,80-89", fromPod + keyExcludeInbound + ", " + fromNamespace + KeyExcludeInboundPorts},
		settingExcludeUsers:   {"7", fromPod + KeyExcludeUsers},
		settingExcludeSources: {"10.0.0.0/8", fromNamespace + KeyExcludeSources},
	} {
		if s := sourceOf(t, got, name); s.Value != want[0] || s.Source != want[1] {
			t.Errorf("%s is %q from %q, want %q", name, s.Value, s.Source, want)
		}
	}
	ns.Annotations[KeyExcludeSources], ns.Annotations[KeyIncludeInboundPorts] = "::ffff:10.0.0.0/104", "22"
	_, err = Of(pod, ns, config())
	for _, want := range []string{"annotation " + KeyExcludeSources + " of namespace shop", "annotation " + KeyIncludeInboundPorts + ` of namespace shop: value "22": 22 is excluded`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// A pod that asks for none of this has the rules that it always had.
func TestOf_noOwnKey_changesNothing(t *testing.T) {
	pod, ns := asking(func(*corev1.Pod) {})
	got, err := Of(pod, ns, config())
	if s := got.Spec; err != nil || len(s.ExcludeSources)+len(s.ExcludeUsers) > 0 || s.RerouteDNS || !cmp.Equal(s.Ranges, iptables.Ranges{}) {
		t.Errorf("%+v, error %v", s, err)
	}
}
