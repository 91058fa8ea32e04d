package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// otherRuntime is a runtime that has none of the node's sandboxes.
type otherRuntime struct{}

func (otherRuntime) Ready(context.Context, string) (bool, error)          { return false, nil }
func (otherRuntime) HasSharedProxy(context.Context, string) (bool, error) { return false, nil }

// What a process has mounted is used, whatever the runtime that clean was given knows.
func TestUsedOrRuns_otherRuntime_mountedStays(t *testing.T) {
	proc := t.TempDir()
	for pid, text := range map[string]string{
		"1":  "22 1 0:21 / /proc rw - proc proc rw\n",
		"77": "90 80 0:23 /istio/sidecars/u1.s1/files-0 /etc/sidecar ro - tmpfs tmpfs rw\n91 80 0:23 /istio/sidecars/u1.s1/run /run/sidecar rw - tmpfs tmpfs rw\n",
		"78": "92 80 0:23 /istio/shared/edge /etc/shared ro - tmpfs tmpfs rw\n",
	} {
		file := filepath.Join(proc, pid, "mountinfo")
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(proc, "79"), 0o755); err != nil { // it ends just now
		t.Fatal(err)
	}
	used, err := readMounts(proc)
	if err != nil {
		t.Fatal(err)
	}
	u := usedOrRuns{otherRuntime{}, used, "shared"}
	for sandbox, want := range map[string]bool{"s1": true, "s": false, "s2": false} {
		if got, err := u.Ready(t.Context(), sandbox); got != want || err != nil {
			t.Errorf("sandbox %s: %t, error %v", sandbox, got, err)
		}
	}
	for profile, want := range map[string]bool{"edge": true, "edg": false, "other": false} {
		if got, err := u.HasSharedProxy(t.Context(), profile); got != want || err != nil {
			t.Errorf("profile %s: %t, error %v", profile, got, err)
		}
	}
}

func TestReadMounts_thisProcess_hasItsRoot(t *testing.T) {
	used, err := readMounts("/proc")
	if err != nil || len(used) == 0 {
		t.Errorf("%v, error %v", used, err)
	}
}
