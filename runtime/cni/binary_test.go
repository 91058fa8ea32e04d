package cni

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// maxBinary is the limit for the size of the plugin's binary.
const maxBinary = 8 << 20

func TestBinary_built_isSmallAndStatic(t *testing.T) {
	info, err := os.Stat(program(PluginType))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes", info.Size())
	if info.Size() >= maxBinary {
		t.Errorf("%d bytes, the limit is %d", info.Size(), maxBinary)
	}
	data, err := os.ReadFile(program(PluginType))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), "ld-linux") {
		t.Error("it needs a dynamic linker")
	}
}

// The plugin runs as root for every pod of every node, so it may link few packages.
func TestBinary_built_linksFewPackages(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}",
		"istio-pod-network-controller/cmd/"+PluginType).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	allowed := []string{
		"github.com/containernetworking/cni/", "github.com/vishvananda/netns", "golang.org/x/sys/unix",
		"istio-pod-network-controller/cmd/" + PluginType, "istio-pod-network-controller/internal/podnet", "istio-pod-network-controller/runtime/cni",
	}
	for pkg := range strings.FieldsSeq(string(out)) {
		if !slices.ContainsFunc(allowed, func(a string) bool { return pkg == a || strings.HasSuffix(a, "/") && strings.HasPrefix(pkg, a) }) {
			t.Errorf("links %s", pkg)
		}
	}
	std, err := exec.Command("go", "list", "-deps", "istio-pod-network-controller/cmd/"+PluginType).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, pkg := range []string{"net/http", "crypto/tls", "os/exec"} {
		if slices.Contains(strings.Fields(string(std)), pkg) {
			t.Errorf("links %s", pkg)
		}
	}
}
