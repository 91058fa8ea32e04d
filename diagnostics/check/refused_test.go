package check

import "testing"

// The releases were looked up in containerd's source; 2.1.6, 2.2.5, 2.2.6, 1.7.35 and 2.4.2 were run.
func TestKeepsRefused_knowsTheReleases(t *testing.T) {
	for v, want := range map[string]bool{
		"1.7.35": false, "2.0.0": true, "2.0.14": true, "2.1.9": true, "2.2.5": true, "2.2.6": false, "2.2.9": false,
		"2.3.0": true, "2.3.2": true, "2.3.3": false, "2.4.2": false, "v2.1.6-k3s1": true, "unknown": false,
	} {
		if keepsRefused(v) != want {
			t.Errorf("containerd %s: %t", v, !want)
		}
	}
}
