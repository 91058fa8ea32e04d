// Package cluster starts, looks at and ends the cluster.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"istio-pod-network-controller/hack/cluster/internal/cgroup"
	"istio-pod-network-controller/hack/cluster/internal/config"
	"istio-pod-network-controller/hack/cluster/internal/cri"
	"istio-pod-network-controller/hack/cluster/internal/layout"
	"istio-pod-network-controller/hack/cluster/internal/nodefs"
	"istio-pod-network-controller/hack/cluster/internal/plan"
	"istio-pod-network-controller/hack/cluster/internal/state"
)

// Cluster is the one cluster that a machine can hold:
//   - the control plane (etcd, API server, controller manager, scheduler) in a network namespace,
//   - each node (the container runtime, kubelet, kube-proxy and every pod) in a network, a mount and a UTS namespace,
//   - a bridge in the control plane's, a veth pair from it to each node, and no link or route to anything else.
//
// A process that only waits holds each set of namespaces. What is up is recorded in a file, so each command may be another process.
type Cluster struct {
	Plan   plan.Plan
	Layout layout.Layout
	// Out gets lines of progress.
	Out io.Writer
}

// Node is one that there is, or is about to be.
type Node struct {
	plan.Node
	*state.Holder
}

// nodes lists the recorded nodes.
func (c *Cluster) nodes(s *state.State) []Node {
	nodes := make([]Node, len(s.Nodes))
	for i := range s.Nodes {
		nodes[i] = Node{c.Plan.Nodes[i], &s.Nodes[i]}
	}
	return nodes
}

// Node is the node of the name, or the first one without a name.
func (c *Cluster) Node(s *state.State, name string) (Node, error) {
	var names []string
	for _, n := range c.nodes(s) {
		if name == "" || name == n.Name {
			return n, nil
		}
		names = append(names, n.Name)
	}
	return Node{}, fmt.Errorf("no node %q: there are %s", name, strings.Join(names, ", "))
}

// chosen is the node of the name, or all without a name.
func (c *Cluster) chosen(s *state.State, name string) ([]Node, error) {
	if name == "" {
		return c.nodes(s), nil
	}
	n, err := c.Node(s, name)
	return []Node{n}, err
}

// dirs are a node's directories. Scratch is where its tmpfs is mounted, inside the node only: the path marks the node's mount namespace. It is not
// below /run, where the node's own /run would hide it from a boot that takes it over.
func (c *Cluster) dirs(n plan.Node) nodefs.Dirs {
	return nodefs.Dirs{Scratch: filepath.Join(c.Layout.Data(), n.Own("node")), Data: filepath.Join(c.Layout.Data(), n.Own("disk"))}
}

// lock is in the cache: the state directory is removed with the cluster.
func (c *Cluster) lock() (unlock func(), err error) {
	return state.Lock(filepath.Join(c.Layout.Cache, c.Layout.Named("up.lock")))
}

// State is what is recorded as up, or state.ErrNotUp.
func (c *Cluster) State() (*state.State, error) { return state.Load(c.Layout.State()) }

// root is a node's file system as the machine sees it. Absolute links below it lead back to the machine's own files.
func root(h state.Holder) string { return fmt.Sprintf("/proc/%d/root", h.PID) }

// dialRuntime connects to a node's container runtime.
func dialRuntime(s *state.State, h state.Holder) (*cri.Client, error) {
	return cri.Dial(root(h) + config.Socket(s.Runtime))
}

// Sandboxes lists the pod sandboxes that run, node by node.
func (c *Cluster) Sandboxes(ctx context.Context, s *state.State) ([]cri.Sandbox, error) {
	all := []cri.Sandbox{}
	for _, n := range c.nodes(s) {
		runtime, err := dialRuntime(s, *n.Holder)
		if err != nil {
			return nil, err
		}
		found, err := runtime.Sandboxes(ctx, n.Name, root(*n.Holder))
		if err := errors.Join(err, runtime.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", n.Name, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// path lists the directories of the cluster's programs.
func path(s *state.State) string {
	dirs := s.Programs + ":" + s.Tools
	if s.RuntimePrograms != "" {
		dirs = s.RuntimePrograms + ":" + dirs
	}
	return dirs
}

// Environ is the environment of everything in the cluster: nothing of the caller's, whose proxies lead outside.
func Environ(s *state.State) []string {
	return []string{
		"PATH=" + path(s) + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root",
	}
}

// Check says in plain words why this machine or user cannot hold a cluster.
func (c *Cluster) Check() error {
	if os.Getuid() != 0 {
		return errors.New("needs root, because it makes namespaces, mounts and cgroups: run it with sudo")
	}
	if err := c.checkCache(); err != nil {
		return err
	}
	hierarchies, err := hierarchies()
	if err != nil {
		return err
	}
	if len(hierarchies) == 0 {
		return errors.New("no cgroup file system is mounted below /sys/fs/cgroup")
	}
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		return errors.New("the kernel has no IPv6: the cluster is dual stack (boot without ipv6.disable=1)")
	}
	return nil
}

// checkCache refuses a cache that the node would not find under its path.
func (c *Cluster) checkCache() error {
	for _, dir := range nodefs.Own() {
		if strings.HasPrefix(c.Layout.Cache+"/", dir+"/") {
			return fmt.Errorf("the cache %s is below %s, which is another directory on the node: name one elsewhere with --cache or XDG_CACHE_HOME",
				c.Layout.Cache, dir)
		}
	}
	return nil
}

// hierarchies are looked up each time: a machine may mount one later.
func hierarchies() ([]cgroup.Hierarchy, error) {
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list the machine's mounts: %w", err)
	}
	return cgroup.Hierarchies(string(mountinfo)), nil
}
