// Package samples holds manifests for the cluster; its tests run what they promise.
package samples

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"istio-pod-network-controller/hack/cluster/internal/kerneltest"
)

const haproxy = "/usr/sbin/haproxy"

func TestHAProxySendsRedirectedConnectionsToTheirDestination(t *testing.T) {
	kerneltest.File(t, haproxy)
	p := kerneltest.NewPod(t)
	log := p.Run(t, nil, haproxy, "-db", "-f", configFile(t, "haproxy-config.yaml"))
	p.Serve(t, true, 8080)
	p.Serve(t, false, 8080)
	pods, worlds := p.Addrs()
	pod, world := netip.AddrPortFrom(pods[0], 8080), netip.AddrPortFrom(worlds[0], 8080)

	peer, local, err := p.Ask(t, true, world)
	if err != nil || peer.Addr() != pod.Addr() || local != world {
		t.Errorf("outbound: the world saw %s -> %s, %v", peer, local, err)
	}
	waitForLine(t, log, "outbound ", fmt.Sprintf("original-dst=%s ", world))

	peer, local, err = p.Ask(t, false, pod)
	if err != nil || peer.Addr() != netip.MustParseAddr("127.0.0.6") || local != pod {
		t.Errorf("inbound: the application saw %s -> %s, %v", peer, local, err)
	}
	waitForLine(t, log, "inbound ", fmt.Sprintf("original-dst=%s ", pod))

	own := netip.AddrPortFrom(pod.Addr(), 15001)
	if _, _, err := p.Ask(t, false, own); err == nil {
		t.Error("a connection to the proxy itself was answered")
	}
	waitForLine(t, log, "inbound ", fmt.Sprintf("original-dst=%s state=PR", own))

	if _, _, err := p.Ask(t, true, netip.AddrPortFrom(worlds[1], 8080)); err == nil {
		t.Error("a redirected IPv6 connection was answered: HAProxy cannot know where it was going")
	}
}

func TestTransparentHAProxyKeepsTheClientsAddress(t *testing.T) {
	kerneltest.File(t, haproxy)
	p := kerneltest.NewTransparentPod(t)
	log := p.Run(t, nil, haproxy, "-db", "-f", configFile(t, "haproxy-tproxy-config.yaml"))
	p.Serve(t, true, 8080)
	p.Serve(t, false, 8080)
	pods, worlds := p.Addrs()
	for i, client := range p.WorldAddrs() {
		pod := netip.AddrPortFrom(pods[i], 8080)
		peer, local, err := p.Ask(t, false, pod)
		if err != nil || peer.Addr() != client || local != pod {
			t.Errorf("inbound: the application saw %s -> %s, %v; want %s -> %s", peer, local, err, client, pod)
		}
		waitForLine(t, log, fmt.Sprintf("inbound peer=%s:", client), fmt.Sprintf("original-dst=%s:8080 state=--", pod.Addr()))
	}
	world := netip.AddrPortFrom(worlds[0], 8080)
	peer, local, err := p.Ask(t, true, world)
	if err != nil || peer.Addr() != pods[0] || local != world {
		t.Errorf("outbound: the world saw %s -> %s, %v", peer, local, err)
	}
	waitForLine(t, log, "outbound ", fmt.Sprintf("original-dst=%s ", world))
}

// configFile writes out the configuration that the manifest holds, where the proxy's user can read it.
func configFile(t *testing.T, manifestFile string) string {
	t.Helper()
	text, err := os.ReadFile(manifestFile)
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct{ Data map[string]string }
	if err := yaml.Unmarshal(text, &manifest); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(file, []byte(manifest.Data["haproxy.cfg"]), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func waitForLine(t *testing.T, log, prefix, part string) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); ; {
		text, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, prefix) && strings.Contains(line, part) {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Errorf("no line %q with %q", prefix, part)
			return
		}
	}
}
