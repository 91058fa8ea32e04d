package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// PluginType is the plugin's name in a network configuration, and that of its binary.
const PluginType = "istio-pod-network-cni"

// DefaultSocket is where the agent listens by default.
const DefaultSocket = "/var/run/istio-pod-network-controller/cni.sock"

const (
	defaultTimeoutSeconds = 10
	// maxTimeoutSeconds is less than the four minutes that the kubelet allows for the start of a sandbox.
	maxTimeoutSeconds = 120
)

// Conf is the plugin's part of a network configuration: what the installer writes, and what the runtime adds. Other keys of the runtime
// are ignored.
type Conf struct {
	Type string `json:"type"`
	// Socket is the agent's.
	Socket string `json:"socket,omitempty"`
	// TimeoutSeconds bounds the wait for the agent's answer.
	TimeoutSeconds int `json:"timeoutSeconds,omitempty"`
	// FailOpen lets pods start without rules while the agent does not answer. A pod that the agent refuses stays refused.
	FailOpen bool `json:"failOpen,omitempty"`
	// StatusNeedsAgent makes STATUS fail while the agent does not answer or is not ready. Runtimes may then report the node as NotReady,
	// and Kubernetes evicts the pods of a node that stays NotReady: an agent that does not start would empty the cluster.
	StatusNeedsAgent bool `json:"statusNeedsAgent,omitempty"`
	// ExcludeNamespaces are those whose pods always start, whatever state the agent is in. "*" matches any characters: "openshift-*".
	ExcludeNamespaces []string `json:"excludeNamespaces,omitempty"`
	// PrevResult is the previous plugin's result, byte for byte.
	PrevResult json.RawMessage `json:"prevResult,omitempty"`
}

// Validate returns an error that names every fault.
func (c Conf) Validate() error {
	var errs []error
	if !filepath.IsAbs(c.Socket) || filepath.Clean(c.Socket) != c.Socket {
		errs = append(errs, fmt.Errorf("socket: value %q: want an absolute path", c.Socket))
	}
	if c.TimeoutSeconds < 1 || c.TimeoutSeconds > maxTimeoutSeconds {
		errs = append(errs, fmt.Errorf("timeoutSeconds: value %d: want 1 to %d", c.TimeoutSeconds, maxTimeoutSeconds))
	}
	for _, ns := range c.ExcludeNamespaces {
		if !isNamespacePattern(ns) {
			errs = append(errs, fmt.Errorf("excludeNamespaces: value %q: want the name of a namespace, or a pattern such as openshift-*", ns))
		}
	}
	return errors.Join(errs...)
}

func (c Conf) timeout() time.Duration { return time.Duration(c.TimeoutSeconds) * time.Second }

// Excludes reports whether the pods of a namespace pass without asking the agent.
func (c Conf) Excludes(namespace string) bool {
	return slices.ContainsFunc(c.ExcludeNamespaces, func(pattern string) bool {
		matched, err := path.Match(pattern, namespace)
		return err == nil && matched
	})
}

// isNamespacePattern reports whether s is a namespace's name in which "*" may match any characters. It refuses "*" alone, which would
// exclude every pod.
func isNamespacePattern(s string) bool {
	return strings.Trim(s, "*") != "" && isLabel(strings.ReplaceAll(s, "*", "x"))
}

// parseConf reads the configuration that the runtime passes on standard input.
func parseConf(data []byte) (Conf, error) {
	c := Conf{Socket: DefaultSocket, TimeoutSeconds: defaultTimeoutSeconds}
	if err := json.Unmarshal(data, &c); err != nil {
		return Conf{}, fmt.Errorf("read configuration: %w", err)
	}
	if bytes.Equal(c.PrevResult, []byte("null")) {
		c.PrevResult = nil
	}
	if c.PrevResult != nil && c.PrevResult[0] != '{' {
		return Conf{}, errors.New("read configuration: prevResult: want an object")
	}
	if err := c.Validate(); err != nil {
		return Conf{}, fmt.Errorf("read configuration: %w", err)
	}
	return c, nil
}
