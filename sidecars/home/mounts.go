package home

import (
	"errors"
	"os"
	"path"
	"path/filepath"

	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/profile"
)

// pathShm is where a proxy sees the shared memory of the sandbox's proxies.
const pathShm = "/dev/shm"

// Mounts returns what a proxy sees of the home, and the directories of the node that its secrets name.
func (h Home) Mounts(i profile.Instance) []sidecar.Mount {
	e, secrets := h.Epoch(i.Epoch), i.Version.Spec.Secrets
	out := []sidecar.Mount{
		{Host: h.Run(), Container: profile.PathRun, Relabel: true},
		{Host: e.Files(), Container: profile.PathFiles, ReadOnly: true, Relabel: true},
		{Host: h.Shm(), Container: pathShm, Relabel: true}, // the application uses the sandbox's /dev/shm
	}
	if len(secrets) > 0 {
		out = append(out, sidecar.Mount{Host: e.Secrets(), Container: profile.PathSecrets, ReadOnly: true, Relabel: true})
	}
	for _, s := range secrets {
		if s.WorkloadAPI != nil {
			out = append(out, sidecar.Mount{Host: s.WorkloadAPI.HostDirectory, Container: filepath.Join(profile.PathSecrets, s.Name), ReadOnly: true})
		}
	}
	return append(out, istioMounts(e, i)...)
}

// istioMounts are what a computed proxy sees of the home beside what all proxies see.
func istioMounts(e Epoch, i profile.Instance) []sidecar.Mount {
	if i.Istio == nil {
		return nil
	}
	out := []sidecar.Mount{{Host: e.Files(), Container: istioPod, ReadOnly: true, Relabel: true}}
	for _, s := range i.Version.Spec.Secrets {
		out = append(out, sidecar.Mount{Host: filepath.Join(e.Secrets(), s.Name), Container: path.Join(profile.PathIstioSecrets, s.Name), ReadOnly: true, Relabel: true})
	}
	for _, dir := range IstioWritable() {
		out = append(out, sidecar.Mount{Host: filepath.Join(istioHome(e), path.Base(dir)), Container: dir, Relabel: true})
	}
	return out
}

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
