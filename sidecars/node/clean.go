package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"

	"istio-pod-network-controller/runtime/container"
	"istio-pod-network-controller/sidecars/home"
)

// Clean removes what proxies that have ended left on a node whose agent runs no proxies any more.
type Clean struct {
	// Root, SharedRoot and Profiles are as in Config.
	Root, SharedRoot, Profiles string
	// DryRun says what would be removed, and removes nothing.
	DryRun bool
}

// Run removes it, and prints a line for each directory. conn is the container runtime's.
func (c Clean) Run(ctx context.Context, conn grpc.ClientConnInterface, out io.Writer) error {
	used, err := readMounts("/proc")
	if err != nil {
		return fmt.Errorf("look for proxies that run: %w", err)
	}
	runtime := usedOrRuns{container.New(conn, DefaultLogRoot), used, filepath.Base(c.SharedRoot)}
	homes, uses, err := home.Homes{Root: c.Root}.RemoveEnded(ctx, runtime.Ready, c.DryRun)
	notes, errNotes := removeEnded(ctx, filepath.Join(c.Root, routesName), runtime.Ready, c.DryRun)
	if notes {
		homes = append(homes, routesName)
	}
	shared, errShared := home.RemoveUnshared(ctx, c.SharedRoot, runtime.HasSharedProxy, c.DryRun)
	var profiles []string
	if err == nil && !uses {
		profiles, err = home.RemoveEach(c.Profiles, c.DryRun, func(fs.DirEntry) (bool, error) { return true, nil })
	}
	err = errors.Join(err, errNotes, errShared)
	return errors.Join(err, c.print(out, homes, shared, profiles, err == nil))
}

// print prints what was removed. all is true if everything could be looked at.
func (c Clean) print(out io.Writer, homes, shared, profiles []string, all bool) error {
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
	for _, name := range profiles {
		fmt.Fprintln(&text, words, filepath.Join(c.Profiles, name))
	}
	if all && text.Len() == 0 {
		fmt.Fprintf(&text, "nothing to do: no proxy that has ended has left anything in %s, %s or %s\n", c.Root, c.SharedRoot, c.Profiles)
	}
	_, err := io.WriteString(out, text.String())
	return err
}
