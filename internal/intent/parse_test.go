package intent

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	"istio-pod-network-controller/iptables"
)

// trafficKeys are the annotations of each grammar.
func trafficKeys() (lists, all, cidrKeys, single []string) {
	return []string{keyExcludeInbound, keyIncludeOutbound, keyExcludeOutbound}, []string{keyIncludeInbound},
		[]string{keyIncludeCIDRs, keyExcludeCIDRs}, []string{KeyOutboundPort, KeyInboundPort, KeyTunnelPort}
}

func repeat(format string, n int) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = strings.NewReplacer("N", strconv.Itoa(i), "A", strconv.Itoa(i/256), "B", strconv.Itoa(i%256)).Replace(format)
	}
	return strings.Join(parts, ",")
}

// valueCase is a value, the annotations that it is given to, and what the error says; "" = accepted.
type valueCase struct {
	keys  []string
	value string
	want  string
}

func valueCases() map[string]valueCase {
	lists, all, cidrKeys, _ := trafficKeys()
	ports := append(append([]string{}, lists...), all...)
	return map[string]valueCase{
		"ports: nothing":            {keys: ports, value: ""},
		"ports: blanks":             {keys: ports, value: "  "},
		"ports: spaces around":      {keys: ports, value: " 80 ,\t443 "},
		"ports: zero":               {keys: ports, value: "0"},
		"ports: duplicates":         {keys: ports, value: "80,80"},
		"ports: the most":           {keys: ports, value: repeat("N", 1000)},
		"ports: one too many":       {keys: ports, value: repeat("N", 1001), want: "1001 items are more than the 1000"},
		"ports: 10,000 entries":     {keys: ports, value: repeat("N", 10000), want: "10000 items"},
		"ports: 256 KiB of commas":  {keys: ports, value: strings.Repeat(",", 256<<10), want: "262145 items"},
		"ports: a block of YAML":    {keys: ports, value: "80,\n443\n"},
		"ports: lines of Windows":   {keys: ports, value: "80,\r\n443\r\n"},
		"ports: lines, no commas":   {keys: ports, value: "80\n443", want: "no port"},
		"ports: an empty line":      {keys: ports, value: "80,\n\n,443", want: "item 2 is empty"},
		"ports: an empty item":      {keys: ports, value: "80,,443", want: "item 2 is empty"},
		"ports: a trailing comma":   {keys: ports, value: "80,", want: "item 2 is empty"},
		"ports: a range":            {keys: ports, value: "8000-9000", want: "no port"},
		"ports: a name":             {keys: ports, value: "http", want: "no port"},
		"ports: too large":          {keys: ports, value: "65536", want: "no port"},
		"ports: negative":           {keys: ports, value: "-1", want: "no port"},
		"ports: a sign":             {keys: ports, value: "+80", want: "no port"},
		"ports: inner space":        {keys: ports, value: "8 0", want: "no port"},
		"ports: a NUL":              {keys: ports, value: "80\x00", want: "no port"},
		"ports: a newline":          {keys: ports, value: "80\n"},
		"ports: a newline alone":    {keys: ports, value: "\n"},
		"ports: a star and newline": {keys: all, value: "*\n"},
		"ports: a star in a list":   {keys: []string{keyIncludeInbound}, value: "80,*", want: `"*" stands for all, and must be the only item`},
		"ports: a star":             {keys: all, value: "*"},
		"excludes: a star":          {keys: lists, value: "*", want: `"*" is not allowed here`},
		"cidrs: nothing":            {keys: cidrKeys, value: ""},
		"cidrs: both families":      {keys: cidrKeys, value: "10.0.0.0/8, fd00::/8"},
		"cidrs: host bits":          {keys: cidrKeys, value: "10.1.2.3/8"},
		"cidrs: the most":           {keys: cidrKeys, value: repeat("10.A.B.0/24", 1000)},
		"cidrs: 10,000 entries":     {keys: cidrKeys, value: repeat("10.A.B.0/24", 10000), want: "10000 items are more than the 1000"},
		"cidrs: a block of YAML":    {keys: cidrKeys, value: "10.0.0.0/8,\nfd00::/8\n"},
		"cidrs: no prefix length":   {keys: cidrKeys, value: "10.1.2.3", want: "no prefix length"},
		"cidrs: a zone":             {keys: cidrKeys, value: "fe80::1%eth0/64", want: "no CIDR"},
		"cidrs: a mapped address":   {keys: cidrKeys, value: "::ffff:10.0.0.0/104", want: "write it as IPv4"},
		"cidrs: a name":             {keys: cidrKeys, value: "example.com/8", want: "no CIDR"},
		"cidrs: too long a prefix":  {keys: cidrKeys, value: "10.0.0.0/33", want: "no CIDR"},
		"cidrs: a negative prefix":  {keys: cidrKeys, value: "10.0.0.0/-1", want: "no CIDR"},
		"cidrs: an empty item":      {keys: cidrKeys, value: ",10.0.0.0/8", want: "item 1 is empty"},
		"cidrs: a trailing comma":   {keys: cidrKeys, value: "10.0.0.0/8,", want: "item 2 is empty"},
		"cidrs: a star in a list":   {keys: []string{keyIncludeCIDRs}, value: "10.0.0.0/8,*", want: `"*" stands for all, and must be the only item`},
		"cidrs: a NUL":              {keys: cidrKeys, value: "10.0.0.0/8\x00", want: "no CIDR"},
		"cidrs: a newline":          {keys: cidrKeys, value: "10.0.0.0/8\n"},
		"excluded cidrs: a star":    {keys: []string{keyExcludeCIDRs}, value: "*", want: `"*" is not allowed here`},
		"included cidrs: a star":    {keys: []string{keyIncludeCIDRs}, value: "*"},
	}
}

