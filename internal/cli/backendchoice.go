package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/nftables"
	"istio-pod-network-controller/iptables/xtables"
)

// The values of --backend.
const (
	backendAuto     = "auto"
	backendNftables = "nftables"
	backendIptables = "iptables"
)

func addBackendFlag(fs *pflag.FlagSet, to *string) {
	fs.StringVar(to, "backend", backendAuto,
		"what programs the kernel: nftables, iptables (which takes its programs), or auto: nftables where the kernel can, else iptables")
}

func validateBackend(backend string) error {
	switch backend {
	case backendAuto, backendNftables, backendIptables:
		return nil
	}
	return fmt.Errorf("--backend: value %q: want auto, nftables or iptables", backend)
}

// backendChoice makes backends. Observe, which may be nil, is told of every process that one starts; probe tells whether
// the kernel takes rules by nftables.
type backendChoice struct {
	guard   netns.Guard
	observe func(program string, took time.Duration)
	probe   func(ctx context.Context, sample iptables.Ruleset) error
}

func newBackendChoice() (backendChoice, error) {
	guard, err := netns.NewGuard()
	return backendChoice{guard: guard, probe: nftables.New(guard).Probe}, err
}

// choose makes the backend that --backend names, having made sure that this node takes the rules of an ordinary pod by it,
// and says why it is this one.
func (c backendChoice) choose(ctx context.Context, name string) (exclusive, string, error) {
	sample, err := iptables.Rules(iptables.DefaultSpec())
	if err != nil {
		return exclusive{}, "", err
	}
	if name == backendIptables {
		return c.iptables(ctx, sample)
	}
	errNftables := c.probe(ctx, sample)
	if errNftables == nil {
		return c.nftables(ctx), "the kernel takes its rules", nil
	}
	if name == backendNftables {
		return exclusive{}, "", errNftables
	}
	e, reason, err := c.iptables(ctx, sample)
	if err != nil {
		return exclusive{}, "", errors.Join(errNftables, err)
	}
	return e, fmt.Sprintf("%s; %s", errNftables, reason), nil
}

// nftables is that backend, without a probe.
func (c backendChoice) nftables(ctx context.Context) exclusive {
	return exclusive{
		chosen: nftBackend{nftables.New(c.guard)},
		others: []backend{c.xtables(ctx, xtables.NFT), c.xtables(ctx, xtables.Legacy)},
	}
}

func (c backendChoice) iptables(ctx context.Context, sample iptables.Ruleset) (exclusive, string, error) {
	b, reason, err := xtables.Detect(ctx, xtables.Config{Guard: c.guard, Observe: c.observe}, sample)
	if errors.Is(err, xtables.ErrMissing) {
		err = fmt.Errorf("%w (an image whose tag ends in -iptables has the programs)", err)
	}
	if err != nil {
		return exclusive{}, "", err
	}
	other := map[xtables.Flavour]xtables.Flavour{xtables.NFT: xtables.Legacy, xtables.Legacy: xtables.NFT}[b.Flavour()]
	return exclusive{chosen: xtBackend{b}, others: []backend{nftBackend{nftables.New(c.guard)}, c.xtables(ctx, other)}}, reason, nil
}

func (c backendChoice) xtables(ctx context.Context, flavour xtables.Flavour) backend {
	return xtBackend{xtables.New(ctx, xtables.Config{Guard: c.guard, Flavour: flavour, Observe: c.observe})}
}

// nftBackend and xtBackend give both packages' backends one face.
type (
	nftBackend struct{ *nftables.Backend }
	xtBackend  struct{ *xtables.Backend }
)

// List gives what the namespace holds.
func (b nftBackend) List(ctx context.Context, netns string) (listing, bool, error) {
	have, ok, err := b.Read(ctx, netns)
	return nftListing{have}, ok, err
}

// List gives what the namespace holds.
func (b xtBackend) List(ctx context.Context, netns string) (listing, bool, error) {
	have, ok, err := b.Read(ctx, netns)
	return xtListing{have}, ok, err
}

type (
	nftListing struct{ iptables.Ruleset }
	xtListing  struct{ xtables.Listing }
)

// Language is iptables-restore's.
func (xtListing) Language() string { return outputIptables }

// Language is nft's.
func (nftListing) Language() string { return outputNft }

// Text is what nft list would show.
func (l nftListing) Text() string { return l.NftText(iptables.TextOptions{Counters: true}) }
