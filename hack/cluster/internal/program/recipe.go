// Package program builds the cluster's programs from the Go modules that pin them.
package program

import "path"

// Module says in which go.mod a program is pinned.
type Module int

// The two modules. Kubernetes is apart because its replace directives would pin k8s.io/* for the others.
const (
	Runtime Module = iota
	Kubernetes
)

// Recipe is how one program is built. What is in it decides the cache's key.
type Recipe struct {
	// Output is the file below the programs' directory.
	Output string
	// Package is the import path of the command.
	Package string
	Module  Module
	Cgo     bool
	Tags    string
	LDFlags string
}

// Recipes lists every program, those that fill the build cache for others first.
func Recipes(kubernetesVersion string) []Recipe {
	const (
		containerdTags = "no_btrfs no_zfs no_devmapper"
		strip          = "-s -w"
		containerd     = "github.com/containerd/containerd/v2/cmd/"
		cni            = "github.com/containernetworking/plugins/plugins/"
	)
	recipes := []Recipe{
		{Output: "etcd", Package: "go.etcd.io/etcd/server/v3"},
		{Output: "containerd", Package: containerd + "containerd", Tags: containerdTags},
		{Output: "containerd-shim-runc-v2", Package: containerd + "containerd-shim-runc-v2", Tags: containerdTags},
		{Output: "ctr", Package: containerd + "ctr", Tags: containerdTags},
		{Output: "cni/bridge", Package: cni + "main/bridge"},
		{Output: "cni/loopback", Package: cni + "main/loopback"},
		{Output: "cni/host-local", Package: cni + "ipam/host-local"},
		{Output: "cni/portmap", Package: cni + "meta/portmap"},
		{Output: "runc", Package: "github.com/opencontainers/runc", Cgo: true, Tags: "seccomp"},
	}
	for i := range recipes {
		recipes[i].LDFlags = strip
	}
	for _, command := range []string{"kube-scheduler", "kube-controller-manager", "kubelet", "kube-apiserver", "kube-proxy", "kubectl"} {
		recipes = append(recipes, Recipe{
			Output: command, Package: path.Join("k8s.io/kubernetes/cmd", command), Module: Kubernetes,
			LDFlags: strip + " " + stamp(kubernetesVersion),
		})
	}
	return recipes
}

// stamp sets the version that the programs report. Without it kubectl takes the server's version for a fault.
func stamp(version string) string {
	major, minor := majorMinor(version)
	flags := ""
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, v := range [][2]string{{"gitVersion", version}, {"gitMajor", major}, {"gitMinor", minor}} {
			if flags != "" {
				flags += " "
			}
			flags += "-X " + pkg + "." + v[0] + "=" + v[1]
		}
	}
	return flags
}
