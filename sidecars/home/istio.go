package home

import (
	"errors"
	"os"
	"path"
	"path/filepath"

	"istio-pod-network-controller/sidecars/profile"
)

// istioPod is where pilot-agent finds what the downward API would show of the pod.
const istioPod = "/etc/istio/pod"

// IstioWritable are the directories that pilot-agent and Envoy write to. Each epoch has its own, since sockets in them have fixed names.
func IstioWritable() []string {
	return []string{
		"/etc/istio/proxy", "/var/lib/istio/data",
		profile.PathIstioSecrets + "/workload-spiffe-uds", profile.PathIstioSecrets + "/workload-spiffe-credentials", profile.PathIstioSecrets + "/credential-uds",
	}
}

// PrepareIstio makes the directories that a computed proxy writes to, anew. Other proxies need none.
func (e Epoch) PrepareIstio(i profile.Instance, o Owner) error {
	dir := istioHome(e)
	if err := os.RemoveAll(dir); err != nil || i.Istio == nil {
		return err
	}
	err := makeDir(dir, o)
	for _, writable := range IstioWritable() {
		err = errors.Join(err, makeDir(filepath.Join(dir, path.Base(writable)), o))
	}
	return err
}
