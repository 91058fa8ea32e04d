// Package config renders the daemons' configuration files: text as a function of data.
package config

import (
	"embed"
	"encoding/base64"
	"fmt"
	"strings"
	"text/template"

	"istio-pod-network-controller/hack/cluster/internal/pki"
	"istio-pod-network-controller/hack/cluster/internal/plan"
)

//go:embed files
var files embed.FS

// The container runtimes that a node may have.
const (
	Containerd = "containerd"
	CRIO       = "crio"
)

// Socket is where a container runtime serves CRI: its usual path.
func Socket(runtime string) string {
	if runtime == CRIO {
		return "/run/crio/crio.sock"
	}
	return "/run/containerd/containerd.sock"
}

// Node is what the node's daemons are configured with.
type Node struct {
	Plan plan.Plan
	Node plan.Node
	// Runtime is the container runtime's name.
	Runtime string
	// Programs is the directory of runc, RuntimePrograms that of the runtime's own, Tools that of the kit's.
	Programs, RuntimePrograms, Tools string
	// PauseImage is the sandboxes' image.
	PauseImage string
}

// Socket is for the kubelet.
func (n Node) Socket() string { return Socket(n.Runtime) }

// Files renders the node's files, by their absolute path on the node.
func (n Node) Files() (map[string]string, error) {
	sources := map[string]string{
		"/etc/cni/net.d/10-bridge.conflist":   "10-bridge.conflist",
		"/etc/kubernetes/kubelet-config.yaml": "kubelet.yaml",
		"/etc/kubernetes/proxy-config.yaml":   "kube-proxy.yaml",
	}
	switch n.Runtime {
	case Containerd:
		sources["/etc/containerd/config.toml"] = "containerd.toml"
		if n.RuntimePrograms != "" { // another release than the pins'
			sources["/etc/containerd/config.toml"] = "containerd-2.toml"
		}
	case CRIO:
		sources["/etc/crio/crio.conf"] = "crio.conf"
		sources["/etc/containers/policy.json"] = "policy.json"
		sources["/etc/containers/registries.conf"] = "registries.conf"
	default:
		return nil, fmt.Errorf("no container runtime %q: there are %s and %s", n.Runtime, Containerd, CRIO)
	}
	rendered := map[string]string{}
	for path, name := range sources {
		text, err := render(name, n)
		if err != nil {
			return nil, err
		}
		rendered[path] = text
	}
	// There is no way out, so the machine's own resolver must not be tried.
	rendered["/etc/resolv.conf"] = "nameserver " + n.Plan.DNS().String() + "\n"
	rendered["/etc/hosts"] = "127.0.0.1 localhost\n::1 localhost\n" + n.Node.Addr.V4.Addr().String() + " " + n.Node.Name + "\n"
	return rendered, nil
}

// Kubeconfig renders the file of one user, everything in it.
func Kubeconfig(server string, ca []byte, user pki.Pair) (string, error) {
	encode := base64.StdEncoding.EncodeToString
	return render("kubeconfig.yaml", struct{ Server, CA, Cert, Key string }{server, encode(ca), encode(user.Cert), encode(user.Key)})
}

// render fails on a field that the data lacks, instead of writing a gap.
func render(name string, data any) (string, error) {
	t, err := template.New(name).Option("missingkey=error").ParseFS(files, "files/"+name)
	if err != nil {
		return "", fmt.Errorf("parse %s: %w", name, err)
	}
	var b strings.Builder
	if err := t.Execute(&b, data); err != nil {
		return "", fmt.Errorf("render %s: %w", name, err)
	}
	return b.String(), nil
}
