package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
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

// cleanRuntime answers Clean's questions about a node.
type cleanRuntime interface {
	Ready(ctx context.Context, sandbox string) (bool, error)
	HasSharedProxy(ctx context.Context, profile string) (bool, error)
}

// usedOrRuns takes for running what a process has mounted, also if the runtime does not know it: the node may have two, and Clean is given one.
type usedOrRuns struct {
	runtime cleanRuntime
	mounts  mounts
	// shared is the name of the directory of shared proxies.
	shared string
}

func (u usedOrRuns) Ready(ctx context.Context, sandbox string) (bool, error) {
	if u.mounts.below("." + sandbox + "/") {
		return true, nil
	}
	return u.runtime.Ready(ctx, sandbox)
}

func (u usedOrRuns) HasSharedProxy(ctx context.Context, profile string) (bool, error) {
	if u.mounts.below("/" + u.shared + "/" + profile + "/") {
		return true, nil
	}
	return u.runtime.HasSharedProxy(ctx, profile)
}

// mounts are the directories that processes have mounted, each as its file system has it, with a slash at the end.
type mounts map[string]bool

// below reports whether a directory with a part of a path is mounted.
func (m mounts) below(part string) bool {
	for directory := range m {
		if strings.Contains(directory, part) {
			return true
		}
	}
	return false
}

// mountRoot is the number of the field of a mount's directory in its file system, in a line of mountinfo (proc_pid_mountinfo(5)).
const mountRoot = 3

// readMounts reads the mounts of all processes that proc shows.
func readMounts(proc string) (mounts, error) {
	all, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "mountinfo"))
	if err != nil {
		return nil, err
	}
	out := mounts{}
	for _, file := range all {
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) { // the process has ended
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read what a process has mounted: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); len(fields) > mountRoot {
				out[fields[mountRoot]+"/"] = true
			}
		}
	}
	return out, nil
}
