package e2e

import (
	"fmt"
	"os"
	"slices"
)

// backend is what programs the kernel in this run; hack/e2e.sh installs the agent with it, and says so by E2E_BACKEND.
func backend() string {
	if name := os.Getenv("E2E_BACKEND"); name != "" {
		return name
	}
	return nftables
}

// The backends.
const (
	nftables = "nftables"
	iptables = "iptables"
)

func checkBackend() error {
	if !slices.Contains([]string{nftables, iptables}, backend()) {
		return fmt.Errorf("E2E_BACKEND=%s: want %s or %s", backend(), nftables, iptables)
	}
	return nil
}
