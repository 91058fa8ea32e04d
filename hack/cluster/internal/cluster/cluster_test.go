package cluster

import (
	"testing"

	"istio-pod-network-controller/hack/cluster/internal/layout"
)

func TestCheckCache_directoryThatTheNodeHasItself_isRefused(t *testing.T) {
	for cache, want := range map[string]bool{
		"/root/.cache/kit": true, "/var/cache/kit": true, "/runs/kit": true,
		"/run/kit": false, "/var/run/kit": false, "/var/lib/ci/.cache/kit": false, "/opt": false, "/etc/kit": false,
	} {
		c := &Cluster{Layout: layout.Layout{Cache: cache}}
		if err := c.checkCache(); (err == nil) != want {
			t.Errorf("%s: %v", cache, err)
		}
	}
}
