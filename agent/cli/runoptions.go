package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"istio-pod-network-controller/agent"
	"istio-pod-network-controller/internal/cmdline"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/iptables/kernel"
	"istio-pod-network-controller/runtime/kubelet"
	"istio-pod-network-controller/runtime/nri"
)

// runOptions are the flags of `run`.
type runOptions struct {
	agent.Options
	cmdline.IntentFlags
	cniFlags cniFlags
	logLevel string

	level slog.Level
}

// agentOptions returns the agent's options; the flags must be valid.
func (o *runOptions) agentOptions() agent.Options {
	out := o.Options
	out.Intent, out.Chain, out.Build = o.Config, o.cniFlags.Chain, agent.Build(cmdline.Build())
	return out
}

func (o *runOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.NodeName, "node-name", "", "name of the node whose pods the agent programs (required)")
	fs.StringVar(&o.Config.AgentNamespace, "agent-namespace", "", "namespace of the agent itself, whose pods are never redirected")
	fs.StringVar(&o.PodName, "pod-name", "", "name of the agent's own pod, on which it writes its status; empty means that it does not")
	fs.StringVar(&o.DaemonSet, "daemonset", "", "the agent's own DaemonSet; an agent that ends after its deletion removes the CNI entry. Empty means that the entry stays")
	fs.StringVar(&o.Runtime, "runtime", "auto", "container runtime: auto, containerd, crio or docker")
	fs.StringVar(&o.RuntimeEndpoint, "runtime-endpoint", "", "socket of the container runtime; empty means the usual paths")
	fs.StringVar(&o.PodsFrom, "pods-from", string(kubelet.Auto), "where the pods of the node come from: kubelet (of Kubernetes 1.37, by its socket), api (the API server), or auto: the kubelet while it serves them")
	fs.StringVar(&o.KubeletSocket, "kubelet-socket", kubelet.DefaultSocket, "where the kubelet serves its pods")
	fs.BoolVar(&o.ReadAsNode, "read-as-node", false, "read pods and the Node at the API server as the agent's node, which is shown its own alone (Kubernetes 1.36)")
	fs.StringVar(&o.KeepDir, "keep-dir", "", "directory of the node in which the agent keeps namespaces and profiles for a start while the API server is away; empty means that it keeps none")
	addBackendFlag(fs, &o.Backend)
	fs.StringVar(&o.HealthAddr, "health-addr", agent.DefaultHealthAddr, "where /healthz, /readyz and /startz are served: unix:///PATH, HOST:PORT, or 0 for nowhere")
	fs.StringVar(&o.MetricsAddr, "metrics-addr", ":15079", "address of /metrics, 0 for none")
	fs.BoolVar(&o.MetricsSecure, "metrics-secure", false, "serve /metrics by TLS, and only to callers whose bearer token may get the path /metrics")
	fs.StringVar(&o.MetricsCertDir, "metrics-cert-dir", "", "directory with tls.crt and tls.key for --metrics-secure, read again when they change; empty means a self-signed certificate")
	fs.StringVar(&o.InspectAddr, "inspect-addr", "0", "where callers who may get a pod are told what is programmed in it (TLS), such as :15078, 0 for nowhere; of the port and the two below, the first that is free")
	fs.StringVar(&o.PprofAddr, "pprof-addr", "0", "address of Go's profiles (/debug/pprof/), 0 for none; they show memory and have no authentication: use 127.0.0.1:PORT")
	fs.StringVar(&o.logLevel, "log-level", "info", "debug, info or error")
	fs.DurationVar(&o.VerifyInterval, "verify-interval", 10*time.Second, "how often the rules of each pod are compared with what they should be, 0 for never")
	addSidecarFlags(fs, &o.Options)
	fs.BoolVar(&o.StartupTaint, "startup-taint", false, "take the startup taint off the agent's node once the agent is ready")
	fs.StringVar(&o.StartupTaintKey, "startup-taint-key", podreport.KeyStartupTaint, "key of that taint")
	o.addHookFlags(fs)
	o.IntentFlags.Add(fs)
}

func addBackendFlag(fs *pflag.FlagSet, value *string) {
	fs.StringVar(value, "backend", kernel.Auto,
		"what programs the kernel: nftables, iptables (which needs the iptables programs), or auto: nftables if the kernel supports it, else iptables")
}

