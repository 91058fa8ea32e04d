package home

import (
	"fmt"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/printable"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/sidecars/istio"
	"istio-pod-network-controller/sidecars/profile"
)

// Facts are what was decided when an epoch's proxy was made, and is needed while it runs. They are kept in the home, for agents that start later.
type Facts struct {
	// Proxy has the user, the ports and the mode of the proxy, for the rules.
	Proxy intent.ManagedProxy
	// StatusPort is pilot-agent's, and AdminPort Envoy's: of Istio's proxy alone.
	StatusPort, AdminPort int32
	// Labels reports whether the pod gets istio.TLSModeLabel: its owner has not chosen another value.
	Labels bool
	// Aside says what injection would do for the pod and this proxy does not, or is "".
	Aside string
}

// FactsOf returns what was decided for an instance.
func FactsOf(i profile.Instance) Facts {
	out := Facts{Proxy: i.Version.ManagedProxy()}
	if i.Istio != nil {
		mode, chosen := i.Pod.Labels[istio.TLSModeLabel]
		out.StatusPort, out.AdminPort = i.Istio.StatusPort, i.Istio.AdminPort
		if public := i.Istio.PublicPort; public != i.Istio.StatusPort {
			out.Proxy.Aliases = []iptables.PortAlias{{From: uint16(public), To: uint16(i.Istio.StatusPort)}}
		}
		out.Labels, out.Aside = !chosen || mode == istio.TLSModeIstio, printable.Clip(strings.Join(i.Istio.NotHonoured, "; "), v1alpha1.MaxMessage)
	}
	return out
}

// Facts returns the facts, none if they are not known.
func (e Epoch) Facts() Facts {
	out, _ := ReadFile[Facts](factsFile(e))
	return out
}

// WriteFacts keeps the facts.
func (e Epoch) WriteFacts(f Facts) error {
	if err := ReplaceFile(factsFile(e), f); err != nil {
		return fmt.Errorf("note what the proxy is: %w", err)
	}
	return nil
}

func factsFile(e Epoch) string { return e.path("facts") + jsonSuffix }

// KeepPod keeps a pod as the proxy has it that is about to be made, for a successor that starts while the API server is away. The environment of its
// containers and ephemeral containers are left out: no proxy depends on them.
func KeepPod(h Home, pod *corev1.Pod) error {
	kept := pod.DeepCopy()
	kept.ManagedFields, kept.Spec.EphemeralContainers = nil, nil
	for _, containers := range [][]corev1.Container{kept.Spec.InitContainers, kept.Spec.Containers} {
		for i := range containers {
			containers[i].Env = nil
		}
	}
	if err := ReplaceFile(podFile(h), kept); err != nil {
		return fmt.Errorf("note the pod: %w", err)
	}
	return nil
}

// KeptPod returns the pod as the sandbox's last proxy had it, nil if that is not known.
func KeptPod(h Home) *corev1.Pod {
	pod, _ := ReadFile[*corev1.Pod](podFile(h))
	return pod
}

func podFile(h Home) string { return filepath.Join(h.Path, "pod.json") }
