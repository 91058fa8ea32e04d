// Package program builds the cluster's programs from the Go modules that pin them.
package program

import (
	"path"
	"regexp"
)

var majorVersion = regexp.MustCompile(`^v[0-9]+$`)

// Recipe is how one program is built. What is in it decides the cache's key.
type Recipe struct {
	// Output is the file below the programs' directory.
	Output string
	// Package is the import path of the command.
	Package string
	// Pins is the directory of the module that pins it, below that of most.
	Pins string
	// Cgo says that the program has C code, for which the machine needs a compiler and libraries.
	Cgo  bool
	Tags string
}

// executable is the name that go gives the program: the last element of its path that is not a major version.
func (r Recipe) executable() string {
	name := path.Base(r.Package)
	if majorVersion.MatchString(name) {
		return path.Base(path.Dir(r.Package))
	}
	return name
}

// Recipes lists every program. containerd has a module of its own, because it wants a newer k8s.io/cri-api than Kubernetes does. Both modules
// pin the same versions of all else, so that what they share is compiled once.
func Recipes() []Recipe {
	const (
		containerdTags = "no_btrfs no_zfs no_devmapper"
		containerd     = "github.com/containerd/containerd/v2/cmd/"
		cni            = "github.com/containernetworking/plugins/plugins/"
	)
	recipes := []Recipe{
		{Output: "runc", Package: "github.com/opencontainers/runc", Cgo: true, Tags: "seccomp"},
		{Output: "etcd", Package: "go.etcd.io/etcd/server/v3"},
		{Output: "containerd", Package: containerd + "containerd", Pins: "containerd", Tags: containerdTags},
		{Output: "containerd-shim-runc-v2", Package: containerd + "containerd-shim-runc-v2", Pins: "containerd", Tags: containerdTags},
		{Output: "ctr", Package: containerd + "ctr", Pins: "containerd", Tags: containerdTags},
		{Output: "cni/bridge", Package: cni + "main/bridge"},
		{Output: "cni/loopback", Package: cni + "main/loopback"},
		{Output: "cni/host-local", Package: cni + "ipam/host-local"},
		{Output: "cni/portmap", Package: cni + "meta/portmap"},
	}
	for _, command := range []string{"kube-scheduler", "kube-controller-manager", "kubelet", "kube-apiserver", "kube-proxy", "kubectl"} {
		recipes = append(recipes, Recipe{Output: command, Package: path.Join("k8s.io/kubernetes/cmd", command)})
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
