package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/runtime/container"
	"istio-pod-network-controller/runtime/cri"
	"istio-pod-network-controller/sidecars"
)

// SidecarClean removes what the proxies of pods that have ended left on a node whose agent runs no proxies any more.
type SidecarClean struct {
	// Runtime and Endpoint are those of Options.
	Runtime, Endpoint string
	// Root is Options.SidecarRoot.
	Root string
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
	removed, err := sidecars.Homes{Root: c.Root}.RemoveEnded(ctx, container.New(byCRI.Connection(), DefaultLogRoot).Ready, c.DryRun)
	words := "removed"
	if c.DryRun {
		words = "would be removed:"
	}
	for _, name := range removed {
		if _, err := fmt.Fprintln(out, words, filepath.Join(c.Root, name)); err != nil {
			return err
		}
	}
	if err == nil && len(removed) == 0 {
		_, err = fmt.Fprintln(out, "nothing to do: no proxy of a pod that has ended has left anything in", c.Root)
	}
	return err
}

// HasRules reports whether a network namespace has rules that an agent made, by any backend.
func HasRules(ctx context.Context, path string) (bool, error) {
	all, err := AllBackends(ctx)
	if err != nil {
		return false, err
	}
	_, has, err := all.List(ctx, podnet.Place{Path: path})
	return has, err
}
