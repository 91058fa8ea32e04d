package realruntimes

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// CritestModule is the release of the tests of container runtimes that Critest runs, which is compiled by its own pins.
const CritestModule = "sigs.k8s.io/cri-tools@v1.37.0"

// Network gives the runtime's sandboxes a network, by the plugins bridge and portmap.
func (r *Runtime) Network(t *testing.T) {
	t.Helper()
	const cache = "/var/lib/cni" // of libcni; it has no other
	if err := os.MkdirAll(cache, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", cache, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(cache, unix.MNT_DETACH) })
	list := `{"cniVersion": "1.0.0", "name": "test", "plugins": [
		{"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "hairpinMode": true,
		 "ipam": {"type": "host-local", "dataDir": "` + r.Path("addresses") + `", "ranges": [[{"subnet": "10.244.0.0/22"}]]}},
		{"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true}}]}`
	if err := os.MkdirAll(r.Path("cni"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.Path("cni/test.conflist"), []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Spec is what one of critest's tests came to: passed, skipped or failed, with the reason.
type Spec struct{ Name, State, Message string }

// Critest runs critest's tests, or those that CRITEST_FOCUS matches, but for those whose name matches one of the patterns, and returns what each came to. Containers are of the image busybox,
// servers of the image web, which answers at port 80.
func (r *Runtime) Critest(t *testing.T, busybox, web string, except []string) (specs []Spec) {
	t.Helper()
	images, report := r.Path("images.yaml"), r.Path("report.json")
	if err := os.WriteFile(images, []byte("defaultTestContainerImage: "+busybox+"\nwebServerTestImage: "+web+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{
		"-runtime-endpoint", r.Endpoint(), "-nri-socket", r.Path("nri.sock"), "-test-images-file", images, "-config", r.Path("none"),
		"-ginkgo.json-report", report, "-ginkgo.no-color", "-ginkgo.succinct", "-ginkgo.skip", strings.Join(except, "|"), "-ginkgo.focus", os.Getenv("CRITEST_FOCUS"), "-test.timeout", "40m",
	}
	cmd := exec.CommandContext(t.Context(), buildCritest(t), args...)
	cmd.Dir = r.dir
	out, errRun := cmd.CombinedOutput()
	text, err := os.ReadFile(report)
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts           []string
			LeafNodeType, State, LeafNodeText string
			Failure                           struct{ Message string }
		}
	}
	if err == nil {
		err = json.Unmarshal(text, &suites)
	}
	if err != nil {
		t.Fatalf("critest: %v, its report: %v\n%s", errRun, err, out)
	}
	for _, suite := range suites {
		for _, s := range suite.SpecReports {
			if s.LeafNodeType == "It" {
				name := strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " ")
				specs = append(specs, Spec{Name: name, State: s.State, Message: s.Failure.Message})
			}
		}
	}
	return specs
}

// buildCritest compiles critest.
func buildCritest(t *testing.T) (program string) {
	t.Helper()
	download := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", CritestModule)
	download.Dir = "/"
	out, err := download.Output()
	var module struct{ Dir, Error string }
	if errDecode := json.Unmarshal(out, &module); errDecode != nil || module.Dir == "" {
		t.Fatalf("download %s: %v %s", CritestModule, err, module.Error)
	}
	program = filepath.Join(t.TempDir(), "critest")
	build := exec.CommandContext(t.Context(), "go", "-C", module.Dir, "test", "-vet=off", "-c", "-o", program, "./cmd/critest")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("compile %s: %v\n%s", CritestModule, err, out)
	}
	return program
}
