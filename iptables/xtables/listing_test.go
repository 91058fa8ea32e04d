package xtables

import (
	"strings"
	"testing"

	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

func TestRead_ourRules_withCounters(t *testing.T) {
	for _, flavour := range flavours() {
		ns, b := kerneltest.New(t), newBackend(t, flavour)
		if _, ok, err := b.List(t.Context(), ns.Path()); ok || err != nil {
			t.Errorf("%s: something is there: %v, error %v", flavour, ok, err)
		}
		want := rules(t, tproxyAndDNS)
		mustApply(t, b, ns, want)
		if _, err := kerneltest.Ask(t.Context(), ns, kerneltest.App, "tcp", "", "127.0.0.1:9"); err == nil {
			t.Fatal("somebody answers")
		}
		have, ok, err := b.List(t.Context(), ns.Path())
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		text := have.Text
		for _, part := range []string{"# ip address replace ::6/128", "# ip rule add fwmark 1337", "# iptables-restore", "# ip6tables-restore", "[1:60] -A PODNET_OUTBOUND -o lo"} {
			if !strings.Contains(text, part) {
				t.Errorf("no %q in\n%s", part, text)
			}
		}
		expectView(t, have.View)
	}
}

func expectView(t *testing.T, v iptables.View) {
	t.Helper()
	counted, asked := uint64(0), 0
	for _, c := range v.Chains {
		if c.Hook == "" { // another chain asks it
			asked++
		}
		if len(c.Rules) == 0 || !strings.HasPrefix(c.Type, "ip") {
			t.Errorf("%+v", c)
		}
		for _, r := range c.Rules {
			counted += r.Packets
			if r.Comment == "" {
				t.Errorf("%s has no comment", r.Rule)
			}
		}
	}
	if len(v.Chains) != 16 || asked != 8 || counted == 0 || len(v.Loopback) != 1 || len(v.Routing) != 1 {
		t.Errorf("%d chains, %d without a hook, %d packets, %v, %v", len(v.Chains), asked, counted, v.Loopback, v.Routing)
	}
}
