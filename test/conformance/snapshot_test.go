package conformance

import (
	"os/exec"
	"strings"
	"testing"

	"istio-pod-network-controller/test/kerneltest"
)

// empty matches the lines of iptables' tables without rules, which stay.
const empty = `^(table ip6? (raw|mangle|nat) \{|\s*chain (PREROUTING|OUTPUT) \{|\s*type .*; policy accept;|\s*\}|)$`

// snapshot is all that a backend may not leave behind in the pod: rules of every kind, routes, routing rules, addresses.
func (w world) snapshot(t *testing.T) string {
	t.Helper()
	kerneltest.ProgramPath(t, "nft")
	script := "nft list ruleset | grep -vE '" + empty + `'; cat /proc/self/net/ip_tables_names /proc/self/net/ip6_tables_names 2>/dev/null
ip rule; ip -6 rule; ip route show table 15006 2>/dev/null; ip -6 route show table 15006 2>/dev/null; ip -o addr show lo`
	var out []byte
	err := w.pod().Inside(func() (err error) {
		out, err = exec.CommandContext(t.Context(), "sh", "-c", script+"; true").CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}
