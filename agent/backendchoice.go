package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/nftables"
	"istio-pod-network-controller/iptables/xtables"
)

// The values of --backend.
const (
	BackendAuto     = "auto"
	BackendNftables = "nftables"
	BackendIptables = "iptables"
)

// OpenBackend returns the backend that --backend names. It fails if the node does not accept that backend's rules.
func OpenBackend(ctx context.Context, name string) (Exclusive, error) {
	choice, err := newBackendChoice()
	if err != nil {
		return Exclusive{}, err
	}
	b, _, err := choice.choose(ctx, name)
	return b, err
}

// AllBackends returns a backend that finds and removes the rules of every backend. It does not check that any can write.
func AllBackends(ctx context.Context) (Exclusive, error) {
	choice, err := newBackendChoice()
	if err != nil {
		return Exclusive{}, err
	}
	return choice.nftables(ctx), nil
}

// ValidateBackend returns an error for an unknown value of --backend.
func ValidateBackend(backend string) error {
	switch backend {
	case BackendAuto, BackendNftables, BackendIptables:
		return nil
	}
	return fmt.Errorf("--backend: value %q: want auto, nftables or iptables", backend)
}

// backendChoice makes backends. observe is called after each process that a backend has run, panicked after each panic in a backend;
// both may be nil. probe returns an error if the kernel does not accept rules by nftables.
type backendChoice struct {
	guard    netns.Guard
	observe  func(program string, took time.Duration)
	panicked func(ctx context.Context, p *netns.PanicError)
	probe    func(ctx context.Context, sample iptables.Ruleset) error
}

func (c backendChoice) exclusive(chosen backend, others ...backend) Exclusive {
	return Exclusive{
		chosen: chosen, others: others, guard: c.guard, visits: netns.NewVisits(), programmed: newProgrammed(), verified: newVerified(), panicked: c.panicked,
	}
}

func newBackendChoice() (backendChoice, error) {
	guard, err := netns.NewGuard()
	return backendChoice{guard: guard, probe: nftables.New(guard).Probe}, err
}

// choose returns the backend that --backend names, and why it was chosen. It makes sure that the node accepts the rules of an ordinary
// pod by that backend.
func (c backendChoice) choose(ctx context.Context, name string) (Exclusive, string, error) {
	sample, err := iptables.Rules(iptables.DefaultSpec())
	if err != nil {
		return Exclusive{}, "", err
	}
	if name == BackendIptables {
		return c.iptables(ctx, sample)
	}
	errNftables := c.probe(ctx, sample)
	if errNftables == nil {
		return c.nftables(ctx), "the kernel takes its rules", nil
	}
	if name == BackendNftables {
		return Exclusive{}, "", errNftables
	}
	e, reason, err := c.iptables(ctx, sample)
	if err != nil {
		return Exclusive{}, "", errors.Join(errNftables, err)
	}
	return e, fmt.Sprintf("%s; %s", errNftables, reason), nil
}

// nftables returns the nftables backend without a probe.
func (c backendChoice) nftables(ctx context.Context) Exclusive {
	return c.exclusive(nftBackend{nftables.New(c.guard)}, c.xtables(ctx, xtables.NFT), c.xtables(ctx, xtables.Legacy))
}

func (c backendChoice) iptables(ctx context.Context, sample iptables.Ruleset) (Exclusive, string, error) {
	b, reason, err := xtables.Detect(ctx, xtables.Config{Guard: c.guard, Observe: c.observe}, sample)
	if errors.Is(err, xtables.ErrMissing) {
		err = fmt.Errorf("%w (an image whose tag ends in -iptables has the programs)", err)
	}
	if err != nil {
		return Exclusive{}, "", err
	}
	other := map[xtables.Flavour]xtables.Flavour{xtables.NFT: xtables.Legacy, xtables.Legacy: xtables.NFT}[b.Flavour()]
	return c.exclusive(xtBackend{b}, nftBackend{nftables.New(c.guard)}, c.xtables(ctx, other)), reason, nil
}

func (c backendChoice) xtables(ctx context.Context, flavour xtables.Flavour) backend {
	return xtBackend{xtables.New(ctx, xtables.Config{Guard: c.guard, Flavour: flavour, Observe: c.observe})}
}

// nftBackend and xtBackend make the types of both packages a backend.
type (
	nftBackend struct{ *nftables.Backend }
	xtBackend  struct{ *xtables.Backend }
)

// List returns the rules that the namespace holds.
func (b nftBackend) List(ctx context.Context, netns string) (Listing, bool, error) {
	have, ok, err := b.Read(ctx, netns)
	return Listing{
		Language: LanguageNft, Text: have.NftText(iptables.TextOptions{Counters: true}), View: have.View(), Lines: have.Lines(),
	}, ok, err
}

// List returns the rules that the namespace holds.
func (b xtBackend) List(ctx context.Context, netns string) (Listing, bool, error) {
	have, ok, err := b.Read(ctx, netns)
	return Listing{Language: LanguageIptables, Text: have.Text(), View: have.View(), Lines: have.Lines()}, ok, err
}
