package istio

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// list asks the go command about Istio's packages: the files that pass a template, relative to the module.
func list(t *testing.T, args ...string) map[string]string {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "istio.io/istio").Output()
	if err != nil {
		t.Fatal(err)
	}
	const files = `{{if .Module}}{{if eq .Module.Path "istio.io/istio"}}{{range $f := .GoFiles}}{{$.Dir}}/{{$f}}{{"\n"}}{{end}}{{end}}{{end}}`
	names, err := exec.CommandContext(t.Context(), "go", append([]string{"list", "-f", files}, args...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for name := range strings.FieldsSeq(string(names)) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		out[strings.TrimPrefix(name, strings.TrimSpace(string(dir))+"/")] = string(text)
	}
	bootstrap := "tools/packaging/common/envoy_bootstrap.json"
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), bootstrap))
	if err != nil {
		t.Fatal(err)
	}
	out[bootstrap] = string(text)
	return out
}

// Slots rest on this: a new listener of pilot-agent's, or a listener of Envoy's without SO_REUSEPORT, cannot be bound by two proxies.
func TestPilotAgent_whatItBinds_isKnown(t *testing.T) {
	known := []string{
		"pilot/cmd/pilot-agent/status/server.go",           // the status port
		"pkg/dns/client/proxy.go",                          // DNS capture
		"pkg/uds/listener.go",                              // unix sockets
		"tools/istio-iptables/pkg/validation/validator.go", // another command of the same program
	}
	binds := regexp.MustCompile(`net\.Listen(\(|Packet|Config\{|TCP|UDP|Unix)|ListenAndServe`)
	var got []string
	for name, text := range list(t, "-deps", "istio.io/istio/pilot/cmd/pilot-agent") {
		if binds.MatchString(text) {
			got = append(got, name)
		}
	}
	if slices.Sort(got); !slices.Equal(got, known) {
		t.Errorf("%q, want %q", got, known)
	}
}

func TestEnvoysListeners_haveReusePort(t *testing.T) {
	files := list(t, "istio.io/istio/pilot/pkg/networking/...")
	for name, text := range files {
		if strings.Contains(text, "ReusePort") || strings.Contains(text, "reuse_port") {
			t.Errorf("%s sets what is on by default", name)
		}
	}
	if !strings.Contains(files["pilot/pkg/networking/core/listener.go"], "&listener.Listener{") {
		t.Errorf("the listeners are not built in %q", slices.Sorted(maps.Keys(files)))
	}
}

// What pilot-agent reads, PROXY_CONFIG and the annotations' file, has it bind the ports of its slot.
func TestCompute_slot1_bindsOtherPorts(t *testing.T) {
	i := install(t, ownMesh, "meshConfig.defaultConfig.proxyMetadata.ISTIO_META_DNS_CAPTURE=false")
	for name, change := range map[string]func(*corev1.Pod){
		"the mesh's ports":      nil,
		"the pod's ports":       annotated(keyConfig, "{statusPort: 15041, proxyAdminPort: 15040}"),
		"the pod's status port": annotated(keyStatusPort, "15042"),
	} {
		t.Run(name, func(t *testing.T) {
			pod := application(running(change))
			bound := map[int32]bool{}
			for slot := range uint32(2) {
				c := comparison{got: i.compute(t, pod, &corev1.Container{}, slot)}
				config := c.effective(t)
				for _, port := range []int32{config.StatusPort, config.ProxyAdminPort} {
					if bound[port] {
						t.Errorf("port %d is bound twice", port)
					}
					bound[port] = true
				}
				if config.StatusPort != c.got.StatusPort || config.ProxyAdminPort != c.got.AdminPort {
					t.Errorf("slot %d: pilot-agent binds %d and %d, want %d and %d", slot, config.StatusPort, config.ProxyAdminPort, c.got.StatusPort, c.got.AdminPort)
				}
			}
		})
	}
}
