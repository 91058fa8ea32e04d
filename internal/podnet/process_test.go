package podnet

import "testing"

func TestProcessNetNS(t *testing.T) {
	for _, pid := range []int64{-1, 0, 1<<22 + 1, 1 << 40} {
		if path, err := ProcessNetNS(pid); err == nil {
			t.Errorf("pid %d: got %s, want an error", pid, path)
		}
	}
	path, err := ProcessNetNS(1 << 22)
	if want := "/proc/4194304/ns/net"; err != nil || path != want {
		t.Errorf("got %q, error %v, want %q", path, err, want)
	}
}

func TestOfProcess(t *testing.T) {
	tests := map[string]bool{
		"/proc/7/ns/net":               true,
		"/proc//7/ns/net":              true,
		"/proc/4194304/ns/net":         true,
		"/var/run/netns/cni-1":         false,
		"/proc/self/ns/net":            false,
		"/host/proc/7/ns/net":          false,
		"/var/run/docker/netns/0a1b2c": false,
		"":                             false,
	}
	for path, want := range tests {
		if got := (Sandbox{NetNS: path}).OfProcess(); got != want {
			t.Errorf("%q: got %t, want %t", path, got, want)
		}
	}
}
