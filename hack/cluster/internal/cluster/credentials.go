package cluster

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"istio-pod-network-controller/hack/cluster/internal/api"
	"istio-pod-network-controller/hack/cluster/internal/config"
	"istio-pod-network-controller/hack/cluster/internal/layout"
	"istio-pod-network-controller/hack/cluster/internal/pki"
	"istio-pod-network-controller/hack/cluster/internal/plan"
	"istio-pod-network-controller/hack/cluster/internal/state"
)

// admin is whom the kit itself asks the API server as.
const admin = "admin"

// users lists everybody who gets a kubeconfig, by its file's name.
func users(p plan.Plan) map[string]pki.Request {
	all := map[string]pki.Request{
		admin:                {CommonName: "admin", Organization: "system:masters"},
		"controller-manager": {CommonName: "system:kube-controller-manager"},
		"scheduler":          {CommonName: "system:kube-scheduler"},
		"kube-proxy":         {CommonName: "system:kube-proxy"},
	}
	for _, n := range p.Nodes {
		all[n.Own(kubelet)] = pki.Request{CommonName: "system:node:" + n.Name, Organization: "system:nodes"}
	}
	return all
}

// certificates lists everybody who gets files in the PKI directory, by their name.
func certificates(p plan.Plan) map[string]pki.Request {
	all := map[string]pki.Request{
		"apiserver": {
			CommonName: "kube-apiserver",
			Names: []string{
				"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
			},
			Addrs: []netip.Addr{
				p.ControlPlane.V4.Addr(), p.ControlPlane.V6.Addr(), p.FirstService(), netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback(),
			},
		},
		"kubelet-client": {CommonName: "kube-apiserver-kubelet-client", Organization: "system:masters"},
		"front-proxy":    {CommonName: "front-proxy-client"},
		admin:            users(p)[admin],
	}
	for _, n := range p.Nodes {
		all[n.Own(kubelet)] = pki.Request{CommonName: n.Name, Names: []string{n.Name}, Addrs: []netip.Addr{n.Addr.V4.Addr(), n.Addr.V6.Addr()}}
	}
	return all
}

// makeCredentials writes all keys, certificates and kubeconfigs of one life of the cluster.
func makeCredentials(p plan.Plan, l layout.Layout) error {
	ca, err := pki.NewCA("istio-pod-network-controller-cluster")
	if err != nil {
		return err
	}
	private, public, err := pki.SigningKey()
	if err != nil {
		return err
	}
	files := map[string][]byte{
		"ca.crt": ca.Cert, "ca.key": ca.Key, "service-account.key": private, "service-account.pub": public,
	}
	for name, request := range certificates(p) {
		pair, err := ca.Issue(request)
		if err != nil {
			return err
		}
		files[name+".crt"], files[name+".key"] = pair.Cert, pair.Key
	}
	for name, content := range files {
		if err := writeSecret(filepath.Join(l.PKI(), name), content); err != nil {
			return err
		}
	}
	for user, request := range users(p) {
		pair, err := ca.Issue(request)
		if err != nil {
			return err
		}
		text, err := config.Kubeconfig(p.APIServer(), ca.Cert, pair)
		if err != nil {
			return err
		}
		if err := writeSecret(l.Kubeconfig(user), []byte(text)); err != nil {
			return err
		}
	}
	return nil
}

// client asks the API server as the administrator, with what makeCredentials has written.
func (c *Cluster) client(s *state.State) (*api.Client, error) {
	var files [3][]byte
	for i, name := range []string{"ca.crt", admin + ".crt", admin + ".key"} {
		text, err := os.ReadFile(filepath.Join(c.Layout.PKI(), name))
		if err != nil {
			return nil, fmt.Errorf("read the administrator's keys: %w", err)
		}
		files[i] = text
	}
	return api.New(c.Plan.APIServer(), files[0], pki.Pair{Cert: files[1], Key: files[2]}, c.Dialer(s))
}

// writeSecret writes a file that only root can read, also for public halves of keys, which is simpler.
func writeSecret(file string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("make the keys' directory: %w", err)
	}
	if err := os.WriteFile(file, content, 0o600); err != nil {
		return fmt.Errorf("write a key: %w", err)
	}
	return nil
}
