package cluster

import (
	"path/filepath"
	"testing"

	"istio-pod-network-controller/hack/cluster/internal/layout"
)

func TestRestoreSysctlsLeavesEqualValuesAlone(t *testing.T) {
	saved, err := readSysctls()
	if err != nil || len(saved) == 0 {
		t.Fatalf("read %v, %v", saved, err)
	}
	// Nothing differs, so nothing is written: an ordinary user may do it.
	if err := restoreSysctls(saved); err != nil {
		t.Error(err)
	}
}

func testLayout() layout.Layout {
	return layout.Layout{Source: "/source", Cache: "/cache", Run: filepath.Join("/", "run", "cluster")}
}
