package agent

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/client-go/tools/events"

	"istio-pod-network-controller/runtime/cni/install"
)

// An event of a node is made of each fault, and of nothing else, and all are described.
func TestFaultsOfTheChainBecomeEventsThatAreDescribed(t *testing.T) {
	described := map[string]bool{}
	for _, r := range EventReasons() {
		described[r.Name] = r.Type != "" && r.Means != "" && r.Do != ""
	}
	for kind, fault := range map[install.EventKind]bool{
		install.BinaryPlaced: false, install.Chained: false, install.Repaired: false, install.Removed: false,
		install.OtherBinary: true, install.Waiting: true, install.Contended: true, install.Failed: true, install.NotCalled: true, install.Leftover: true,
	} {
		recorder := events.NewFakeRecorder(1)
		nodeEvents(recorder, "node1")(install.Event{Kind: kind, Path: "/etc/cni/net.d/10-x.conflist", Err: errors.New("x")})
		close(recorder.Events)
		text, made := <-recorder.Events
		if made != fault {
			t.Errorf("%s: an event was made: %v, want %v", kind, made, fault)
		}
		if made && !described[strings.Fields(text)[1]] {
			t.Errorf("event %q is not described", text)
		}
	}
}
