package cluster

import (
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
)

// makeSpaces makes both sets of namespaces, each with its holder, and joins them.
func (r *run) makeSpaces() error {
	plan := r.cluster.Plan
	err := space.Create(space.ControlPlane, func() error {
		if err := link.ControlPlane(plan); err != nil {
			return err
		}
		return r.hold(&r.state.ControlPlane)
	})
	if err != nil {
		return fmt.Errorf("control plane: %w", err)
	}
	if err := r.save(); err != nil {
		return err
	}
	return r.makeNode(r.prepareNode)
}

// hold starts the process that holds the namespaces of the calling thread.
func (r *run) hold(p *daemon.Process) (err error) {
	*p, _, err = daemon.Start(daemon.Spec{Argv: []string{filepath.Join(r.state.Tools, "pause")}})
	return err
}

// makeNode makes the node's namespaces, has its file system prepared in them, and joins it to the control plane.
func (r *run) makeNode(prepare func() error) error {
	plan := r.cluster.Plan
	err := space.Create(space.Node, func() error {
		if err := unix.Sethostname([]byte(plan.NodeName)); err != nil {
			return fmt.Errorf("name the node: %w", err)
		}
		if err := prepare(); err != nil {
			return err
		}
		return r.hold(&r.state.Node)
	})
	if err != nil {
		return fmt.Errorf("node: %w", err)
	}
	if err := r.recordNamespaces(); err != nil {
		return err
	}
	err = space.Do(r.state.ControlPlane.PID, space.ControlPlane, func() error { return link.Join(plan, r.state.Node.PID) })
	if err != nil {
		return fmt.Errorf("control plane's network: %w", err)
	}
	if err := space.Do(r.state.Node.PID, space.Node, func() error { return link.Node(plan) }); err != nil {
		return fmt.Errorf("node's network: %w", err)
	}
	return nil
}

// prepareNode fills a new node's file system. It runs in the node's namespaces.
func (r *run) prepareNode() error {
	c := r.cluster
	keys := map[string]string{}
	for target, source := range map[string]string{
		"ca.crt":      filepath.Join(c.Layout.PKI(), "ca.crt"),
		"kubelet.crt": filepath.Join(c.Layout.PKI(), "kubelet.crt"), "kubelet.key": filepath.Join(c.Layout.PKI(), "kubelet.key"),
		"kubelet.yaml": c.Layout.Kubeconfig("kubelet"), "kube-proxy.yaml": c.Layout.Kubeconfig("kube-proxy"),
	} {
		// Read before the node's own /run hides them.
		text, err := os.ReadFile(source)
		if err != nil {
			return fmt.Errorf("read the node's keys: %w", err)
		}
		keys[filepath.Join("/etc/kubernetes", target)] = string(text)
	}
	if err := nodefs.Prepare(nodefs.Dirs{Scratch: c.scratch(), Data: c.Layout.Data()}); err != nil {
		return err
	}
	files, err := config.Node{
		Plan: c.Plan, Runtime: r.state.Runtime, Programs: r.state.Programs, RuntimePrograms: r.state.RuntimePrograms, Tools: r.state.Tools, PauseImage: image.PauseTag,
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
	return nodefs.CopyDir(filepath.Join(r.state.Programs, "cni"), "/opt/cni/bin")
}

// recordNamespaces notes the two networks, by which `kc down` finds what was run in them.
func (r *run) recordNamespaces() error {
	r.state.Namespaces = map[string]string{}
	for name, holder := range map[string]daemon.Process{"controlPlane": r.state.ControlPlane, "node": r.state.Node} {
		id, err := daemon.NamespaceID(holder.PID, "net")
		if err != nil {
			return fmt.Errorf("identify the namespaces: %w", err)
		}
		r.state.Namespaces[name] = id
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
