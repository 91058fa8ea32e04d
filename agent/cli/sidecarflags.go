//go:build !nosidecars

package cli

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/pflag"

	"istio-pod-network-controller/agent"
)

// defaultSidecarRoot, defaultSharedRoot and defaultProfiles are where the chart mounts the node's directories. defaultSidecarSecrets is where it mounts the
// Secrets that profiles may name.
const (
	defaultSidecarRoot    = "/run/istio-pod-network-controller/sidecars"
	defaultSharedRoot     = "/run/istio-pod-network-controller/shared"
	defaultProfiles       = "/var/lib/istio-pod-network-controller/profiles"
	defaultSidecarSecrets = "/etc/istio-pod-network-controller/secrets" //nolint:gosec // a path
)

func addSidecarFlags(fs *pflag.FlagSet, o *agent.Options) {
	fs.BoolVar(&o.Sidecars, "sidecars", false, "run the proxies of pods that choose a ProxyProfile, outside the pods' specs")
	fs.BoolVar(&o.RequireProxies, "sidecars-required", false, "do not let pods start that choose a ProxyProfile and cannot have its proxy; without it they start without rules, and are not ready. Needs NRI or the CNI chain")
	fs.StringVar(&o.SidecarRoot, "sidecar-root", defaultSidecarRoot, "directory in memory (tmpfs) for the files of those proxies, at the same path for the agent and the container runtime")
	fs.StringVar(&o.SharedRoot, "shared-root", defaultSharedRoot, "directory in memory (tmpfs) for the configuration of the proxies that the pods of a node share, at the same path for the agent and the kubelet; empty means that pods have proxies of their own only")
	fs.StringVar(&o.SidecarProfiles, "sidecar-profiles", defaultProfiles, "directory on disk for the version of each profile that has become ready on the node, from which proxies are made, also after a start of the node, until a newer one has")
	fs.StringVar(&o.SidecarSecrets, "sidecar-secrets", defaultSidecarSecrets, "directory with a mounted Secret of the agent's namespace in each of its directories, for the images and the proxies of profiles that name it")
	fs.StringSliceVar(&o.SidecarTokenAudiences, "sidecar-token-audiences", nil, "audiences for which profiles may give their proxies tokens of the pods' ServiceAccounts")
}

func validateSidecars(o *agent.Options) error {
	var errs []error
	if o.Sidecars && o.Runtime == "docker" {
		errs = append(errs, errors.New("--sidecars: the runtime docker has no CRI, by which the agent runs proxies: use containerd or crio"))
	}
	dirs := map[string]string{"--sidecar-root": o.SidecarRoot, "--sidecar-secrets": o.SidecarSecrets, "--sidecar-profiles": o.SidecarProfiles}
	if o.SharedRoot != "" {
		dirs["--shared-root"] = o.SharedRoot
	}
	for flag, dir := range dirs {
		if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || filepath.Dir(dir) == dir {
			errs = append(errs, fmt.Errorf("%s: value %q: want the absolute path of a directory", flag, dir))
		}
	}
	return errors.Join(errs...)
}