// Validate returns an error that names every invalid flag.
func (o *runOptions) Validate() error {
	var errs []error
	if o.NodeName == "" {
		errs = append(errs, errors.New("--node-name: required"))
	}
	for _, own := range [][2]string{{"daemonset", o.DaemonSet}, {"pod-name", o.PodName}} {
		flag, name := own[0], own[1]
		errs = append(errs, cmdline.ValidName(flag, name, validation.IsDNS1123Subdomain))
		if name != "" && o.Config.AgentNamespace == "" {
			errs = append(errs, fmt.Errorf("--%s: value %q: --agent-namespace must say where it is", flag, name))
		}
	}
	if o.Sidecars && o.Config.AgentNamespace == "" {
		errs = append(errs, errors.New("--sidecars: --agent-namespace must say where the agents' Lease is"))
	}
	errs = append(errs, o.validatePodSource())
	errs = append(errs, cmdline.OneOf("runtime", o.Runtime, "auto", "containerd", "crio", "docker"), cmdline.OneOf("log-level", o.logLevel, "debug", "info", "error"))
	o.level = map[string]slog.Level{"debug": slog.LevelDebug, "error": slog.LevelError}[o.logLevel] // info is 0
	if err := agent.ValidateHealthAddr(o.HealthAddr); err != nil {
		errs = append(errs, fmt.Errorf("--health-addr: value %q: want unix:///PATH, HOST:PORT, or 0 for none: %w", o.HealthAddr, err))
	}
	if _, _, err := net.SplitHostPort(o.MetricsAddr); err != nil && o.MetricsAddr != "0" {
		errs = append(errs, fmt.Errorf("--metrics-addr: value %q: want HOST:PORT, or 0 for none: %w", o.MetricsAddr, err))
	}
	if o.MetricsCertDir != "" && (!o.MetricsSecure || !filepath.IsAbs(o.MetricsCertDir)) {
		errs = append(errs, fmt.Errorf("--metrics-cert-dir: value %q: want an absolute path, together with --metrics-secure", o.MetricsCertDir))
	}
	if _, _, err := net.SplitHostPort(o.PprofAddr); err != nil && o.PprofAddr != "0" {
		errs = append(errs, fmt.Errorf("--pprof-addr: value %q: want HOST:PORT, or 0 for none: %w", o.PprofAddr, err))
	}
	if err := agent.ValidateInspectAddr(o.InspectAddr); err != nil {
		errs = append(errs, fmt.Errorf("--inspect-addr: value %q: want HOST:PORT, or 0 for none: %w", o.InspectAddr, err))
	}
	if o.VerifyInterval != 0 && o.VerifyInterval < time.Second {
		errs = append(errs, fmt.Errorf("--verify-interval: value %q: want 0, or 1s or more", o.VerifyInterval))
	}
	errs = append(errs, validateBackend(o.Backend), validateSidecars(&o.Options), validateTaintKey(o.StartupTaintKey),
		cmdline.OneOf("nri", o.NRI.Mode, agent.NRIAuto, agent.NRIRequired, agent.NRIOff),
		cmdline.OneOf("cni", o.CNI, agent.CNIOff, agent.CNIInstall, agent.CNIUninstall), o.cniFlags.validate(), o.IntentFlags.Validate())
	return errors.Join(errs...)
}

// validatePodSource returns an error that names each invalid flag of where pods come from, and of what is kept.
func (o *runOptions) validatePodSource() error {
	errs := []error{cmdline.OneOf("pods-from", o.PodsFrom, string(kubelet.Auto), string(kubelet.Kubelet), string(kubelet.API))}
	if !filepath.IsAbs(o.KubeletSocket) {
		errs = append(errs, fmt.Errorf("--kubelet-socket: value %q: want an absolute path", o.KubeletSocket))
	}
	if o.KeepDir != "" && !filepath.IsAbs(o.KeepDir) {
		errs = append(errs, fmt.Errorf("--keep-dir: value %q: want an absolute path, or none", o.KeepDir))
	}
	return errors.Join(errs...)
}

// addHookFlags adds the flags for NRI and the CNI chain, and for what happens to a pod whose rules cannot be applied when one of
// them calls.
func (o *runOptions) addHookFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.NRI.Mode, "nri", agent.NRIAuto, "have the container runtime ask before a pod's first container: auto (where it has NRI), required or off")
	fs.StringVar(&o.NRI.Socket, "nri-socket", nri.DefaultSocket, "the runtime's NRI socket")
	fs.StringVar(&o.NRI.Name, "nri-name", nri.DefaultName, "the name by which the runtime knows its plugin")
	fs.StringVar(&o.NRI.Index, "nri-index", nri.DefaultIndex, "two digits by which the runtime orders its NRI plugins")
	fs.BoolVar(&o.FailOpen, "fail-open", false, "let pods start whose rules could not be applied in time; the pod watch tries again")
	fs.StringVar(&o.CNI, "cni", agent.CNIOff, "have the CNI chain ask before a pod's first container: off, install, or uninstall, which removes what install has left on the node")
	o.cniFlags.add(fs)
}

// autoscalers is the domain of the taints by which Cluster Autoscaler knows a node that is still starting.
const autoscalers = "cluster-autoscaler.kubernetes.io"

// validateTaintKey returns an error unless the agent may remove taints with the key. Kubernetes' own taints say that a node is not
// ready or is for special pods: who removes one of them overrules another controller.
func validateTaintKey(key string) error {
	if faults := validation.IsQualifiedName(key); len(faults) > 0 { // an empty key, too
		return fmt.Errorf("--startup-taint-key: value %q: %s", key, strings.Join(faults, "; "))
	}
	domain, _, named := strings.Cut(key, "/")
	if named && within(domain, "kubernetes.io") && !within(domain, autoscalers) {
		return fmt.Errorf("--startup-taint-key: value %q: a taint of Kubernetes itself; want a key of your own, or one below startup-taint.%s/", key, autoscalers)
	}
	return nil
}

// within reports whether domain is parent, or below it.
func within(domain, parent string) bool {
	return domain == parent || strings.HasSuffix(domain, "."+parent)
}
