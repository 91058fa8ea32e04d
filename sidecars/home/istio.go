package home

import (
	"encoding/json"
	"errors"
	"os"
	"path"
	"path/filepath"
	"strings"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/printable"
	"istio-pod-network-controller/sidecars/istio"
	"istio-pod-network-controller/sidecars/profile"
)

const (
	// istioPod is where pilot-agent finds what the downward API would show of the pod.
	istioPod = "/etc/istio/pod"
	// istioFile is the file of IstioFacts.
	istioFile = "facts.json"
)

// IstioWritable are the directories that pilot-agent and Envoy write to. Each epoch has its own, since sockets in them have fixed names.
func IstioWritable() []string {
	return []string{
		"/etc/istio/proxy", "/var/lib/istio/data",
		profile.PathIstioSecrets + "/workload-spiffe-uds", profile.PathIstioSecrets + "/workload-spiffe-credentials", profile.PathIstioSecrets + "/credential-uds",
	}
}

// IstioFacts are the computed settings of an epoch's proxy that are needed while it runs. They are kept in the home, for agents that start later.
type IstioFacts struct {
	// StatusPort is pilot-agent's, and AdminPort Envoy's.
	StatusPort, AdminPort int32
	// Labels reports whether the pod gets istio.TLSModeLabel: its owner has not chosen another value.
	Labels bool
	// Aside says what injection would do for the pod and this proxy does not, or is "".
	Aside string
}

// IstioFacts returns what was computed for an epoch's proxy. Of a proxy that is not Istio's nothing was.
func (h Homes) IstioFacts(s podnet.Sandbox, epoch uint32) IstioFacts {
	return h.Of(s.Key()).IstioFacts(epoch)
}

// IstioFacts returns the facts of an epoch: nothing if its proxy is not Istio's.
func (h Home) IstioFacts(epoch uint32) (out IstioFacts) {
	text, err := os.ReadFile(filepath.Join(istioHome(h, epoch), istioFile))
	if err != nil || json.Unmarshal(text, &out) != nil {
		return IstioFacts{}
	}
	return out
}

// PrepareIstio makes the directories that a computed proxy writes to, anew, and keeps the facts. Other proxies need nothing.
func (h Home) PrepareIstio(i profile.Instance, o Owner) error {
	dir := istioHome(h, i.Epoch)
	if err := os.RemoveAll(dir); err != nil || i.Istio == nil {
		return err
	}
	err := makeDir(dir, o)
	for _, writable := range IstioWritable() {
		err = errors.Join(err, makeDir(filepath.Join(dir, path.Base(writable)), o))
	}
	if err != nil {
		return err
	}
	mode, chosen := i.Pod.Labels[istio.TLSModeLabel]
	return ReplaceFile(filepath.Join(dir, istioFile), IstioFacts{
		StatusPort: i.Istio.StatusPort, AdminPort: i.Istio.AdminPort, Labels: !chosen || mode == istio.TLSModeIstio, Aside: printable.Clip(strings.Join(i.Istio.NotHonoured, "; "), v1alpha1.MaxMessage),
	})
}
