package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// cleanRuntime is what Clean asks the runtime.
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
