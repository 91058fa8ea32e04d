package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"istio-pod-network-controller/controllers"
)

// runOptions are run's flags.
type runOptions struct {
	intentFlags
	entranceFlags
	nodeName        string
	daemonSet       string
	runtime         string
	runtimeEndpoint string
	backend         string
	healthAddr      string
	metricsAddr     string
	logLevel        string
	sweepInterval   time.Duration
	startupTaint    bool

	level  slog.Level
	health *health
}

func (o *runOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.nodeName, "node-name", "", "name of the node whose pods are looked after (required)")
	fs.StringVar(&o.config.AgentNamespace, "agent-namespace", "", "namespace of the agent itself, whose pods are never ours")
	fs.StringVar(&o.daemonSet, "daemonset", "", "the DaemonSet of the agent itself; when it is gone, so is the CNI entry. Empty means that the entry stays")
	fs.StringVar(&o.runtime, "runtime", "auto", "container runtime: auto, containerd, crio or docker")
	fs.StringVar(&o.runtimeEndpoint, "runtime-endpoint", "", "socket of the container runtime; empty means the usual paths")
	addBackendFlag(fs, &o.backend)
	fs.StringVar(&o.healthAddr, "health-addr", defaultHealthAddr, "where /healthz and /readyz are served: unix:///PATH, HOST:PORT, or 0 for nowhere")
	fs.StringVar(&o.metricsAddr, "metrics-addr", ":15079", "address of /metrics, 0 for none")
	fs.StringVar(&o.logLevel, "log-level", "info", "debug, info or error")
	fs.DurationVar(&o.sweepInterval, "sweep-interval", time.Minute, "how often programmed pods are compared with the kernel, 0 for never")
	fs.BoolVar(&o.startupTaint, "startup-taint", false, "take the taint "+controllers.KeyStartupTaint+" off the agent's node once the agent is ready")
	o.entranceFlags.add(fs)
	o.intentFlags.add(fs)
}

// untouched are the namespaces whose pods pass whatever state the agent is in: those that are excluded, and its own.
func (o *runOptions) untouched() []string {
	out := slices.Clone(o.config.ExcludedNamespaces)
	if o.config.AgentNamespace != "" {
		out = append(out, o.config.AgentNamespace)
	}
	return out
}

// Validate names every fault at once.
func (o *runOptions) Validate() error {
	var errs []error
	if o.nodeName == "" {
		errs = append(errs, errors.New("--node-name: required"))
	}
	if faults := validation.IsDNS1123Subdomain(o.daemonSet); o.daemonSet != "" && len(faults) > 0 {
		errs = append(errs, fmt.Errorf("--daemonset: value %q: %s", o.daemonSet, strings.Join(faults, "; ")))
	}
	if o.daemonSet != "" && o.config.AgentNamespace == "" {
		errs = append(errs, fmt.Errorf("--daemonset: value %q: --agent-namespace must say where it is", o.daemonSet))
	}
	switch o.runtime {
	case "auto", "containerd", "crio", "docker":
	default:
		errs = append(errs, fmt.Errorf("--runtime: value %q: want auto, containerd, crio or docker", o.runtime))
	}
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "error": slog.LevelError}
	level, ok := levels[o.logLevel]
	if !ok {
		errs = append(errs, fmt.Errorf("--log-level: value %q: want debug, info or error", o.logLevel))
	}
	o.level = level
	if health, err := newHealth(o.healthAddr); err != nil {
		errs = append(errs, fmt.Errorf("--health-addr: value %q: want unix:///PATH, HOST:PORT, or 0 for none: %w", o.healthAddr, err))
	} else {
		o.health = health
	}
	if _, _, err := net.SplitHostPort(o.metricsAddr); err != nil && o.metricsAddr != "0" {
		errs = append(errs, fmt.Errorf("--metrics-addr: value %q: want HOST:PORT, or 0 for none: %w", o.metricsAddr, err))
	}
	if o.sweepInterval < 0 {
		errs = append(errs, fmt.Errorf("--sweep-interval: value %q: want 0 or more", o.sweepInterval))
	}
	errs = append(errs, validateBackend(o.backend), o.entranceFlags.validate(), o.intentFlags.validate())
	return errors.Join(errs...)
}
