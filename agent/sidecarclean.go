package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables/kernel"
	"istio-pod-network-controller/runtime/container"
	"istio-pod-network-controller/runtime/cri"
	"istio-pod-network-controller/sidecars"
)

// SidecarClean removes what proxies that have ended left on a node whose agent runs no proxies any more.
type SidecarClean struct {
	// Runtime and Endpoint are those of Options.
	Runtime, Endpoint string
	// Root is Options.SidecarRoot, SharedRoot the directory of shared proxies.
	Root, SharedRoot string
	// DryRun says what would be removed, and removes nothing.
	DryRun bool
}

// Run removes it, and prints a line for each directory.
func (c SidecarClean) Run(ctx context.Context, out io.Writer) error {
	finder, err := chooseFinder(ctx, c.Runtime, c.Endpoint)
	if err != nil {
		return err
	}
	defer finder.Close() //nolint:errcheck // the process ends
	byCRI, ok := finder.(*cri.Finder)
	if !ok {
		return errors.New("proxies are run only by container runtimes that serve CRI: containerd or CRI-O")
	}
	runtime := container.New(byCRI.Connection(), DefaultLogRoot)
	homes, err := sidecars.Homes{Root: c.Root}.RemoveEnded(ctx, runtime.Ready, c.DryRun)
	notes, errNotes := removeEnded(ctx, filepath.Join(c.Root, leadsName), runtime.Ready, c.DryRun)
	if notes {
		homes = append(homes, leadsName)
	}
	shared, errShared := sidecars.RemoveUnshared(ctx, c.SharedRoot, runtime.HasSharedProxy, c.DryRun)
	err = errors.Join(err, errNotes, errShared)
	return errors.Join(err, c.print(out, homes, shared, err == nil))
}

// print prints what was removed. all is true if everything could be looked at.
func (c SidecarClean) print(out io.Writer, homes, shared []string, all bool) error {
	words := "removed"
	if c.DryRun {
		words = "would be removed:"
	}
	var text strings.Builder
	for _, name := range homes {
		fmt.Fprintln(&text, words, filepath.Join(c.Root, name))
	}
	for _, name := range shared {
		fmt.Fprintln(&text, words, filepath.Join(c.SharedRoot, name))
	}
	if all && text.Len() == 0 {
		fmt.Fprintf(&text, "nothing to do: no proxy that has ended has left anything in %s or %s\n", c.Root, c.SharedRoot)
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// HasRules reports whether a network namespace has rules that an agent made, by any backend.
func HasRules(ctx context.Context, path string) (bool, error) {
	choice, err := kernel.NewChoice(nil, nil)
	if err != nil {
		return false, err
	}
	_, has, err := choice.Nftables(ctx).List(ctx, podnet.Place{Path: path})
	return has, err
}
