package kernel

import (
	"context"
	"errors"
	"fmt"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/nftables"
	"istio-pod-network-controller/iptables/xtables"
)

// The names of backends. Auto is nftables where the kernel accepts its rules, and else iptables.
const (
	Auto     = "auto"
	Nftables = "nftables"
	Iptables = "iptables"
)

// ProbeNftables returns why this node does not accept the rules of a spec by nftables, or nil. It tries in a namespace made for the purpose,
// as the agent does when it starts.
func ProbeNftables(ctx context.Context, spec iptables.Spec) error {
	sample, err := iptables.Rules(spec)
	if err != nil {
		return err
	}
	return nftables.New().Probe(ctx, sample)
}

// HasRules reports whether a network namespace has rules that an agent made, by any backend.
func HasRules(ctx context.Context, path string) (bool, error) {
	choice, err := NewChoice(nil, nil)
	if err != nil {
		return false, err
	}
	return choice.Nftables(ctx).Present(ctx, podnet.Place{Path: path})
}

// Choice makes backends.
type Choice struct {
	namespaces Namespaces
	// observe is called after each process that a backend has run. It may be nil.
	observe func(program string, took time.Duration)
	// probe returns an error if the kernel does not accept rules by nftables.
	probe func(ctx context.Context, sample iptables.Ruleset) error
}

// NewChoice returns a choice. observe is called after each process that a backend has run, panicked after each panic in a backend; both may
// be nil.
func NewChoice(observe func(program string, took time.Duration), panicked func(ctx context.Context, p *netns.PanicError)) (Choice, error) {
	in, err := NewNamespaces()
	in.panicked = panicked
	return Choice{namespaces: in, observe: observe, probe: nftables.New().Probe}, err
}

// Choose returns the backend of a name, and why it was chosen. It makes sure that the node accepts the rules of an ordinary
// pod by that backend.
func (c Choice) Choose(ctx context.Context, name string) (Backend, string, error) {
	sample, err := iptables.Rules(iptables.DefaultSpec())
	if err != nil {
		return Backend{}, "", err
	}
	if name == Iptables {
		return c.iptables(ctx, sample)
	}
	errNftables := c.probe(ctx, sample)
	if errNftables == nil {
		return c.Nftables(ctx), "the kernel takes its rules", nil
	}
	if name == Nftables {
		return Backend{}, "", errNftables
	}
	e, reason, err := c.iptables(ctx, sample)
	if err != nil {
		return Backend{}, "", errors.Join(errNftables, err)
	}
	return e, fmt.Sprintf("%s; %s", errNftables, reason), nil
}

// Nftables returns the nftables backend, without a probe. It finds and removes the rules of every backend.
func (c Choice) Nftables(ctx context.Context) Backend {
	return New(c.namespaces, nftables.New(), c.xtables(ctx, xtables.NFT), c.xtables(ctx, xtables.Legacy))
}

// Iptables returns the iptables backend of a flavour, without a probe.
func (c Choice) Iptables(ctx context.Context, flavour xtables.Flavour) Backend {
	other := map[xtables.Flavour]xtables.Flavour{xtables.NFT: xtables.Legacy, xtables.Legacy: xtables.NFT}[flavour]
	return New(c.namespaces, c.xtables(ctx, flavour), nftables.New(), c.xtables(ctx, other))
}

func (c Choice) iptables(ctx context.Context, sample iptables.Ruleset) (Backend, string, error) {
	b, reason, err := xtables.Detect(ctx, xtables.Config{Observe: c.observe}, sample)
	if errors.Is(err, xtables.ErrMissing) {
		err = fmt.Errorf("%w (an image whose tag ends in -iptables has the programs)", err)
	}
	if err != nil {
		return Backend{}, "", err
	}
	return c.Iptables(ctx, b.Flavour()), reason, nil
}

func (c Choice) xtables(ctx context.Context, flavour xtables.Flavour) Driver {
	return xtables.New(ctx, xtables.Config{Flavour: flavour, Observe: c.observe})
}
