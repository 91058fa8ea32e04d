package main_test

import (
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// room is a package's place in the house. A package imports only packages of lines above its own, so every arrow goes down.
type room struct {
	// floor begins a floor of the house: this room and the next ones are on it.
	floor string
	dir   string
	// own are the packages of this module that it may import.
	own string
	// others are the modules, or parts of them, that it may import beside the standard library. A star is any.
	others string
	// never are packages of the standard library that it must not import.
	never string
}

// impure is what reads, writes, or runs something.
const impure = "net net/http os os/exec syscall"

var rooms = []room{
	// The ground. What all share knows little: podnet, sidecar and jitter travel to programs that link no Kubernetes.
	{floor: "the ground", dir: "iptables", never: impure}, // rules are data
	{dir: "internal/podnet", never: "net/http"},
	{dir: "internal/printable", never: impure},
	{dir: "internal/jitter", never: impure},
	{dir: "internal/sidecar"},
	{dir: "internal/intent", own: "iptables", others: "k8s.io/api/core/v1", never: impure},
	{dir: "internal/redirection", never: "net/http"}, // believes nobody: a test compares its two addresses
	{dir: "internal/podreport", others: "k8s.io/api/core/v1", never: impure},
	{dir: "internal/agentstatus", own: "internal/podreport", others: "k8s.io/api/core/v1 k8s.io/apimachinery"},
	{dir: "internal/selfreport", own: "internal/agentstatus internal/jitter", others: "github.com/go-logr/logr k8s.io sigs.k8s.io/controller-runtime"},
	{dir: "internal/apiauth", others: "k8s.io sigs.k8s.io/controller-runtime"},
	{dir: "internal/outage", own: "internal/jitter", others: "k8s.io sigs.k8s.io/controller-runtime"},
	{dir: "internal/serving", own: "internal/jitter", others: "github.com/go-logr/logr golang.org/x sigs.k8s.io/controller-runtime"},
	{dir: "internal/rawnetlink", others: "golang.org/x/sys/unix"},
	{dir: "internal/netns", own: "internal/podnet internal/rawnetlink", others: "github.com/vishvananda/netns golang.org/x/sys/unix"},

	// Kernel and runtimes. They know neither Kubernetes nor a core, and the runtimes do not know each other.
	{floor: "kernel and runtimes", dir: "iptables/foreign", own: "iptables internal/netns internal/podnet internal/rawnetlink", others: "golang.org/x/sys/unix"},
	{dir: "iptables/routing", own: "iptables iptables/foreign internal/netns internal/rawnetlink", others: "golang.org/x/sys/unix"},
	{dir: "iptables/nftables", own: "iptables iptables/routing internal/netns internal/rawnetlink", others: "github.com/google/nftables golang.org/x/sys/unix"},
	{dir: "iptables/xtables", own: "iptables iptables/foreign iptables/routing internal/netns internal/rawnetlink", others: "github.com/coreos/go-iptables golang.org/x/sys/unix"},
	{
		dir: "iptables/kernel", own: "iptables iptables/foreign iptables/nftables iptables/routing iptables/xtables internal/netns internal/podnet internal/rawnetlink",
		others: "golang.org/x/sys/unix",
	},
	{dir: "iptables/parking", own: "internal/jitter internal/netns internal/podnet iptables iptables/kernel", others: "golang.org/x/sys/unix"},
	{dir: "runtime/cri", own: "internal/podnet", others: "google.golang.org/grpc k8s.io/cri-api"},
	{dir: "runtime/kubelet", own: "internal/jitter internal/podnet", others: "google.golang.org/grpc k8s.io sigs.k8s.io/controller-runtime/pkg/log"}, // pods are what it gives
	{dir: "runtime/docker", own: "internal/podnet", others: "github.com/containerd/errdefs github.com/moby/moby"},                                    // errdefs has the client's classes of errors
	{
		dir: "runtime/nri", own: "internal/jitter internal/podnet",
		others: "github.com/containerd/log github.com/containerd/nri github.com/go-logr/logr",
	}, // containerd/log has the format of what ttrpc logs
	{dir: "runtime/cni", own: "internal/podnet", others: "github.com/containernetworking/cni"},
	{
		dir: "runtime/cni/install", own: "internal/jitter",
		others: "github.com/containernetworking/cni/libcni github.com/fsnotify/fsnotify golang.org/x/sys/unix",
	}, // libcni is what runtimes read configurations with
	{dir: "runtime/container", own: "internal/sidecar", others: "golang.org/x/sys/unix google.golang.org/grpc k8s.io/cri-api"},

	// The cores. They declare what they need of the floors below, and do not know each other.
	{
		floor: "cores", dir: "controllers", own: "iptables internal/intent internal/jitter internal/outage internal/podnet internal/podreport",
		others: "github.com/go-logr/logr github.com/prometheus golang.org/x k8s.io sigs.k8s.io",
	},
	{dir: "api/v1alpha1", others: "k8s.io/apimachinery"},
	{dir: "sidecars/secretvolume"},
	{dir: "sidecars/istio", own: "api/v1alpha1", others: "k8s.io/api/core/v1 k8s.io/apimachinery sigs.k8s.io/yaml", never: impure},
	{dir: "sidecars/template", never: impure},
	{dir: "sidecars/profile", own: "api/v1alpha1 internal/intent internal/sidecar sidecars/istio sidecars/template", others: "golang.org/x/sys/unix k8s.io", never: impure},
	{dir: "sidecars/plan", own: "internal/sidecar", never: impure},
	{
		dir: "sidecars/home", own: "api/v1alpha1 internal/intent internal/jitter internal/podnet internal/printable internal/sidecar iptables sidecars/istio sidecars/profile",
		others: "golang.org/x/sys/unix k8s.io/api/core/v1 sigs.k8s.io/controller-runtime/pkg/log",
	},
	{dir: "sidecars/probe", own: "api/v1alpha1 sidecars/profile", never: impure},
	{dir: "sidecars/rollout", own: "api/v1alpha1 internal/podnet internal/printable sidecars/home sidecars/istio sidecars/profile", others: "k8s.io/apimachinery"},
	{dir: "sidecars", own: "api/v1alpha1 internal/intent internal/jitter internal/podnet internal/printable internal/sidecar sidecars/home sidecars/istio sidecars/plan sidecars/probe sidecars/profile sidecars/rollout", others: "github.com/prometheus golang.org/x k8s.io sigs.k8s.io"},
	{dir: "sidecars/shared", own: "api/v1alpha1 internal/jitter internal/podnet internal/printable internal/sidecar sidecars sidecars/home sidecars/profile", others: "golang.org/x k8s.io sigs.k8s.io"},

	{
		floor: "around the cores", dir: "sidecars/node", own: "api/v1alpha1 controllers internal/intent internal/jitter internal/netns internal/podnet internal/printable internal/sidecar iptables/kernel runtime/container " +
			"sidecars sidecars/home sidecars/istio sidecars/probe sidecars/profile sidecars/rollout sidecars/secretvolume sidecars/shared",
		others: "github.com/go-logr/logr github.com/prometheus golang.org/x google.golang.org/grpc k8s.io sigs.k8s.io",
	},

	// Questions to a cluster. They enter no namespace and know no runtime: agent/cli gives them functions and addresses.
	{dir: "diagnostics/cluster", own: "internal/agentstatus", others: "k8s.io"},
	{dir: "diagnostics/inspect", own: "internal/intent internal/podreport internal/printable iptables", others: "k8s.io"},
	{dir: "diagnostics/survey", own: "diagnostics/cluster internal/agentstatus internal/intent internal/podreport internal/printable", others: "golang.org/x k8s.io"},
	{dir: "diagnostics/check", own: "api/v1alpha1 diagnostics/cluster internal/agentstatus internal/intent internal/podreport internal/printable internal/sidecar sidecars/istio", others: "golang.org/x k8s.io sigs.k8s.io"},
	{dir: "diagnostics/connectivity/originaldst", own: "internal/redirection"},
	{dir: "diagnostics/connectivity", own: "diagnostics/cluster internal/agentstatus internal/intent internal/podreport internal/printable", others: "golang.org/x k8s.io"},

	{dir: "diagnostics/bugreport", own: "diagnostics/cluster internal/agentstatus", others: "k8s.io"},

	// What command lines share, and the commands that need no kernel.
	{dir: "internal/cmdline", own: "internal/agentstatus internal/intent internal/printable iptables", others: "github.com/spf13 k8s.io/apimachinery sigs.k8s.io/yaml"},
	{
		dir: "diagnostics/commands", others: "github.com/spf13 golang.org/x/term k8s.io sigs.k8s.io/yaml",
		own: "api/v1alpha1 diagnostics/bugreport diagnostics/check diagnostics/cluster diagnostics/connectivity diagnostics/inspect diagnostics/survey internal/agentstatus internal/cmdline internal/intent " +
			"internal/printable iptables sidecars/istio", // sidecars/istio is pure: explain says what Istio's proxy would run with
	},

	// The agent's side of inspect. It reads namespaces by iptables/kernel.
	{
		dir: "diagnostics/inspectserver", others: "github.com/go-logr/logr k8s.io sigs.k8s.io/controller-runtime",
		own: "controllers diagnostics/inspect internal/agentstatus internal/apiauth internal/intent internal/netns internal/podnet internal/podreport internal/printable internal/serving iptables iptables/kernel",
	},

	// The wiring. Flags live in agent/cli.
	{
		floor: "wiring", dir: "agent", others: "github.com/containerd github.com/fsnotify github.com/go-logr github.com/moby github.com/prometheus golang.org/x google.golang.org k8s.io sigs.k8s.io",
		own: "api/v1alpha1 controllers diagnostics/inspect diagnostics/inspectserver internal/agentstatus internal/apiauth internal/intent internal/jitter internal/netns internal/outage internal/podnet " +
			"internal/selfreport internal/serving internal/sidecar iptables iptables/kernel iptables/parking runtime/cni runtime/cni/install runtime/cri runtime/docker runtime/kubelet runtime/nri sidecars/node",
	},
	{
		dir: "agent/cli", others: "*",
		own: "agent controllers diagnostics/check diagnostics/commands diagnostics/connectivity diagnostics/connectivity/originaldst internal/agentstatus internal/cmdline internal/intent " +
			"internal/netns internal/podnet internal/podreport iptables iptables/kernel iptables/xtables runtime/cni runtime/cni/install runtime/cri runtime/kubelet runtime/nri sidecars/node",
	},

	// The programs.
	{floor: "programs", dir: ".", own: "agent/cli"},
	{dir: "cmd/istio-pod-network-cni", own: "internal/podnet runtime/cni", others: "github.com/containernetworking/cni"},
	{dir: "cmd/istio-pod-network-probe", never: "net/http"}, // the kubelet starts it every few seconds
	{dir: "cmd/istio-pod-network-wait", own: "internal/redirection"},
	{dir: "cmd/kubectl-pod_network", own: "diagnostics/commands internal/cmdline", others: "k8s.io/cli-runtime k8s.io/client-go/plugin"},

	// What tests share.
	{floor: "tests", dir: "test/kerneltest", own: "internal/netns iptables", others: "github.com/vishvananda/netlink golang.org/x/sys/unix"},
	{dir: "test/conformance"},
	{dir: "test/terminal", others: "golang.org/x/sys/unix"},
	{dir: "test/interpreter", own: "iptables", never: impure},
	{dir: "test/standins/apistandin", others: "k8s.io sigs.k8s.io"},
	{dir: "test/standins/kubeletstandin", others: "k8s.io google.golang.org/grpc"},
	{dir: "test/standins/runtimestandin", own: "internal/netns sidecars/profile", others: "k8s.io google.golang.org/grpc github.com/containerd/nri golang.org/x/sys/unix"},
	{dir: "test/realruntimes", others: "google.golang.org/grpc k8s.io/cri-api golang.org/x/sys/unix"},
	{dir: "test/standins/envoystandin", others: "golang.org/x/sys/unix"},
	{dir: "test/refdocs", own: "agent agent/cli controllers internal/agentstatus internal/intent internal/podreport internal/sidecar runtime/cni/install sidecars/istio sidecars/node", others: "github.com/spf13 k8s.io/api/core/v1"},
}

const module = "istio-pod-network-controller"

func TestFloors_everyImport_isOfALineAbove(t *testing.T) {
	above := map[string]bool{}
	imports := importsOf(t, ".")
	for _, r := range rooms {
		if _, exists := imports[r.dir]; !exists {
			t.Errorf("%s: there is no such package", r.dir)
		}
		for name := range strings.FieldsSeq(r.own) {
			if !above[name] {
				t.Errorf("%s may import %s, which has no line above", r.dir, name)
			}
		}
		for _, name := range imports[r.dir] {
			if !r.mayImport(name) {
				t.Errorf("%s imports %s", r.dir, name)
			}
		}
		above[r.dir] = true
		delete(imports, r.dir)
	}
	for dir := range imports {
		t.Errorf("%s has no floor", dir)
	}
}

func (r room) mayImport(name string) bool {
	if ours, isOurs := strings.CutPrefix(name, module+"/"); isOurs {
		return slices.Contains(strings.Fields(r.own), ours)
	}
	if first, _, _ := strings.Cut(name, "/"); !strings.Contains(first, ".") {
		return !slices.Contains(strings.Fields(r.never), name)
	}
	return slices.ContainsFunc(strings.Fields(r.others), func(p string) bool { return p == "*" || name == p || strings.HasPrefix(name, p+"/") })
}

// The build tag nosidecars leaves out what runs proxies. Only diagnostics read its objects, as any client of the API server does, and say by the
// pure package sidecars/istio what would run.
func TestFloors_nosidecars_linksNoProxyManager(t *testing.T) {
	tagged, linked := build.Default, map[string]bool{}
	tagged.BuildTags = []string{"nosidecars"}
	var link func(dir string)
	link = func(dir string) {
		if linked[dir] {
			return
		}
		linked[dir] = true
		p, err := tagged.ImportDir(dir, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range p.Imports {
			ours, isOurs := strings.CutPrefix(name, module+"/")
			if isOurs && leftOut(dir, ours) {
				t.Errorf("%s imports %s", dir, ours)
			}
			if isOurs {
				link(ours)
			}
		}
	}
	link(".")
	if !linked["agent"] || !linked["controllers"] {
		t.Errorf("linked are %v", linked)
	}
}

// leftOut reports whether a package may not import another one with the build tag nosidecars.
func leftOut(dir, imported string) bool {
	if imported == "sidecars/istio" || strings.HasPrefix(imported, "api/") {
		return !strings.HasPrefix(dir, "diagnostics/") && dir != "sidecars/istio"
	}
	return strings.HasPrefix(imported, "sidecars") || imported == "runtime/container"
}

// The plugin runs on laptops. What touches a kernel or runs a controller has no place in it.
func TestFloors_plugin_linksNoAgent(t *testing.T) {
	imports, linked := importsOf(t, "."), map[string]bool{}
	var link func(dir string)
	link = func(dir string) {
		if linked[dir] {
			return
		}
		linked[dir] = true
		for _, name := range imports[dir] {
			for _, not := range []string{"sigs.k8s.io/controller-runtime", "github.com/vishvananda", "github.com/google/nftables", "github.com/containerd", "google.golang.org/grpc"} {
				if strings.HasPrefix(name, not) {
					t.Errorf("%s imports %s", dir, name)
				}
			}
			if ours, isOurs := strings.CutPrefix(name, module+"/"); isOurs {
				link(ours)
			}
		}
	}
	link("cmd/kubectl-pod_network")
	if !linked["diagnostics/check"] {
		t.Errorf("linked are %v", linked)
	}
}

// importsOf returns what each package of the module imports, without its tests.
func importsOf(t *testing.T, root string) map[string][]string {
	t.Helper()
	imports := map[string][]string{}
	err := filepath.WalkDir(root, func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (slices.Contains([]string{".git", "build", "hack", "testdata"}, e.Name()) || name == "test/e2e"): // modules of their own, and none
			return filepath.SkipDir
		case e.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		dir := path.Dir(name)
		if imports[dir] == nil {
			imports[dir] = []string{}
		}
		for _, i := range file.Imports {
			imported, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			imports[dir] = append(imports[dir], imported)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return imports
}
