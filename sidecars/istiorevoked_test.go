package sidecars

import (
	"errors"
	"os"
	"testing"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
)

// The list of revoked certificates may be missing, come, change and go, within the directory of the root certificate.
func TestIstio_revokedCertificates_comeAndGo(t *testing.T) {
	meshedly(t, nil, func(t *testing.T, n *fakeNode, _ func() (*Manager, func()), _ *Manager) {
		const list = "/var/run/secrets/istio/crl/ca-crl.pem"
		n.mustSay(t, "u1", v1alpha1.Running, true)
		for _, text := range []string{"revoked-1", "revoked-2", ""} {
			n.change(func() {
				if n.meshed.revoked = map[string][]byte{"ca-crl.pem": []byte(text)}; text == "" {
					n.meshed.revoked = nil
				}
			})
			n.after(20 * time.Second)
			got, err := os.ReadFile(n.host(t, list, true))
			if string(got) != text || errors.Is(err, os.ErrNotExist) != (text == "") {
				t.Errorf("the proxy reads %q, %v; want %q", got, err, text)
			}
			n.mustRead(t, "/var/run/secrets/istio/root-cert.pem", "root-1")
		}
		if said := n.mustSay(t, "u1", v1alpha1.Running, true); said.Message != "" || len(n.containers) != 1 {
			t.Errorf("%d proxies, the ManagedProxy says %+v", len(n.containers), said)
		}
	})
}
