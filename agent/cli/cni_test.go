package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"istio-pod-network-controller/internal/cmdline"
)

const conflist = `{"cniVersion":"1.0.0","name":"kc","plugins":[{"type":"bridge"}]}`

// cniNode is a node's directories, as flags.
type cniNode struct{ bin, conf, source string }

func newCNINode(t *testing.T) cniNode {
	t.Helper()
	n := cniNode{bin: t.TempDir(), conf: t.TempDir(), source: write(t, "plugin", "#!program")}
	if err := os.WriteFile(filepath.Join(n.conf, "10-kc.conflist"), []byte(conflist), 0o600); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n cniNode) call(t *testing.T, args ...string) (code int, errOut string) {
	t.Helper()
	args = append([]string{"cni"}, args...)
	code, _, errOut = call(t, "", append(args, "--cni-bin-dir", n.bin, "--cni-conf-dir", n.conf, "--cni-plugin-source", n.source)...)
	return code, errOut
}

func (n cniNode) list(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(n.conf, "10-kc.conflist"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestCNIInstallAndUninstall(t *testing.T) {
	n := newCNINode(t)
	binary := filepath.Join(n.bin, "istio-pod-network-cni")
	if code, errOut := n.call(t, "install", "--cni-fail-open", "--cni-exclude-namespaces", "kube-system,mesh"); code != 0 {
		t.Fatal(errOut)
	}
	want := strings.Replace(conflist, `}]}`, `},{"type":"istio-pod-network-cni","socket":"/var/run/istio-pod-network-controller/cni.sock",`+
		`"timeoutSeconds":10,"failOpen":true,"excludeNamespaces":["kube-system","mesh"]}]}`, 1)
	if diff := cmp.Diff(want, n.list(t)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if info, err := os.Stat(binary); err != nil || info.Mode() != 0o755 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if code, errOut := n.call(t, "uninstall"); code != 0 || n.list(t) != conflist {
		t.Errorf("%s, %s", errOut, n.list(t))
	}
	if _, err := os.Stat(binary); err != nil {
		t.Errorf("the binary was removed without --remove-binary: %v", err)
	}
	if code, errOut := n.call(t, "uninstall", "--remove-binary"); code != 0 {
		t.Error(errOut)
	}
	if _, err := os.Stat(binary); err == nil {
		t.Error("the binary is still there")
	}
}

// What the chart's init container does: it sees no directory of configurations.
func TestCNIInstallOfTheBinaryAlone(t *testing.T) {
	n := newCNINode(t)
	n.conf = "/nonexistent"
	if code, errOut := n.call(t, "install", "--binary-only"); code != 0 {
		t.Fatal(errOut)
	}
	if got, err := os.ReadFile(filepath.Join(n.bin, "istio-pod-network-cni")); err != nil || string(got) != "#!program" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestCNIInstallEndsAtItsTimeout(t *testing.T) {
	n := newCNINode(t)
	if err := os.Remove(filepath.Join(n.conf, "10-kc.conflist")); err != nil {
		t.Fatal(err)
	}
	code, errOut := n.call(t, "install", "--timeout", "10ms")
	if code != cmdline.ExitError || !strings.Contains(errOut, "no valid network configuration in "+n.conf) {
		t.Errorf("code %d, %s", code, errOut)
	}
}

func TestCNIRefusesWrongFlags(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"a relative directory":          {[]string{"install", "--cni-bin-dir", "bin"}, "--cni-bin-dir"},
		"a relative socket":             {[]string{"install", "--cni-socket", "run/s"}, "--cni-socket"},
		"a socket by detours":           {[]string{"install", "--cni-socket", "/run/../s"}, "socket"},
		"namespaces that cannot be":     {[]string{"uninstall", "--cni-exclude-namespaces", "*"}, "excludeNamespaces"},
		"both to stay and to time out":  {[]string{"install", "--watch", "--timeout", "1s"}, "watch"},
		"the binary alone, and to stay": {[]string{"install", "--watch", "--binary-only"}, "binary-only"},
		"no binary to put":              {[]string{"install", "--cni-plugin-source", "/nonexistent"}, "/nonexistent"},
		"no binary to put alone":        {[]string{"install", "--binary-only", "--cni-plugin-source", "/nonexistent"}, "/nonexistent"},
		"no directory to put it":        {[]string{"install", "--cni-plugin-source", os.Args[0], "--cni-bin-dir", "/nonexistent"}, "/nonexistent"},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, errOut := call(t, "", append([]string{"cni"}, c.args...)...)
			if code != cmdline.ExitError || !strings.Contains(errOut, c.want) {
				t.Errorf("code %d, said %q, want %q", code, errOut, c.want)
			}
		})
	}
}
