package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/hack/cluster/internal/config"
	"istio-pod-network-controller/hack/cluster/internal/daemon"
	"istio-pod-network-controller/hack/cluster/internal/image"
	"istio-pod-network-controller/hack/cluster/internal/link"
	"istio-pod-network-controller/hack/cluster/internal/nodefs"
	"istio-pod-network-controller/hack/cluster/internal/space"
	"istio-pod-network-controller/hack/cluster/internal/state"
)

// makeSpaces makes both sets of namespaces, each with its holder, and joins them.
func (r *run) makeSpaces() error {
	plan := r.cluster.Plan
	err := space.Create(space.ControlPlane, func() error {
		if err := link.ControlPlane(plan); err != nil {
			return err
		}
		return r.hold(&r.state.ControlPlane.Process)
	})
	if err != nil {
		return fmt.Errorf("control plane: %w", err)
	}
	if err := r.record(&r.state.ControlPlane); err != nil {
		return err
	}
	first := r.cluster.nodes(r.state)[0]
	return r.makeNode(first, func() error { return r.prepareNode(first) })
}

// hold starts the process that holds the namespaces of the calling thread.
func (r *run) hold(p *daemon.Process) (err error) {
	*p, _, err = daemon.Start(daemon.Spec{Argv: []string{filepath.Join(r.state.Tools, "pause")}})
	return err
}

// makeNode makes a node's namespaces, has its file system prepared in them, and joins it to the control plane and the other nodes.
func (r *run) makeNode(n Node, prepare func() error) error {
	if err := os.MkdirAll(r.cluster.dirs(n.Node).Scratch, 0o755); err != nil {
		return fmt.Errorf("make the node's directory: %w", err)
	}
	err := space.Create(space.Node, func() error {
		if err := unix.Sethostname([]byte(n.Name)); err != nil {
			return fmt.Errorf("name the node: %w", err)
		}
		if err := prepare(); err != nil {
			return err
		}
		return r.hold(&n.Process)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", n.Name, err)
	}
	if err := r.record(n.Holder); err != nil {
		return err
	}
	err = space.Do(r.state.ControlPlane.PID, space.ControlPlane, func() error { return link.Join(n.Node, n.PID) })
	if err != nil {
		return fmt.Errorf("control plane's network: %w", err)
	}
	if err := space.Do(n.PID, space.Node, func() error { return link.Node(r.cluster.Plan, n.Node) }); err != nil {
		return fmt.Errorf("network of %s: %w", n.Name, err)
	}
	for _, other := range r.cluster.nodes(r.state) {
		if other.Name == n.Name || !other.Alive() {
			continue
		}
		err := errors.Join(
			space.Do(other.PID, space.Node, func() error { return link.Reach(n.Node) }),
			space.Do(n.PID, space.Node, func() error { return link.Reach(other.Node) }))
		if err != nil {
			return fmt.Errorf("between %s and %s: %w", other.Name, n.Name, err)
		}
	}
	return nil
}

// prepareNode fills a new node's file system. It runs in the node's namespaces.
func (r *run) prepareNode(n Node) error {
	c := r.cluster
	keys := map[string]string{}
	for target, source := range map[string]string{
		"ca.crt":      filepath.Join(c.Layout.PKI(), "ca.crt"),
		"kubelet.crt": filepath.Join(c.Layout.PKI(), n.Own("kubelet.crt")), "kubelet.key": filepath.Join(c.Layout.PKI(), n.Own("kubelet.key")),
		"kubelet.yaml": c.Layout.Kubeconfig(n.Own(kubelet)), "kube-proxy.yaml": c.Layout.Kubeconfig("kube-proxy"),
	} {
		// Read before the node's own /run hides them.
		text, err := os.ReadFile(source)
		if err != nil {
			return fmt.Errorf("read the node's keys: %w", err)
		}
		keys[filepath.Join("/etc/kubernetes", target)] = string(text)
	}
	if err := nodefs.Prepare(c.dirs(n.Node)); err != nil {
		return err
	}
	files, err := config.Node{
		Plan: c.Plan, Node: n.Node, Runtime: r.state.Runtime, Programs: r.state.Programs, RuntimePrograms: r.state.RuntimePrograms, Tools: r.state.Tools, PauseImage: image.PauseTag,
	}.Files()
	if err != nil {
		return err
	}
	for _, set := range []map[string]string{keys, files} {
		for file, text := range set {
			if err := writeNodeFile(file, text); err != nil {
				return err
			}
		}
	}
	return os.CopyFS("/opt/cni/bin", os.DirFS(filepath.Join(r.state.Programs, "cni")))
}

// record notes the network too, by which `kc down` finds what was run in it.
func (r *run) record(h *state.Holder) (err error) {
	if h.Network, err = daemon.NamespaceID(h.PID, "net"); err != nil {
		return fmt.Errorf("identify the namespaces: %w", err)
	}
	return r.save()
}

// writeNodeFile replaces a link, such as many machines' resolv.conf, instead of writing through it.
func writeNodeFile(file, text string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("write the node's files: %w", err)
	}
	if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("write the node's files: %w", err)
	}
	mode := os.FileMode(0o644)
	if filepath.Ext(file) == ".key" {
		mode = 0o600
	}
	if err := os.WriteFile(file, []byte(text), mode); err != nil {
		return fmt.Errorf("write the node's files: %w", err)
	}
	return nil
}
