package profile

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/test/kerneltest"
)

// sandboxes is a namespace whose pods may connect to some names.
func sandboxes(names string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Annotations: map[string]string{intent.KeyEgressNames: names}}}
}

func TestSamples_egress_rendersTheNamespacesNames(t *testing.T) {
	p := sample(t, "proxy-profile-egress.yaml")
	for name, c := range map[string]struct {
		ns           *corev1.Namespace
		names, below string
	}{
		"names":              {sandboxes("b.example, *.c.example,A.example.,*.d.example"), "a.example\nb.example\n", ".c.example\n.d.example\n"},
		"an empty list":      {sandboxes(""), "", ""},
		"no annotation":      {&corev1.Namespace{}, "", ""},
		"a namespace unseen": {nil, "", ""},
	} {
		pod := thePod()
		pod.Annotations = map[string]string{intent.KeyEgressNames: "evil.example"} // a pod cannot allow itself anything
		files, err := (Instance{Version: p, Pod: pod, Namespace: c.ns, Epoch: 3}).Files()
		if err != nil || files["names"] != c.names || files["below"] != c.below {
			t.Errorf("%s: names %q, below %q, error %v", name, files["names"], files["below"], err)
		}
	}
}

// A list that is wrong leaves no file: neither with the names before the mistake, nor with what was written behind a new line.
func TestSamples_egress_wrongListIsRefused(t *testing.T) {
	p := sample(t, "proxy-profile-egress.yaml")
	for _, list := range []string{"*", "192.0.2.1", "a.example\n  server evil 192.0.2.1", `a"b.example`, "a'b.example", "a.example #", "a.example,,b.example"} {
		files, err := (Instance{Version: p, Pod: thePod(), Namespace: sandboxes(list)}).Files()
		want := fmt.Sprintf("annotation %s of namespace shop: value %q", intent.KeyEgressNames, list)
		if err == nil || !strings.Contains(err.Error(), want) || len(files) > 0 {
			t.Errorf("%q: files %v, error %v", list, files, err)
		}
	}
}

// HAProxy reads the files, also empty and with as many names as an annotation has at most. It warns of resolvers that no route leads to, as those of the
// machine's resolv.conf may be.
func TestSamples_egress_haproxyTakesIt(t *testing.T) {
	haproxy := kerneltest.ProgramPath(t, "haproxy")
	many := make([]string, 10000)
	for i := range many {
		many[i] = fmt.Sprintf("n%d.example", i)
	}
	for name, list := range map[string]string{"none": "", "two": "a.example,*.b.example", "10,000": strings.Join(many, ",")} {
		files, err := (Instance{Version: sample(t, "proxy-profile-egress.yaml"), Pod: thePod(), Namespace: sandboxes(list)}).Files()
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		files["haproxy.cfg"] = strings.NewReplacer(PathFiles, dir, PathRun, dir, "parse-resolv-conf", "nameserver here 127.0.0.1:53").Replace(files["haproxy.cfg"])
		writeFiles(t, dir, files)
		out, err := exec.CommandContext(t.Context(), haproxy, "-c", "-f", filepath.Join(dir, "haproxy.cfg")).CombinedOutput()
		if err != nil || strings.Contains(string(out), "WARNING") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// A proxy that has the names is outdated once they change, others are not.
func TestWish_onlyOfProxiesWithNames_changesWithThem(t *testing.T) {
	with, without := sample(t, "proxy-profile-egress.yaml"), sample(t, "proxy-profile.yaml")
	for name, c := range map[string]struct {
		p      *Version
		before *corev1.Namespace
		after  *corev1.Namespace
		want   bool
	}{
		"another list":               {with, sandboxes("a.example"), sandboxes("b.example"), true},
		"the list is taken away":     {with, sandboxes("a.example"), &corev1.Namespace{}, true},
		"the first list":             {with, nil, sandboxes("a.example"), true},
		"no list, and an empty list": {with, &corev1.Namespace{}, sandboxes(""), false},
		"a proxy without names":      {without, sandboxes("a.example"), sandboxes("b.example"), false},
	} {
		if got := Wish(c.p, "", c.before) != Wish(c.p, "", c.after); got != c.want {
			t.Errorf("%s: a new proxy: %t, want %t", name, got, c.want)
		}
		if Wish(c.p, "1", c.after) == Wish(c.p, "2", c.after) {
			t.Errorf("%s: the pod's own wish is lost", name)
		}
	}
	if got := Wish(without, "1", sandboxes("a.example")); got != "1" {
		t.Errorf("an update of the agent would replace all proxies: the wish is %q", got)
	}
	if got := Wish(with, "", nil); got == "" {
		t.Error("without a list nothing would tell that a proxy has one")
	}
}

// However a template asks for the names, it is seen.
func TestParseTemplate_egressNames_areSeen(t *testing.T) {
	for text, want := range map[string]bool{
		`{{ range .Namespace.EgressNames }}{{ .Name }}{{ end }}`:                                             true,
		`{{ with .Pod }}{{ range $.Namespace.EgressNames }}{{ .Name }}{{ end }}{{ end }}`:                    true,
		`{{ with .Namespace }}{{ range .EgressNames }}{{ .Name }}{{ end }}{{ end }}`:                         true,
		`{{ $n := .Namespace }}{{ range $n.EgressNames }}{{ .Name }}{{ end }}`:                               true,
		`{{ range (.Namespace).EgressNames }}{{ .Name }}{{ end }}`:                                           true,
		`{{ if len .Namespace.EgressNames }}x{{ end }}`:                                                      true,
		`{{ define "x" }}{{ range .EgressNames }}{{ .Name }}{{ end }}{{ end }}{{ template "x" .Namespace }}`: true,
		`{{ .Pod.Namespace }}{{ .Namespace.Name }}`:                                                          false,
	} {
		parsed, err := ParseTemplate("file", text, syntaxPlain)
		if err != nil || parsed.readsEgressNames() != want {
			t.Errorf("%s: not %t, error %v", text, want, err)
		}
	}
}

func writeFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
