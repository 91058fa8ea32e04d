package routing

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
)

// Whatever rules and routes a pod's namespace has, each is removed by a request about our table alone, and only what is exactly ours is taken for ours.
func FuzzPolicy(f *testing.F) {
	h := policyState{family: unix.AF_INET}
	for _, r := range []rawnetlink.Request{
		h.ourRule(unix.RTM_NEWRULE, 0),
		{Header: h.header(unix.RTPROT_BOOT, unix.RT_SCOPE_HOST, unix.RTN_LOCAL), Attributes: [][]byte{table(), rawnetlink.Number(unix.RTA_OIF, loIndex)}},
		{Header: h.header(0, 0, unix.FR_ACT_GOTO), Attributes: [][]byte{rawnetlink.Number(unix.FRA_PRIORITY, 7), rawnetlink.Number(unix.FRA_FWMARK, 1)}},
	} {
		f.Add(r.Header, slices.Concat(r.Attributes...))
	}
	f.Fuzz(func(t *testing.T, header, attributes []byte) {
		if len(header) < headerSize {
			return
		}
		header = header[:headerSize]
		a := rawnetlink.Attributes(attributes)
		_ = takes(header, a)
		_ = does(header[7], rawnetlink.NativeEndian(a[unix.FRA_TABLE]))
		for what, one := range map[string]found{"rule": h.rule(header, a), "route": h.route(header, a)} {
			names := rawnetlink.Attributes(slices.Concat(one.remove.Attributes...))
			if rawnetlink.NativeEndian(names[unix.RTA_TABLE]) != iptables.RouteTable || one.remove.Header[0] != h.family {
				t.Errorf("the %s is removed by %+v", what, one.remove)
			}
		}
		if h.rule(header, a).exact && (rawnetlink.NativeEndian(a[unix.FRA_TABLE]) != iptables.RouteTable || rawnetlink.NativeEndian(a[unix.FRA_FWMARK]) != iptables.RouteMark) {
			t.Errorf("taken for our rule: %v %v", header, a)
		}
		if h.route(header, a).exact && (a[unix.RTA_DST] != nil || rawnetlink.NativeEndian(a[unix.RTA_OIF]) != loIndex) {
			t.Errorf("taken for our route: %v %v", header, a)
		}
	})
}
