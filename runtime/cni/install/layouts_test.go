package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Files as people write them, and what the installer makes of them.
const (
	plain = `{
  "cniVersion": "1.0.0",
  "name": "kc",
  "plugins": [
    {"type": "bridge", "bridge": "cni0"},
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`
	chained = `{
  "cniVersion": "1.0.0",
  "name": "kc",
  "plugins": [
    {"type": "bridge", "bridge": "cni0"},
    {"type": "portmap", "capabilities": {"portMappings": true}},
    ` + ourEntry + `
  ]
}
`
	single = `{
  "cniVersion": "0.3.1",
  "name": "flannel", "type": "flannel",
  "delegate": {"isDefaultGateway": true}
}
`
)

func compact(entries ...string) string {
	return `{"cniVersion":"1.0.0","name":"n","plugins":[` + strings.Join(entries, ",") + `]}`
}

// layout is a configuration directory, and the one file that the installer must change.
type layout struct {
	files   map[string]string
	changed string
	want    string
}

func layouts() map[string]layout {
	type m = map[string]string
	calico := `{"type":"calico"}`
	large := `{"type":"large","x":"` + strings.Repeat("x", 2<<20) + `"}`
	return map[string]layout{
		"one list":           {m{"10-kc.conflist": plain}, "10-kc.conflist", chained},
		"a list on one line": {m{"10-a.conflist": compact(calico)}, "10-a.conflist", compact(calico, ourEntry)},
		"several files: the first in lexical order is changed": {
			m{"99-z.conflist": plain, "10-kc.conflist": plain, "20-f.conf": single}, "10-kc.conflist", chained,
		},
		"a list in a .conf is skipped":         {m{"00-x.conf": plain, "10-kc.conflist": plain}, "10-kc.conflist", chained},
		"a list in a .json is skipped":         {m{"00-x.json": plain, "10-kc.conflist": plain}, "10-kc.conflist", chained},
		"invalid JSON is skipped":              {m{"00-x.conflist": plain[:50], "10-kc.conflist": plain}, "10-kc.conflist", chained},
		"an empty file is skipped":             {m{"00-x.conflist": "", "01-x.conf": "", "10-kc.conflist": plain}, "10-kc.conflist", chained},
		"a byte order mark is invalid":         {m{"00-x.conflist": "\ufeff" + plain, "10-kc.conflist": plain}, "10-kc.conflist", chained},
		"a list without a name is skipped":     {m{"00-x.conflist": strings.Replace(plain, "name", "nom", 1), "10-kc.conflist": plain}, "10-kc.conflist", chained},
		"a list without plugins is skipped":    {m{"00-x.conflist": `{"cniVersion":"1.0.0","name":"n"}`, "10-kc.conflist": plain}, "10-kc.conflist", chained},
		"empty plugins are skipped":            {m{"00-x.conflist": compact(), "10-kc.conflist": plain}, "10-kc.conflist", chained},
		"plugins that are no list are skipped": {m{"00-x.conflist": `{"cniVersion":"1.0.0","name":"n","plugins":{}}`, "10-kc.conflist": plain}, "10-kc.conflist", chained},
		"a plugin without a type is skipped":   {m{"00-x.conflist": compact(`{"x":1}`), "10-kc.conflist": plain}, "10-kc.conflist", chained},
		"a .conf without a name is skipped":    {m{"00-x.conf": calico, "10-kc.conflist": plain}, "10-kc.conflist", chained},
		"files of others that are being written are ignored": {
			m{".05-cilium.conflist293125112": plain, "00-x.conflist.tmp": plain, "00-x.conflist.cilium_bak": plain, "00-x": plain, "10-kc.conflist": plain},
			"10-kc.conflist", chained,
		},
		"Multus, which delegates to the next file": {
			m{"00-multus.conflist": compact(`{"type":"multus","delegates":[{"name":"kc","plugins":[{"type":"bridge"}]}]}`), "10-kc.conflist": plain},
			"00-multus.conflist", compact(`{"type":"multus","delegates":[{"name":"kc","plugins":[{"type":"bridge"}]}]}`, ourEntry),
		},
		"carriage returns, tabs and blanks at ends of lines": {
			m{"10-a.conflist": "{\t\"cniVersion\":\"1.0.0\", \r\n\"name\":\"n\",\r\n\t\"plugins\" :\t[ \r\n\t\t{\"type\":\"a\"} ,\r\n\t\t{\"type\":\"b\"}\t\r\n\t]  }\r\n\r\n \t"},
			"10-a.conflist",
			"{\t\"cniVersion\":\"1.0.0\", \r\n\"name\":\"n\",\r\n\t\"plugins\" :\t[ \r\n\t\t{\"type\":\"a\"} ,\r\n\t\t{\"type\":\"b\"} ,\r\n\t\t" + ourEntry + "\t\r\n\t]  }\r\n\r\n \t",
		},
		"text that a formatter would change": {
			m{"10-a.conflist": `{"plugins":[{"type":"a","n":1.50e+3,"s":"\u00e9<&>","s":2}],"name":"n","x":null,"cniVersion":"1.0.0"}`},
			"10-a.conflist", `{"plugins":[{"type":"a","n":1.50e+3,"s":"\u00e9<&>","s":2},` + ourEntry + `],"name":"n","x":null,"cniVersion":"1.0.0"}`,
		},
		"plugins within plugins": {
			m{"10-a.conflist": compact(`{"type":"a","plugins":[{"type":"x"}]}`)}, "10-a.conflist", compact(`{"type":"a","plugins":[{"type":"x"}]}`, ourEntry),
		},
		"a very large list": {m{"10-a.conflist": compact(large)}, "10-a.conflist", compact(large, ourEntry)},
	}
}

