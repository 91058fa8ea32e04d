package profile

import (
	"slices"
	"testing"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/sidecars/istio"
)

// The rules know a proxy by its user, and one that runs as root by its group.
func TestManagedProxy_mode_choosesUserOrGroup(t *testing.T) {
	spec := Spec{RunAsUser: 7000, RunAsGroup: 7001}
	p := &Version{Name: "edge", Spec: spec}
	if got := p.ManagedProxy(); got.UID != 7000 || got.GID != 0 || got.Transparent {
		t.Errorf("%+v", got)
	}
	p.Spec.Transparent = true
	if got := p.ManagedProxy(); got.UID != 0 || got.GID != 7001 || !got.Transparent {
		t.Errorf("%+v", got)
	}
	p.Spec.Transparent, p.Spec.Shared = false, &Reload{}
	if got := p.ManagedProxy(); got.UID != 0 || got.GID != 7001 || got.Transparent || got.Profile != "edge" {
		t.Errorf("%+v", got)
	}
}

// Istio's proxy has ports that others call.
func TestManagedProxy_istio_portsOfOthersAreExcluded(t *testing.T) {
	p := &Version{Name: "istio", Spec: Spec{Istio: &istio.ControlPlane{}, Network: v1alpha1.Network{ExcludeInboundPorts: []int32{9000}}}}
	if got := p.ManagedProxy(); !slices.Equal(got.ExcludeInboundPorts, []uint16{9000, 15020, 15021, 15090}) {
		t.Errorf("%+v", got)
	}
}
