package nri

import (
	"context"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	"istio-pod-network-controller/internal/podnet"
)

// A path that may lead elsewhere than it seems is not used. A missing path does not mean the host's namespace.
func TestTheNetworkNamespaceOfAnEvent(t *testing.T) {
	network := func(path string) func(*api.PodSandbox) {
		return func(p *api.PodSandbox) { p.Linux.Namespaces[1].Path = path }
	}
	for name, c := range map[string]struct {
		change func(*api.PodSandbox)
		asked  bool
		netns  string
	}{
		"a path":              {network("/run/netns/a"), true, "/run/netns/a"},
		"an empty path":       {network(""), true, ""},
		"a relative path":     {network("run/netns/a"), true, ""},
		"a path that climbs":  {network("/var/run/netns/x/../host"), true, ""},
		"a name with dots":    {network("/run/netns/a..b"), true, "/run/netns/a..b"},
		"the host's":          {network("/var/run/netns/host"), false, ""},
		"none of the network": {func(p *api.PodSandbox) { p.Linux.Namespaces = p.Linux.Namespaces[:1] }, false, ""},
		"no namespaces":       {func(p *api.PodSandbox) { p.Linux.Namespaces = nil }, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p, h := newTestPlugin(nil)
			if err := p.RunPodSandbox(t.Context(), event(c.change)); err != nil {
				t.Fatal(err)
			}
			if (len(h.asked) == 1) != c.asked || c.asked && h.asked[0].NetNS != c.netns {
				t.Errorf("asked %v", h.asked)
			}
		})
	}
}

// A pod that the event shows on the host's network is handled if the API server says otherwise.
func TestTheAPIServerDecidesWhetherAPodIsOnTheHostsNetwork(t *testing.T) {
	shapes := map[string]func(*api.PodSandbox){
		"by a path":     func(p *api.PodSandbox) { p.Linux.Namespaces[1].Path = "/var/run/netns/host" },
		"by no network": func(p *api.PodSandbox) { p.Linux.Namespaces = p.Linux.Namespaces[:1] },
	}
	for shape, change := range shapes {
		for answer, c := range map[string]struct{ hostNetwork, known, asked bool }{
			"it is":         {true, true, false},
			"it is not":     {false, true, true},
			"it is unknown": {false, false, false},
		} {
			t.Run(shape+", "+answer, func(t *testing.T) {
				p, h := newTestPlugin(func(config *Config) {
					config.HostNetwork = func(ctx context.Context, s podnet.Sandbox) (bool, bool) {
						if end, ok := ctx.Deadline(); !ok || time.Until(end) > hostNetworkTimeout || s.UID != "uid-1" {
							t.Errorf("asked for %v until %s", s, end)
						}
						return c.hostNetwork, c.known
					}
				})
				if err := p.RunPodSandbox(t.Context(), event(change)); err != nil || (len(h.asked) == 1) != c.asked {
					t.Fatalf("error %v, asked %v", err, h.asked)
				}
				if c.asked && h.asked[0].NetNS != "" {
					t.Errorf("the host's namespace is handed on: %v", h.asked)
				}
			})
		}
	}
}