func TestInstall_everyLayout_addsTheEntryOnly(t *testing.T) {
	for name, l := range layouts() {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			for file, text := range l.files {
				n.put(t, file, text)
			}
			if err := os.Mkdir(filepath.Join(n.conf, "00-directory.conflist"), 0o755); err != nil {
				t.Fatal(err)
			}
			before := n.tree(t)
			i := n.installer(t)
			l.install(t, n, i)
			wantOnly(t, before, n.tree(t), filepath.Join(n.conf, l.changed))
			if err := i.Uninstall(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, n.tree(t)); diff != "" {
				t.Errorf("uninstall leaves (-before +after):\n%s", diff)
			}
			if !isProgram(i.binary()) {
				t.Error("the binary that old sandboxes need is gone")
			}
		})
	}
}

// install installs twice, and checks the content of the one file.
func (l layout) install(t *testing.T, n *node, i *Installer) {
	t.Helper()
	for range 2 { // the second time there is nothing to do
		if err := i.Install(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(l.want, n.get(t, l.changed)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", l.changed, diff)
	}
	if err := i.Check(); err != nil {
		t.Error(err)
	}
}

// wantOnly checks that no file but one has changed or is new.
func wantOnly(t *testing.T, before, after map[string]string, file string) {
	t.Helper()
	for path, old := range before {
		if path != file && after[path] != old {
			t.Errorf("%s changed", path)
		}
	}
	for path := range after {
		if _, old := before[path]; !old && path != file {
			t.Errorf("%s is new", path)
		}
	}
}

func TestInstall_entryThere_isCorrected(t *testing.T) {
	a, b := `{"type":"a"}`, `{"type":"b"}`
	older := `{"type":"istio-pod-network-cni","socket":"/old","gone":1}`
	reordered := `{ "socket": "/run/s",  "type": "istio-pod-network-cni" }`
	cases := map[string]struct{ text, want, after string }{
		"the same":                       {compact(a, ourEntry), compact(a, ourEntry), compact(a)},
		"the same, formatted by another": {compact(a, reordered), compact(a, reordered), compact(a)},
		"of another version":             {compact(a, older), compact(a, ourEntry), compact(a)},
		"others behind it":               {compact(a, older, b), compact(a, ourEntry, b), compact(a, b)},
		"twice":                          {compact(a, ourEntry, b, older), compact(a, ourEntry, b), compact(a, b)},
		"first of all":                   {compact(older, a), compact(ourEntry, a), compact(a)},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.put(t, "10-a.conflist", c.text)
			before, _ := os.Stat(filepath.Join(n.conf, "10-a.conflist"))
			i := n.installer(t)
			if err := i.Install(t.Context()); err != nil {
				t.Fatal(err)
			}
			after, _ := os.Stat(filepath.Join(n.conf, "10-a.conflist"))
			if got := n.get(t, "10-a.conflist"); got != c.want || os.SameFile(before, after) != (c.text == c.want) {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if err := i.Uninstall(); err != nil {
				t.Fatal(err)
			}
			if got := n.get(t, "10-a.conflist"); got != c.after {
				t.Errorf("uninstalled: got  %s\nwant %s", got, c.after)
			}
		})
	}
}
