package home

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// notSwapped returns why files in a directory in memory could come to be on a disk, or nil.
func notSwapped(root string) error {
	swaps, err := os.ReadFile("/proc/swaps")
	if err != nil {
		return fmt.Errorf("ask whether the node swaps: %w", err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("read the agent's mounts: %w", err)
	}
	if swapsToDisk(string(swaps)) && !neverSwapped(string(mounts), root) {
		return fmt.Errorf("the node swaps, which would write secrets to its disk: switch swap off there, or mount a tmpfs with the option noswap at %s", root)
	}
	return nil
}

// swapsToDisk reports whether one of the kernel's swap areas (/proc/swaps) is not in memory itself.
func swapsToDisk(swaps string) bool {
	for i, line := range strings.Split(swaps, "\n") {
		if fields := strings.Fields(line); i > 0 && len(fields) > 0 && !strings.HasPrefix(fields[0], "/dev/zram") {
			return true
		}
	}
	return false
}

// neverSwapped reports whether a directory is on a tmpfs with the option noswap, by the process's mounts (/proc/self/mountinfo).
func neverSwapped(mounts, dir string) bool {
	const pathField, afterDash = 4, 3
	found, length := false, -1
	for line := range strings.Lines(mounts) {
		fields := strings.Fields(line)
		dash := slices.Index(fields, "-")
		if dash < pathField || len(fields) <= dash+afterDash {
			continue
		}
		path := fields[pathField]
		if path != dir && !strings.HasPrefix(dir, strings.TrimSuffix(path, "/")+"/") || len(path) < length {
			continue
		}
		length = len(path) // a later mount on the same path hides an earlier one
		found = fields[dash+1] == "tmpfs" && slices.Contains(strings.Split(fields[dash+afterDash], ","), "noswap")
	}
	return found
}
