package agent

import (
	"slices"
	"time"

	"istio-pod-network-controller/internal/intent"
)

// What the agent does about NRI.
const (
	NRIAuto     = "auto"
	NRIRequired = "required"
	NRIOff      = "off"
)

// What the agent does about the CNI chain.
const (
	CNIOff       = "off"
	CNIInstall   = "install"
	CNIUninstall = "uninstall"
)

// Options are what Run needs; internal/cli has a flag for each and its words.
type Options struct {
	NodeName string
	// DaemonSet is the agent's own; when it is gone, so is the CNI entry. Empty means that the entry stays.
	DaemonSet string
	Intent    intent.Config
	// Runtime is auto, containerd, crio or docker; an empty RuntimeEndpoint means the usual paths.
	Runtime, RuntimeEndpoint string
	Backend                  string
	// HealthAddr is unix:///PATH, HOST:PORT, or 0; MetricsAddr is HOST:PORT, or 0.
	HealthAddr, MetricsAddr string
	SweepInterval           time.Duration
	StartupTaint            bool

	NRI NRI
	// CNI is CNIOff, CNIInstall or CNIUninstall; Chain says how.
	CNI   string
	Chain Chain
	// FailOpen lets pods start whose rules could not be programmed in time.
	FailOpen bool
	Build    Build
}

// Build is what the program was made from.
type Build struct{ Version, Revision string }

// NRI says how the container runtime asks before a pod's first container. Mode is NRIAuto, NRIRequired or NRIOff.
type NRI struct{ Mode, Socket, Name, Index string }

// untouched are the namespaces whose pods pass whatever state the agent is in: those that are excluded, and its own.
func (o Options) untouched() []string {
	out := slices.Clone(o.Intent.ExcludedNamespaces)
	if o.Intent.AgentNamespace != "" {
		out = append(out, o.Intent.AgentNamespace)
	}
	return out
}
