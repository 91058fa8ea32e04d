package kernel

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// hopTime is how long the backend works beside a process that changes namespaces.
const hopTime = 3 * time.Second

// A path that leads to a process's namespace leads elsewhere whenever the process goes. Whatever moment it chooses, in the host's namespace and in that of
// another pod nothing is written.
func TestBackend_processHopsBetweenNamespaces_onlyItsOwnIsWritten(t *testing.T) {
	own, other, host := kerneltest.New(t), kerneltest.New(t), hostNamespace(t)
	c, err := NewChoice(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	want, err := iptables.Rules(iptables.DefaultSpec())
	if err != nil {
		t.Fatal(err)
	}
	before := hostTables(t)
	e, path := c.Nftables(t.Context()), kerneltest.Hop(t, host, own, other)
	place := podnet.Place{Path: path}
	if place.Identity, err = own.Identity(); err != nil {
		t.Fatal(err)
	}
	did := map[string]int{}
	for began := time.Now(); time.Since(began) < hopTime; {
		_, errApply := e.Apply(t.Context(), place, want)
		_, errRemove := e.Remove(t.Context(), place)
		for what, err := range map[string]error{"applied": errApply, "removed": errRemove} {
			switch {
			case err == nil:
				did[what]++
			case errors.Is(err, netns.ErrHost):
				did["refused the host's"]++
			case errors.Is(err, podnet.ErrGone):
				did["refused another's"]++
			default:
				t.Fatal(err)
			}
		}
		if present, err := e.Present(t.Context(), podnet.Place{Path: other.Path()}); present || err != nil {
			t.Fatalf("another pod's namespace has rules: %t, %v", present, err)
		}
	}
	t.Logf("%v", did)
	if len(did) != 4 {
		t.Errorf("the test shows nothing: %v", did)
	}
	if after := hostTables(t); after != before {
		t.Errorf("the host has\n%s\nwant\n%s", after, before)
	}
}

// hostNamespace opens the test's own namespace.
func hostNamespace(t *testing.T) *netns.NS {
	t.Helper()
	ns, err := netns.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// hostTables lists what of ours is in the test's own namespace.
func hostTables(t *testing.T) (ours string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), kerneltest.ProgramPath(t, "nft"), "list", "tables").CombinedOutput()
	if err != nil {
		t.Fatalf("list tables: %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, iptables.TableName) {
			ours += line
		}
	}
	return ours
}
