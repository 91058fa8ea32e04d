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
	defaults   map[string]*string // by flag
	Config     intent.Config
}

// Add adds the flags.
func (f *IntentFlags) Add(fs *pflag.FlagSet) {
	f.defaults = map[string]*string{}
	fs.StringVar(&f.selection, "select", string(intent.SelectAnnotation),
		"which pods are redirected: annotation ("+intent.KeyInitialize+"), injected (those that Istio's CNI plugin would redirect), or either")
	fs.StringSliceVar(&f.Config.ExcludedNamespaces, "exclude-namespaces", []string{"kube-system"}, "namespaces whose pods are never redirected")
	fs.StringSliceVar(&f.Config.UnsupportedHandlers, "unsupported-runtime-handlers", []string{"kata*", "runsc*", "gvisor*"},
		"shell patterns of runtime handlers whose pods do not use the host kernel's network")
	fs.StringSliceVar(&f.clusterDNS, "cluster-dns", nil,
		"name servers of pods that use the cluster's, for "+intent.KeyDNSCapture+"=resolv.conf if the runtime does not report those of a sandbox")
	for _, s := range [][2]string{
		{"interception-mode", "how inbound traffic reaches the proxy: REDIRECT, TPROXY, or NONE for no rules at all"},
		{"include-outbound-ip-ranges", "CIDRs whose traffic goes to the proxy, * for all"},
		{"exclude-outbound-ip-ranges", "CIDRs whose traffic stays direct"},
		{"include-inbound-ports", "inbound ports that go to the proxy, * for all"},
		{"inbound-ports", "all of the included inbound ports, or listening for those with a listener at the opening of a connection"},
		{"exclude-inbound-ports", "inbound ports that stay direct, where all are included"},
		{"include-outbound-ports", "outbound ports that go to the proxy whatever their address"},
		{"exclude-outbound-ports", "outbound ports that stay direct"},
		{"envoy-port", "port on which the proxy takes outbound traffic"},
		{"envoy-inbound-port", "port on which the proxy takes inbound traffic"},
		{"ipv6", "capture, or direct to leave IPv6 alone where proxies have no listeners for it"},
		{"hold-seconds", "seconds that new connections wait for a proxy that does not listen, 0 for none"},
		{"envoy-tunnel-port", "port of the proxy's tunnel (HBONE), never redirected"},
	} {
		f.defaults[s[0]] = fs.String(s[0], intent.StandardDefaults()[s[0]], s[1]+"; pods may say otherwise")
	}
	f.defaults[intent.SettingForeignRules] = fs.String(intent.SettingForeignRules, intent.StandardDefaults()[intent.SettingForeignRules],
		"what becomes of a pod in which foreign rules may decide about packets before ours: fail, or warn, which leaves it ready with a warning; "+
			"namespaces may say otherwise ("+intent.KeyForeignRules+")")
}

// Validate completes the configuration and returns an error that names every invalid flag.
func (f *IntentFlags) Validate() error {
	f.Config.Select, f.Config.ClusterDNS, f.Config.Defaults = intent.Selection(f.selection), nil, intent.Defaults{}
	for flag, value := range f.defaults {
		f.Config.Defaults[flag] = *value
	}
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