// otherCases are those of what is no list of ports or CIDRs.
func otherCases() map[string]valueCase {
	_, _, _, single := trafficKeys()
	interfaces := []string{keyExcludeInterfaces, keyReroute, keyKubevirt}
	return map[string]valueCase{
		"one port: spaces around":   {keys: single, value: " 16000 "},
		"one port: a newline":       {keys: single, value: "16000\n"},
		"one port: zero":            {keys: single, value: "0", want: "from 1 to 65535"},
		"one port: nothing":         {keys: single, value: "", want: "from 1 to 65535"},
		"one port: a list":          {keys: single, value: "1,2", want: "from 1 to 65535"},
		"one port: too large":       {keys: single, value: "65536", want: "from 1 to 65535"},
		"mode: redirect":            {keys: []string{keyMode}, value: "REDIRECT"},
		"mode: TPROXY":              {keys: []string{keyMode}, value: "TPROXY"},
		"mode: NONE":                {keys: []string{keyMode}, value: "NONE"},
		"mode: lower case":          {keys: []string{keyMode}, value: "redirect", want: "want REDIRECT"},
		"mode: nothing":             {keys: []string{keyMode}, value: "", want: "want REDIRECT"},
		"interfaces: nothing":       {keys: interfaces, value: ""},
		"interfaces: spaces around": {keys: interfaces, value: " net1 , eth0.100"},
		"interfaces: 15 letters":    {keys: interfaces, value: "abcdefghijklmno"},
		"interfaces: 16 letters":    {keys: interfaces, value: "abcdefghijklmnop", want: "no interface name"},
		"interfaces: a wildcard":    {keys: interfaces, value: "net+", want: "no interface name"},
		"interfaces: a digit first": {keys: interfaces, value: "0net", want: "no interface name"},
		"interfaces: an empty item": {keys: interfaces, value: "net1,,net2", want: "item 2 is empty"},
		"interfaces: a command":     {keys: interfaces, value: "net1;reboot", want: "no interface name"},
		"interfaces: a newline":     {keys: interfaces, value: "net1\n"},
		"interfaces: a line inside": {keys: interfaces, value: "net1\nnet2", want: "no interface name"},
		"interfaces: the most":      {keys: interfaces, value: repeat("netN", 16)},
		"interfaces: 10,000":        {keys: interfaces, value: repeat("netN", 10000), want: "10000 items are more than the 16"},
		"interfaces: not ASCII":     {keys: interfaces, value: "n\u00e9t", want: "no interface name"},
		"dns: all":                  {keys: []string{KeyDNSCapture}, value: "all"},
		"dns: resolv.conf":          {keys: []string{KeyDNSCapture}, value: "resolv.conf"},
		"dns: off":                  {keys: []string{KeyDNSCapture}, value: "off"},
		"dns: another word":         {keys: []string{KeyDNSCapture}, value: "true", want: "all, resolv.conf or off"},
		"ipv6: capture":             {keys: []string{KeyIPv6}, value: "capture"},
		"ipv6: direct":              {keys: []string{KeyIPv6}, value: "direct"},
		"ipv6: nothing":             {keys: []string{KeyIPv6}, value: "", want: "capture or direct"},
		"ipv6: another word":        {keys: []string{KeyIPv6}, value: "off", want: "capture or direct"},
		"initialize: another value": {keys: []string{KeyInitialize}, value: "yes", want: `want "true" or "false"`},
		"initialize: nothing":       {keys: []string{KeyInitialize}, value: "", want: `want "true" or "false"`},
	}
}

