// Package program builds the cluster's programs from the Go modules that pin them.
package program

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

var majorVersion = regexp.MustCompile(`^v[0-9]+$`)

const (
	// tags are those of all programs, because another set of tags compiles what they share again: runc with seccomp, and with Go's own
	// resolver; containerd without snapshotters that want C libraries or kernel modules.
	tags = "seccomp,netgo,osusergo,no_btrfs,no_zfs,no_devmapper,grpcnotrace"
	// Gcflags switch inlining and debugging information off, which saves a third of the compiler's time: these programs serve one node.
	Gcflags = "all=-l -dwarf=false"
	// garbage is GOGC of the compiler: most packages are compiled without one collection.
	garbage = "400"
)

// Recipe is how one program is built. What is in it decides the cache's key.
type Recipe struct {
	// Output is the file below the programs' directory.
	Output string
	// Package is the import path of the command.
	Package string
	// Cgo says that the program has C code, for which the machine needs a compiler and libraries.
	Cgo bool
}

// executable is the name that go gives the program: the last element of its path that is not a major version.
func (r Recipe) executable() string {
	name := path.Base(r.Package)
	if majorVersion.MatchString(name) {
		return path.Base(path.Dir(r.Package))
	}
	return name
}

// Recipes lists every program. One module pins them all, so that what they share is compiled once.
func Recipes() []Recipe {
	const (
		containerd = "github.com/containerd/containerd/v2/cmd/"
		cni        = "github.com/containernetworking/plugins/plugins/"
	)
	recipes := []Recipe{
		{Output: "runc", Package: "github.com/opencontainers/runc", Cgo: true},
		{Output: "etcd", Package: "go.etcd.io/etcd/server/v3"},
		{Output: "containerd", Package: containerd + "containerd"},
		{Output: "containerd-shim-runc-v2", Package: containerd + "containerd-shim-runc-v2"},
		{Output: "ctr", Package: containerd + "ctr"},
		{Output: "cni/bridge", Package: cni + "main/bridge"},
		{Output: "cni/loopback", Package: cni + "main/loopback"},
		{Output: "cni/host-local", Package: cni + "ipam/host-local"},
		{Output: "cni/portmap", Package: cni + "meta/portmap"},
	}
	return append(recipes, kubernetesRecipes()...)
}

// BesideKubernetes lists the programs that a release of Kubernetes does not have.
func BesideKubernetes() (outputs []string) {
	for _, r := range Recipes() {
		if !strings.HasPrefix(r.Package, kubernetesModule) {
			outputs = append(outputs, r.Output)
		}
	}
	return outputs
}

func kubernetesRecipes() (recipes []Recipe) {
	for _, command := range []string{"kube-scheduler", "kube-controller-manager", "kubelet", "kube-apiserver", "kube-proxy", "kubectl"} {
		recipes = append(recipes, Recipe{Output: command, Package: path.Join(kubernetesModule, "cmd", command)})
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

const kubernetesModule = "k8s.io/kubernetes"

// KubernetesVersion reads the pinned version out of the module's go.mod, so that it is written down once.
func KubernetesVersion(moduleDir string) (string, error) {
	file := filepath.Join(moduleDir, "go.mod")
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read the Kubernetes pins: %w", err)
	}
	// Both forms of a require line: alone and in a block.
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(fields) >= 2 && fields[0] == kubernetesModule {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("%s does not require %s", file, kubernetesModule)
}

// majorMinor splits a version such as v1.36.3 for the flags that want the parts.
func majorMinor(version string) (major, minor string) {
	parts := strings.Split(strings.TrimPrefix(version, "v"), ".")
	if len(parts) < 2 {
		return parts[0], ""
	}
	return parts[0], parts[1]
}
