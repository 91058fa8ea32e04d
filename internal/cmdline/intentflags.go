package cmdline

import (
	"errors"
	"fmt"
	"net/netip"
	"path"

	"github.com/spf13/pflag"

	"istio-pod-network-controller/internal/intent"
)

// IntentFlags are the flags that decide what pods ask for. `run` and `rules` share them.
type IntentFlags struct {
	selection  string
	clusterDNS []string
	Config     intent.Config
}

// Add adds the flags.
func (f *IntentFlags) Add(fs *pflag.FlagSet) {
	d, std := &f.Config.Defaults, intent.StandardDefaults()
	fs.StringVar(&f.selection, "select", string(intent.SelectAnnotation),
		"which pods are redirected: annotation ("+intent.KeyInitialize+"), injected (those that Istio's CNI plugin would redirect), or either")
	fs.StringSliceVar(&f.Config.ExcludedNamespaces, "exclude-namespaces", []string{"kube-system"}, "namespaces whose pods are never redirected")
	fs.StringSliceVar(&f.Config.UnsupportedHandlers, "unsupported-runtime-handlers", []string{"kata*", "runsc*", "gvisor*"},
		"shell patterns of runtime handlers whose pods do not use the host kernel's network")
	fs.StringSliceVar(&f.clusterDNS, "cluster-dns", nil,
		"name servers of pods that use the cluster's, for "+intent.KeyDNSCapture+"=resolv.conf if the runtime does not report those of a sandbox")
	for _, s := range []struct {
		to             *string
		name, std, use string
	}{
		{&d.InterceptionMode, "interception-mode", std.InterceptionMode, "how inbound traffic reaches the proxy: REDIRECT, TPROXY, or NONE for no rules at all"},
		{&d.IncludeOutboundIPRanges, "include-outbound-ip-ranges", std.IncludeOutboundIPRanges, "CIDRs whose traffic goes to the proxy, * for all"},
		{&d.ExcludeOutboundIPRanges, "exclude-outbound-ip-ranges", std.ExcludeOutboundIPRanges, "CIDRs whose traffic stays direct"},
		{&d.IncludeInboundPorts, "include-inbound-ports", std.IncludeInboundPorts, "inbound ports that go to the proxy, * for all"},
		{&d.InboundPorts, "inbound-ports", std.InboundPorts, "all of the included inbound ports, or listening for those on which somebody listens when a connection is opened"},
		{&d.ExcludeInboundPorts, "exclude-inbound-ports", std.ExcludeInboundPorts, "inbound ports that stay direct, where all are included"},
		{&d.IncludeOutboundPorts, "include-outbound-ports", std.IncludeOutboundPorts, "outbound ports that go to the proxy whatever their address"},
		{&d.ExcludeOutboundPorts, "exclude-outbound-ports", std.ExcludeOutboundPorts, "outbound ports that stay direct"},
		{&d.EnvoyPort, "envoy-port", std.EnvoyPort, "port on which the proxy takes outbound traffic"},
		{&d.EnvoyInboundPort, "envoy-inbound-port", std.EnvoyInboundPort, "port on which the proxy takes inbound traffic"},
		{&d.IPv6, "ipv6", std.IPv6, "capture, or direct to leave IPv6 alone where proxies have no listeners for it"},
		{&d.EnvoyTunnelPort, "envoy-tunnel-port", std.EnvoyTunnelPort, "port of the proxy's tunnel (HBONE), never redirected"},
	} {
		fs.StringVar(s.to, s.name, s.std, s.use+"; pods may say otherwise")
	}
}

// Validate completes the configuration and returns an error that names every invalid flag.
func (f *IntentFlags) Validate() error {
	f.Config.Select, f.Config.ClusterDNS = intent.Selection(f.selection), nil
	errs := []error{OneOf("select", f.selection, string(intent.SelectAnnotation), string(intent.SelectInjected), string(intent.SelectEither))}
	for _, item := range f.clusterDNS {
		a, err := netip.ParseAddr(item)
		if err != nil {
			errs = append(errs, fmt.Errorf("--cluster-dns: value %q: want IP addresses", item))
			continue
		}
		f.Config.ClusterDNS = append(f.Config.ClusterDNS, a.Unmap())
	}
	for _, pattern := range f.Config.UnsupportedHandlers {
		if _, err := path.Match(pattern, ""); err != nil {
			errs = append(errs, fmt.Errorf("--unsupported-runtime-handlers: value %q: %w", pattern, err))
		}
	}
	return errors.Join(append(errs, f.Config.Defaults.Validate())...)
}
