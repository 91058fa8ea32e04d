package agent

import (
	"context"
	"os/exec"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/kernel"
	"istio-pod-network-controller/iptables/xtables"
	"istio-pod-network-controller/test/kerneltest"
)

func namespaces(t *testing.T) kernel.Namespaces {
	t.Helper()
	in, err := kernel.NewNamespaces()
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// allBackends are the three ways to program a namespace.
func allBackends(t *testing.T) map[string]kernel.Backend {
	t.Helper()
	for _, program := range []string{"iptables-nft-restore", "iptables-legacy-restore", "nft"} {
		kerneltest.ProgramPath(t, program)
	}
	choice, err := kernel.NewChoice(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]kernel.Backend{
		"nftables":        choice.Nftables(t.Context()),
		"iptables nft":    choice.Iptables(t.Context(), xtables.NFT),
		"iptables legacy": choice.Iptables(t.Context(), xtables.Legacy),
	}
}

// fakeDriver writes nothing.
type fakeDriver struct {
	kernel.Driver
	apply func(path string) error
}

func (fakeDriver) Name() string { return "fake" }

func (fakeDriver) BuiltIn() bool { return false }

func (fakeDriver) Present(context.Context, *netns.NS) (bool, error) { return false, nil }

func (d fakeDriver) Apply(_ context.Context, ns *netns.NS, _ iptables.Ruleset) (iptables.Outcome, error) {
	return iptables.Outcome{Drift: iptables.Drift{{Kind: iptables.KindAbsent}}}, d.apply(ns.Path())
}

func mustRun(t *testing.T, ns *netns.NS, script string) {
	t.Helper()
	err := ns.Inside(func() error { return exec.CommandContext(t.Context(), "sh", "-c", script).Run() })
	if err != nil {
		t.Fatal(err)
	}
}

func TestTheBackendIsAMetric(t *testing.T) {
	kerneltest.New(t)
	for flag, processes := range map[string]bool{"auto": false, "iptables": true} {
		r := prometheus.NewRegistry()
		b, err := newBackend(t.Context(), flag, r)
		if err != nil {
			t.Fatal(err)
		}
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, f := range families {
			for _, label := range f.GetMetric()[0].GetLabel() {
				got[f.GetName()] = label.GetValue()
			}
		}
		if got["istio_pod_network_controller_backend_info"] != b.Name() {
			t.Errorf("--backend %s: %v", flag, got)
		}
		if _, ok := got["istio_pod_network_controller_exec_duration_seconds"]; ok != processes {
			t.Errorf("--backend %s: processes measured: %v", flag, got)
		}
	}
}
