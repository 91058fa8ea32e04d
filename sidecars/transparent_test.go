package sidecars

import (
	"testing"

	"istio-pod-network-controller/api/v1alpha1"
)

// A runtime gives a capability to root only. The proxy's group is then what the rules know it by.
func TestSpec_transparent_isRootWithNetAdmin(t *testing.T) {
	transparent := envoyProfile(t, func(s *v1alpha1.ProxyProfileSpec) {
		s.Network.Transparent, s.RunAsUser, s.RunAsGroup = true, 7000, 7001
	})
	if got := (launch{profile: transparent, pod: thePod()}).spec(home{"/x"}); !got.NetAdmin || got.UID != 0 || got.GID != 7001 {
		t.Errorf("user %d, group %d, NET_ADMIN %t", got.UID, got.GID, got.NetAdmin)
	}
	usual := envoyProfile(t, func(s *v1alpha1.ProxyProfileSpec) { s.RunAsUser, s.RunAsGroup = 7000, 7001 })
	if got := (launch{profile: usual, pod: thePod()}).spec(home{"/x"}); got.NetAdmin || got.UID != 7000 || got.GID != 7001 {
		t.Errorf("user %d, group %d, NET_ADMIN %t", got.UID, got.GID, got.NetAdmin)
	}
}
