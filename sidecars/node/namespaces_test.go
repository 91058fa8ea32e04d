package node

import (
	"testing"

	"istio-pod-network-controller/iptables/kernel"
)

func namespaces(t *testing.T) kernel.Namespaces {
	t.Helper()
	in, err := kernel.NewNamespaces()
	if err != nil {
		t.Fatal(err)
	}
	return in
}
