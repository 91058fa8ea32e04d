package commands

import (
	"strings"
	"testing"
)

// What is invalid has one message: the error. Whether other settings have an effect is not known then.
func TestExplain_invalidValue_isNotAlsoWithoutEffect(t *testing.T) {
	for _, wrong := range []string{
		`istio-pod-network-controller/initialize: "yes"`,
		`istio-pod-network-controller/initialize: "true", traffic.sidecar.istio.io/excludeInboundPorts: "http"`,
		`istio-pod-network-controller/initialize: "true", sidecar.istio.io/interceptionMode: "TROXY"`,
	} {
		pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: ns, annotations: {" + wrong + `, traffic.sidecar.istio.io/includeOutboundPorts: "80"}}` +
			"\nspec: {containers: [{name: istio-proxy, image: x}]}\n"
		code, out, _ := call(t, pod, "explain", "-f", "-")
		if code != 1 || !strings.Contains(out, "invalid") || strings.Contains(out, "without effect") {
			t.Errorf("%s: exit code %d\n%s", wrong, code, out)
		}
	}
}
