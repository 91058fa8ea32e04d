package agent

import (
	"context"

	"istio-pod-network-controller/iptables"
)

// ProbeNftables returns why this node does not accept the rules of a spec by nftables, or nil. It tries in a namespace made for the purpose,
// as the agent does when it starts.
func ProbeNftables(ctx context.Context, spec iptables.Spec) error {
	sample, err := iptables.Rules(spec)
	if err != nil {
		return err
	}
	choice, err := newBackendChoice()
	if err != nil {
		return err
	}
	return choice.probe(ctx, sample)
}
