package agent

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/client-go/tools/events"

	"istio-pod-network-controller/runtime/cniinstall"
)

// An event of a node is made of each fault, and of nothing else, and all are described.
func TestFaultsOfTheChainBecomeEventsThatAreDescribed(t *testing.T) {
	described := map[string]bool{}
	nodes, _ := EventReasons()
	for _, r := range nodes {
		described[r.Name] = r.Type != "" && r.Means != "" && r.Do != ""
	}
	for kind, fault := range map[cniinstall.EventKind]bool{
		cniinstall.BinaryPlaced: false, cniinstall.Chained: false, cniinstall.Repaired: false, cniinstall.Removed: false,
		cniinstall.OtherBinary: true, cniinstall.Waiting: true, cniinstall.Contended: true, cniinstall.Failed: true, cniinstall.NotCalled: true, cniinstall.Leftover: true,
	} {
		recorder := events.NewFakeRecorder(1)
		nodeEvents(recorder, "node1")(cniinstall.Event{Kind: kind, Path: "/etc/cni/net.d/10-x.conflist", Err: errors.New("x")})
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
