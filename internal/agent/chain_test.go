package agent

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/client-go/tools/events"

	"istio-pod-network-controller/runtime/cniinstall"
)

// The node's administrator looks at the node, not into the log of one of its pods.
func TestTroubleWithTheChainIsAnEventOnTheNode(t *testing.T) {
	recorder := events.NewFakeRecorder(10)
	tell := nodeEvents(recorder, "node1")
	for _, kind := range []cniinstall.EventKind{cniinstall.BinaryPlaced, cniinstall.Chained, cniinstall.Repaired, cniinstall.Waiting} {
		tell(cniinstall.Event{Kind: kind, Path: "/etc/cni/net.d/10-net.conflist", Err: errors.New("none")})
	}
	tell(cniinstall.Event{Kind: cniinstall.Contended, Path: "/etc/cni/net.d/10-net.conflist", Err: errors.New("another project")})
	if got := <-recorder.Events; !strings.HasPrefix(got, "Warning CNIChainContended /etc/cni/net.d/10-net.conflist: another project") {
		t.Errorf("event %q", got)
	}
	if n := len(recorder.Events); n != 0 {
		t.Errorf("%d events of what is in order", n)
	}
}
