package agent

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/kernel"
	"istio-pod-network-controller/runtime/nri"
	"istio-pod-network-controller/test/kerneltest"
	"istio-pod-network-controller/test/realruntimes"
)

// leftOut are patterns of the names of critest's tests that are not run, each with the reason.
func leftOut() map[string]string {
	return map[string]string{
		"benchmark":                  "they measure",
		"execSync with timeout":      "it runs pgrep, which the image's busybox has not",
		"should support HostIpc":     "they run ipcs, which the image's busybox has not",
		"should support MaskedPaths": "it masks /bin/ls, which in the image is busybox, and so all programs",
	}
}

// unreachable reports whether a test has failed because its image is in a public registry, which the test's network cannot reach: what is tested by it has
// nothing to do with the plugin, and is left out.
func unreachable(spec realruntimes.Spec) bool {
	return spec.State == "failed" && strings.Contains(spec.Message, "failed to pull image") &&
		(strings.Contains(spec.Message, "gcr.io/") || strings.Contains(spec.Message, "registry.k8s.io/"))
}

// programmer gives every sandbox rules.
type programmer struct {
	backend    kernel.Backend
	rules      iptables.Ruleset
	programmed atomic.Int64
}

// Ensure writes the rules.
func (p *programmer) Ensure(ctx context.Context, s podnet.Sandbox) (asked bool, err error) {
	_, err = p.backend.Apply(ctx, s.Place(), p.rules)
	p.programmed.Add(1)
	return true, err
}

// With our plugin registered, a runtime passes its own tests. The plugin programs each sandbox. It is told of each container that ends.
func TestCritest(t *testing.T) {
	if os.Getenv("CRIO") == "" {
		t.Skip("CRIO names no directory with CRI-O: hack/test.sh critest")
	}
	registry := realruntimes.ServeRegistry(t)
	image := func(name, as string, arguments ...string) string {
		return registry.Add(t, filepath.Join(os.Getenv("IMAGES"), name+".tar"), as, arguments...)
	}
	pause, busybox, web := image("pause", "pause"), image("tools", "busybox", "sh"), image("testapp", "web", "serve", "-http", "80")
	realruntimes.Containerds(t, func(t *testing.T, programs string) {
		wantContract(t, realruntimes.StartContainerd(t, programs), busybox, web)
	})
	t.Run("crio", func(t *testing.T) {
		wantContract(t, realruntimes.StartCRIO(t, pause), busybox, web)
	})
}

// wantContract runs critest's tests while the plugin is registered.
func wantContract(t *testing.T, r *realruntimes.Runtime, busybox, web string) {
	t.Helper()
	r.Network(t)
	p := &programmer{backend: allBackends(t)["nftables"], rules: outboundRules(t)}
	ended := runPlugin(t, r, p)
	counts := map[string]int{}
	for _, spec := range r.Critest(t, busybox, web, slices.Collect(maps.Keys(leftOut()))) {
		message, _, _ := strings.Cut(spec.Message, "\n")
		switch {
		case unreachable(spec):
			spec.State = "left out"
			t.Logf("left out, its image is in a public registry: %s", spec.Name)
		case spec.State == "skipped" && message != "":
			t.Logf("skipped: %s: %s", spec.Name, message)
		case spec.State != "passed" && spec.State != "skipped":
			t.Errorf("%s: %s: %s", spec.State, spec.Name, spec.Message)
		}
		counts[spec.State]++
	}
	for pattern, reason := range leftOut() {
		t.Logf("left out: %s: %s", pattern, reason)
	}
	t.Logf("%v; sandboxes programmed %d, containers ended %d", counts, p.programmed.Load(), ended.Load())
	if least := int64(counts["passed"] / 3); least == 0 || p.programmed.Load() < least || ended.Load() < least {
		t.Errorf("the plugin was called for %d sandboxes and the end of %d containers", p.programmed.Load(), ended.Load())
	}
}

// outboundRules capture what a sandbox sends. What it answers would be refused without a proxy.
func outboundRules(t *testing.T) iptables.Ruleset {
	t.Helper()
	spec := iptables.DefaultSpec()
	spec.IncludeInboundPorts = iptables.Ports{}
	rules, err := iptables.Rules(spec)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// runPlugin registers a plugin as the agent does that runs proxies, until the test ends, and returns how many containers have ended.
func runPlugin(t *testing.T, r *realruntimes.Runtime, h nri.Handler) (ended *atomic.Int64) {
	t.Helper()
	ended = &atomic.Int64{}
	hook, err := nri.New(nri.Config{Socket: r.Path("nri.sock"), Handler: h, Stopped: func(context.Context, podnet.Sandbox, nri.Container) error {
		ended.Add(1)
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- hook.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	kerneltest.Eventually(t, "the plugin is registered", hook.Connected)
	return ended
}
