package cluster

import (
	"cmp"
	"path/filepath"
	"strconv"

	"istio-pod-network-controller/hack/cluster/internal/config"
	"istio-pod-network-controller/hack/cluster/internal/layout"
	"istio-pod-network-controller/hack/cluster/internal/plan"
	"istio-pod-network-controller/hack/cluster/internal/space"
	"istio-pod-network-controller/hack/cluster/internal/state"
)

// The daemons' names, which are also those of their logs.
const (
	etcd              = "etcd"
	apiServer         = "kube-apiserver"
	controllerManager = "kube-controller-manager"
	scheduler         = "kube-scheduler"
	kubelet           = "kubelet"
	kubeProxy         = "kube-proxy"
)

// command is how one daemon is started and where. Files that are named in it are the machine's for the control plane, and the node's
// own for the node.
type command struct {
	holder state.Holder
	where  space.Kinds
	argv   []string
}

// commands lists every daemon's command line: text as a function of data.
func commands(p plan.Plan, l layout.Layout, s *state.State) map[string]command {
	program := func(name string) string { return filepath.Join(s.Programs, name) }
	all := map[string]command{}
	for name, flags := range map[string][]string{
		etcd: etcdFlags(l), apiServer: apiServerFlags(p, l), controllerManager: controllerManagerFlags(p, l),
		scheduler: append(kubeconfigFlags(l, "scheduler"), "--bind-address=127.0.0.1", "--leader-elect=false"),
	} {
		all[name] = command{s.ControlPlane, space.ControlPlane, append([]string{program(name)}, flags...)}
	}
	for i, h := range s.Nodes {
		n := p.Nodes[i]
		all[n.Own(s.Runtime)] = command{h, space.Node, runtimeCommand(s)}
		all[n.Own(kubelet)] = command{h, space.Node, []string{
			program(kubelet), "--config=/etc/kubernetes/kubelet-config.yaml", "--kubeconfig=/etc/kubernetes/kubelet.yaml",
			"--cert-dir=/var/lib/kubelet/pki", "--hostname-override=" + n.Name, "--node-ip=" + n.Addr.Addrs(), "--v=2",
		}}
		all[n.Own(kubeProxy)] = command{h, space.Node, []string{
			program(kubeProxy), "--config=/etc/kubernetes/proxy-config.yaml", "--hostname-override=" + n.Name,
		}}
	}
	return all
}

func runtimeCommand(s *state.State) []string {
	program := filepath.Join(cmp.Or(s.RuntimePrograms, s.Programs), s.Runtime)
	if s.Runtime == config.CRIO {
		return []string{program, "--config=/etc/crio/crio.conf"}
	}
	return []string{program, "--config=/etc/containerd/config.toml"}
}

// etcdFlags use plain HTTP: only the control plane is in the namespace.
func etcdFlags(l layout.Layout) []string {
	const client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
	return []string{
		"--data-dir=" + filepath.Join(l.Data(), "etcd"), "--log-level=warn",
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=default=" + peer,
		"--unsafe-no-fsync", // nothing of it is to survive the machine
	}
}

// apiServerFlags leave out authentication and admission plugins that are on by default.
func apiServerFlags(p plan.Plan, l layout.Layout) []string {
	file := func(name string) string { return filepath.Join(l.PKI(), name) }
	return []string{
		"--etcd-servers=http://127.0.0.1:2379",
		"--bind-address=::", "--secure-port=" + strconv.Itoa(int(p.APIPort)),
		"--advertise-address=" + p.ControlPlane.V4.Addr().String(),
		"--service-cluster-ip-range=" + p.Services.String(),
		"--allow-privileged=true", "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		// No kube-proxy runs with the API server, so it must reach webhooks by their pods' addresses.
		"--enable-aggregator-routing=true",
		"--client-ca-file=" + file("ca.crt"),
		"--tls-cert-file=" + file("apiserver.crt"), "--tls-private-key-file=" + file("apiserver.key"),
		"--kubelet-certificate-authority=" + file("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
		"--kubelet-client-certificate=" + file("kubelet-client.crt"), "--kubelet-client-key=" + file("kubelet-client.key"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + file("service-account.pub"),
		"--service-account-signing-key-file=" + file("service-account.key"),
		"--requestheader-client-ca-file=" + file("ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + file("front-proxy.crt"), "--proxy-client-key-file=" + file("front-proxy.key"),
	}
}

// controllerManagerFlags give the first node the ranges that the plan has for it: the first part of each. Others are registered with theirs.
func controllerManagerFlags(p plan.Plan, l layout.Layout) []string {
	file := func(name string) string { return filepath.Join(l.PKI(), name) }
	return append(kubeconfigFlags(l, "controller-manager"),
		"--bind-address=127.0.0.1", "--leader-elect=false", "--use-service-account-credentials=true",
		"--service-account-private-key-file="+file("service-account.key"), "--root-ca-file="+file("ca.crt"),
		"--cluster-signing-cert-file="+file("ca.crt"), "--cluster-signing-key-file="+file("ca.key"),
		"--requestheader-client-ca-file="+file("ca.crt"),
		"--allocate-node-cidrs=true", "--cluster-cidr="+p.Pods.String(), "--service-cluster-ip-range="+p.Services.String(),
		"--node-cidr-mask-size-ipv4=24", "--node-cidr-mask-size-ipv6=64",
		// The default is made in the machine's /usr/libexec.
		"--flex-volume-plugin-dir="+filepath.Join(l.Run, "flexvolume"),
	)
}

// kubeconfigFlags make a component ask the API server who may look at its own metrics.
func kubeconfigFlags(l layout.Layout, user string) []string {
	file := l.Kubeconfig(user)
	return []string{"--kubeconfig=" + file, "--authentication-kubeconfig=" + file, "--authorization-kubeconfig=" + file}
}
