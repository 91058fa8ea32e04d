package e2e

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// A rule in the node's own namespace would turn the whole node's traffic, kubelet and all, to a port where nobody listens.
//
// Not parallel: it compares the node's own rules, and counts what the agent has skipped.
//
//e2e:rounds nftables
func TestHostNetworkPodIsLeftAlone(t *testing.T) {
	s := newSpace(t, asked())
	before, skipped := hostState(t), s.metrics(t).ensured("skipped")
	app, proxy := appContainer(), appContainer()
	app.Args, proxy.Args, proxy.Name = []string{"serve", "-http=28080"}, []string{"serve", "-http=28081"}, "istio-proxy"
	pod := newPod("host", asked(), app, proxy)
	pod.Spec.HostNetwork = true
	s.create(t, pod)
	pod = s.await(t, pod.Name, isRunning)
	eventually(t, "the agent to skip the pod", func(ctx context.Context) error {
		now, err := s.readMetrics(ctx)
		if err == nil && now.ensured("skipped") == skipped {
			err = errors.New("it has skipped none")
		}
		return err
	})

	if after := hostState(t); after != before {
		t.Errorf("the node's own namespace has changed\nfrom:\n%s\nto:\n%s", before, after)
	}
	var a answer
	must(t, request(t.Context(), at(pod, families()[0], 28080), "/", &a))
	if a.peer() != families()[0].client {
		t.Errorf("the host's application saw %s, want %s", a.Peer, families()[0].client)
	}
	wantToldNotRequired(t, s.await(t, pod.Name, isRunning))
	// Its own annotation is wrong, and still it is none of the agent's business.
	s.annotate(t, pod.Name, map[string]any{keyInitialize: "yes"})
	s.startMesh(t, meshPod("later", nil)) // by then the agent has seen the edit, too
	wantToldNotRequired(t, s.await(t, pod.Name, isRunning))
}

// hostState is what the node's own network namespace holds of rules and of loopback addresses, without counters.
func hostState(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, argv := range [][]string{{"nft", "-s", "list", "ruleset"}, {"/bin/ip", "-o", "addr", "show", "dev", "lo"}, {"/bin/ip", "rule"}} {
		out, err := exec.CommandContext(t.Context(), "kc", append([]string{"node", "--"}, argv...)...).Output()
		must(t, err)
		all.Write(out)
	}
	if strings.Contains(all.String(), "pod-network-controller") || strings.Contains(all.String(), "PODNET_") {
		t.Errorf("the node's own namespace holds rules of the agent:\n%s", all.String())
	}
	return all.String()
}
