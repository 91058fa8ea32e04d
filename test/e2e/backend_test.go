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

// redirectTo is what a rule says that leads to a port.
func redirectTo(port string) string {
	if backend() == iptables {
		return "-j REDIRECT --to-ports " + port
	}
	return "redirect to :" + port
}

func checkBackend() error {
	if !slices.Contains([]string{nftables, iptables}, backend()) {
		return fmt.Errorf("E2E_BACKEND=%s: want %s or %s", backend(), nftables, iptables)
	}
	return nil
}
