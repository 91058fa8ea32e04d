package agent

import (
	"context"
	"errors"
	"fmt"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/iptables"
)

// backend is what the agent and the one-shot tool need of the packages that program a kernel.
type backend interface {
	controllers.Backend
	inspector
	Name() string
	// Yield takes the rules away and leaves what the backend that has taken over needs, too.
	Yield(ctx context.Context, netns string) (removed bool, err error)
}

// inspector tells what a namespace holds.
type inspector interface {
	Verify(ctx context.Context, netns string, want iptables.Ruleset) (iptables.Drift, error)
	List(ctx context.Context, netns string) (have Listing, ok bool, err error)
}

// The values of Listing.Language.
const (
	LanguageNft      = "nft"
	LanguageIptables = "iptables"
)

// Listing is what a namespace holds, with counters: in the language of its backend, and for machines.
type Listing interface {
	Language() string
	Text() string
	View() iptables.View
}

// Exclusive programs namespaces with the chosen backend, and takes away what another one has left there once the rules of
// the chosen one are in force: a node can change its backend under pods that run.
type Exclusive struct {
	chosen backend
	others []backend
}

// Name is the chosen backend's.
func (e Exclusive) Name() string { return e.chosen.Name() }

// Apply is the chosen backend's; only then the others yield.
func (e Exclusive) Apply(ctx context.Context, netns string, want iptables.Ruleset) (changed bool, err error) {
	changed, err = e.chosen.Apply(ctx, netns, want)
	if err != nil {
		return changed, err
	}
	left, err := e.clear(ctx, netns)
	return changed || left, err
}

// Present tells whether the namespace holds rules of any backend.
func (e Exclusive) Present(ctx context.Context, netns string) (bool, error) {
	for _, b := range e.all() {
		if present, err := b.Present(ctx, netns); err != nil || present {
			return present, err
		}
	}
	return false, nil
}

// Remove takes away the rules of every backend, and what stands beside them.
func (e Exclusive) Remove(ctx context.Context, netns string) (removed bool, err error) {
	removed, err = e.chosen.Remove(ctx, netns)
	if err != nil {
		return removed, err
	}
	left, err := e.clear(ctx, netns)
	return removed || left, err
}

func (e Exclusive) clear(ctx context.Context, netns string) (removed bool, err error) {
	for _, o := range e.others {
		did, err := o.Yield(ctx, netns)
		if err != nil {
			return removed, fmt.Errorf("remove what the %s backend has left: %w", o.Name(), err)
		}
		removed = removed || did
	}
	return removed, nil
}

// Verify is the chosen backend's; rules of another one are drift.
func (e Exclusive) Verify(ctx context.Context, netns string, want iptables.Ruleset) (iptables.Drift, error) {
	drift, err := e.chosen.Verify(ctx, netns, want)
	for _, o := range e.others {
		present, errPresent := o.Present(ctx, netns)
		if present {
			drift = append(drift, "+ rules of the "+o.Name()+" backend")
		}
		err = errors.Join(err, errPresent)
	}
	return drift, err
}

// List gives what is there, of the chosen backend if there are several.
func (e Exclusive) List(ctx context.Context, netns string) (have Listing, ok bool, err error) {
	for _, b := range e.all() {
		if have, ok, err := b.List(ctx, netns); err != nil || ok {
			return have, ok, err
		}
	}
	return nil, false, nil
}

func (e Exclusive) all() []backend { return append([]backend{e.chosen}, e.others...) }
