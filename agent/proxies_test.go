//go:build !nosidecars

package agent

import (
	"strings"
	"testing"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/runtime/cri"
)

// An agent whose runtime serves no CRI says so at its start.
func TestARuntimeWithoutCRIIsRefused(t *testing.T) {
	a := &agent{Options: Options{NodeName: "node-1", Sidecars: true}}
	if _, _, err := addProxies(a, nil, controllers.Reader{}, nil); err == nil || !strings.Contains(err.Error(), "--sidecars needs a container runtime that serves CRI") {
		t.Errorf("error %v", err)
	}
	a.finder, a.SidecarRoot = &cri.Finder{}, "/proc/sidecars"
	if _, _, err := addProxies(a, nil, controllers.Reader{}, nil); err == nil || !strings.Contains(err.Error(), "--sidecar-root") {
		t.Errorf("with directories that cannot be made: error %v", err)
	}
}

// An agent that runs no proxies adds nothing to the manager, watches no profile, and keeps no more of pods and namespaces.
func TestWithoutSidecarsNothingIsAdded(t *testing.T) {
	off := &agent{Options: Options{NodeName: "node-1"}}
	made, join, err := addProxies(off, nil, controllers.Reader{}, nil)
	if made != nil || err != nil || len(proxyKinds(off.Options)) > 0 {
		t.Errorf("added %v, error %v, kinds %v", made, err, proxyKinds(off.Options))
	}
	join(&controllers.Programmer{})
	on := &agent{Options: Options{NodeName: "node-1", Sidecars: true}}
	if without, with := len(off.cache(nil).ByObject), len(on.cache(nil).ByObject); with != without+1 || len(proxyKinds(on.Options)) != 1 {
		t.Errorf("%d kinds have settings, %d without proxies", with, without)
	}
}
