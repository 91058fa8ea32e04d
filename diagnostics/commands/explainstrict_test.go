package commands

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"istio-pod-network-controller/internal/cmdline"
)

// A pipeline tells by the exit code what has happened, and by lines of standard error where.
func TestExplain_strict_tellsFaultsApart(t *testing.T) {
	refused := strings.Replace(podYAML, "annotations: {", `annotations: {sidecar.istio.io/interceptionMode: X, `, 1)
	mistyped := strings.Replace(podYAML, "annotations: {", `annotations: {traffic.sidecar.istio.io/excludeInboundPort: "80", `, 1)
	bare := strings.Replace(podYAML, ", {name: istio-proxy}", "", 1)
	for name, c := range map[string]struct {
		files map[string]string
		code  int
		want  []string // parts of standard error; DIR is the directory
	}{
		"all is fine":           {map[string]string{"a.yaml": podYAML, "b.json": `{"apiVersion":"v1","kind":"Service"}`}, 0, nil},
		"not injected yet":      {map[string]string{"a.yaml": bare}, 0, nil},
		"a setting is refused":  {map[string]string{"a.yaml": podYAML, "sub/b.yml": "# a comment\n---\n" + podYAML + "---\n" + refused}, cmdline.ExitError, []string{"--strict: 1 fault\nDIR/sub/b.yml:14: Pod shop/cart: sidecar.istio.io/interceptionMode: value \"X\""}},
		"a key is mistyped":     {map[string]string{"a.yaml": mistyped}, cmdline.ExitError, []string{"DIR/a.yaml:2: Pod shop/cart: annotation \"traffic.sidecar.istio.io/excludeInboundPort\" is not known: did you mean"}},
		"several faults":        {map[string]string{"a.yaml": mistyped, "b.yaml": refused}, cmdline.ExitError, []string{"--strict: 2 faults", "DIR/a.yaml:2: ", "DIR/b.yaml:2: "}},
		"files cannot be read":  {map[string]string{"a.yaml": refused, "b.yaml": podYAML + "---\n\n\ta: [", "c.yaml": "a: b\n"}, cmdline.ExitUnasked, []string{"DIR/b.yaml: document 2, from line 12: ", "DIR/c.yaml: document 1, from line 1: it has no kind"}},
		"no manifests":          {map[string]string{"a.txt": "", ".hidden/a.yaml": "a: b"}, cmdline.ExitUnasked, []string{"DIR has no manifests"}},
		"what is hidden is not": {map[string]string{"a.yaml": podYAML, ".github/b.yaml": "a: b", ".c.yaml": "a: b"}, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := directory(t, c.files)
			code, out, errOut := call(t, "", "explain", "--strict", "-f", dir)
			if code != c.code || code == cmdline.ExitUnasked && out != "" || code == 0 && errOut != "" {
				t.Errorf("code %d, want %d: %s", code, c.code, errOut)
			}
			for _, want := range c.want {
				if want = strings.ReplaceAll(want, "DIR", dir); !strings.Contains(errOut, want) {
					t.Errorf("no %q in %s", want, errOut)
				}
			}
		})
	}
}

func TestExplain_machines_readFileAndLine(t *testing.T) {
	file := write(t, "a.yaml", "# x\n"+podYAML)
	if _, out, errOut := call(t, "", "explain", "-f", file, "-o", "json"); !strings.Contains(out, `"file": "`+file+`"`) || !strings.Contains(out, `"line": 3`) {
		t.Errorf("%s%s", out, errOut)
	}
}

// directory has files, by their paths.
func directory(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for file, text := range files {
		file = filepath.Join(dir, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o750), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestExplain_linkToADirectory_isRead(t *testing.T) {
	dir, link := directory(t, map[string]string{"b.yaml/a.yaml": podYAML}), filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if code, out, errOut := call(t, "", "explain", "--strict", "-f", link, "-o", "json"); code != 0 || !strings.Contains(out, `"file": "`+link+`/b.yaml/a.yaml"`) {
		t.Errorf("code %d, %s%s", code, out, errOut)
	}
}
