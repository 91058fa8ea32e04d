package agent

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"istio-pod-network-controller/internal/intent"
)

// Values of NRI.Mode.
const (
	NRIAuto     = "auto"
	NRIRequired = "required"
	NRIOff      = "off"
)

// Values of Options.CNI.
const (
	CNIOff       = "off"
	CNIInstall   = "install"
	CNIUninstall = "uninstall"
)

// Options are the settings of Run. agent/cli has a flag for each and describes it.
type Options struct {
	NodeName string
	// PodName is the agent's own pod, in Intent.AgentNamespace. The agent writes its status there; if empty, nowhere.
	PodName string
	// DaemonSet is the agent's own. When it is deleted, the CNI entry is removed. If empty, the entry stays.
	DaemonSet string
	Intent    intent.Config
	// Runtime is auto, containerd, crio or docker; an empty RuntimeEndpoint means the usual paths.
	Runtime, RuntimeEndpoint string
	// PodsFrom is kubelet.Auto, kubelet.Kubelet or kubelet.API: where the pods of the node come from. KubeletSocket is where the kubelet serves them.
	PodsFrom, KubeletSocket string
	Backend                 string
	// ReadAsNode has the agent read pods and its Node as its node: see controllers.AsNode.
	ReadAsNode bool
	// KeepDir is a directory of the node in which the agent keeps what it needs for a start while the API server is away; empty: nowhere.
	KeepDir string
	// HealthAddr is unix:///PATH, HOST:PORT, or 0; MetricsAddr and PprofAddr are HOST:PORT, or 0.
	HealthAddr, MetricsAddr, PprofAddr string
	// InspectAddr is HOST:PORT, or 0: where callers who may get a pod are told what is programmed in it.
	InspectAddr string
	// MetricsSecure serves /metrics over TLS, and only to callers that the API server lets read it. MetricsCertDir has tls.crt and tls.key;
	// if it is empty, or they are missing, the certificate is self-signed.
	MetricsSecure  bool
	MetricsCertDir string
	VerifyInterval time.Duration
	// StartupTaint has the agent remove the taint StartupTaintKey from its node once it is ready.
	StartupTaint    bool
	StartupTaintKey string
	// Sidecars has the agent run the proxies of pods that choose a ProxyProfile. SidecarRoot is the directory in memory for their
	// files, at the same path for the agent and the runtime. SidecarSecrets is the directory with a volume for each Secret that profiles
	// may name.
	Sidecars                                     bool
	SidecarRoot, SidecarSecrets, SidecarProfiles string
	// SharedRoot is the directory in memory for the configuration of the proxies that the node's pods share, at the same path for the agent
	// and the kubelet. If it is empty, there are none.
	SharedRoot string
	// RequireProxies has NRI and the CNI chain refuse pods that have chosen a ProxyProfile and cannot have its proxy.
	RequireProxies bool
	// SidecarTokenAudiences are the audiences for which the agent may ask for tokens of pods. If there is none, it has no right to.
	SidecarTokenAudiences []string

	NRI NRI
	// CNI is CNIOff, CNIInstall or CNIUninstall. Chain says where and how the plugin is installed.
	CNI   string
	Chain Chain
	// FailOpen lets pods start whose rules could not be applied in time.
	FailOpen bool
	Build    Build
}

// ValidateInspectAddr returns an error for an address that Options.InspectAddr cannot be.
func ValidateInspectAddr(addr string) error {
	if addr == "0" {
		return nil
	}
	_, service, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	if port, err := strconv.ParseUint(service, 10, 16); err != nil || port == 0 {
		return fmt.Errorf("port %q: want a number from 1 to 65535", service)
	}
	return nil
}

// Build says what the program was built from.
type Build struct{ Version, Revision string }

// NRI is how the agent connects to the runtime's NRI. Mode is NRIAuto, NRIRequired or NRIOff.
type NRI struct{ Mode, Socket, Name, Index string }

// passNamespaces returns the namespaces whose pods always pass, even before the agent knows its pods: excluded ones and its own.
func (o Options) passNamespaces() []string {
	out := slices.Clone(o.Intent.ExcludedNamespaces)
	if o.Intent.AgentNamespace != "" {
		out = append(out, o.Intent.AgentNamespace)
	}
	return out
}