func TestOf_trafficAnnotation_isParsed(t *testing.T) {
	cases := valueCases()
	maps.Copy(cases, otherCases())
	maps.Copy(cases, ownKeyCases())
	for name, c := range cases {
		for _, key := range c.keys {
			t.Run(name+" "+key, func(t *testing.T) {
				pod, ns := asking(annotate(key, c.value))
				_, err := Of(pod, ns, config())
				if c.want == "" {
					if err != nil {
						t.Error(err)
					}
					return
				}
				var value *ValueError
				if !errors.As(err, &value) || value.Key != key || value.Value != c.value || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v: want key %s, its value, and %q", err, key, c.want)
				}
			})
		}
	}
}

func TestValueError_longValue_isCut(t *testing.T) {
	pod, ns := asking(annotate(keyExcludeCIDRs, strings.Repeat("x", 200000)))
	_, err := Of(pod, ns, config())
	if err == nil || len(err.Error()) > 500 || !strings.Contains(err.Error(), "200000 bytes") {
		t.Errorf("message of %d bytes: %.200s", len(fmt.Sprint(err)), err)
	}
}

func TestOf_severalFaults_areAllNamed(t *testing.T) {
	pod, ns := asking(annotate(keyExcludeCIDRs, "x", keyIncludeInbound, "y", KeyOutboundPort, "z"))
	_, err := Of(pod, ns, config())
	for _, key := range []string{keyExcludeCIDRs, keyIncludeInbound, KeyOutboundPort} {
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%v does not name %s", err, key)
		}
	}
	pod, ns = asking(annotate(KeyOutboundPort, "7000", KeyInboundPort, "7000"))
	if _, err = Of(pod, ns, config()); err == nil || !strings.Contains(err.Error(), "both 7000") {
		t.Errorf("two listeners on one port: %v", err)
	}
}

// Whatever a pod says, it is a clear error or a rule set that the pure half can compute: never a panic, never half; and the
// pod that the cache holds says the same.
func FuzzTrafficAnnotations(f *testing.F) {
	for _, v := range []string{"*", "", "80,443", "10.0.0.0/8,fd00::/8", "65536", "-1", "fe80::1%eth0/64", "80,\x00", "::ffff:1.2.3.4/96", "80,\n443\n", "net1,lo"} {
		f.Add(v, v, v, v, v, false, int64(1337), int64(0))
	}
	for _, v := range []string{"8000-8999,7", "0-65535", "9-8", "1000-1999:443", "0-4294967294", "4294967295", "15002-15002", "15000-15100"} {
		f.Add("80", "10.0.0.0/8", "net1", "", v, true, int64(1337), int64(0))
	}
	f.Fuzz(func(t *testing.T, ports, cidrs, interfaces, environment, ranges string, injection bool, uid, gid int64) {
		pod, ns := asking(annotate(
			keyIncludeInbound, ports, keyExcludeOutbound, ports, keyIncludeCIDRs, cidrs, keyExcludeCIDRs, cidrs,
			keyExcludeInterfaces, interfaces, keyReroute, interfaces, keyInjected, "",
			KeyIncludeInboundPorts, ranges, KeyExcludeInboundPorts, ports, KeyIncludeOutboundPorts, ranges, KeyExcludeOutboundPorts, ports,
			KeyExcludeSources, cidrs, KeyExcludeUsers, ranges,
		))
		for i, key := range []string{KeyIncludeInboundPorts, KeyExcludeInboundPorts, KeyIncludeOutboundPorts, KeyExcludeOutboundPorts, KeyExcludeSources, KeyExcludeUsers} {
			if len(environment)>>i&1 == 0 { // some of the keys
				delete(pod.Annotations, key)
			}
		}
		env(envGroups, environment, envGroupsExcept, environment, envLoopback, environment, envDualStack, environment, envDNSAddr, environment)(pod)
		pod.Spec.Containers[0].SecurityContext, pod.Spec.Containers[1].SecurityContext = as(uid, gid), as(gid, uid)
		c := config()
		if injection {
			c.Select = SelectInjected
		}
		got, err := Of(pod, ns, c)
		if whole, stripped := verdict(t, pod, ns, c), verdict(t, Strip(pod), ns, c); whole != stripped {
			t.Errorf("the whole pod: %s\nthe stripped one: %s", whole, stripped)
		}
		if err != nil {
			if !strings.Contains(err.Error(), "sidecar.istio.io/") && !strings.Contains(err.Error(), "istio") || len(err.Error()) > 5000 {
				t.Errorf("%v names no annotation, or too much", err)
			}
			return
		}
		if _, err := iptables.Rules(got.Spec); err != nil {
			t.Errorf("accepted, but no rules: %v", err)
		}
	})
}
