package xtables

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

func TestLines_countedPacket_isShown(t *testing.T) {
	for _, flavour := range flavours() {
		ns, b := kerneltest.New(t), newBackend(t, flavour)
		mustApply(t, b, ns, rules(t, nil))
		if _, err := kerneltest.Ask(t.Context(), ns, kerneltest.App, "tcp", "", "127.0.0.1:9"); err == nil {
			t.Fatal("somebody answers")
		}
		have, ok, err := b.List(t.Context(), ns.Path())
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		want := iptables.Line{
			Chain: "PODNET_OUTBOUND", Words: "iptables -o lo -m owner --socket-exists ! --uid-owner 1337 -j RETURN",
			Why: "the application reaching itself stays direct", Packets: new(uint64(1)), Bytes: new(uint64(60)),
		}
		if lines := have.Lines; !slices.ContainsFunc(lines, func(l iptables.Line) bool { return cmp.Equal(l, want) }) {
			t.Errorf("%s: no line counts the packet:\n%+v", flavour, lines)
		}
	}
}
