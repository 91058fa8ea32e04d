package node

import (
	"testing"

	"istio-pod-network-controller/api/v1alpha1"
)

// The rules know a proxy by its user, and one that runs as root by its group.
func TestManagedProxy_mode_choosesUserOrGroup(t *testing.T) {
	spec := v1alpha1.ProxyProfileSpec{RunAsUser: 7000, RunAsGroup: 7001}
	if got := managedProxy("edge", spec); got.UID != 7000 || got.GID != 0 || got.Transparent {
		t.Errorf("%+v", got)
	}
	spec.Network.Transparent = true
	if got := managedProxy("edge", spec); got.UID != 0 || got.GID != 7001 || !got.Transparent {
		t.Errorf("%+v", got)
	}
	spec.Network.Transparent, spec.Mode = false, v1alpha1.ModeShared
	if got := managedProxy("edge", spec); got.UID != 0 || got.GID != 7001 || got.Transparent || got.Profile != "edge" {
		t.Errorf("%+v", got)
	}
}
