package home

import (
	"strings"
	"testing"
)

func TestSwapsToDisk_areas_onlyZramIsMemory(t *testing.T) {
	const header = "Filename\tType\tSize\tUsed\tPriority\n"
	const run = "25 30 0:23 / /run rw,nosuid shared:5 - tmpfs tmpfs rw,size=800k,mode=755\n"
	const mine = "77 25 0:60 / /run/sidecars rw - tmpfs tmpfs rw,size=1k,noswap\n"
	for name, c := range map[string]struct {
		swaps, mounts string
		swaps2disk    bool
		never         bool
	}{
		"no swap":                     {swaps: header},
		"a partition":                 {swaps: header + "/dev/sda2 partition 1 0 -2\n", mounts: run, swaps2disk: true},
		"memory, compressed":          {swaps: header + "/dev/zram0 partition 1 0 100\n"},
		"a file, and memory":          {swaps: header + "/dev/zram0 partition 1 0 100\n/swapfile file 1 0 -2\n", swaps2disk: true},
		"a mount that is not swapped": {swaps: header + "/dev/sda2 partition 1 0 -2\n", mounts: mine + run, swaps2disk: true, never: true},
		"another directory's mount":   {mounts: run + "77 25 0:60 / /run/sidecar rw - tmpfs tmpfs rw,noswap\n"},
		"a mount that is hidden":      {mounts: mine + strings.ReplaceAll(mine, ",noswap", "")},
		"a disk":                      {mounts: "25 30 0:23 / / rw - ext4 /dev/vda rw,noswap\n"},
		"nothing that can be read":    {mounts: "77\n- - -\n"},
	} {
		if got := swapsToDisk(c.swaps); got != c.swaps2disk {
			t.Errorf("%s: swaps to a disk: %t", name, got)
		}
		if got := neverSwapped(c.mounts, "/run/sidecars"); got != c.never {
			t.Errorf("%s: never swapped: %t", name, got)
		}
	}
}
